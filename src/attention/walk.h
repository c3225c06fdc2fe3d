// The one loop over keys: for a group of panels, each block of keys that some row sees, and of each panel the tile in
// it. Forward, backward, the gradient of a bias, weights: everybody who visits pairs of queries and keys walks here.
#pragma once

#include <algorithm>

#include "attention/rows.h"
#include "core/numbers.h"

namespace attn::detail {

/// A panel and consecutive keys of which some row sees one.
struct Tile {
  const Panel* panel = nullptr;
  int64_t begin = 0, count = 0;  // keys, counted inside the sequence
  uint64_t* allowed = nullptr;   // a lane mask a key; null: every pair, and no bias that may forbid one
};

enum class TileKind { empty, full, mixed };

/// Who is allowed in panel x keys [begin, end): all, nobody, or what `allowed` says, one lane mask a key.
TileKind tile_mask(const Problem& p, const Sequence& s, const Panel& panel, const TileKernels& tk, int64_t begin,
                   int64_t end, uint64_t* allowed);

/// allowed[key - begin] = the rows whose interval [first[r], last[r]) holds the key, for keys in [begin, end).
void interval_masks(const int64_t* first, const int64_t* last, int rows, int64_t begin, int64_t end, uint64_t* allowed);

/// What a walk needs to know.
struct Walk {
  const Problem& p;
  const Sequence& s;
  const TileKernels& tk;
  int64_t block_keys;                                            // the longest block
  uint64_t* allowed;                                             // scratch, [block_keys]
  int64_t begin = 0, end = std::numeric_limits<int64_t>::max();  // keys to visit, inside the sequence
};

/// The tile of a panel in the block [begin, end); count = 0 if nobody sees anything. A tile begins and ends where the
/// kernels can begin and end, which may be some keys outside of the walk's own range.
inline Tile tile_of(const Walk& walk, const Panel& panel, int64_t block, int64_t block_end) {
  KeyRange keys{std::max(panel.low, walk.begin), std::min({panel.high, walk.end, block_end})};
  if (panel.lists.given()) keys = panel.lists.within(std::max(keys.begin, block), keys.end);
  const int64_t begin = std::max(block, round_down(keys.begin, walk.tk.tile_step));
  const int64_t end = std::min(block_end, round_up(keys.end, walk.tk.key_step));
  if (begin >= end) return {};
  const TileKind kind = tile_mask(walk.p, walk.s, panel, walk.tk, begin, end, walk.allowed);
  if (kind == TileKind::empty) return {};
  if (kind == TileKind::mixed) return {&panel, begin, end - begin, walk.allowed};
  if (!walk.p.options->bias) return {&panel, begin, end - begin, nullptr};
  std::fill(walk.allowed, walk.allowed + (end - begin), all_lanes(panel.rows));
  return {&panel, begin, end - begin, walk.allowed};
}

/// The first key from `key` on, which does not fall from call to call, that some panel may see; `key` itself unless the
/// call has lists of key blocks.
template <class Epilogue>
int64_t next_key(const Epilogue& epilogue, int panels, int64_t key) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < panels; ++i) {
    const Panel& panel = epilogue.panel(i);
    if (!panel.lists.given()) return key;
    const int64_t listed = panel.lists.next(std::max(key, panel.low));
    if (listed < panel.high) first = std::min(first, listed);
  }
  return first;
}

/// Goes to `key` in all lists of key blocks.
template <class Epilogue>
void start_lists(const Epilogue& epilogue, int panels, int64_t key) {
  for (int i = 0; i < panels; ++i)
    if (epilogue.panel(i).lists.given()) epilogue.panel(i).lists.start(key);
}

/// The epilogue has panel(i), start_block(begin, end), tile(i, tile) and end_block(); tiles come panel by panel inside
/// a block, blocks in order. A block begins and ends with the keys that some panel sees: no others have to be packed.
template <class Epilogue>
void walk_keys(const Walk& walk, int panels, Epilogue& epilogue) {
  int64_t low = walk.s.key_count, high = 0;
  for (int i = 0; i < panels; ++i) {
    low = std::min(low, epilogue.panel(i).low);
    high = std::max(high, epilogue.panel(i).high);
  }
  low = std::max(low, walk.begin);
  high = std::min({high, walk.end, walk.s.key_count});
  start_lists(epilogue, panels, low);
  for (int64_t key = next_key(epilogue, panels, low), block_end = 0; key < high;
       key = next_key(epilogue, panels, block_end)) {
    const int64_t block = round_down(key, walk.block_keys);
    block_end = std::min(block + walk.block_keys, walk.s.key_count);
    KeyRange keys{key, high};
    if (epilogue.panel(0).lists.given()) {
      keys = {};
      for (int i = 0; i < panels; ++i) keys.add(epilogue.panel(i).lists.within(key, std::min(high, block_end)));
    }
    epilogue.start_block(std::max(block, round_down(keys.begin, walk.tk.tile_step)),
                         std::min(block_end, round_up(keys.end, walk.tk.key_step)));
    for (int i = 0; i < panels; ++i) {
      const Tile tile = tile_of(walk, epilogue.panel(i), block, block_end);
      if (tile.count > 0) epilogue.tile(i, tile);
    }
    epilogue.end_block();
  }
}

}  // namespace attn::detail
