// ranks: the ranks of the program under test, whichever MPI it is linked with.
#pragma once

#include <memory>

#include "attn/cluster.h"

namespace attn::test {

/// All ranks.
cluster::Communicator& world();
/// The first n of them; null on the others. All ranks call it.
std::unique_ptr<cluster::Communicator> first_ranks(int n);

}  // namespace attn::test
