#include "attention/interleaved.h"

#include <algorithm>
#include <new>

#include "kernels/prefetch.h"

namespace attn::detail {
namespace {

// Keys of a head that are read before the next head's: a multiple of what every kernel set takes at once. 16 to 64 are
// alike; a row alone, 32768 keys of 8 heads on one thread of Zen 4: head by head 13.6 ms, so 12.4 (bfloat16 8.4, 5.4).
constexpr int64_t kPieceKeys = 32;
// Keys and values of a call that the caches are taken not to hold. Asking for those that they do hold costs a tenth.
constexpr int64_t kManyBytes = int64_t{16} << 20;

/// True if the heads of a key follow each other before the next key comes.
bool is_interleaved(const ConstView<4>& view) {
  return view.stride[1] > 0 && view.stride[1] * view.size[1] <= view.stride[2];
}

}  // namespace

bool InterleavedHeads::suits(const Problem& p, const Sequence& s, const TileKernels& tk) {
  return p.Hk > 1 && s.query_count == 1 && p.G <= tk.panel && !s.pages.keys && !tk.bounded &&
         plain_scores(*p.options) && is_interleaved(p.k) && is_interleaved(p.v) &&
         KeyRows::keys(p, s, 0).in_place(tk.key_rows) && KeyRows::values(p, s, 0).in_place(tk.value_rows);
}

bool InterleavedHeads::from_memory(const Problem& p, int64_t keys) {
  return keys * p.Hk * (p.D + p.Dv) * size_of(p.k.dtype) >= kManyBytes;
}

void InterleavedHeads::layout(Arena& arena, int64_t heads, int64_t keys) {
  const int64_t lanes = tk_.panel * tk_.acc_bytes;
  alpha_ = heads > 1 ? arena.take(lanes) : nullptr;
  heads_ = arena.take<Head>(heads * int64_t{sizeof(Head)});
  for (int64_t i = 0; i < heads; ++i) {
    Head head;
    if (heads > 1) {
      head.maximum = arena.take(lanes);
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
  for (int i = 0; i < count; ++i) set_all(tk_, heads_[i].maximum, heads_[i].state->panel.width, -kInfinity);
  for_pieces(count, tile, &Head::keys, p_.D, &InterleavedHeads::scores);
  for (int i = 0; i < count; ++i) softmax(heads_[i], tile.count);
  for_pieces(count, tile, &Head::values, p_.Dv, &InterleavedHeads::values);
}

/// Each head's work on each piece of the tile, and with it a share of asking for the next if that comes from memory.
void InterleavedHeads::for_pieces(int count, const Tile& tile, KeyRows Head::*operand, int64_t n, Work work) const {
  const KeyRows &lowest = heads_[0].*operand, &highest = heads_[count - 1].*operand;
  const int64_t stride_bytes = lowest.row_stride() * size_of(p_.k.dtype);
  const int64_t row_bytes =
      static_cast<const char*>(highest.row(0)) - static_cast<const char*>(lowest.row(0)) + n * size_of(p_.k.dtype);
  for (int64_t done = 0; done < tile.count; done += kPieceKeys) {
    const int64_t keys = std::min(kPieceKeys, tile.count - done);
    const int64_t next = from_memory_ ? std::min(kPieceKeys, tile.count - done - keys) : 0;
    const int64_t first = tile.begin + done;
    const auto rows = reinterpret_cast<uintptr_t>(lowest.row(first)) + keys * stride_bytes;
    for (int i = 0; i < count; ++i) {
      kernels::prefetch_rows(rows, row_bytes, stride_bytes, next * i / count, next * (i + 1) / count);
      const KeyRows& mine = heads_[i].*operand;
      (this->*work)(heads_[i], tile, {mine.row(first), mine.row_stride(), first, keys});
    }
  }
}

void InterleavedHeads::scores(const Head& head, const Tile& tile, const KeyRun& piece) const {
  const PanelState& state = *head.state;
  kernels::ScoresArgs args = score_args(p_, tk_, state.panel, state.query, piece);
  args.scores = static_cast<char*>(head.scores) + scores_bytes(tk_, piece.first - tile.begin, state.panel.width);
  args.maximum = head.maximum;
  tk_.scores(args);
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

void InterleavedHeads::values(const Head& head, const Tile& tile, const KeyRun& piece) const {
  tk_.values(product_args(tk_, piece, p_.Dv, tile, head.weights, head.state->out));
}

}  // namespace attn::detail
