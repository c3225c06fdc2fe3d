// A sum whose order does not depend on the order in which its terms come.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace attn::cluster {

/// A node: a leaf has level 0.
struct TreeNode {
  int level = 0;
  int64_t index = 0;
  auto operator<=>(const TreeNode&) const = default;
};

/// Combines leaves 0 .. n - 1 by the binary tree over their numbers: node i of a level is nodes 2 i and 2 i + 1 of the
/// level below, combined in this order. Leaves and nodes are added in any order, each once; one without a value leaves
/// its sibling as it is. What waits for its sibling is kept: of k consecutive leaves about 2 log2(k) nodes.
template <class Value>
class FixedTree {
 public:
  using Nodes = std::map<TreeNode, std::optional<Value>>;

  explicit FixedTree(int64_t leaves) : leaves_(leaves) {}

  /// combine(Value& left, const Value& right): left becomes both.
  template <class Combine>
  void add(TreeNode node, std::optional<Value> value, const Combine& combine) {
    for (; int64_t{1} << node.level < leaves_; node = {node.level + 1, node.index / 2}) {
      const int64_t sibling = node.index ^ 1;
      if (sibling << node.level >= leaves_) continue;
      const auto found = waiting_.find({node.level, sibling});
      if (found == waiting_.end()) break;
      std::optional<Value> other = std::move(found->second);
      waiting_.erase(found);
      if (sibling < node.index) std::swap(value, other);
      if (value && other) combine(*value, *other);
      else if (!value) value = std::move(other);
    }
    waiting_.emplace(node, std::move(value));
  }

  /// The nodes that wait for others, by level and number; once all leaves are there, the root alone.
  Nodes& waiting() { return waiting_; }
  /// The root, without a value where no leaf has one.
  std::optional<Value> take_root() {
    std::optional<Value> root = waiting_.empty() ? std::nullopt : std::move(waiting_.begin()->second);
    waiting_.clear();
    return root;
  }

 private:
  int64_t leaves_;
  Nodes waiting_;
};

}  // namespace attn::cluster
