// A plain read, as wide as this CPU loads.
#pragma once

namespace attn::peaks {

/// Reads [begin, end), a multiple of 512 bytes aligned to 32, with the widest loads among the available ISAs.
void read_memory(const char* begin, const char* end);

}  // namespace attn::peaks
