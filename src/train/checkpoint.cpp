// Checkpoints of a training: what is saved, by which rank, and how a training goes on.
#include <cmath>
#include <limits>

#include "io/json.h"
#include "train/optimizer.h"
#include "train/options.h"
#include "train/pieces.h"
#include "train/requests.h"

namespace attn::train {
namespace {

bool is_finite(double x) { return x - x == 0; }

/// Parameters and moments of which tensor ranks have slices, one at a time on rank 0: no rank needs memory for all.
class Slices {
 public:
  /// `tensors` are those of this rank, the same on all, and borrowed.
  Slices(cluster::Communicator& ranks, const nn::Parameters& parameters, std::vector<io::NamedTensor>& tensors)
      : ranks_(ranks), requests_(ranks), tensors_(tensors) {
    std::vector<nn::IndexRange> mine;
    for (const io::NamedTensor& tensor : tensors) {
      const size_t prefix = tensor.name.starts_with("adamw.") ? std::string_view("adamw.m.").size() : 0;
      of_.push_back(parameters.find(tensor.name.substr(prefix)));
      mine.insert(mine.end(), of_.back()->slice.ranges.begin(), of_.back()->slice.ranges.end());
    }
    ranges_ = cluster::gather(ranks, mine);
  }

  /// On rank 0: the tensors, whose slices come from the other ranks when they are read, until end().
  std::vector<io::NamedTensor> whole() {
    std::vector<io::NamedTensor> all = tensors_;
    size_t next = 0;  // among the ranges
    for (size_t n = 0; n < all.size(); next += of_[n]->slice.ranges.size(), ++n) {
      if (of_[n]->slice.ranges.empty()) continue;
      all[n].shape = of_[n]->whole_shape;
      all[n].data = nullptr;
      all[n].load = [this, n, next] { return collect(n, next); };
    }
    return all;
  }
  void end() { requests_.end(); }

  /// On the other ranks: sends what rank 0 reads, until end().
  void give() {
    while (const std::optional<int64_t> n = requests_.next()) {
      const std::string_view bytes = io::bytes_of(tensors_[*n]);
      const cluster::Message mine = {0, const_cast<char*>(bytes.data()), std::ssize(bytes)};
      ranks_.start({&mine, 1}, {}, kMoments)->wait();
    }
  }

 private:
  int64_t bytes_of(const std::vector<int64_t>& shape, size_t n) const {
    int64_t bytes = size_of(tensors_[n].dtype);
    for (const int64_t extent : shape) bytes *= extent;
    return bytes;
  }

  const void* collect(size_t n, size_t first_range) {
    requests_.ask(static_cast<int64_t>(n));
    const nn::Parameter& parameter = *of_[n];
    whole_ = Array(tensors_[n].dtype, parameter.whole_shape, false);
    nn::Slice slice = parameter.slice;
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      const auto from = ranges_[static_cast<size_t>(rank)].begin() + static_cast<int64_t>(first_range);
      slice.ranges.assign(from, from + std::ssize(parameter.slice.ranges));
      const std::vector<int64_t> shape = slice.shape_of(parameter.whole_shape);
      if (rank == 0) {
        const char* mine = io::bytes_of(tensors_[n]).data();
        put_slice(Array(whole_.dtype(), shape, {std::shared_ptr<void>(), const_cast<char*>(mine)}), slice, whole_);
        continue;
      }
      const Array part(whole_.dtype(), shape, false);
      const cluster::Message theirs = {rank, part.data(), bytes_of(shape, n)};
      ranks_.start({}, {&theirs, 1}, kMoments)->wait();
      put_slice(part, slice, whole_);
    }
    return whole_.data();
  }

  cluster::Communicator& ranks_;
  Requests requests_;
  std::vector<io::NamedTensor>& tensors_;
  std::vector<const nn::Parameter*> of_;
  std::vector<std::vector<nn::IndexRange>> ranges_;  // of each rank, of all tensors
  Array whole_;
};

/// work(), and end() whether it throws or not.
template <class Work, class End>
void do_and_end(const Work& work, const End& end) {
  try {
    work();
  } catch (...) {
    end();
    throw;
  }
  end();
}

}  // namespace

