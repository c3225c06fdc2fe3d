// Checkpoints of a training: what is saved, by which rank, and how a training goes on.
#include <cmath>
#include <cstring>
#include <limits>

#include "io/json.h"
#include "train/optimizer.h"
#include "train/options.h"
#include "train/pieces.h"

namespace attn::train {
namespace {

bool is_finite(double x) { return x - x == 0; }

/// The ranges of a slice that each rank has.
std::vector<std::vector<nn::IndexRange>> gather_ranges(cluster::Communicator& ranks, const nn::Slice& slice) {
  std::vector<std::vector<nn::IndexRange>> all;
  for (const std::string& bytes : cluster::gather(
           ranks, {reinterpret_cast<const char*>(slice.ranges.data()), slice.ranges.size() * sizeof(nn::IndexRange)})) {
    all.emplace_back(bytes.size() / sizeof(nn::IndexRange));
    std::memcpy(all.back().data(), bytes.data(), bytes.size());
  }
  return all;
}

/// On rank 0 of these ranks `tensor`, the rank's part of a parameter or of its moments, becomes the whole, whose memory
/// is in `copies`.
void collect(cluster::Communicator& ranks, const nn::Parameter& parameter, io::NamedTensor& tensor,
             std::vector<Array>& copies) {
  nn::Slice slice = parameter.slice;
  const std::vector<std::vector<nn::IndexRange>> ranges = gather_ranges(ranks, slice);
  const int64_t element = size_of(tensor.dtype);
  if (ranks.rank() > 0) {
    const cluster::Message mine = {0, const_cast<void*>(tensor.data), parameter.master.count() * element};
    return ranks.start({&mine, 1}, {}, kMoments)->wait();
  }
  const Array whole(tensor.dtype, parameter.whole_shape, false);
  std::vector<Array> parts;
  std::vector<cluster::Message> received;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    slice.ranges = ranges[static_cast<size_t>(rank)];
    parts.emplace_back(tensor.dtype, slice.shape_of(parameter.whole_shape), false);
    if (rank > 0) received.push_back({rank, parts.back().data(), parts.back().count() * element});
    else std::memcpy(parts[0].data(), tensor.data, static_cast<size_t>(parts[0].count() * element));
  }
  ranks.start({}, received, kMoments)->wait();
  for (int rank = 0; rank < ranks.size(); ++rank) {
    slice.ranges = ranges[static_cast<size_t>(rank)];
    put_slice(parts[static_cast<size_t>(rank)], slice, whole);
  }
  copies.push_back(whole);
  tensor.shape = whole.shape();
  tensor.data = whole.data();
}

}  // namespace

/// On rank 0: what its tensor ranks have of these parameters and moments, put together. All ranks with moments on their
/// place 0 of the other axes take part.
std::vector<io::NamedTensor> Trainer::whole_tensors(std::vector<io::NamedTensor> tensors,
                                                    std::vector<Array>& copies) const {
  cluster::Communicator& tensor = ranks().tensor();
  if (tensor.size() == 1 || ranks().replicas().rank() > 0) return tensors;
  for (io::NamedTensor& part : tensors) {
    const size_t prefix = part.name.starts_with("adamw.") ? std::string_view("adamw.m.").size() : 0;
    const nn::Parameter& parameter = *parameters_.find(part.name.substr(prefix));
    if (parameter.slice.ranges.empty()) continue;
    collect(tensor, parameter, part, copies);
  }
  return tensors;
}

void Trainer::save() {
  if (directory_.empty()) return;
  SavedMoments moments = optimizer_->saved_moments();
  std::vector<io::NamedTensor> tensors = parameters_.tensors();
  for (io::NamedTensor& tensor : moments.tensors) tensors.push_back(std::move(tensor));
  std::vector<Array> copies;
  tensors = whole_tensors(std::move(tensors), copies);
  OrderedJson state = {{"step", step_},
                       {"updates", optimizer_->updates()},
                       {"options", decisive(options_, parameters_.options().precision)}};
  if (scaler_) state["loss_scaling"] = {{"scale", scaler_->scale()}, {"streak", scaler_->streak()}};
  if (is_finite(best_score_)) {
    state["best_score"] = best_score_;
    state["metric"] = name_of(metric_);
  }
  state["since_best"] = since_best_;
  const bool keep = options_.keep_every > 0 && step_ % options_.keep_every == 0;
  cluster::on_all_ranks(ranks().all(), "checkpoint", [&] {
    if (ranks().all().rank() == 0) models::Checkpoints(directory_).save(step_, tensors, state.dump(), is_best_, keep);
  });
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
