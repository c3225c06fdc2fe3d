// shorten: arguments that say the same in fewer numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/attention.h"

namespace bindings {

/// Heads that are one in memory (stride 0, as torch's expand() leaves them) become that one, where all heads use it
/// of q. v may be without data, as where there are no values.
void share_head(const attn::ConstView<4>& q, attn::ConstView<4>& k, attn::ConstView<4>& v);

/// A mask that leaves each sequence its first keys, the same for all heads and queries, becomes key_length, which
/// `lengths` holds. Reads one row a sequence; of a mask that stores its rows as many as are equal.
void shorten_mask(attn::AttentionOptions& options, const attn::ConstView<4>& q, const attn::ConstView<4>& k,
                  std::vector<int64_t>& lengths);

}  // namespace bindings
