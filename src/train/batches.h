// batches: what all data have in common, their checks and the order in which an epoch shows them.
#pragma once

#include <functional>
#include <vector>

#include "attn/train.h"
#include "core/checker.h"

namespace attn::train {

inline int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// What sequences are padded to: steps of eight, so that few shapes of products come about.
inline int64_t padded_length(int64_t longest, int64_t context) { return std::min(div_up(longest, 8) * 8, context); }

void require_sizes(Checker& checker, int64_t context, int64_t batch);
/// The first negative id; -1 if there is none.
int64_t first_negative(const std::vector<int64_t>& tokens);
/// Throws Error for a validation batch that there is not.
void require_number(int64_t number, int64_t batches);
void require_there(bool there);

/// Which of `count` items the training batch `number` shows. Each epoch shuffles all, sorts by length within groups of
/// 16 batches, and shuffles the batches: little padding, and every epoch other batches.
std::vector<int64_t> shuffled_batch(int64_t count, int64_t batch, uint64_t seed, uint64_t number,
                                    const std::function<int64_t(int64_t)>& length);

}  // namespace attn::train
