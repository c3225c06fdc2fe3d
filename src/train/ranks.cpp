// The optimizer of ranks that share an update.
//
//   parameters   are cut into pieces, each of which belongs to a rank: it has the piece's moments, and updates it
//   gradients    of a batch go from every rank to the owners of the pieces, which add them up in the order of batches
//   new values   go from the owners to all ranks
//
// A rank sends 2 (R - 1) / R times the parameters an update, half of that for each further batch that it computes.
// Sums, norms and updates are those of whole parameters, in an order that does not depend on the number of ranks.
#include <algorithm>
#include <cstring>

#include "train/optimizer.h"

namespace attn::train {
namespace {

using cluster::Message;
using cluster::Transfer;

enum Tag { kGradients = 16, kValues = 17, kMoments = 18 };

constexpr int64_t kWindowBytes = int64_t{4} << 20;  // of pieces whose gradients are on their way at a time

/// Elements first .. first + count - 1 of a parameter. A piece of sum_of_squares(), so that a norm is that of the
/// whole.
struct Piece {
  size_t parameter = 0;
  int64_t first = 0, count = 0;
  int owner = 0;
  int64_t offset = 0;  // among the elements of its owner
};

/// The part of an array that a piece is.
View<2> part_of(const Array& array, int64_t first, int64_t count) {
  return {static_cast<char*>(array.data()) + first * size_of(array.dtype()), array.dtype(), {1, count}};
}
View<2> part_of(const Array& array, const Piece& piece) { return part_of(array, piece.first, piece.count); }

/// From the last parameter to the first, as the backward computes their gradients; each to the rank that has least.
std::vector<Piece> pieces_of(const nn::Parameters& parameters, int ranks) {
  std::vector<Piece> pieces;
  std::vector<int64_t> held(ranks, 0);
  for (size_t n = parameters.all().size(); n-- > 0;) {
    const nn::Parameter& parameter = parameters.all()[n];
    if (!parameter.value.wants_gradient()) continue;
    const int64_t total = parameter.master.count();
    for (int64_t first = 0; first < total; first += ops::kSumPiece) {
      const auto least = std::min_element(held.begin(), held.end());
      const int64_t count = std::min(ops::kSumPiece, total - first);
      pieces.push_back({n, first, count, static_cast<int>(least - held.begin()), *least});
      *least += count;
    }
  }
  return pieces;
}

class SharedOptimizer : public Optimizer {
 public:
  SharedOptimizer(cluster::Communicator& ranks, nn::Parameters& parameters, LearningRateFactor factor)
      : ranks_(ranks),
        parameters_(parameters),
        factor_(std::move(factor)),
        pieces_(pieces_of(parameters, ranks.size())),
        has_sum_(parameters.all().size()) {
    if (parameters.options().purpose != nn::Purpose::training)
      throw Error("train", {"the parameters are made for inference: they have no gradients"});
    int64_t own = 0;
    for (const Piece& piece : pieces_)
      if (is_own(piece)) own += piece.count;
    const DType dtype = parameters.dtype() == DType::float64 ? DType::float64 : DType::float32;
    for (Array* array : {&sum_, &first_moment_, &second_moment_}) *array = Array(dtype, {own});
  }

  void begin() override {
    parameters_.clear_gradients();
    std::fill(has_sum_.begin(), has_sum_.end(), false);
  }

  void add_batch() override;
  std::vector<std::optional<double>> squares() override;
  void step(ops::AdamWOptions options) override;
  int64_t updates() const override { return updates_; }
  SavedMoments saved_moments() override;
  void load(const io::Safetensors& file, int64_t updates) override;

 private:
  /// Gradients of consecutive pieces on their way to their owners.
  struct Window {
    size_t begin = 0, end = 0;
    Array received = {};  // own pieces in order, from each rank but this one in order
    std::unique_ptr<Transfer> transfer = {};
  };