/// Rank 0 writes what it has and what it asks the others for, one tensor at a time: it asks the first rank of each
/// slice of the layers, which asks those that have the moments of the slice.
void Trainer::write_checkpoint(const std::string& state) {
  if (ranks().replicas().rank() > 0) return optimizer_->give_moments();
  std::vector<io::NamedTensor> tensors = parameters_.tensors();
  for (io::NamedTensor& moment : optimizer_->moments()) tensors.push_back(std::move(moment));
  const bool keep = options_.keep_every > 0 && step_ % options_.keep_every == 0;
  const auto write = [&](std::span<const io::NamedTensor> all) {
    models::Checkpoints(directory_).save(step_, all, state, is_best_, keep);
  };
  const auto write_slices = [&] {
    Slices slices(ranks().tensor(), parameters_, tensors);
    if (ranks().tensor().rank() > 0) slices.give();
    else do_and_end([&] { write(slices.whole()); }, [&] { slices.end(); });
  };
  do_and_end([&] { ranks().tensor().size() == 1 ? write(tensors) : write_slices(); },
             [&] { optimizer_->end_moments(); });
}

void Trainer::save() {
  if (directory_.empty()) return;
  OrderedJson state = {{"step", step_},
                       {"updates", optimizer_->updates()},
                       {"options", decisive(options_, parameters_.options().precision)}};
  if (scaler_) state["loss_scaling"] = {{"scale", scaler_->scale()}, {"streak", scaler_->streak()}};
  if (is_finite(best_score_)) {
    state["best_score"] = best_score_;
    state["metric"] = name_of(metric_);
  }
  state["since_best"] = since_best_;
  cluster::on_all_ranks(ranks(), "checkpoint", [&] { write_checkpoint(state.dump()); });
  saved_step_ = step_;
}

namespace {

std::optional<int64_t> count_in(const io::Json& object, const char* name) {
  return object.is_object() && object.contains(name) ? io::whole_number(object[name]) : std::nullopt;
}

/// What save() writes.
bool is_state(const io::Json& state) {
  if (!count_in(state, "step") || !count_in(state, "updates")) return false;
  if (!state.contains("options") || !state["options"].is_object()) return false;
  if (state["options"].value("loss_scaling", io::Json()).is_null()) return true;
  const io::Json scaling = state.value("loss_scaling", io::Json());
  return count_in(scaling, "streak") && scaling.contains("scale") && scaling["scale"].is_number();
}

}  // namespace

void Trainer::resume(std::vector<std::string>* notes) {
  cluster::on_all_ranks(ranks().all(), "resume", [&] { load_checkpoint(notes); });
  agreed_ = false;
}

void Trainer::load_checkpoint(std::vector<std::string>* notes) {
  const models::Checkpoint checkpoint = models::Checkpoints(directory_).load("last", notes);
  const io::Json state = io::parse_json("resume", checkpoint.path + ", the trainer's state", checkpoint.state);
  if (!is_state(state)) throw Error("resume", {checkpoint.path + ": the trainer's state is not what a trainer writes"});
  std::vector<std::string> reasons;
  const io::Json own = decisive(options_, parameters_.options().precision);
  for (const auto& [name, value] : own.items()) {
    if (name == "decay_steps" && options_.decay_steps > 0) continue;  // the cosine may be given another end
    if (name == "layer_decay" && value == 1 && !state["options"].contains(name)) continue;  // an older checkpoint
    if (const io::Json& saved = state["options"].value(name, io::Json()); saved != value)
      reasons.push_back(checkpoint.path + " was trained with " + name + " " + saved.dump() + ", not " + value.dump());
  }
  if (!reasons.empty()) throw Error("resume", std::move(reasons));

  if (scaler_) scaler_->restore(state["loss_scaling"]["scale"], state["loss_scaling"]["streak"]);
  parameters_.load(checkpoint.file);
  optimizer_->load(checkpoint.file, *count_in(state, "updates"));
  step_ = *count_in(state, "step");
  best_score_ = state.contains("best_score") && state["best_score"].is_number()
                    ? state["best_score"].get<double>()
                    : std::numeric_limits<double>::quiet_NaN();
  if (const io::Json metric = state.value("metric", io::Json()); metric.is_string())
    metric_ = from_name<Metric>(metric.get<std::string>()).value_or(Metric::loss);
  since_best_ = count_in(state, "since_best").value_or(0);
  saved_step_ = step_;
}

}  // namespace attn::train
