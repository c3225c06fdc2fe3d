// The lists of layouts, row by row: each function adds the key blocks of query block n, in any order.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "attn/attention_layouts.h"
#include "core/checker.h"

namespace attn::layouts {
namespace {

/// The lists of one or more heads while they grow.
class ListBuilder {
 public:
  ListBuilder(int64_t length, int64_t block, int64_t heads)
      : blocks_(length / block + (length % block != 0)), block_(block), offsets_({1, heads, blocks_ + 1}) {}

  int64_t blocks() const { return blocks_; }

  /// Calls row(h, n) for each row, which calls add().
  template <class Row>
  BlockLists make(const Row& row) {
    int64_t place = 0;
    for (int64_t h = 0; h < offsets_.size()[1]; ++h) {
      for (int64_t n = 0; n < blocks_; ++n) {
        offsets_[place++] = begin_ = static_cast<int64_t>(indices_.size());
        row(h, n);
        sort();
      }
      offsets_[place++] = begin_ = static_cast<int64_t>(indices_.size());
    }
    BlockLists made{block_, block_, std::move(offsets_), Tensor<int64_t, 1>({begin_})};
    std::copy(indices_.begin(), indices_.end(), made.indices.begin());
    return made;
  }

  void add(int64_t m) { indices_.push_back(m); }
  /// The blocks from `first` to `last`, as far as there are such.
  void add_range(int64_t first, int64_t last) {
    for (int64_t m = std::max<int64_t>(first, 0); m <= std::min(last, blocks_ - 1); ++m) add(m);
  }
  /// The blocks that are not more than `left` before and `right` after n; -1 = no limit.
  void add_window(int64_t n, int64_t left, int64_t right) {
    add_range(left < 0 || left > n ? 0 : n - left, right < 0 || right > blocks_ ? blocks_ : n + right);
  }
  /// The row so far, rising and without repetition.
  std::span<const int64_t> sort() {
    const auto row = indices_.begin() + begin_;
    std::sort(row, indices_.end());
    indices_.erase(std::unique(row, indices_.end()), indices_.end());
    return {indices_.data() + begin_, indices_.data() + indices_.size()};
  }

 private:
  const int64_t blocks_, block_;
  int64_t begin_ = 0;  // of the row
  Tensor<int64_t, 3> offsets_;
  std::vector<int64_t> indices_;
};

/// The checks of a function.
class LayoutChecks {
 public:
  LayoutChecks(const char* function, int64_t length, int64_t block) : checker_(function) {
    at_least("length", length, 0);
    at_least("block", block, 1);
  }
  void at_least(const std::string& name, int64_t value, int64_t least) {
    checker_.require(value >= least, [&] {
      return name + " is " + std::to_string(value) + ", must be at least " + std::to_string(least);
    });
  }
  void at_most(const std::string& name, int64_t value, int64_t most) {
    checker_.require(value <= most, [&] {
      return name + " is " + std::to_string(value) + ", must be at most " + std::to_string(most);
    });
  }
  void done() const { checker_.done(); }

