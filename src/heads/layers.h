// What all of this module asks of its layers, and weights of them in bands of rows.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "attn/attention_statistics.h"
#include "attn/heads.h"
#include "core/checker.h"

namespace attn::heads {

/// Every layer must be what attention_weights() takes, all of the same texts of n tokens, B of them or, with
/// `one_text`, one.
void check_layers(Checker& checker, std::span<const Layer> layers, bool one_text);

/// Each text's tokens that are no padding [B]; reasons where ids or kinds are wrong, padding is before a token, or
/// a token is of no kind.
std::vector<int64_t> check_texts(Checker& checker, const Texts& texts, int64_t B, int64_t n);

/// Hands over P [B, H, count, n] of the rows first .. first + count of a layer, some rows at a time.
using BandSink = std::function<void(int64_t first, int64_t count, const ResultTensor<4>& weights)>;
void for_each_band(const Layer& layer, const BandSink& sink);

/// An element of ids or kinds.
int64_t whole_at(const ConstView<2>& view, int64_t b, int64_t i);

}  // namespace attn::heads
