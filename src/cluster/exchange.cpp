#include "cluster/exchange.h"

#include <algorithm>

#include "cluster/arrays.h"

namespace attn::cluster {
namespace {

/// A chunk as it is sent: all keys, then all values.
struct Packed {
  View<4> k, v;
};
Packed packed_at(const Whole& whole, int64_t place, void* memory) {
  const ClusterShape& shape = whole.shape();
  const TokenRange range = whole.sharding().keys.chunk(place);
  const int64_t n = range.end - range.begin;
  const Shape<4> k = {shape.B, shape.Hk, n, shape.D}, v = {shape.B, shape.Hk, n, shape.Dv};
  const int64_t key_bytes = count_of(k) * size_of(shape.dtype);
  return {{memory, shape.dtype, k}, {static_cast<char*>(memory) + key_bytes, shape.dtype, v}};
}

}  // namespace

KeyExchange::KeyExchange(Communicator& ranks, const Whole& whole, const ConstView<4>& k, const ConstView<4>& v,
                         int ahead)
    : ranks_(ranks),
      whole_(whole),
      k_(k),
      v_(v),
      rank_(ranks.rank()),
      size_(ranks.size()),
      ahead_(ahead),
      own_(whole.sharding().keys, ranks.rank()) {
  if (size_ > 1) pack_own();
}

void KeyExchange::pack_own() {
  packed_at_.assign(own_.end() - own_.first(), -1);
  int64_t bytes = 0;
  for (int to = 0; to < size_; ++to)
    for (const int64_t place : to == rank_ ? std::vector<int64_t>() : whole_.needed(to, rank_)) {
      int64_t& at = packed_at_[place - own_.first()];
      if (at >= 0) continue;
      at = bytes;
      bytes += whole_.chunk_bytes(place);
    }
  packed_ = Buffer(bytes);
  for (int64_t place = own_.first(); place < own_.end(); ++place) {
    if (packed_at_[place - own_.first()] < 0) continue;
    char* memory = static_cast<char*>(packed_.data()) + packed_at_[place - own_.first()];
    const Packed to = packed_at(whole_, place, memory);
    const int64_t begin = own_.offset(place), end = begin + to.k.size[2];
    copy(k_.slice(2, begin, end), to.k);
    copy(v_.slice(2, begin, end), to.v);
  }
}

void KeyExchange::start(int number) {
  Step& step = steps_.emplace_back();
  step.number = number;
  step.places = whole_.needed(rank_, source(number));
  if (number == 0) return;
  int64_t bytes = 0;
  for (const int64_t place : step.places) {
    step.offsets.push_back(bytes);
    bytes += whole_.chunk_bytes(place);
  }
  step.memory = Buffer(bytes);
  std::vector<Message> sent, received;
  const int to = (rank_ + number) % size_;
  for (const int64_t place : whole_.needed(to, rank_))
    sent.push_back(
        {to, static_cast<char*>(packed_.data()) + packed_at_[place - own_.first()], whole_.chunk_bytes(place)});
  for (size_t n = 0; n < step.places.size(); ++n)
    received.push_back(
        {source(number), static_cast<char*>(step.memory.data()) + step.offsets[n], whole_.chunk_bytes(step.places[n])});
  step.transfer = cluster::start(ranks_, std::move(sent), std::move(received), kKeys);
}

void KeyExchange::enter(int number) {
  if (number > 0) steps_.pop_front();
  for (; started_ < size_ && started_ <= number + ahead_; ++started_) start(started_);
  if (steps_.front().transfer) steps_.front().transfer->wait();
}

ChunkKeys KeyExchange::keys(int64_t place) const {
  const Step& step = steps_.front();
  if (step.number == 0) {
    const TokenRange range = whole_.sharding().keys.chunk(place);
    const int64_t begin = own_.offset(place), end = begin + range.end - range.begin;
    return {k_.slice(2, begin, end), v_.slice(2, begin, end)};
  }
  const auto n = std::lower_bound(step.places.begin(), step.places.end(), place) - step.places.begin();
  const Packed from = packed_at(whole_, place, static_cast<char*>(step.memory.data()) + step.offsets[n]);
  return {from.k, from.v};
}

void KeyExchange::progress() {
  for (Step& step : steps_)
    if (step.transfer) step.transfer->progress();
}

int64_t KeyExchange::buffer_bytes(const Whole& whole, int rank, int ahead) {
  const int size = whole.ranks();
  std::vector<int64_t> bytes(size, 0);
  for (int step = 1; step < size; ++step)
    for (const int64_t place : whole.needed(rank, (rank - step + size) % size)) bytes[step] += whole.chunk_bytes(place);
  int64_t most = 0;
  for (int step = 0; step < size; ++step) {
    int64_t now = 0;
    for (int other = step; other < size && other <= step + ahead; ++other) now += bytes[other];
    most = std::max(most, now);
  }
  return most;
}

}  // namespace attn::cluster
