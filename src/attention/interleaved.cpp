#include "attention/interleaved.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/caches.h"
#include "kernels/prefetch.h"

namespace attn::detail {
namespace {

// Keys of a head that are read before the next head's: a multiple of what every kernel set takes at once. 16 to 64 are
// alike; a row alone, 32768 keys of 8 heads on one thread of Zen 4: head by head 13.6 ms, so 12.4 (bfloat16 8.4, 5.4).
constexpr int64_t kPieceKeys = 32;

/// True if keys and values are so many that all heads ask for the next piece in the order of memory; of fewer, kernels
/// that have `scores_of_heads` take a few keys at a time. 16 MiB, 8 heads: 0.33 ms so and 0.41 in pieces; 24 MiB, 12
/// heads: 0.85 and 0.68 (Zen 4, whose third level has 32 MiB).
bool asks_in_order(const Problem& p) { return p.key_bytes > caches().third / 2; }

/// True if the heads of a key follow each other before the next key comes.
bool is_interleaved(const ConstView<4>& view) {
  return view.stride[1] > 0 && view.stride[1] * view.size[1] <= view.stride[2];
}

/// `keys` keys of the tile, after its first `done`.
KeyRun piece_of(const KeyRows& rows, const Tile& tile, int64_t done, int64_t keys) {
  const int64_t first = tile.begin + done;
  return {rows.row(first), rows.row_stride(), first, keys};
}

}  // namespace

bool InterleavedHeads::suits(const Problem& p, const Sequence& s, const TileKernels& tk) {
  return p.Hk > 1 && s.query_count == 1 && p.G <= tk.panel && !s.pages.keys && !tk.bounded &&
         plain_scores(*p.options) && is_interleaved(p.k) && is_interleaved(p.v) &&
         KeyRows::keys(p, s, 0).in_place(tk.key_rows) && KeyRows::values(p, s, 0).in_place(tk.value_rows);
}

void InterleavedHeads::layout(Arena& arena, int64_t heads, int64_t keys) {
  const int64_t lanes = tk_.panel * tk_.acc_bytes;
  alpha_ = heads > 1 ? arena.take(lanes) : nullptr;
  heads_ = arena.take<Head>(heads * int64_t{sizeof(Head)});
  for (int64_t i = 0; i < heads; ++i) {
    Head head;
    if (heads > 1) {
      head.maximum = arena.take(lanes);
      head.trial_sum = arena.take(lanes);
      head.scores = arena.take(scores_bytes(tk_, keys, tk_.panel));
      head.weights = tk_.one_format ? head.scores : arena.take(tk_.weights_bytes(keys, tk_.panel));
    }
    if (heads_) new (heads_ + i) Head(head);
  }
}

void InterleavedHeads::set(int i, const KeyRows& keys, const KeyRows& values, PanelState& state) {
  heads_[i].keys = keys;
  heads_[i].values = values;
  heads_[i].state = &state;
}

void InterleavedHeads::run(int count, const Tile& tile) {
  if (tk_.by_sums) by_sums(count, tile);
  else if (!has_references(count) || !in_one_pass(count, tile, kReferenceSlack)) in_two_passes(count, tile);
  values(count, tile);
}

void InterleavedHeads::by_sums(int count, const Tile& tile) const {
  for (int i = 0; i < count; ++i) begin(heads_[i], tile);
  if (in_one_pass(count, tile, kLargestSum)) return;
  scores(count, tile);
  for (int i = 0; i < count; ++i) {
    const Head& head = heads_[i];
    head.state->raise(p_, tk_, head.trial_sum, head.maximum, alpha_);
  }
  in_one_pass(count, tile, kInfinity);
}

/// First references, as in OnlineSoftmax.
void InterleavedHeads::begin(const Head& head, const Tile& tile) const {
  PanelState& state = *head.state;
  for (int64_t done = 0; state.waiting != 0 && done < tile.count; done += kSliceKeys) {
    const int64_t n = std::min(kSliceKeys, tile.count - done);
    set_all(tk_, head.maximum, state.panel.width, -kInfinity);
    tk_.scores(scores_args(head, tile, done, n));
    state.begin(p_, tk_, head.maximum, alpha_);
  }
}

bool InterleavedHeads::has_references(int count) const {
  return std::all_of(heads_, heads_ + count, [](const Head& head) { return head.state->waiting == 0; });
}

bool InterleavedHeads::in_one_pass(int count, const Tile& tile, double limit) const {
  if (!tk_.scores_softmax) return false;
  bool fits = true;
  for (int i = 0; i < count; ++i) std::memcpy(heads_[i].trial_sum, heads_[i].state->sum, sum_bytes(heads_[i]));
  for_pieces(heads_[0].keys, heads_[count - 1].keys, count, tile, [&](int i, int64_t done, int64_t keys) {
    const Head& head = heads_[i];
    const PanelState& state = *head.state;
    const KeyRun piece = piece_of(head.keys, tile, done, keys);
    const kernels::FusedArgs args{
        .in = score_args(p_, tk_, state.panel, state.query, piece),
        .reference = state.reference,
        .allowed = nullptr,
        .sum = head.trial_sum,
        .weights = static_cast<char*>(head.weights) + tk_.weights_bytes(done, state.panel.width),
        .late = nullptr};
    fits = tk_.scores_softmax(args, limit) && fits;
  });
  for (int i = 0; fits && i < count; ++i) std::memcpy(heads_[i].state->sum, heads_[i].trial_sum, sum_bytes(heads_[i]));
  return fits;
}

void InterleavedHeads::in_two_passes(int count, const Tile& tile) const {
  scores(count, tile);
  for (int i = 0; i < count; ++i) softmax(heads_[i], tile.count);
}

kernels::ScoresArgs InterleavedHeads::scores_args(const Head& head, const Tile& tile, int64_t done,
                                                  int64_t count) const {
  kernels::ScoresArgs args =
      score_args(p_, tk_, head.state->panel, head.state->query, piece_of(head.keys, tile, done, count));
  args.scores = head.scores;
  args.maximum = head.maximum;
  return args;
}

void InterleavedHeads::scores(int count, const Tile& tile) const {
  kernels::ScoresArgs args[kMost];
  for (int i = 0; i < count; ++i) {
    set_all(tk_, heads_[i].maximum, heads_[i].state->panel.width, -kInfinity);
    args[i] = scores_args(heads_[i], tile, 0, tile.count);
  }
  if (!asks_in_order(p_) && tk_.scores_of_heads) return tk_.scores_of_heads(args, count);
  for_pieces(heads_[0].keys, heads_[count - 1].keys, count, tile, [&](int i, int64_t done, int64_t keys) {
    kernels::ScoresArgs piece = args[i];
    piece.keys = heads_[i].keys.row(tile.begin + done);
    piece.count = keys;
    piece.scores = static_cast<char*>(piece.scores) + scores_bytes(tk_, done, piece.width);
    tk_.scores(piece);
  });
}

void InterleavedHeads::softmax(const Head& head, int64_t count) const {
  PanelState& state = *head.state;
  state.follow(p_, tk_, head.maximum, alpha_);
  tk_.softmax({.scores = head.scores,
               .width = state.panel.width,
               .count = count,
               .reference = state.reference,
               .sum = state.sum,
               .keep = nullptr,
               .keep_scale = 1,
               .weights = head.weights});
}

void InterleavedHeads::values(int count, const Tile& tile) const {
  kernels::ValuesArgs args[kMost];
  for (int i = 0; i < count; ++i) {
    const Head& head = heads_[i];
    args[i] =
        product_args(p_, tk_, piece_of(head.values, tile, 0, tile.count), p_.Dv, tile, head.weights, head.state->out);
  }
  if (!asks_in_order(p_) && tk_.values_of_heads) return tk_.values_of_heads(args, count);
  for_pieces(heads_[0].values, heads_[count - 1].values, count, tile, [&](int i, int64_t done, int64_t keys) {
    kernels::ValuesArgs piece = args[i];
    piece.values = heads_[i].values.row(tile.begin + done);
    piece.count = keys;
    piece.weights = static_cast<const char*>(piece.weights) + tk_.weights_bytes(done, piece.width);
    tk_.values(piece);
  });
}

/// A piece of each head's keys or values in turn, and with it a share of asking for the next piece if that is in
/// memory.
template <class Work>
void InterleavedHeads::for_pieces(const KeyRows& lowest, const KeyRows& highest, int count, const Tile& tile,
                                  const Work& work) const {
  const int64_t element = size_of(p_.k.dtype), stride_bytes = lowest.row_stride() * element;
  const int64_t row_bytes =
      static_cast<const char*>(highest.row(0)) - static_cast<const char*>(lowest.row(0)) + highest.row_size() * element;
  for (int64_t done = 0; done < tile.count; done += kPieceKeys) {
    const int64_t keys = std::min(kPieceKeys, tile.count - done);
    const int64_t next = asks_in_order(p_) ? std::min(kPieceKeys, tile.count - done - keys) : 0;
    const auto rows = reinterpret_cast<uintptr_t>(lowest.row(tile.begin + done)) + keys * stride_bytes;
    for (int i = 0; i < count; ++i) {
      kernels::prefetch_rows(rows, row_bytes, stride_bytes, next * i / count, next * (i + 1) / count);
      work(i, done, keys);
    }
  }
}

}  // namespace attn::detail
