// The constructor builds a trie level by level from sorted entries, so that siblings are adjacent.
#include "text/trie.h"

#include <algorithm>

namespace attn::text {

Trie::Trie(std::vector<std::pair<std::string_view, uint32_t>> entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  struct Open {
    uint32_t node;  ///< its children come from the entries [begin, end), which share their first `depth` bytes
    size_t begin, end, depth;
  };
  std::vector<Open> level, next;
  const auto add_children = [&](const Open& open) {
    const auto first = static_cast<uint32_t>(nodes_.size());
    for (size_t n = open.begin; n < open.end;) {
      const std::string_view text = entries[n].first;
      const auto byte = static_cast<uint8_t>(text[open.depth]);
      size_t end = n, id_at = n, longer = n;
      while (end < open.end && static_cast<uint8_t>(entries[end].first[open.depth]) == byte) {
        if (entries[end].first.size() == open.depth + 1) longer = (id_at = end) + 1;
        ++end;
      }
      Node node;
      if (entries[id_at].first.size() == open.depth + 1) node.id = entries[id_at].second;
      if (longer < end) next.push_back({static_cast<uint32_t>(nodes_.size()), longer, end, open.depth + 1});
      nodes_.push_back(node);
      bytes_.push_back(byte);
      n = end;
    }
    return std::pair(first, static_cast<uint16_t>(nodes_.size() - first));
  };
  std::fill(std::begin(roots_), std::end(roots_), kNone);
  const auto [first, count] = add_children({0, 0, entries.size(), 0});
  for (uint32_t n = first; n < first + count; ++n) roots_[bytes_[n]] = n;
  while (!next.empty()) {
    level.swap(next);
    next.clear();
    for (const Open& open : level) {
      const auto [begin, children] = add_children(open);
      nodes_[open.node].first = begin;
      nodes_[open.node].children = children;
    }
  }
}

}  // namespace attn::text
