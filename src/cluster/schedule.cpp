// Schedules by name.
#include <charconv>
#include <string_view>

#include "attn/cluster.h"

namespace attn::cluster {

Schedule Schedule::named(const std::string& name) {
  constexpr std::string_view kGroups = "heads:";
  if (name == "ring") return ring;
  if (name == "gather") return gather;
  if (name == "heads") return heads();
  int ranks = 0;
  const char* const end = name.data() + name.size();
  if (name.starts_with(kGroups)) {
    const auto [read, error] = std::from_chars(name.data() + kGroups.size(), end, ranks);
    if (error == std::errc() && read == end && ranks > 0) return heads(ranks);
  }
  throw Error("Schedule",
              {"the name is '" + name + "', must be ring, gather, heads, or heads:n for groups of n ranks"});
}

std::string Schedule::name() const {
  if (heads_group == 1) return keys == Keys::gather ? "gather" : "ring";
  return heads_group == 0 ? "heads" : "heads:" + std::to_string(heads_group);
}

}  // namespace attn::cluster
