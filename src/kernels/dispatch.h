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
/// Why a set that this CPU has is not among them; empty if all are.
std::string missing();
/// Asks the system for matrix tiles, whose state is 8 KiB a thread: Linux saves it only for processes that have asked.
/// 0, or errno of the refusal.
int request_tiles();
/// What missing() says of a CPU with tiles that was answered so.
std::string refused_tiles(int error);
/// All that are built in, in the order of choice for processors of a vendor (CPUID leaf 0). vdpbf16ps does twice the
/// multiply-adds of vfmadd231ps a cycle on AMD (Zen 4: 234 against 117 GFLOP/s a core) and half of them on Intel
/// (Sapphire Rapids: 104 against 208), where 16-bit numbers are better widened for the float32 kernels.
std::vector<std::string> preference(std::string_view vendor);
/// One more kernel set, which is never chosen unasked: what it adds to AVX-512 without VNNI, without effect on a CPU
/// that lacks AVX-512. For tests; not while anything runs.
void offer(const Isa& added);
/// Throws Error that lists the choices.
void force(std::string_view name);

}  // namespace kernels
}  // namespace attn
