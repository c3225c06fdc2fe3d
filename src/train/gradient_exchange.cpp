#include "train/gradient_exchange.h"

#include <algorithm>
#include <cstring>

namespace attn::train {
namespace {

constexpr int64_t kBucketBytes = int64_t{4} << 20;  // of pieces that a bucket has
constexpr size_t kBuckets = 2;                      // on their way at a time

// What a rank says of the gradient of a parameter after a batch.
enum State : char { kNone, kHas, kChanged };

}  // namespace

GradientExchange::GradientExchange(cluster::Communicator& ranks, nn::Parameters& parameters,
                                   const std::vector<Piece>& pieces, Array sum)
    : ranks_(ranks),
      parameters_(parameters),
      pieces_(pieces),
      sum_(std::move(sum)),
      zeros_(sum_.dtype(), {ops::kSumPiece}),
      has_sum_(parameters.all().size()),
      early_(ranks.size(), std::string(parameters.all().size(), kNone)),
      handles_(parameters.all().size()),
      sent_additions_(parameters.all().size()) {}

void GradientExchange::begin_update() {
  parameters_.clear_gradients();
  std::fill(has_sum_.begin(), has_sum_.end(), false);
}

void GradientExchange::begin_batch() {
  next_ = 0;
  std::transform(parameters_.all().begin(), parameters_.all().end(), handles_.begin(),
                 [](const nn::Parameter& parameter) { return parameter.value.handles(); });
}

/// Zeros of a parameter that has none in this batch, although it is sent.
View<2> GradientExchange::gradient_of(const Piece& piece) const {
  const nn::Value& value = parameter_of(piece).value;
  return value.gradient_is_empty() ? part_of(zeros_, 0, piece.count) : part_of(value.gradient(), piece);
}

bool GradientExchange::is_complete(const Piece& piece) const {
  const nn::Value& value = parameter_of(piece).value;
  return !value.gradient_is_empty() && value.handles() == handles_[piece.parameter];
}

size_t GradientExchange::end_of_bucket(size_t begin) const {
  int64_t bytes = 0;
  while (begin < pieces_.size() && bytes < kBucketBytes) bytes += pieces_[begin++].count * size_of(sum_.dtype());
  return begin;
}

void GradientExchange::start_bucket(const Senders& senders) {
  Bucket bucket{.begin = next_, .end = end_of_bucket(next_)};
  int64_t elements = 0;
  for (size_t p = bucket.begin; p < bucket.end; ++p)
    each_other_rank(ranks_, [&](int rank) {
      if (is_own(pieces_[p]) && senders[rank][pieces_[p].parameter]) elements += pieces_[p].count;
    });
  bucket.received = Array(sum_.dtype(), {elements}, false);
  std::vector<cluster::Message> sent, received;
  int64_t offset = 0;
  for (size_t p = bucket.begin; p < bucket.end; ++p) {
    const Piece& piece = pieces_[p];
    if (senders[ranks_.rank()][piece.parameter]) {
      sent_additions_[piece.parameter] = parameter_of(piece).value.additions();
      if (!is_own(piece)) sent.push_back(message(piece.owner, gradient_of(piece)));
    }
    if (!is_own(piece)) continue;
    each_other_rank(ranks_, [&](int rank) {
      if (!senders[rank][piece.parameter]) return;
      received.push_back(message(rank, part_of(bucket.received, offset, piece.count)));
      offset += piece.count;
    });
  }
  next_ = bucket.end;
  bucket.transfer = ranks_.start(sent, received, kGradients);
  buckets_.push_back(std::move(bucket));
}

/// Waits for the oldest bucket, and adds what has come to the sums in the order of ranks, which is that of their
/// batches.
void GradientExchange::finish_bucket(const Senders& senders) {
  const Bucket& bucket = buckets_.front();
  bucket.transfer->wait();
  int64_t offset = 0;
  for (size_t p = bucket.begin; p < bucket.end; ++p) {
    const Piece& piece = pieces_[p];
    if (!is_own(piece)) continue;
    const View<2> sum = own_part(sum_, piece);
    bool filled = has_sum_[piece.parameter];
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      if (!senders[rank][piece.parameter]) continue;
      const bool own = rank == ranks_.rank();
      const View<2> gradient = own ? gradient_of(piece) : part_of(bucket.received, offset, piece.count);
      if (!own) offset += piece.count;
      if (filled) ops::add(sum, gradient, sum);
      else std::memcpy(sum.data, gradient.data, static_cast<size_t>(piece.count * size_of(sum.dtype)));
      filled = true;
    }
  }
  buckets_.pop_front();
}

void GradientExchange::send_complete() {
  const auto may_be_sent = [&](const Piece& piece) {
    return !early_[ranks_.rank()][piece.parameter] || is_complete(piece);
  };
  while (!buckets_.empty() && buckets_.front().transfer->progress()) finish_bucket(early_);
  while (buckets_.size() < kBuckets && next_ < pieces_.size() &&
         std::all_of(pieces_.begin() + next_, pieces_.begin() + end_of_bucket(next_), may_be_sent))
    start_bucket(early_);
}

void GradientExchange::finish_all(const Senders& senders) {
  while (next_ < pieces_.size() || !buckets_.empty()) {
    if (next_ < pieces_.size() && buckets_.size() < kBuckets) start_bucket(senders);
    else finish_bucket(senders);
  }
  next_ = 0;
}

std::string GradientExchange::state_of_gradients() const {
  std::string states;
  for (size_t n = 0; n < parameters_.all().size(); ++n) {
    const nn::Value& value = parameters_.all()[n].value;
    const bool has = value.wants_gradient() && !value.gradient_is_empty();
    const bool changed = has && early_[ranks_.rank()][n] && value.additions() != sent_additions_[n];
    states += changed ? kChanged : has ? kHas : kNone;
  }
  return states;
}

void GradientExchange::end_batch(const std::exception_ptr& failure) {
  const ProfileSpan span("exchange of gradients");
  finish_all(early_);
  if (failure) cluster::on_all_ranks(ranks_, "the backward", [&] { std::rethrow_exception(failure); });
  const Senders has = cluster::gather(ranks_, state_of_gradients());
  Senders late = has;
  for (size_t n = 0; n < has_sum_.size(); ++n) {
    bool all = !parameters_.all()[n].slice.repeated_from;
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      if (has[rank][n] == kChanged)
        throw cluster::RanksError(
            ranks_, "train",
            {"rank " + std::to_string(ranks_.job_rank(rank)) + " has added to the gradient of " +
             parameters_.all()[n].name + " after it was sent: TrainerOptions::overlap must be false"});
      if (early_[rank][n]) late[rank][n] = kNone;
      all = all && has[rank][n] == kHas;
    }
    for (std::string& rank : early_) rank[n] = all ? kHas : kNone;
  }
  finish_all(late);
  for (size_t n = 0; n < has_sum_.size(); ++n)
    for (const std::string& rank : has) has_sum_[n] = has_sum_[n] || rank[n];
  parameters_.clear_gradients();
}

}  // namespace attn::train
