// The functions of attn/c.h: each checks what C++ could not even be given, then calls the C++ function of its name.
#include <algorithm>
#include <cstring>
#include <memory>

#include "c/arguments.h"

using attn::View;
using attn::c::Arguments;
using attn::c::guarded;

// ----------------------------------------------------------------------------------------------------------- operator

attn_status attn_attention(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v, const attn_tensor* out,
                           const attn_tensor* lse, const attn_options* options) {
  return guarded([&] {
    Arguments a("attn_attention");
    const View<4> q4 = a.base<4>("q", q), k4 = a.base<4>("k", k), v4 = a.base<4>("v", v);
    const View<4> out4 = a.tensor<4>("out", out);
    const View<3> lse3 = a.optional<3>("lse", lse);
    const attn::AttentionOptions o = a.options(options);
    a.call([&] { attn::attention(q4, k4, v4, out4, lse3, o); });
  });
}

attn_status attn_attention_backward(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v,
                                    const attn_tensor* out, const attn_tensor* lse, const attn_tensor* dout,
                                    const attn_tensor* dlse, const attn_gradients* gradients,
                                    const attn_options* options) {
  return guarded([&] {
    Arguments a("attn_attention_backward");
    const View<4> q4 = a.base<4>("q", q), k4 = a.base<4>("k", k), v4 = a.base<4>("v", v);
    const View<4> out4 = a.tensor<4>("out", out), dout4 = a.tensor<4>("dout", dout);
    const View<3> lse3 = a.tensor<3>("lse", lse), dlse3 = a.optional<3>("dlse", dlse);
    const attn::AttentionGradients g = a.gradients(gradients);
    const attn::AttentionOptions o = a.options(options);
    a.call([&] { attn::attention_backward(q4, k4, v4, out4, lse3, dout4, g, o, dlse3); });
  });
}

attn_status attn_attention_weights(const attn_tensor* q, const attn_tensor* k, const attn_tensor* lse,
                                   const attn_tensor* weights, int64_t first_query, int64_t first_key,
                                   const attn_options* options) {
  return guarded([&] {
    Arguments a("attn_attention_weights");
    const View<4> q4 = a.base<4>("q", q), k4 = a.base<4>("k", k);
    const View<3> lse3 = a.tensor<3>("lse", lse);
    const View<4> weights4 = a.tensor<4>("weights", weights);
    const attn::AttentionOptions o = a.options(options);
    a.call([&] { attn::attention_weights(q4, k4, lse3, weights4, first_query, first_key, o); });
  });
}

attn_status attn_merge(const attn_tensor* out, const attn_tensor* lse, const attn_tensor* out_b,
                       const attn_tensor* lse_b) {
  return guarded([&] {
    Arguments a("attn_merge");
    const View<4> out4 = a.base<4>("out", out);
    const View<3> lse3 = a.tensor<3>("lse", lse);
    const View<4> out_b4 = a.tensor<4>("out_b", out_b);
    const View<3> lse_b3 = a.tensor<3>("lse_b", lse_b);
    a.call([&] { attn::merge(out4, lse3, out_b4, lse_b3); });
  });
}

namespace {

/// Both explanations; `plan` gets as much of the answer as it has room for.
template <class Explain>
attn_status explain(const char* function, const attn_tensor* q, const attn_tensor* k, const attn_tensor* v,
                    const attn_options* options, attn_plan* plan, const Explain& ask) {
  return guarded([&] {
    Arguments a(function);
    const View<4> q4 = a.base<4>("q", q), k4 = a.base<4>("k", k), v4 = a.base<4>("v", v);
    const attn::AttentionOptions o = a.options(options);
    const size_t size = a.given("plan", plan) ? a.struct_size("plan", plan, sizeof(attn_plan)) : 0;
    thread_local attn::AttentionPlan kept;
    a.call([&] { kept = ask(q4, k4, v4, o); });
    const attn_plan answer{size,
                           kept.path.c_str(),
                           kept.isa.c_str(),
                           kept.tasks,
                           kept.scratch_bytes,
                           kept.flops,
                           static_cast<int32_t>(kept.unit_type),
                           0,
                           kept.unit_flops};
    std::memset(reinterpret_cast<char*>(plan), 0, size);
    std::memcpy(plan, &answer, std::min(size, sizeof answer));
  });
}

}  // namespace

attn_status attn_explain(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v, const attn_options* options,
                         attn_plan* plan) {
  return explain(
      "attn_explain", q, k, v, options, plan,
      [](const auto& q4, const auto& k4, const auto& v4, const auto& o) { return attn::explain(q4, k4, v4, o); });
}

attn_status attn_explain_backward(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v,
                                  const attn_options* options, int32_t with_dbias, attn_plan* plan) {
  return explain("attn_explain_backward", q, k, v, options, plan,
                 [&](const auto& q4, const auto& k4, const auto& v4, const auto& o) {
                   return attn::explain_backward(q4, k4, v4, o, with_dbias != 0);
                 });
}

attn_status attn_dropout_keeps(uint64_t seed, double probability, int64_t b, int64_t h, int64_t i, int64_t j,
                               int32_t* keeps) {
  return guarded([&] {
    Arguments a("attn_dropout_keeps");
    a.given("keeps", keeps);
    a.call([&] { *keeps = attn::dropout_keeps(seed, probability, b, h, i, j); });
  });
}

// -------------------------------------------------------------------------------------------------------------- cache

attn_status attn_kv_cache_create(const attn_kv_cache_config* config, attn_kv_cache** cache) {
  return guarded([&] {
    Arguments a("attn_kv_cache_create");
    const attn::KVCacheConfig made = a.config(config);
    a.given("cache", cache);
    a.call([&] { *cache = new attn_kv_cache{attn::KVCache(made)}; });
  });
}

