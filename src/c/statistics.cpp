// The functions of attn/c_statistics.h.
#include "c/arguments.h"

using attn::View;
using attn::c::Arguments;
using attn::c::guarded;

attn_status attn_attention_statistics(const attn_tensor* q, const attn_tensor* k, const attn_tensor* lse,
                                      const attn_statistics* wanted, const attn_options* options) {
  return guarded([&] {
    Arguments a("attn_attention_statistics");
    const View<4> q4 = a.base<4>("q", q), k4 = a.base<4>("k", k);
    const View<3> lse3 = a.tensor<3>("lse", lse);
    std::vector<attn::KeyBand> bands;
    const attn::AttentionStatistics s = a.statistics(wanted, bands);
    const attn::AttentionOptions o = a.options(options);
    a.call([&] { attn::attention_statistics(q4, k4, lse3, s, o); });
  });
}

attn_status attn_attention_statistics_backward(const attn_tensor* q, const attn_tensor* k, const attn_tensor* lse,
                                               const attn_statistics* statistics, const attn_row_statistics* drows,
                                               const attn_gradients* gradients, const attn_options* options) {
  return guarded([&] {
    Arguments a("attn_attention_statistics_backward");
    const View<4> q4 = a.base<4>("q", q), k4 = a.base<4>("k", k);
    const View<3> lse3 = a.tensor<3>("lse", lse);
    std::vector<attn::KeyBand> bands;
    const attn::AttentionStatistics s = a.statistics(statistics, bands);
    a.given("drows", drows);
    const auto d = a.rows<attn::RowStatisticsGradients>("drows", drows);
    const attn::AttentionGradients g = a.gradients(gradients);
    const attn::AttentionOptions o = a.options(options);
    a.call([&] { attn::attention_statistics_backward(q4, k4, lse3, s, d, g, o); });
  });
}

attn_status attn_kv_cache_statistics(const attn_kv_cache* cache, attn_int64s sequences, attn_int64s cu_seqlens_q,
                                     const attn_tensor* q, const attn_tensor* lse, const attn_statistics* wanted,
                                     const attn_options* options) {
  return guarded([&] {
    Arguments a("attn_kv_cache_statistics");
    a.needed("cache", cache);
    const std::span<const int64_t> ids = a.span("sequences", sequences), starts = a.span("cu_seqlens_q", cu_seqlens_q);
    const View<4> q4 = a.base<4>("q", q);
    const View<3> lse3 = a.tensor<3>("lse", lse);
    std::vector<attn::KeyBand> bands;
    const attn::AttentionStatistics s = a.statistics(wanted, bands);
    const attn::AttentionOptions o = a.options(options);
    a.call([&] {
      if (options != nullptr) cache->cache.statistics(ids, starts, q4, lse3, s, o);
      else cache->cache.statistics(ids, starts, q4, lse3, s);
    });
  });
}
