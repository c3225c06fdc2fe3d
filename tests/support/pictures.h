// pictures: texts whose attention the tests of the pictures draw, with every option that changes a weight.
#pragma once

#include <memory>

#include "arrays.h"
#include "attn/record.h"

namespace attn::test {

/// Queries, keys and lse of one text, and what its options borrow.
struct Text {
  std::string name;
  Array<4> q, k;
  Array<3> lse;
  AttentionOptions options;
  Array<4> bias = {}, mask = {}, allowed = {};
  Array<2> documents = {};
  std::vector<float> slopes = {}, sinks = {};
  std::vector<int64_t> lengths = {}, starts = {};
  BlockLists lists = {};

  Text(std::string name_, int64_t n, int64_t H, int64_t Hk, DType dtype, uint64_t seed,
       const AttentionOptions& options_ = {}, int64_t D = 8, double deviation = 2)
      : name(std::move(name_)),
        q(dtype, {1, H, n, D}),
        k(dtype, {1, Hk, n, D}),
        lse(dtype == DType::float64 ? DType::float64 : DType::float32, {1, H, n}),
        options(options_) {
    Random random(seed);
    q.fill_normal(random, deviation);
    k.fill_normal(random, deviation);
  }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;

  int64_t heads() const { return q.size()[1]; }
  int64_t tokens() const { return q.size()[2]; }

  /// Once the options are complete.
  Text& attend() {
    Array<4> out(q.dtype(), q.size());
    attention(q.view(), k.view(), k.view(), out.view(), lse.view(), options);
    return *this;
  }
  RecordedAttention layer() const { return {name, q.view(), k.view(), lse.view(), options}; }
  /// [1, H, n, n]
  Array<4> weights() const {
    Array<4> all(lse.dtype(), {1, heads(), tokens(), tokens()});
    attention_weights(q.view(), k.view(), lse.view(), all.view(), 0, 0, options);
    return all;
  }
};

using Texts = std::vector<std::unique_ptr<Text>>;

/// One text of n tokens and four heads an option.
inline Texts texts_of_every_option(int64_t n) {
  Texts texts;
  Random random(77);
  const auto add = [&](const char* name, const AttentionOptions& options = {}, DType dtype = DType::float32,
                       int64_t Hk = 2) -> Text& {
    return *texts.emplace_back(std::make_unique<Text>(name, n, 4, Hk, dtype, 100 + texts.size(), options));
  };
  add("plain");
  add("float64", {.causal = true}, DType::float64);
  add("bfloat16", {.causal = true}, DType::bfloat16, 4);
  add("float16", {}, DType::float16, 1);
  add("scale_softcap", {.scale = 0.7, .softcap = 2.5, .causal = true});
  add("window", {.window = {.left = 5, .right = 2}});
  Text& alibi = add("alibi", {.causal = true});
  alibi.slopes = {0.5f, 0.25f, 0.1f, 3.0f};
  alibi.options.alibi_slopes = alibi.slopes;
  Text& sink = add("sink", {.causal = true});
  sink.sinks = {0.5f, -1.0f, 2.0f, 0.0f};
  sink.options.sink = sink.sinks;
  Text& bias = add("bias", {.softcap = 4});
  bias.bias = Array<4>(DType::float32, {1, 4, n, n});
  bias.bias.fill_normal(random, 2);
  for (int64_t i = 0; i < n; ++i) bias.bias.set({0, 1, i, (i + 3) % n}, -std::numeric_limits<double>::infinity());
  bias.options.bias = std::as_const(bias.bias).view();
  Text& row_bias = add("row_bias", {.causal = true}, DType::float64);  // for all heads and queries
  row_bias.bias = Array<4>(DType::float64, {1, 1, 1, n});
  row_bias.bias.fill_normal(random, 2);
  row_bias.options.bias = std::as_const(row_bias.bias).view();
  Text& mask = add("mask");
  mask.mask = Array<4>(DType::boolean, {1, 4, n, n});
  for (int64_t at = 0; at < mask.mask.count(); ++at) mask.mask.set(at, random.normal() > 0.3);
  for (int64_t j = 0; j < n; ++j) mask.mask.set({0, 2, n / 2, j}, 0);  // a query that sees nothing
  mask.options.mask = std::as_const(mask.mask).view();
  Text& length = add("key_length");
  length.lengths = {n - 4};
  length.options.key_length = length.lengths;
  for (int64_t d = 0; d < 8; ++d) length.k.set({0, 1, n - 1, d}, std::numeric_limits<double>::quiet_NaN());
  Text& documents = add("documents", {.causal = true});
  documents.documents = Array<2>(DType::int32, {1, n});
  for (int64_t t = 0; t < n; ++t) documents.documents.set(t, static_cast<double>(t * 3 / n));
  documents.options.query_segment_ids = documents.options.key_segment_ids = std::as_const(documents.documents).view();
  Text& packed = add("packed", {.causal = true});
  packed.starts = {0, n / 3, n};
  packed.options.cu_seqlens_q = packed.options.cu_seqlens_k = packed.starts;
  packed.slopes = {0.5f, 0.25f, 0.1f, 1.0f};
  packed.options.alibi_slopes = packed.slopes;
  Text& blocks = add("blocks");
  blocks.allowed = Array<4>(DType::boolean, {1, 4, (n + 3) / 4, (n + 3) / 4});
  for (int64_t at = 0; at < blocks.allowed.count(); ++at) blocks.allowed.set(at, at % 3 != 1);
  blocks.options.blocks = {std::as_const(blocks.allowed).view(), 4, 4};
  Text& lists = add("block_lists");  // each head has its own
  lists.lists = layouts::bigbird(n, 4, {.side = 0, .global = 1, .random = 1, .seed = 3, .heads = 4});
  lists.options.blocks = lists.lists;
  for (const auto& text : texts) text->attend();
  return texts;
}

}  // namespace attn::test
