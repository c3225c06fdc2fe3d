#include "attention/key_lists.h"

#include <algorithm>

#include "core/numbers.h"

namespace attn::detail {
namespace {

int64_t entry(const void* data, int64_t offset) { return static_cast<const int64_t*>(data)[offset]; }

}  // namespace

void KeyLists::set(const Problem& p, const Sequence& s, const int64_t* head, const int64_t* query, int rows) {
  const BlockLayout& blocks = p.options->blocks;
  layout_ = blocks.offsets ? &blocks : nullptr;
  if (!layout_) return;
  key_begin_ = p.shard().first_key + s.key_begin;
  count_ = 0;
  const ConstView<3>& offsets = blocks.offsets;
  const auto along = [&](int axis, int64_t index) {
    return offsets.size[axis] == 1 ? 0 : index * offsets.stride[axis];
  };
  for (int r = 0; r < rows; ++r) {
    const int64_t block = (p.shard().first_query + query[r]) / blocks.query_block;
    const int64_t first = along(0, s.batch) + along(1, head[r]) + block * offsets.stride[2];
    const int64_t begin = entry(offsets.data, first), end = entry(offsets.data, first + offsets.stride[2]);
    if (begin == end) continue;
    // The rows of one query are neighbours: one of the last G lists is that of the query before, if they share it.
    int n = count_ - 1;
    while (n >= 0 && n >= count_ - p.G && (lists_[n].begin != begin || lists_[n].end != end)) --n;
    if (n < 0 || n < count_ - p.G) lists_[n = count_++] = {begin, end, begin, 0};
    lists_[n].rows |= uint64_t{1} << r;
  }
}

int64_t KeyLists::block_begin(int64_t n) const {
  return entry(layout_->indices.data, n * layout_->indices.stride[0]) * layout_->key_block - key_begin_;
}
int64_t KeyLists::block_end(int64_t n) const { return saturating_add(block_begin(n), layout_->key_block); }

void KeyLists::start(int64_t key) const {
  for (int l = 0; l < count_; ++l) {
    const List& list = lists_[l];
    int64_t low = list.begin, high = list.end;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (block_end(middle) <= key) low = middle + 1;
      else high = middle;
    }
    list.at = low;
  }
}

void KeyLists::pass(const List& list, int64_t key) const {
  while (list.at < list.end && block_end(list.at) <= key) ++list.at;
}

int64_t KeyLists::next(int64_t key) const {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (int l = 0; l < count_; ++l) {
    pass(lists_[l], key);
    if (lists_[l].at < lists_[l].end) first = std::min(first, std::max(key, block_begin(lists_[l].at)));
  }
  return first;
}

KeyRange KeyLists::within(int64_t begin, int64_t end) const {
  KeyRange keys;
  for (int l = 0; l < count_; ++l) {
    pass(lists_[l], begin);
    for (int64_t n = lists_[l].at; n < lists_[l].end && block_begin(n) < end; ++n)
      keys.add({std::max(begin, block_begin(n)), std::min(end, block_end(n))});
  }
  return keys;
}

void KeyLists::mask(int64_t begin, int64_t end, uint64_t* allowed) const {
  uint64_t opens[kernels::kMaxBlockKeys + 1], closes[kernels::kMaxBlockKeys + 1];
  std::fill_n(opens, end - begin + 1, 0);
  std::fill_n(closes, end - begin + 1, 0);
  for (int l = 0; l < count_; ++l) {
    pass(lists_[l], begin);
    for (int64_t n = lists_[l].at; n < lists_[l].end && block_begin(n) < end; ++n) {
      opens[std::max(begin, block_begin(n)) - begin] |= lists_[l].rows;
      closes[std::min(end, block_end(n)) - begin] |= lists_[l].rows;
    }
  }
  uint64_t now = 0;
  for (int64_t key = 0; key < end - begin; ++key) {
    now = (now & ~closes[key]) | opens[key];  // one block may begin where another one ends
    allowed[key] &= now;
  }
}

}  // namespace attn::detail
