// The check of Streaming, for caches and for the modules that make them.
#pragma once

#include "attn/attention.h"
#include "core/checker.h"

namespace attn {

/// False if something is wrong with it.
[[gnu::visibility("default")]] bool check_streaming(Checker& checker, const Streaming& streaming);

}  // namespace attn
