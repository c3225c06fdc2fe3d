// Which tokens of a sequence each rank has.
#pragma once

#include "attn/cluster.h"
#include "attn/models_config.h"

namespace attn::train {

/// With a causal mask all ranks have the same work; with a window a rank exchanges keys with its neighbours alone.
inline cluster::Placement placement_for(const models::Config& config, int64_t tokens, int ranks) {
  return config.causal && config.window == 0 ? cluster::Placement::zigzag(tokens, ranks)
                                             : cluster::Placement::contiguous(tokens, ranks);
}

}  // namespace attn::train
