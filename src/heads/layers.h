// The check of texts, and the attention matrix of a layer in bands of rows.
#pragma once

#include <functional>
#include <vector>

#include "attn/attention_statistics.h"
#include "attn/heads.h"
#include "record/recorded.h"

namespace attn::heads {

/// The number of tokens of each text that are not padding [B]. Records a reason where ids or kinds are wrong, where
/// padding comes before a token, or where a kind is not a TokenKind.
std::vector<int64_t> check_texts(Checker& checker, const Texts& texts, int64_t B, int64_t n);

/// Calls `sink` with P [B, H, count, n] of the rows first .. first + count of a layer, for one band after another.
using BandSink = std::function<void(int64_t first, int64_t count, const Array& weights)>;
void for_each_band(const RecordedAttention& layer, const BandSink& sink);

}  // namespace attn::heads