 private:
  Checker checker_;
};

/// `count` different numbers of [0, below), rising (Floyd's algorithm).
std::set<int64_t> draw(Random& random, int64_t below, int64_t count) {
  std::set<int64_t> drawn;
  for (int64_t last = below - count; last < below; ++last) {
    const int64_t number = random.below(last + 1);
    if (!drawn.insert(number).second) drawn.insert(last);
  }
  return drawn;
}

}  // namespace

BlockLists local(int64_t length, int64_t block, Window window) {
  LayoutChecks checks("layouts::local", length, block);
  checks.at_least("window.left", window.left, -1);
  checks.at_least("window.right", window.right, -1);
  checks.done();
  ListBuilder lists(length, block, 1);
  return lists.make([&](int64_t, int64_t n) { lists.add_window(n, window.left, window.right); });
}

BlockLists dilated(int64_t length, int64_t block, int64_t side, int64_t dilation) {
  LayoutChecks checks("layouts::dilated", length, block);
  checks.at_least("side", side, 0);
  checks.at_least("dilation", dilation, 1);
  checks.done();
  ListBuilder lists(length, block, 1);
  return lists.make([&](int64_t, int64_t n) {
    const int64_t before = std::min(side, n / dilation), after = std::min(side, (lists.blocks() - 1 - n) / dilation);
    for (int64_t t = -before; t <= after; ++t) lists.add(n + t * dilation);
  });
}

BlockLists strided(int64_t length, int64_t block, int64_t stride) {
  LayoutChecks checks("layouts::strided", length, block);
  checks.at_least("stride", stride, 1);
  checks.done();
  ListBuilder lists(length, block, 1);
  return lists.make([&](int64_t, int64_t n) {
    lists.add_window(n, stride, stride);
    for (int64_t m = n % stride; m < lists.blocks(); m += std::min(stride, lists.blocks())) lists.add(m);
  });
}

BlockLists fixed(int64_t length, int64_t block, int64_t stride, int64_t summary) {
  LayoutChecks checks("layouts::fixed", length, block);
  checks.at_least("stride", stride, 1);
  checks.at_least("summary", summary, 0);
  checks.at_most("summary", summary, stride);
  checks.done();
  ListBuilder lists(length, block, 1);
  const int64_t step = std::min(stride, std::max<int64_t>(lists.blocks(), 1));  // a longer one has all blocks
  return lists.make([&](int64_t, int64_t n) {
    lists.add_range(n / step * step, n / step * step + step - 1);
    for (int64_t end = step; end - std::min(summary, step) < lists.blocks(); end += step)
      lists.add_range(end - std::min(summary, step), end - 1);
  });
}

BlockLists longformer(int64_t length, int64_t block, int64_t side, std::span<const int64_t> global) {
  LayoutChecks checks("layouts::longformer", length, block);
  checks.at_least("side", side, 0);
  for (size_t i = 0; i < global.size(); ++i) {
    const std::string name = "global[" + std::to_string(i) + "]";
    checks.at_least(name, global[i], 0);
    if (length >= 0 && block >= 1) checks.at_most(name, global[i], length / block - (length % block == 0));
  }
  checks.done();
  ListBuilder lists(length, block, 1);
  const std::set<int64_t> everywhere(global.begin(), global.end());
  return lists.make([&](int64_t, int64_t n) {
    if (everywhere.contains(n)) return lists.add_range(0, lists.blocks() - 1);
    lists.add_window(n, side, side);
    for (const int64_t m : everywhere) lists.add(m);
  });
}

BlockLists bigbird(int64_t length, int64_t block, const BigBirdOptions& options) {
  LayoutChecks checks("layouts::bigbird", length, block);
  checks.at_least("side", options.side, 0);
  checks.at_least("global", options.global, 0);
  checks.at_least("random", options.random, 0);
  checks.at_least("heads", options.heads, 1);
  checks.done();
  ListBuilder lists(length, block, options.heads);
  return lists.make([&](int64_t h, int64_t n) {
    if (n < options.global) return lists.add_range(0, lists.blocks() - 1);
    lists.add_range(0, options.global - 1);
    lists.add_window(n, options.side, options.side);
    const std::span<const int64_t> row = lists.sort();
    const std::vector<int64_t> listed(row.begin(), row.end());
    const auto known = static_cast<int64_t>(listed.size()), others = lists.blocks() - known;
    Random random(options.seed, (static_cast<uint64_t>(h) << 40) + static_cast<uint64_t>(n));
    int64_t before = 0;  // listed blocks before the one that is drawn
    for (const int64_t place : draw(random, others, std::min(options.random, others))) {
      while (before < known && listed[before] <= place + before) ++before;
      lists.add(place + before);
    }
  });
}

BlockLists block_diagonal(int64_t length, int64_t block) {
  LayoutChecks("layouts::block_diagonal", length, block).done();
  ListBuilder lists(length, block, 1);
  return lists.make([&](int64_t, int64_t n) { lists.add(n); });
}

BlockLists prefix(int64_t length, int64_t block, int64_t prefix) {
  LayoutChecks checks("layouts::prefix", length, block);
  checks.at_least("prefix", prefix, 0);
  checks.done();
  ListBuilder lists(length, block, 1);
  return lists.make([&](int64_t, int64_t n) { lists.add_range(0, std::max(n, prefix - 1)); });
}

BlockLists by_head(std::span<const BlockLists> heads) {
  Checker checker("layouts::by_head");
  checker.require(!heads.empty(), "heads has 0 layouts, must have at least 1");
  int64_t count = 0;
  for (size_t h = 0; h < heads.size(); ++h) {
    const BlockLists& head = heads[h];
    const Shape<3> size = {1, 1, heads[0].offsets.size()[2]};
    checker.require(
        head.query_block == heads[0].query_block && head.key_block == heads[0].key_block && head.offsets.size() == size,
        [&] {
          return "heads[" + std::to_string(h) + "] has blocks of " + std::to_string(head.query_block) + " x " +
                 std::to_string(head.key_block) + " and offsets " + to_string(head.offsets.size()) +
                 ", must be as heads[0]: " + std::to_string(heads[0].query_block) + " x " +
                 std::to_string(heads[0].key_block) + " and " + to_string(size);
        });
    count += head.indices.count();
  }
  checker.done();
  const auto H = static_cast<int64_t>(heads.size());
  BlockLists all{heads[0].query_block, heads[0].key_block, Tensor<int64_t, 3>({1, H, heads[0].offsets.size()[2]}),
                 Tensor<int64_t, 1>({count})};
  int64_t place = 0, listed = 0;
  for (const BlockLists& head : heads) {
    std::copy(head.indices.begin(), head.indices.end(), all.indices.begin() + listed);
    for (const int64_t offset : head.offsets) all.offsets[place++] = listed + offset;
    listed += head.indices.count();
  }
  return all;
}

}  // namespace attn::layouts
