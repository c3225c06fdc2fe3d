// The optimizer of ranks that share an update.
//
//   parameters   are cut into pieces, each of which belongs to a rank: it has the piece's moments, and updates it
//   gradients    of a batch go from every rank to the owners of the pieces, which add them up in the order of batches
//                (gradient_exchange.h)
//   new values   go from the owners to all ranks
//
// A rank sends 2 (R - 1) / R times the parameters an update, half of that for each further batch that it computes.
// Sums, norms and updates are those of whole parameters, in an order that does not depend on the number of ranks.
#include <algorithm>
#include <cstring>
#include <span>

#include "train/gradient_exchange.h"
#include "train/optimizer.h"
#include "train/requests.h"

namespace attn::train {
namespace {

using cluster::Message;

/// How many of the first elements of this rank's part count in the norm: other ranks may have its last rows too, of
/// which the first counts them.
int64_t counted_elements(const nn::Parameter& parameter) {
  const nn::Slice& slice = parameter.slice;
  const int64_t all = parameter.master.count();
  if (slice.ranges.empty() || !slice.repeated_from || slice.is_first) return all;
  int64_t rows = 0, counted = 0;
  for (const nn::IndexRange& range : slice.ranges) {
    rows += range.count();
    if (range.begin < *slice.repeated_from) counted += range.count();
  }
  return all / rows * counted;
}

/// From the last parameter to the first, as the backward computes their gradients; each to the rank that has least.
std::vector<Piece> pieces_of(const nn::Parameters& parameters, int ranks) {
  std::vector<Piece> pieces;
  std::vector<int64_t> held(ranks, 0);
  for (size_t n = parameters.all().size(); n-- > 0;) {
    const nn::Parameter& parameter = parameters.all()[n];
    if (!parameter.value.wants_gradient()) continue;
    const int64_t total = parameter.master.count(), counted = counted_elements(parameter);
    for (int64_t first = 0, count = 0; first < total; first += count) {
      const auto least = std::min_element(held.begin(), held.end());
      count = std::min(ops::kSumPiece, (first < counted ? counted : total) - first);
      pieces.push_back({n, first, count, static_cast<int>(least - held.begin()), *least, first < counted});
      *least += count;
    }
  }
  return pieces;
}

class SharedOptimizer : public Optimizer {
 public:
  SharedOptimizer(const cluster::RankGrid& grid, nn::Parameters& parameters, LearningRateFactor factor)
      : ranks_(grid.replicas()),
        tensor_ranks_(grid.tensor()),
        parameters_(parameters),
        factor_(std::move(factor)),
        pieces_(pieces_of(parameters, ranks_.size())) {
    if (parameters.options().purpose != nn::Purpose::training)
      throw Error("train", {"the parameters are made for inference: they have no gradients"});
    int64_t own = 0;
    for (const Piece& piece : pieces_)
      if (is_own(piece)) own += piece.count;
    const DType dtype = parameters.dtype() == DType::float64 ? DType::float64 : DType::float32;
    for (Array* array : {&sum_, &first_moment_, &second_moment_}) *array = Array(dtype, {own});
    exchange_.emplace(ranks_, parameters, pieces_, sum_);
    for (const auto& [kind, moment] : {std::pair("adamw.m.", &first_moment_), std::pair("adamw.v.", &second_moment_)})
      for (size_t first = 0, end = 0; first < pieces_.size(); first = end) {
        while (end < pieces_.size() && pieces_[end].parameter == pieces_[first].parameter) ++end;
        saved_.push_back(
            {kind + parameter_of(pieces_[first]).name, moment, std::span(pieces_).subspan(first, end - first)});
      }
  }

  void begin() override { exchange_->begin_update(); }
  void begin_batch() override { exchange_->begin_batch(); }
  void after_step() override { exchange_->send_complete(); }
  void add_batch(const std::exception_ptr& failure) override { exchange_->end_batch(failure); }
  std::vector<std::optional<double>> squares() override;
  void step(ops::AdamWOptions options) override;
  int64_t updates() const override { return updates_; }
  std::vector<io::NamedTensor> moments() override;
  void end_moments() override { requests_.end(); }
  void give_moments() override;
  void load(const io::Safetensors& file, int64_t updates) override;

 private:
  bool is_own(const Piece& piece) const { return piece.owner == ranks_.rank(); }
  int64_t element() const { return size_of(sum_.dtype()); }
  const nn::Parameter& parameter_of(const Piece& piece) const { return parameters_.all()[piece.parameter]; }
  const void* collect(size_t n);
  void send_values();
  void add_slices(std::vector<std::optional<double>>& squares);

  cluster::Communicator &ranks_, &tensor_ranks_;
  nn::Parameters& parameters_;
  const LearningRateFactor factor_;
  const std::vector<Piece> pieces_;
  Array sum_, first_moment_, second_moment_;  // of the own pieces
  std::optional<GradientExchange> exchange_;
  int64_t updates_ = 0;

