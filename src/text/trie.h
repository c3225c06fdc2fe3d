// trie: finds all tokens that a text begins with in one walk.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace attn::text {

class Trie {
 public:
  Trie() = default;
  /// Texts, none of them empty, with their ids. If two texts are equal, the later one counts.
  explicit Trie(std::vector<std::pair<std::string_view, uint32_t>> entries);

  /// Calls use(length, id) for each entry that `text` begins with, the shortest first.
  template <class Use>
  void walk(std::string_view text, const Use& use) const {
    if (nodes_.empty()) return;
    uint32_t node = roots_[text.empty() ? 0 : static_cast<uint8_t>(text[0])];
    for (size_t depth = 1; node != kNone && depth <= text.size(); ++depth) {
      if (nodes_[node].id != kNone) use(depth, nodes_[node].id);
      if (depth == text.size()) return;
      node = child(nodes_[node], static_cast<uint8_t>(text[depth]));
    }
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Node {
    uint32_t first = 0, id = kNone;  ///< first: the first child; the children are adjacent
    uint16_t children = 0;
  };
  uint32_t child(const Node& node, uint8_t byte) const {
    const void* found = std::memchr(bytes_.data() + node.first, byte, node.children);
    return found ? static_cast<uint32_t>(static_cast<const uint8_t*>(found) - bytes_.data()) : kNone;
  }
  std::vector<Node> nodes_;
  std::vector<uint8_t> bytes_;  ///< the byte that leads to each node
  uint32_t roots_[256];
};

}  // namespace attn::text