  bool is_own(const Piece& piece) const { return piece.owner == ranks_.rank(); }
  int64_t element() const { return size_of(sum_.dtype()); }
  const nn::Parameter& parameter_of(const Piece& piece) const { return parameters_.all()[piece.parameter]; }
  Message message(int rank, const View<2>& part) const { return {rank, part.data, part.size[1] * element()}; }
  View<2> own_part(const Array& array, const Piece& piece) const { return part_of(array, piece.offset, piece.count); }
  template <class Each>
  void each_other(const Each& each) const {
    for (int rank = 0; rank < ranks_.size(); ++rank)
      if (rank != ranks_.rank()) each(rank);
  }

  Window start(size_t begin, const std::vector<std::string>& has) const;
  void finish(Window& window, const std::vector<std::string>& has);
  void send_values();

  cluster::Communicator& ranks_;
  nn::Parameters& parameters_;
  const LearningRateFactor factor_;
  const std::vector<Piece> pieces_;
  std::vector<bool> has_sum_;                 // of each parameter: a batch has had a gradient of it
  Array sum_, first_moment_, second_moment_;  // of the own pieces
  int64_t updates_ = 0;
};

// ----------------------------------------------------------------------------------------------------------- gradients

/// The next pieces, as many as a window holds. `has`: for each rank, which parameters have a gradient there.
SharedOptimizer::Window SharedOptimizer::start(size_t begin, const std::vector<std::string>& has) const {
  Window window{.begin = begin, .end = begin};
  int64_t bytes = 0, elements = 0;
  while (window.end < pieces_.size() && bytes < kWindowBytes) {
    const Piece& piece = pieces_[window.end++];
    bytes += piece.count * element();
    if (is_own(piece)) each_other([&](int rank) { elements += has[rank][piece.parameter] ? piece.count : 0; });
  }
  window.received = Array(sum_.dtype(), {elements}, false);
  std::vector<Message> sent, received;
  int64_t offset = 0;
  for (size_t p = begin; p < window.end; ++p) {
    const Piece& piece = pieces_[p];
    if (is_own(piece)) {
      each_other([&](int rank) {
        if (!has[rank][piece.parameter]) return;
        received.push_back(message(rank, part_of(window.received, offset, piece.count)));
        offset += piece.count;
      });
    } else if (has[ranks_.rank()][piece.parameter]) {
      sent.push_back(message(piece.owner, part_of(parameter_of(piece).value.gradient(), piece)));
    }
  }
  window.transfer = ranks_.start(sent, received, kGradients);
  return window;
}

/// Adds what has come to the sums, in the order of ranks, which is that of their batches.
void SharedOptimizer::finish(Window& window, const std::vector<std::string>& has) {
  window.transfer->wait();
  int64_t offset = 0;
  for (size_t p = window.begin; p < window.end; ++p) {
    const Piece& piece = pieces_[p];
    if (!is_own(piece)) continue;
    const View<2> sum = own_part(sum_, piece);
    bool filled = has_sum_[piece.parameter];
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      if (!has[rank][piece.parameter]) continue;
      const bool own = rank == ranks_.rank();
      const View<2> gradient =
          own ? part_of(parameter_of(piece).value.gradient(), piece) : part_of(window.received, offset, piece.count);
      if (!own) offset += piece.count;
      if (filled) ops::add(sum, gradient, sum);
      else std::memcpy(sum.data, gradient.data, static_cast<size_t>(piece.count * element()));
      filled = true;
    }
  }
}

void SharedOptimizer::add_batch() {
  const ProfileSpan span("exchange of gradients");
  std::string mine;
  for (const nn::Parameter& parameter : parameters_.all())
    mine += static_cast<char>(parameter.value.wants_gradient() && !parameter.value.gradient_is_empty());
  const std::vector<std::string> has = cluster::gather(ranks_, mine);
  Window last;
  for (size_t begin = 0; begin < pieces_.size();) {
    Window window = start(begin, has);
    begin = window.end;
    if (last.transfer) finish(last, has);
    last = std::move(window);
  }
  if (last.transfer) finish(last, has);
  for (size_t n = 0; n < has_sum_.size(); ++n)
    for (const std::string& rank : has) has_sum_[n] = has_sum_[n] || rank[n];
  parameters_.clear_gradients();
}

std::vector<std::optional<double>> SharedOptimizer::squares() {
  std::vector<double> own;
  for (const Piece& piece : pieces_)
    if (is_own(piece) && has_sum_[piece.parameter]) own.push_back(ops::sum_of_squares(own_part(sum_, piece)));
  const std::vector<std::vector<double>> all = gather_numbers(ranks_, own);
  std::vector<size_t> next(all.size(), 0);
  std::vector<std::optional<double>> squares(parameters_.all().size());
  for (const Piece& piece : pieces_) {
    if (!has_sum_[piece.parameter]) continue;
    squares[piece.parameter] = squares[piece.parameter].value_or(0) + all[piece.owner][next[piece.owner]++];
  }
  return squares;
}

// -------------------------------------------------------------------------------------------------------------- update

void SharedOptimizer::step(ops::AdamWOptions options) {
  const double rate = options.learning_rate, decay = options.weight_decay;
  options.step = ++updates_;
  for (const Piece& piece : pieces_) {
    if (!is_own(piece) || !has_sum_[piece.parameter]) continue;
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
    if (!has_sum_[piece.parameter]) continue;
    const View<2> part = part_of(parameter_of(piece).master, piece);
    if (is_own(piece)) each_other([&](int rank) { sent.push_back(message(rank, part)); });
    else received.push_back(message(piece.owner, part));
  }
  ranks_.start(sent, received, kValues)->wait();
}

// --------------------------------------------------------------------------------------------------------- checkpoints

SavedMoments SharedOptimizer::saved_moments() {
  SavedMoments saved;
  std::vector<Message> sent, received;
  const bool collects = ranks_.rank() == 0;
  for (const auto& [kind, own] : {std::pair("adamw.m.", &first_moment_), std::pair("adamw.v.", &second_moment_)}) {
    std::vector<Array> whole(parameters_.all().size());
    for (const Piece& piece : pieces_) {
      const nn::Parameter& parameter = parameter_of(piece);
      const View<2> part = is_own(piece) ? own_part(*own, piece) : View<2>();
      if (!collects && is_own(piece)) sent.push_back(message(0, part));
      if (!collects) continue;
      Array& to = whole[piece.parameter];
      if (!to) {
        to = Array(own->dtype(), parameter.master.shape(), false);
        saved.copies.push_back(to);
        saved.tensors.push_back({kind + parameter.name, to.dtype(), to.shape(), to.data()});
      }
      const View<2> place = part_of(to, piece);
      if (is_own(piece)) std::memcpy(place.data, part.data, static_cast<size_t>(piece.count * element()));
      else received.push_back(message(piece.owner, place));
    }
  }
  ranks_.start(sent, received, kMoments)->wait();
  return saved;
}

void SharedOptimizer::load(const io::Safetensors& file, int64_t updates) {
  for (const auto& [kind, own] : {std::pair("adamw.m.", &first_moment_), std::pair("adamw.v.", &second_moment_)})
    for (const Piece& piece : pieces_) {
      const std::string name = kind + parameter_of(piece).name;
      file.require(name, own->dtype(), parameter_of(piece).master.shape());
      if (is_own(piece))
        std::memcpy(own_part(*own, piece).data, file.bytes(name).data() + piece.first * element(),
                    static_cast<size_t>(piece.count * element()));
    }
  updates_ = updates;
}

}  // namespace

std::vector<std::vector<double>> gather_numbers(cluster::Communicator& ranks, const std::vector<double>& mine) {
  std::vector<std::vector<double>> all;
  for (const std::string& bytes :
       cluster::gather(ranks, {reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(double)})) {
    all.emplace_back(bytes.size() / sizeof(double));
    if (!bytes.empty()) std::memcpy(all.back().data(), bytes.data(), bytes.size());
  }
  return all;
}

std::unique_ptr<Optimizer> shared_optimizer(cluster::Communicator& ranks, nn::Parameters& parameters,
                                            LearningRateFactor factor) {
  return std::make_unique<SharedOptimizer>(ranks, parameters, std::move(factor));
}

}  // namespace attn::train
