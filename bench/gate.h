// The performance gate: is every kernel still near the share of the peak that it had?
#pragma once

namespace bench {

/// Measures a few workloads under every instruction set that is available, prints them, and tells whether all of them
/// are above their floors. A slow spell of the machine gets more chances.
bool run_gate();

}  // namespace bench