void attn_kv_cache_destroy(attn_kv_cache* cache) { delete cache; }

namespace {

/// What `ask` gives goes to `answer`, the argument called `name`.
template <class Answer, class Ask>
attn_status answer(const char* function, const attn_kv_cache* cache, const char* name, Answer* answer, const Ask& ask) {
  return guarded([&] {
    Arguments a(function);
    a.given("cache", cache);
    a.given(name, answer);
    a.done();
    *answer = ask();
  });
}

attn_status attend(const char* function, const attn_kv_cache* cache, attn_int64s sequences, attn_int64s cu_seqlens_q,
                   const attn_tensor* q, const attn_tensor* sink_queries, const attn_tensor* out,
                   const attn_tensor* lse, const attn_options* options) {
  return guarded([&] {
    Arguments a(function);
    a.needed("cache", cache);
    const std::span<const int64_t> ids = a.span("sequences", sequences), starts = a.span("cu_seqlens_q", cu_seqlens_q);
    const View<4> q4 = a.base<4>("q", q), sinks4 = a.optional<4>("sink_queries", sink_queries);
    const View<4> out4 = a.tensor<4>("out", out);
    const View<3> lse3 = a.optional<3>("lse", lse);
    attn::AttentionOptions o = a.options(options);
    if (options == nullptr) {
      o.causal = true;
      o.alignment = attn::Alignment::bottom_right;
    }
    a.call([&] { cache->cache.attend(ids, starts, q4, out4, lse3, o, sinks4); });
  });
}

}  // namespace

attn_status attn_kv_cache_add(attn_kv_cache* cache, int64_t* sequence) {
  return answer("attn_kv_cache_add", cache, "sequence", sequence, [&] { return cache->cache.add(); });
}

attn_status attn_kv_cache_fork(attn_kv_cache* cache, int64_t sequence, int64_t length, int64_t* fork) {
  return answer("attn_kv_cache_fork", cache, "fork", fork, [&] { return cache->cache.fork(sequence, length); });
}

attn_status attn_kv_cache_contains(const attn_kv_cache* cache, int64_t sequence, int32_t* contains) {
  return answer("attn_kv_cache_contains", cache, "contains", contains, [&] { return cache->cache.contains(sequence); });
}

attn_status attn_kv_cache_length(const attn_kv_cache* cache, int64_t sequence, int64_t* length) {
  return answer("attn_kv_cache_length", cache, "length", length, [&] { return cache->cache.length(sequence); });
}

attn_status attn_kv_cache_pages_in_use(const attn_kv_cache* cache, int64_t* pages) {
  return answer("attn_kv_cache_pages_in_use", cache, "pages", pages, [&] { return cache->cache.pages_in_use(); });
}

attn_status attn_kv_cache_append(attn_kv_cache* cache, int64_t sequence, const attn_tensor* k, const attn_tensor* v) {
  return guarded([&] {
    Arguments a("attn_kv_cache_append");
    a.needed("cache", cache);
    const View<4> k4 = a.base<4>("k", k), v4 = a.base<4>("v", v);
    a.call([&] { cache->cache.append(sequence, k4, v4); });
  });
}

attn_status attn_kv_cache_truncate(attn_kv_cache* cache, int64_t sequence, int64_t length) {
  return guarded([&] {
    Arguments a("attn_kv_cache_truncate");
    a.given("cache", cache);
    a.done();
    cache->cache.truncate(sequence, length);
  });
}

attn_status attn_kv_cache_remove(attn_kv_cache* cache, int64_t sequence) {
  return guarded([&] {
    Arguments a("attn_kv_cache_remove");
    a.given("cache", cache);
    a.done();
    cache->cache.remove(sequence);
  });
}

attn_status attn_kv_cache_attend(const attn_kv_cache* cache, attn_int64s sequences, attn_int64s cu_seqlens_q,
                                 const attn_tensor* q, const attn_tensor* out, const attn_tensor* lse,
                                 const attn_options* options) {
  return attend("attn_kv_cache_attend", cache, sequences, cu_seqlens_q, q, nullptr, out, lse, options);
}

attn_status attn_kv_cache_attend_streaming(const attn_kv_cache* cache, attn_int64s sequences, attn_int64s cu_seqlens_q,
                                           const attn_tensor* q, const attn_tensor* sink_queries,
                                           const attn_tensor* out, const attn_tensor* lse,
                                           const attn_options* options) {
  return attend("attn_kv_cache_attend_streaming", cache, sequences, cu_seqlens_q, q, sink_queries, out, lse, options);
}

// --------------------------------------------------------------------------------------------------- instruction sets

namespace {

/// Names that live as long as the library.
const std::vector<std::string>& isas() {
  static const std::vector<std::string> names = attn::available_isas();
  return names;
}

}  // namespace

const char* attn_isa_available(int64_t index) {
  const char* name = nullptr;
  guarded([&] {
    if (index >= 0 && index < static_cast<int64_t>(isas().size())) name = isas()[static_cast<size_t>(index)].c_str();
  });
  return name;
}

attn_status attn_isa_active(const char** name) {
  return guarded([&] {
    Arguments a("attn_isa_active");
    a.given("name", name);
    a.done();
    *name = std::find(isas().begin(), isas().end(), attn::active_isa())->c_str();
  });
}

attn_status attn_isa_set(const char* name) {
  return guarded([&] {
    Arguments a("attn_isa_set");
    a.given("name", name);
    a.done();
    attn::set_isa(name);
  });
}

attn_status attn_isa_missing(const char** reason) {
  return guarded([&] {
    Arguments a("attn_isa_missing");
    a.given("reason", reason);
    a.done();
    thread_local std::string kept;
    kept = attn::missing_isa();
    *reason = kept.c_str();
  });
}