  /// A moment of a parameter, whose pieces are consecutive.
  struct Saved {
    std::string name;
    const Array* own;
    std::span<const Piece> pieces;
  };
  std::vector<Saved> saved_;
  Requests requests_{ranks_};
  Array collected_;
};

std::vector<std::optional<double>> SharedOptimizer::squares() {
  std::vector<double> own;
  for (const Piece& piece : pieces_)
    if (is_own(piece) && exchange_->has_sum(piece.parameter))
      own.push_back(piece.counts ? ops::sum_of_squares(own_part(sum_, piece)) : 0);
  const std::vector<std::vector<double>> all = cluster::gather(ranks_, own);
  std::vector<size_t> next(all.size(), 0);
  std::vector<std::optional<double>> squares(parameters_.all().size());
  for (const Piece& piece : pieces_) {
    if (!exchange_->has_sum(piece.parameter)) continue;
    squares[piece.parameter] = squares[piece.parameter].value_or(0) + all[piece.owner][next[piece.owner]++];
  }
  if (tensor_ranks_.size() > 1) add_slices(squares);
  return squares;
}

/// Of parameters of which each tensor rank has a slice: the sum over the ranks.
void SharedOptimizer::add_slices(std::vector<std::optional<double>>& squares) {
  std::vector<size_t> sliced;
  std::vector<double> mine;
  for (size_t n = 0; n < squares.size(); ++n) {
    if (!squares[n] || parameters_.all()[n].slice.ranges.empty()) continue;
    sliced.push_back(n);
    mine.push_back(*squares[n]);
    squares[n] = 0;
  }
  for (const std::vector<double>& rank : cluster::gather(tensor_ranks_, mine))
    for (size_t n = 0; n < sliced.size(); ++n) *squares[sliced[n]] += rank[n];
}

// -------------------------------------------------------------------------------------------------------------- update

void SharedOptimizer::step(ops::AdamWOptions options) {
  const double rate = options.learning_rate, decay = options.weight_decay;
  options.step = ++updates_;
  for (const Piece& piece : pieces_) {
    if (!is_own(piece) || !exchange_->has_sum(piece.parameter)) continue;
    const nn::Parameter& parameter = parameter_of(piece);
    options.weight_decay = parameter.decay ? decay : 0;
    options.learning_rate = rate * (factor_ ? factor_(parameter.name) : 1);
    ops::adamw(part_of(parameter.master, piece), own_part(sum_, piece), own_part(first_moment_, piece),
               own_part(second_moment_, piece), options);
  }
  send_values();
  parameters_.refresh();
}

void SharedOptimizer::send_values() {
  const ProfileSpan span("exchange of parameters");
  std::vector<Message> sent, received;
  for (const Piece& piece : pieces_) {
    if (!exchange_->has_sum(piece.parameter)) continue;
    const View<2> part = part_of(parameter_of(piece).master, piece);
    if (is_own(piece)) each_other_rank(ranks_, [&](int rank) { sent.push_back(message(rank, part)); });
    else received.push_back(message(piece.owner, part));
  }
  ranks_.start(sent, received, kValues)->wait();
}

// --------------------------------------------------------------------------------------------------------- checkpoints

std::vector<io::NamedTensor> SharedOptimizer::moments() {
  std::vector<io::NamedTensor> tensors;
  for (size_t n = 0; n < saved_.size(); ++n)
    tensors.push_back({.name = saved_[n].name,
                       .dtype = saved_[n].own->dtype(),
                       .shape = parameter_of(saved_[n].pieces[0]).master.shape(),
                       .load = [this, n] { return collect(n); }});
  return tensors;
}

/// The whole moment on the first rank, until the next is collected.
const void* SharedOptimizer::collect(size_t n) {
  requests_.ask(static_cast<int64_t>(n));
  const Saved& saved = saved_[n];
  collected_ = Array(saved.own->dtype(), parameter_of(saved.pieces[0]).master.shape(), false);
  std::vector<Message> received;
  for (const Piece& piece : saved.pieces) {
    const View<2> to = part_of(collected_, piece);
    if (is_own(piece))
      std::memcpy(to.data, own_part(*saved.own, piece).data, static_cast<size_t>(piece.count * element()));
    else received.push_back(message(piece.owner, to));
  }
  ranks_.start({}, received, kMoments)->wait();
  return collected_.data();
}

void SharedOptimizer::give_moments() {
  while (const std::optional<int64_t> n = requests_.next()) {
    const Saved& saved = saved_[static_cast<size_t>(*n)];
    std::vector<Message> sent;
    for (const Piece& piece : saved.pieces)
      if (is_own(piece)) sent.push_back(message(0, own_part(*saved.own, piece)));
    ranks_.start(sent, {}, kMoments)->wait();
  }
}

namespace {

/// What this rank has of an array in the file.
Array part_in(const io::Safetensors& file, const std::string& name, DType dtype, const nn::Parameter& parameter) {
  const Array whole(dtype, parameter.whole_shape, false);
  file.copy(name, dtype, whole.shape(), whole.data());
  return slice_of(whole, parameter.slice);
}

}  // namespace

void SharedOptimizer::load(const io::Safetensors& file, int64_t updates) {
  for (const auto& [kind, own] : {std::pair("adamw.m.", &first_moment_), std::pair("adamw.v.", &second_moment_)}) {
    Array part;
    std::string of;  // the parameter, whose pieces are consecutive
    for (const Piece& piece : pieces_) {
      const nn::Parameter& parameter = parameter_of(piece);
      const std::string name = kind + parameter.name;
      file.require(name, own->dtype(), parameter.whole_shape);
      if (!is_own(piece)) continue;
      if (std::exchange(of, name) != name) part = part_in(file, name, own->dtype(), parameter);
      std::memcpy(own_part(*own, piece).data, part_of(part, piece).data, static_cast<size_t>(piece.count * element()));
    }
  }
  updates_ = updates;
}

}  // namespace

std::unique_ptr<Optimizer> shared_optimizer(const cluster::RankGrid& ranks, nn::Parameters& parameters,
                                            LearningRateFactor factor) {
  return std::make_unique<SharedOptimizer>(ranks, parameters, std::move(factor));
}

}  // namespace attn::train
