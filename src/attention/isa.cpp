// The public functions over kernels/dispatch.h.
#include "attn/attention.h"
#include "kernels/dispatch.h"

namespace attn {

std::vector<std::string> available_isas() { return kernels::available(); }
std::string missing_isa() { return kernels::missing(); }
std::string active_isa() { return active_kernels().name; }
void set_isa(std::string_view name) { kernels::force(name); }

}  // namespace attn
