// The one check of recorded attention, for all modules that compute something of it.
#pragma once

#include <span>

#include "attn/record.h"
#include "core/checker.h"

namespace attn {

/// What a function needs of its layers beyond what attention_weights() needs of each.
struct RecordedNeeds {
  bool one_text = true;   ///< B = 1
  bool own_text = false;  ///< Lq = Lk, and no packed sequences
  int64_t queries = -1;   ///< Lq, the number of labels of queries; -1 = any
  int64_t keys = -1;      ///< Lk, the number of labels of keys; where `queries` is not -1
};

/// Records a reason for every layer that attention_weights() would refuse, that is empty, or that differs from
/// layers[0] in B, Lq or Lk; and for what `needs` demands. Exported for attn::view.
[[gnu::visibility("default")]] void check_recorded(Checker& checker, std::span<const RecordedAttention> layers,
                                                   const RecordedNeeds& needs = {});

}  // namespace attn
