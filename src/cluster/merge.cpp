// Decoding with keys that ranks share: each rank has the state of the same queries over its own keys, and all get the
// state over the keys of all.
//
//   rows of a state        cut into as many parts as there are ranks
//   each rank              receives its part of the rows from all, merges them as a tree over the ranks, and sends the
//                          result to all: 2 (R - 1) / R states are sent by a rank, however many there are
#include <algorithm>
#include <cstring>

#include "cluster/arrays.h"
#include "cluster/call.h"
#include "cluster/tree.h"
#include "core/checker.h"

namespace attn::cluster {
namespace {

constexpr int kStateParts = 3, kMergedParts = 4;  // tags

/// States of `count` rows in one piece of memory: out [1, count, 1, Dv], then lse [1, count, 1].
struct Rows {
  Rows(void* memory, DType dtype, int64_t count, int64_t Dv)
      : out(memory, dtype, {1, count, 1, Dv}),
        lse(static_cast<char*>(memory) + count * Dv * size_of(dtype), dtype, {1, count, 1}) {}
  static int64_t bytes(DType dtype, int64_t count, int64_t Dv) { return count * (Dv + 1) * size_of(dtype); }

  View<4> out;
  View<3> lse;
};

/// lse [B, H, Lq] as [B, H, Lq, 1].
template <class Pointer>
BasicView<Pointer, 4> with_width(const BasicView<Pointer, 3>& x) {
  return {x.data, x.dtype, {x.size[0], x.size[1], x.size[2], 1}, {x.stride[0], x.stride[1], x.stride[2], 1}};
}

class StateMerge {
 public:
  StateMerge(Communicator& ranks, const View<4>& out, const View<3>& lse)
      : ranks_(ranks),
        out_(out),
        lse_(lse),
        dtype_(out.dtype),
        rows_(out.size[0] * out.size[1] * out.size[2]),
        Dv_(out.size[3]),
        mine_(bytes(0, rows_)),
        parts_(bytes(0, count(ranks.rank())) * ranks.size()) {}

  void run() {
    pack();
    exchange_parts();
    merge_part();
    exchange_merged();
    unpack();
  }

 private:
  int64_t first(int rank) const { return rows_ * rank / ranks_.size(); }
  int64_t count(int rank) const { return first(rank + 1) - first(rank); }
  int64_t bytes(int64_t begin, int64_t end) const { return Rows::bytes(dtype_, end - begin, Dv_); }

  /// Where the rows of a part of this rank's state are.
  char* own(int rank) const { return static_cast<char*>(mine_.data()) + bytes(0, first(rank)); }
  /// The state of this rank's part that a rank has sent.
  char* part_of(int rank) const { return static_cast<char*>(parts_.data()) + rank * bytes(0, count(ranks_.rank())); }

  void pack() {
    const Array out(dtype_, out_.size), lse(dtype_, lse_.size);
    copy(out_, out.view<4>());
    copy(with_width(lse_), with_width(lse.view<3>()));
    for (int rank = 0; rank < ranks_.size(); ++rank) move(rank, out, lse, true);
  }
  void unpack() {
    const Array out(dtype_, out_.size), lse(dtype_, lse_.size);
    for (int rank = 0; rank < ranks_.size(); ++rank) move(rank, out, lse, false);
    copy(out.view<4>(), out_);
    copy(with_width(lse.view<3>()), with_width(lse_));
  }
  /// The rows of a part between dense arrays and `mine_`.
  void move(int rank, const Array& out, const Array& lse, bool pack) {
    const int64_t element = size_of(dtype_), n = count(rank);
    const auto piece = [&](char* packed, void* array, int64_t begin, int64_t length) {
      char* dense = static_cast<char*>(array) + begin * element;
      if (length > 0) std::memcpy(pack ? packed : dense, pack ? dense : packed, static_cast<size_t>(length * element));
    };
    piece(own(rank), out.data(), first(rank) * Dv_, n * Dv_);
    piece(own(rank) + n * Dv_ * element, lse.data(), first(rank), n);
  }

  void exchange_parts() {
    std::vector<Message> sent, received;
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      if (rank == ranks_.rank()) continue;
      sent.push_back({rank, own(rank), bytes(0, count(rank))});
      received.push_back({rank, part_of(rank), bytes(0, count(ranks_.rank()))});
    }
    const int64_t own_bytes = bytes(0, count(ranks_.rank()));
    if (own_bytes > 0) std::memcpy(part_of(ranks_.rank()), own(ranks_.rank()), static_cast<size_t>(own_bytes));
    start(ranks_, sent, received, kStateParts)->wait();
  }

  void merge_part() {
    FixedTree<int> tree(ranks_.size());
    const int64_t n = count(ranks_.rank());
    for (int rank = 0; rank < ranks_.size(); ++rank)
      tree.add({0, rank}, rank, [&](int& left, int right) {
        const Rows a(part_of(left), dtype_, n, Dv_), b(part_of(right), dtype_, n, Dv_);
        attn::merge(a.out, a.lse, b.out, b.lse);
      });
    const int64_t own_bytes = bytes(0, n);
    if (own_bytes > 0) std::memcpy(own(ranks_.rank()), part_of(*tree.take_root()), static_cast<size_t>(own_bytes));
  }

  void exchange_merged() {
    std::vector<Message> sent, received;
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      if (rank == ranks_.rank()) continue;
      sent.push_back({rank, own(ranks_.rank()), bytes(0, count(ranks_.rank()))});
      received.push_back({rank, own(rank), bytes(0, count(rank))});
    }
    start(ranks_, sent, received, kMergedParts)->wait();
  }

  Communicator& ranks_;
  const View<4> out_;
  const View<3> lse_;
  const DType dtype_;
  const int64_t rows_, Dv_;
  const Buffer mine_, parts_;
};

}  // namespace

void merge(Communicator& ranks, View<4> out, View<3> lse) {
  Checker checker("cluster::merge");
  const bool floats = out.dtype == DType::float32 || out.dtype == DType::float64;
  checker.require(floats && lse.dtype == out.dtype, [&] {
    return "out is " + std::string(name_of(out.dtype)) + " and lse " + std::string(name_of(lse.dtype)) +
           ", must both be float32 or float64";
  });
  checker.require(lse.size == Shape<3>{out.size[0], out.size[1], out.size[2]}, [&] {
    return "lse has size " + to_string<3>(lse.size) + ", must be the first axes of out, " + to_string<4>(out.size);
  });
  checker.require((out.data && lse.data) || out.empty(), "out and lse must have data");
  agree_on_shape(ranks, "cluster::merge", reasons_of([&] { checker.done(); }), out.size, out.dtype);
  if (ranks.size() > 1) StateMerge(ranks, out, lse).run();
}

}  // namespace attn::cluster
