// Where the points go: each kernel alone, what their sum allows for a whole call, and the call.
#pragma once

namespace bench {

/// Prints a table for every arithmetic of the active instruction set: shares of the peak, of the forward and the
/// backward.
void run_parts();

}  // namespace bench
