// Statistics of attention beside the forward: what they cost, one alone and all together.
#pragma once

namespace bench {

/// Checks every statistic against the reference, then prints the times of calls in units of the forward beside them,
/// and what a call on 100,000 tokens takes. False if a result is wrong.
bool run_statistics();

}  // namespace bench
