// Which kernels run: detection, the list, the choice.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/table.h"

namespace attn {

/// The instruction set in use; on first use the best one, or the one that ATTN_ISA names. attn::models calls it, so a
/// shared library exports it, and nothing that is named kernels.
[[gnu::visibility("default")]] const kernels::Isa& active_kernels();

namespace kernels {

/// Built in and supported by this CPU, best first.
std::vector<std::string> available();
/// Throws Error that lists the choices.
void force(std::string_view name);

}  // namespace kernels
}  // namespace attn
