// sink: a file that is written piece by piece, for what need not be in memory as a whole.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace attn::io {

using Sink = std::function<void(std::string_view)>;

/// write_file() of the pieces that `produce` hands to the sink, one after the other. What it throws leaves the old
/// file untouched, too.
void write_file(const std::string& path, const std::function<void(const Sink&)>& produce);

}  // namespace attn::io
