// The C interface gives the bits of the C++ one for every option, and refuses by name what C++ could not even be given.
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <limits>
#include <stdexcept>
#include <thread>

#include "support/c_tensors.h"

namespace attn::test {
namespace {

/// One call, its options for C++ and for C, and what both may point to.
struct Call {
  static constexpr int64_t H = 4, Hk = 2, Lq = 6, Lk = 9, D = 8, Dv = 5;
  Array<4> q{DType::float32, {1, H, Lq, D}}, k{DType::float32, {1, Hk, Lk, D}}, v{DType::float32, {1, Hk, Lk, Dv}};
  Array<4> dout{DType::float32, {1, H, Lq, Dv}};
  Array<3> dlse{DType::float32, {1, H, Lq}};
  Array<4> mask{DType::boolean, {1, 1, Lq, Lk}}, bias{DType::float32, {1, H, 1, Lk}};
  Array<4> blocks{DType::boolean, {1, 1, 2, 3}};
  Array<3> offsets{DType::int64, {1, 1, 3}};
  Array<1> indices{DType::int64, {3}};
  Array<2> query_segment_ids{DType::int32, {1, Lq}}, key_segment_ids{DType::int32, {1, Lk}};
  std::vector<int64_t> key_length{7}, query_length{4}, offset{1}, cu_seqlens_q{0, 2, 6}, cu_seqlens_k{0, 5, 9};
  std::vector<float> slopes{0.5F, 0.25F, 0.1F, 0.05F}, sink{0.5F, -1, 2, 0};
  attn_tensor c_offsets = tensor(offsets), c_indices = tensor(indices);
  attn_tensor c_mask = tensor(mask), c_bias = tensor(bias), c_blocks = tensor(blocks);
  double c_scale = 0;
  attn_window c_window{};
  attn_blocks c_layout{&c_blocks, 4, 3, nullptr, nullptr}, c_lists{nullptr, 4, 3, &c_offsets, &c_indices};
  attn_tensor c_query_document = tensor(query_segment_ids), c_key_document = tensor(key_segment_ids);
  AttentionOptions cpp;
  attn_options c = defaults();

  Call() {
    Random random(7);
    for (Array<4>* x : {&q, &k, &v, &dout, &bias}) x->fill_normal(random);
    dlse.fill_normal(random);
    for (int64_t n = 0; n < mask.count(); ++n) mask.set(n, n % 3 != 0);
    for (int64_t n = 0; n < blocks.count(); ++n) blocks.set(n, n != 1);
    offsets.set(1, 1), offsets.set(2, 3);  // key block 2; key blocks 0 and 1
    indices.set(0, 2), indices.set(2, 1);
    for (int64_t i = 0; i < Lq; ++i) query_segment_ids.set(i, i >= 3);
    for (int64_t j = 0; j < Lk; ++j) key_segment_ids.set(j, j / 4 == 1);
  }

  void align(Alignment alignment) {
    cpp.alignment = alignment;
    c.alignment = static_cast<int32_t>(alignment);
  }
  void be_causal(Alignment alignment) {
    align(alignment);
    cpp.causal = true;
    c.causal = 1;
  }
};

struct Gradients {
  Array<4> out{DType::float32, {1, Call::H, Call::Lq, Call::Dv}}, dq{DType::float32, {1, Call::H, Call::Lq, Call::D}};
  Array<4> dk{DType::float32, {1, Call::Hk, Call::Lk, Call::D}}, dv{DType::float32, {1, Call::Hk, Call::Lk, Call::Dv}};
  Array<4> dbias{DType::float32, {1, Call::H, 1, Call::Lk}}, weights{DType::float32, {1, Call::H, Call::Lq, 4}};
  Array<3> lse{DType::float32, {1, Call::H, Call::Lq}};
  Array<1> dsink{DType::float32, {Call::H}};

  std::vector<std::vector<std::byte>> bytes() const {
    return {out.bytes(), lse.bytes(),   dq.bytes(),      dk.bytes(),
            dv.bytes(),  dbias.bytes(), weights.bytes(), dsink.bytes()};
  }
};

Gradients run_cpp(Call& call) {
  Gradients r;
  attention(call.q.view(), call.k.view(), call.v.view(), r.out.view(), r.lse.view(), call.cpp);
  AttentionGradients g{.dq = r.dq.view(), .dk = r.dk.view(), .dv = r.dv.view()};
  if (call.cpp.bias) g.dbias = r.dbias.view();
  if (!call.cpp.sink.empty()) g.dsink = r.dsink.view();
  attention_backward(call.q.view(), call.k.view(), call.v.view(), r.out.view(), r.lse.view(), call.dout.view(), g,
                     call.cpp, call.dlse.view());
  attention_weights(call.q.view(), call.k.view(), r.lse.view(), r.weights.view(), 0, 3, call.cpp);
  return r;
}

Gradients run_c(Call& call) {
  Gradients r;
  const attn_tensor q = tensor(call.q), k = tensor(call.k), v = tensor(call.v), out = tensor(r.out);
  const attn_tensor lse = tensor(r.lse), dout = tensor(call.dout), dlse = tensor(call.dlse);
  EXPECT_EQ(attn_attention(&q, &k, &v, &out, &lse, &call.c), ATTN_OK) << attn_last_error();
  const attn_tensor dq = tensor(r.dq), dk = tensor(r.dk), dv = tensor(r.dv), dbias = tensor(r.dbias);
  const attn_tensor dsink = tensor(r.dsink), weights = tensor(r.weights);
  const attn_gradients g{sizeof g, &dq, &dk, &dv, call.c.bias ? &dbias : nullptr, call.c.sink.data ? &dsink : nullptr};
  EXPECT_EQ(attn_attention_backward(&q, &k, &v, &out, &lse, &dout, &dlse, &g, &call.c), ATTN_OK) << attn_last_error();
  EXPECT_EQ(attn_attention_weights(&q, &k, &lse, &weights, 0, 3, &call.c), ATTN_OK) << attn_last_error();
  return r;
}

struct Setting {
  const char* name;
  std::function<void(Call&)> set;
};

/// Every field of the options, by itself or with what it needs.
const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = {
      {"scale", [](Call& s) { s.cpp.scale = s.c_scale = 0.9, s.c.scale = &s.c_scale; }},
      {"scale 0", [](Call& s) { s.cpp.scale = 0, s.c.scale = &s.c_scale; }},
      {"softcap", [](Call& s) { s.cpp.softcap = s.c.softcap = 0.7; }},
      {"top_left", [](Call& s) { s.be_causal(Alignment::top_left); }},
      {"bottom_right", [](Call& s) { s.be_causal(Alignment::bottom_right); }},
      {"offset",
       [](Call& s) {
         s.be_causal(Alignment::offset);
         s.cpp.offset = s.offset, s.c.offset = list(s.offset);
       }},
      {"window",
       [](Call& s) {
         s.align(Alignment::top_left);
         s.cpp.window = {1, 2}, s.c_window = {1, 2}, s.c.window = &s.c_window;
       }},
      {"window to the left",
       [](Call& s) {
         s.align(Alignment::top_left);
         s.cpp.window = {0, -1}, s.c_window = {0, -1}, s.c.window = &s.c_window;
       }},
      {"key_length", [](Call& s) { s.cpp.key_length = s.key_length, s.c.key_length = list(s.key_length); }},
      {"query_length",
       [](Call& s) {
         s.be_causal(Alignment::bottom_right);
         s.cpp.query_length = s.query_length, s.c.query_length = list(s.query_length);
       }},
      {"mask", [](Call& s) { s.cpp.mask = s.mask.view(), s.c.mask = &s.c_mask; }},
      {"bias", [](Call& s) { s.cpp.bias = s.bias.view(), s.c.bias = &s.c_bias; }},
      {"alibi_slopes",
       [](Call& s) {
         s.align(Alignment::top_left);
         s.cpp.alibi_slopes = s.slopes, s.c.alibi_slopes = list(s.slopes);
       }},
      {"documents",
       [](Call& s) {
         s.cpp.query_segment_ids = s.query_segment_ids.view(), s.c.query_segment_ids = &s.c_query_document;
         s.cpp.key_segment_ids = s.key_segment_ids.view(), s.c.key_segment_ids = &s.c_key_document;
       }},
      {"packed",
       [](Call& s) {
         s.cpp.cu_seqlens_q = s.cu_seqlens_q, s.c.cu_seqlens_q = list(s.cu_seqlens_q);
         s.cpp.cu_seqlens_k = s.cu_seqlens_k, s.c.cu_seqlens_k = list(s.cu_seqlens_k);
       }},
      {"blocks",
       [](Call& s) {
         s.cpp.blocks = {s.blocks.view(), 4, 3};
         s.c.blocks = &s.c_layout;
       }},
      {"block lists",
       [](Call& s) {
         s.cpp.blocks = {{}, 4, 3, s.offsets.view(), s.indices.view()};
         s.c.blocks = &s.c_lists;
       }},
      {"sink", [](Call& s) { s.cpp.sink = s.sink, s.c.sink = list(s.sink); }},
      {"dropout", [](Call& s) { s.cpp.dropout = s.c.dropout = 0.4; }},
      {"seed", [](Call& s) { s.cpp.dropout = s.c.dropout = 0.4, s.cpp.seed = s.c.seed = 3; }},
  };
  return all;
}

TEST(CResults, EveryOptionGivesTheBitsOfCpp) {
  std::vector<std::vector<std::vector<std::byte>>> seen;
  Call plain;
  seen.push_back(run_cpp(plain).bytes());
  EXPECT_EQ(run_c(plain).bytes(), seen.back());
  for (const Setting& setting : settings()) {
    Call call;
    setting.set(call);
    const auto expected = run_cpp(call).bytes();
    EXPECT_EQ(run_c(call).bytes(), expected) << setting.name;
    // An option that were ignored on both sides would agree as well.
    for (const auto& other : seen) EXPECT_NE(expected, other) << setting.name;
    seen.push_back(expected);
  }
}

TEST(CResults, TypesAndNullOptions) {
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    Call call;
    Array<4> q = call.q.as(dtype), k = call.k.as(dtype), v = call.v.as(dtype), out(dtype, call.dout.size()), same = out;
    attention(q.view(), k.view(), v.view(), out.view());
    const attn_tensor cq = tensor(q), ck = tensor(k), cv = tensor(v), cout = tensor(same);
    ASSERT_EQ(attn_attention(&cq, &ck, &cv, &cout, nullptr, nullptr), ATTN_OK) << attn_last_error();
    EXPECT_EQ(same.bytes(), out.bytes()) << name_of(dtype);
  }
}

TEST(CResults, DenseTensors) {
  float data = 0;
  const int64_t size[] = {2, 3, 4, 5};
  const attn_tensor t = attn_dense(&data, ATTN_FLOAT32, 4, size);
  EXPECT_EQ(t.data, &data);
  EXPECT_EQ(t.dtype, ATTN_FLOAT32);
  EXPECT_EQ(t.rank, 4);
  EXPECT_TRUE(std::equal(t.size, t.size + 4, size));
  const int64_t strides[] = {60, 20, 5, 1};
  EXPECT_TRUE(std::equal(t.stride, t.stride + 4, strides));
  EXPECT_EQ(attn_dense(&data, ATTN_FLOAT32, 5, size).rank, 0);
  EXPECT_EQ(attn_dense(&data, ATTN_FLOAT32, 4, nullptr).rank, 0);
  const int64_t huge[] = {3, int64_t{1} << 40, int64_t{1} << 40, 1};
  EXPECT_EQ(attn_dense(&data, ATTN_FLOAT32, 4, huge).stride[0], std::numeric_limits<int64_t>::max());
}

TEST(CResults, MergeAndPlans) {
  Call call;
  Gradients a = run_cpp(call), b = a;
  call.cpp.softcap = 1;
  Gradients other = run_cpp(call);
  merge(a.out.view(), a.lse.view(), other.out.view(), other.lse.view());
  const attn_tensor out = tensor(b.out), lse = tensor(b.lse), out_b = tensor(other.out), lse_b = tensor(other.lse);
  ASSERT_EQ(attn_merge(&out, &lse, &out_b, &lse_b), ATTN_OK) << attn_last_error();
  EXPECT_EQ(a.bytes(), b.bytes());

  call.cpp.bias = call.bias.view();
  call.c.bias = &call.c_bias;
  call.c.softcap = 1;
  const attn_tensor q = tensor(call.q), k = tensor(call.k), v = tensor(call.v);
  attn_plan plan{};
  plan.struct_size = sizeof plan;
  const auto expect_plan = [&](const AttentionPlan& expected) {
    EXPECT_EQ(plan.path, expected.path);
    EXPECT_EQ(plan.isa, expected.isa);
    EXPECT_EQ(plan.tasks, expected.tasks);
    EXPECT_EQ(plan.scratch_bytes, expected.scratch_bytes);
    EXPECT_EQ(plan.flops, expected.flops);
    EXPECT_EQ(plan.unit_type, static_cast<int32_t>(expected.unit_type));
    EXPECT_EQ(plan.unit_flops, expected.unit_flops);
  };
  ASSERT_EQ(attn_explain(&q, &k, &v, &call.c, &plan), ATTN_OK) << attn_last_error();
  expect_plan(explain(call.q.view(), call.k.view(), call.v.view(), call.cpp));
  for (const bool with_dbias : {false, true}) {
    ASSERT_EQ(attn_explain_backward(&q, &k, &v, &call.c, with_dbias, &plan), ATTN_OK) << attn_last_error();
    expect_plan(explain_backward(call.q.view(), call.k.view(), call.v.view(), call.cpp, with_dbias));
  }
  // An older struct ends before the later fields: they stay as they are.
  plan.struct_size = offsetof(attn_plan, scratch_bytes);
  plan.scratch_bytes = -1;
  ASSERT_EQ(attn_explain(&q, &k, &v, nullptr, &plan), ATTN_OK) << attn_last_error();
  EXPECT_EQ(plan.scratch_bytes, -1);
}

/// What one cache holds after the same calls in C++ and in C.
TEST(CResults, Cache) {
  Call call;
  KVCache cpp({.kv_heads = Call::Hk, .head_dim = Call::D, .value_dim = Call::Dv, .page_size = 4, .max_pages = 9});
  attn_kv_cache_config config{sizeof config, Call::Hk, Call::D, Call::Dv, 4, 9, ATTN_FLOAT32, 0, 0, 0};
  attn_kv_cache* cache = nullptr;
  ASSERT_EQ(attn_kv_cache_create(&config, &cache), ATTN_OK) << attn_last_error();
  const attn_tensor k = tensor(call.k), v = tensor(call.v);
  int64_t first = -1, second = -1, gone = -1, number = -1;
  ASSERT_EQ(attn_kv_cache_add(cache, &first), ATTN_OK);
  ASSERT_EQ(attn_kv_cache_append(cache, first, &k, &v), ATTN_OK) << attn_last_error();
  ASSERT_EQ(attn_kv_cache_fork(cache, first, 6, &second), ATTN_OK);
  ASSERT_EQ(attn_kv_cache_append(cache, second, &k, &v), ATTN_OK) << attn_last_error();
  ASSERT_EQ(attn_kv_cache_truncate(cache, first, 5), ATTN_OK);
  ASSERT_EQ(attn_kv_cache_add(cache, &gone), ATTN_OK);
  ASSERT_EQ(attn_kv_cache_remove(cache, gone), ATTN_OK);
  const int64_t cpp_first = cpp.add();
  cpp.append(cpp_first, call.k.view(), call.v.view());
  const int64_t cpp_second = cpp.fork(cpp_first, 6);
  cpp.append(cpp_second, call.k.view(), call.v.view());
  cpp.truncate(cpp_first, 5);
  ASSERT_EQ(attn_kv_cache_length(cache, second, &number), ATTN_OK);
  EXPECT_EQ(number, 15);
  int32_t contains = -1;
  ASSERT_EQ(attn_kv_cache_contains(cache, second, &contains), ATTN_OK);
  EXPECT_EQ(contains, 1);
  ASSERT_EQ(attn_kv_cache_contains(cache, gone, &contains), ATTN_OK);
  EXPECT_EQ(contains, 0);
  ASSERT_EQ(attn_kv_cache_pages_in_use(cache, &number), ATTN_OK);
  EXPECT_EQ(number, cpp.pages_in_use());
  EXPECT_EQ(attn_kv_cache_length(cache, gone, &number), ATTN_INVALID_ARGUMENT);

  const std::vector<int64_t> sequences = {first, second}, cu_seqlens_q = {0, 2, 6};
  const std::vector<int64_t> cpp_sequences = {cpp_first, cpp_second};
  AttentionOptions options{.softcap = 1};
  attn_options c_options = defaults();
  c_options.softcap = 1;
  for (const bool with_options : {false, true}) {
    Gradients expected, actual;
    const attn_tensor q = tensor(call.q), out = tensor(actual.out), lse = tensor(actual.lse);
    if (with_options)
      cpp.attend(cpp_sequences, cu_seqlens_q, call.q.view(), expected.out.view(), expected.lse.view(), options);
    else cpp.attend(cpp_sequences, cu_seqlens_q, call.q.view(), expected.out.view(), expected.lse.view());
    const attn_options* given = with_options ? &c_options : nullptr;
    ASSERT_EQ(attn_kv_cache_attend(cache, list(sequences), list(cu_seqlens_q), &q, &out, &lse, given), ATTN_OK);
    EXPECT_EQ(actual.bytes(), expected.bytes());
  }
  attn_kv_cache_destroy(cache);
  attn_kv_cache_destroy(nullptr);
}

TEST(CResults, StreamingCache) {
  Call call;
  KVCacheConfig cpp_config = {.kv_heads = Call::Hk, .head_dim = Call::D, .value_dim = Call::Dv, .page_size = 4};
  cpp_config.streaming = {.sink_tokens = 2, .window = 3};
  KVCache cpp(cpp_config);
  const attn_kv_cache_config config{sizeof config, Call::Hk, Call::D, Call::Dv, 4, 0, ATTN_FLOAT32, 0, 2, 3};
  attn_kv_cache* cache = nullptr;
  ASSERT_EQ(attn_kv_cache_create(&config, &cache), ATTN_OK) << attn_last_error();
  Array<4> sinks = call.q;
  for (int64_t n = 0; n < sinks.count(); ++n) sinks.set(n, -call.q.get(n));
  const attn_tensor k = tensor(call.k), v = tensor(call.v), q = tensor(call.q), sink_q = tensor(sinks);
  const std::vector<int64_t> sequences = {cpp.add()}, cu_seqlens_q = {0, Call::Lq};
  int64_t sequence = -1;
  ASSERT_EQ(attn_kv_cache_add(cache, &sequence), ATTN_OK);
  ASSERT_EQ(attn_kv_cache_append(cache, sequence, &k, &v), ATTN_OK) << attn_last_error();
  cpp.append(sequence, call.k.view(), call.v.view());
  Gradients expected, actual;
  const attn_tensor out = tensor(actual.out), lse = tensor(actual.lse);
  cpp.attend(sequences, cu_seqlens_q, call.q.view(), expected.out.view(), expected.lse.view(),
             {.causal = true, .alignment = Alignment::bottom_right}, sinks.view());
  const auto ids = list(sequences), starts = list(cu_seqlens_q);
  ASSERT_EQ(attn_kv_cache_attend_streaming(cache, ids, starts, &q, &sink_q, &out, &lse, nullptr), ATTN_OK);
  EXPECT_EQ(actual.bytes(), expected.bytes());
  attn_kv_cache_destroy(cache);
}

TEST(CResults, IsasAndThreads) {
  std::vector<std::string> names;
  for (int64_t n = 0; attn_isa_available(n) != nullptr; ++n) names.emplace_back(attn_isa_available(n));
  EXPECT_EQ(names, available_isas());
  EXPECT_EQ(attn_isa_available(-1), nullptr);
  const std::string before = active_isa();
  const char* active = nullptr;
  ASSERT_EQ(attn_isa_set(names.back().c_str()), ATTN_OK);
  ASSERT_EQ(attn_isa_active(&active), ATTN_OK);
  EXPECT_EQ(active, names.back());
  ASSERT_EQ(attn_isa_set(before.c_str()), ATTN_OK);
  ASSERT_EQ(attn_isa_missing(&active), ATTN_OK);
  EXPECT_EQ(active, missing_isa());
  ASSERT_EQ(attn_set_thread_count(3), ATTN_OK);
  EXPECT_EQ(attn_thread_count(), 3);
  EXPECT_EQ(attn_set_thread_count(5000), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(),
               "[set_thread_count] the number of threads is 5000, must be from 0 (one for each processor) to 1024");
  EXPECT_EQ(attn_thread_count(), 3);
  ASSERT_EQ(attn_set_thread_count(0), ATTN_OK);
  EXPECT_STREQ(attn_version(), "0.1.0");
}

// ------------------------------------------------------------------------------------------------------------- errors

/// A call that must be refused, with every text in the message, and without a byte written.
struct Refusal {
  const char* name;
  std::function<void(Call&, attn_tensor&)> spoil;  // the second argument is q
  std::vector<std::string> texts;
};

TEST(CErrors, NameTheFunctionAndTheField) {
  const std::vector<Refusal> refusals = {
      {"rank", [](Call&, attn_tensor& q) { q.rank = 3; }, {"[attn_attention] q has rank 3, must be 4"}},
      {"dtype", [](Call&, attn_tensor& q) { q.dtype = 7; }, {"[attn_attention] q has dtype 7, must be one of"}},
      {"negative dtype", [](Call&, attn_tensor& q) { q.dtype = -1; }, {"q has dtype -1"}},
      {"no data", [](Call&, attn_tensor& q) { q.data = nullptr; }, {"[attn_attention] q has no data"}},
      {"size", [](Call&, attn_tensor& q) { q.size[1] = -4; }, {"q has a negative size"}},
      {"shape", [](Call&, attn_tensor& q) { q.size[3] = 7; }, {"[attention] k must have q's head width D"}},
      {"causal",
       [](Call& s, attn_tensor&) { s.c.causal = 2; },
       {"[attn_attention] options.causal is 2, must be 0 or 1"}},
      {"alignment", [](Call& s, attn_tensor&) { s.c.alignment = 4; }, {"options.alignment is 4, must be one of"}},
      {"float32_precision",
       [](Call& s, attn_tensor&) { s.c.float32_precision = 3; },
       {"options.float32_precision is 3, must be one of"}},
      {"batch_invariant", [](Call& s, attn_tensor&) { s.c.batch_invariant = 2; }, {"options.batch_invariant is 2"}},
      {"scale",
       [](Call& s, attn_tensor&) { s.c_scale = std::numeric_limits<double>::infinity(), s.c.scale = &s.c_scale; },
       {"scale is inf, must be finite"}},
      {"window",
       [](Call& s, attn_tensor&) {
         s.c_window = {-2, 0}, s.c.window = &s.c_window;
       },
       {"window"}},
      {"blocks",
       [](Call& s, attn_tensor&) { s.c_layout.allowed = nullptr, s.c.blocks = &s.c_layout; },
       {"options.blocks has neither allowed nor offsets"}},
      {"mask", [](Call& s, attn_tensor&) { s.c_mask.rank = 2, s.c.mask = &s.c_mask; }, {"options.mask has rank 2"}},
      {"bias", [](Call& s, attn_tensor&) { s.c_bias.dtype = ATTN_INT32, s.c.bias = &s.c_bias; }, {"bias is int32"}},
      {"document",
       [](Call& s, attn_tensor&) { s.c_key_document.data = nullptr, s.c.key_segment_ids = &s.c_key_document; },
       {"options.key_segment_ids has no data"}},
      {"count",
       [](Call& s, attn_tensor&) {
         s.c.sink = {s.sink.data(), -4};
       },
       {"options.sink has count -4"}},
      {"list", [](Call& s, attn_tensor&) { s.c.offset.count = 1; }, {"options.offset has no data and count 1"}},
      {"no size", [](Call& s, attn_tensor&) { s.c.struct_size = 0; }, {"options.struct_size is 0, must be the sizeof"}},
      {"half a field", [](Call& s, attn_tensor&) { s.c.struct_size = 12; }, {"options.struct_size is 12"}},
      {"no struct", [](Call& s, attn_tensor&) { s.c.struct_size = 1 << 20; }, {"options.struct_size is 1048576"}},
      {"all at once",
       [](Call& s, attn_tensor& q) { q.rank = 1, s.c.causal = -1, s.c.alignment = 9; },
       {"q has rank 1", "options.causal is -1", "options.alignment is 9"}},
  };
  for (const Refusal& refusal : refusals) {
    Call call;
    Gradients r;
    r.out.fill_with_nan();
    const std::vector<std::byte> untouched = r.out.bytes();
    attn_tensor q = tensor(call.q), k = tensor(call.k), v = tensor(call.v), out = tensor(r.out);
    refusal.spoil(call, q);
    EXPECT_EQ(attn_attention(&q, &k, &v, &out, nullptr, &call.c), ATTN_INVALID_ARGUMENT) << refusal.name;
    for (const std::string& text : refusal.texts)
      EXPECT_NE(std::string(attn_last_error()).find(text), std::string::npos)
          << refusal.name << ": " << attn_last_error();
    EXPECT_EQ(r.out.bytes(), untouched) << refusal.name;
  }
}

void expect_refused(attn_status status, const std::string& message) {
  EXPECT_EQ(status, ATTN_INVALID_ARGUMENT);
  EXPECT_EQ(attn_last_error(), message);
}

/// Enumerations, ranks and types, which C++ could not even be given, and what the operator says of all else, in one
/// message; and nothing in it that only follows from another reason.
TEST(CErrors, ComeAllAtOnce) {
  Call call;
  Gradients r;
  r.out.fill_with_nan();
  const std::vector<std::byte> untouched = r.out.bytes();
  attn_tensor q = tensor(call.q), k = tensor(call.k), v = tensor(call.v), out = tensor(r.out), lse = tensor(r.lse);
  call.c.causal = 2;
  call.c.float32_precision = -1;
  call.c.softcap = -1;
  call.c.dropout = 1.5;
  call.c_mask.rank = 3, call.c.mask = &call.c_mask;
  call.c.sink = {call.sink.data(), 3};
  out.dtype = 9, lse.size[2] = 5;
  EXPECT_EQ(attn_attention(&q, &k, &v, &out, &lse, &call.c), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(
      attn_last_error(),
      "[attn_attention] out has dtype 9, must be one of enum attn_dtype, ATTN_FLOAT32 = 0 to ATTN_INT64 = 6; "
      "options.causal is 2, must be 0 or 1; options.mask has rank 3, must be 4; options.float32_precision is "
      "-1, must be one of enum attn_float32_precision, 0 to 2; softcap is -1.000000, must be finite and not negative; "
      "dropout "
      "is 1.500000, must be in [0, 1); sink has 3 entries, must have H = 4; alignment must be given (top_left, "
      "bottom_right or offset): Lq = 6 differs from Lk = 9; lse has size [1, 4, 5], must be [B, H, Lq] = [1, 4, "
      "6]");
  EXPECT_EQ(r.out.bytes(), untouched);

  // Without q's shape nothing can be said of the others'.
  q.rank = 2;
  EXPECT_EQ(attn_attention(&q, &k, &v, &out, &lse, &call.c), ATTN_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(attn_last_error()).find("lse has size"), std::string::npos) << attn_last_error();
  for (const char* reason :
       {"q has rank 2", "softcap is -1.000000, must be finite", "dropout is 1.5", "options.causal is 2"})
    EXPECT_NE(std::string(attn_last_error()).find(reason), std::string::npos) << attn_last_error();
  // A mistake that is found here does not let a good call through: nothing is written.
  q.rank = 4, out = tensor(r.out), lse = tensor(r.lse);
  call.c = defaults();
  call.c.batch_invariant = 3;
  EXPECT_EQ(attn_attention(&q, &k, &v, &out, &lse, &call.c), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(), "[attn_attention] options.batch_invariant is 3, must be 0 or 1");
  EXPECT_EQ(r.out.bytes(), untouched);
  call.c.batch_invariant = 1;
  EXPECT_EQ(attn_attention(&q, &k, &v, &out, &lse, &call.c), ATTN_OK) << attn_last_error();

  attn_kv_cache* cache = nullptr;
  const attn_kv_cache_config config{sizeof config, 1, 0, 0, -3, 0, 9, 0, 0, 0};
  EXPECT_EQ(attn_kv_cache_create(&config, &cache), ATTN_INVALID_ARGUMENT);
  const std::string said = attn_last_error();
  for (const char* reason : {"config has dtype 9", "head_dim is 0", "page_size is -3"})
    EXPECT_NE(said.find(reason), std::string::npos) << said;
}

TEST(CErrors, NullPointers) {
  expect_refused(
      attn_attention(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
      "[attn_attention] q is a null pointer; k is a null pointer; v is a null pointer; out is a null pointer");
  expect_refused(
      attn_attention_backward(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
      "[attn_attention_backward] q is a null pointer; k is a null pointer; v is a null pointer; out is a null pointer; "
      "dout is a null pointer; lse is a null pointer; gradients is a null pointer");
  expect_refused(
      attn_attention_weights(nullptr, nullptr, nullptr, nullptr, 0, 0, nullptr),
      "[attn_attention_weights] q is a null pointer; k is a null pointer; lse is a null pointer; weights is a null "
      "pointer");
  expect_refused(attn_merge(nullptr, nullptr, nullptr, nullptr),
                 "[attn_merge] out is a null pointer; lse is a null pointer; out_b is a null pointer; lse_b is a null "
                 "pointer");
  expect_refused(
      attn_explain(nullptr, nullptr, nullptr, nullptr, nullptr),
      "[attn_explain] q is a null pointer; k is a null pointer; v is a null pointer; plan is a null pointer");
  expect_refused(
      attn_explain_backward(nullptr, nullptr, nullptr, nullptr, 0, nullptr),
      "[attn_explain_backward] q is a null pointer; k is a null pointer; v is a null pointer; plan is a null "
      "pointer");
  expect_refused(attn_kv_cache_create(nullptr, nullptr),
                 "[attn_kv_cache_create] config is a null pointer; cache is a null pointer");
  expect_refused(attn_kv_cache_add(nullptr, nullptr),
                 "[attn_kv_cache_add] cache is a null pointer; sequence is a null pointer");
  expect_refused(attn_kv_cache_fork(nullptr, 0, 0, nullptr),
                 "[attn_kv_cache_fork] cache is a null pointer; fork is a null pointer");
  expect_refused(attn_kv_cache_append(nullptr, 0, nullptr, nullptr),
                 "[attn_kv_cache_append] cache is a null pointer; k is a null pointer; v is a null pointer");
  expect_refused(attn_kv_cache_truncate(nullptr, 0, 0), "[attn_kv_cache_truncate] cache is a null pointer");
  expect_refused(attn_kv_cache_remove(nullptr, 0), "[attn_kv_cache_remove] cache is a null pointer");
  expect_refused(attn_kv_cache_length(nullptr, 0, nullptr),
                 "[attn_kv_cache_length] cache is a null pointer; length is a null pointer");
  expect_refused(attn_kv_cache_pages_in_use(nullptr, nullptr),
                 "[attn_kv_cache_pages_in_use] cache is a null pointer; pages is a null pointer");
  expect_refused(attn_kv_cache_attend(nullptr, {}, {}, nullptr, nullptr, nullptr, nullptr),
                 "[attn_kv_cache_attend] cache is a null pointer; q is a null pointer; out is a null pointer");
  expect_refused(attn_isa_active(nullptr), "[attn_isa_active] name is a null pointer");
  expect_refused(attn_isa_set(nullptr), "[attn_isa_set] name is a null pointer");
  EXPECT_EQ(attn_isa_set("avx7"), ATTN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(attn_last_error()).find(available_isas().back()), std::string::npos);
}

TEST(CErrors, StructsGrow) {
  Call call;
  Gradients r;
  const attn_tensor q = tensor(call.q), k = tensor(call.k), v = tensor(call.v), out = tensor(r.out);
  // Of an older header: what comes later is not read.
  attn_options older = defaults();
  older.struct_size = offsetof(attn_options, softcap);
  older.softcap = -1;
  EXPECT_EQ(attn_attention(&q, &k, &v, &out, nullptr, &older), ATTN_OK) << attn_last_error();
  older.struct_size = sizeof older;
  EXPECT_EQ(attn_attention(&q, &k, &v, &out, nullptr, &older), ATTN_INVALID_ARGUMENT);
  // Of a newer one: what this library does not know must be at its default.
  struct Newer {
    attn_options known;
    int64_t more;
  } newer{defaults(), 0};
  newer.known.struct_size = sizeof newer;
  EXPECT_EQ(attn_attention(&q, &k, &v, &out, nullptr, &newer.known), ATTN_OK) << attn_last_error();
  newer.more = 1;
  expect_refused(attn_attention(&q, &k, &v, &out, nullptr, &newer.known),
                 "[attn_attention] options sets a field beyond the " + std::to_string(sizeof(attn_options)) +
                     " bytes that this library knows: the library is older than the header");

  attn_kv_cache* cache = nullptr;
  attn_kv_cache_config config{sizeof config, 1, 4, 0, 0, 0, 9, 2, 0, 0};
  expect_refused(
      attn_kv_cache_create(&config, &cache),
      "[attn_kv_cache_create] config has dtype 9, must be one of enum attn_dtype, ATTN_FLOAT32 = 0 to ATTN_INT64 = 6; "
      "config.storage is 2, must be one of enum attn_kv_storage, 0 to 1");
  EXPECT_EQ(cache, nullptr);
}

TEST(CErrors, BelongToTheirThread) {
  EXPECT_EQ(attn_isa_set(nullptr), ATTN_INVALID_ARGUMENT);
  std::string elsewhere = "?";
  std::thread([&] { elsewhere = attn_last_error(); }).join();
  EXPECT_EQ(elsewhere, "");
  EXPECT_STREQ(attn_last_error(), "[attn_isa_set] name is a null pointer");
  EXPECT_EQ(attn_set_thread_count(0), ATTN_OK);
  EXPECT_STREQ(attn_last_error(), "[attn_isa_set] name is a null pointer") << "success does not clear it";
}

/// A host whose threads fail.
template <class Thrown>
class Failing final : public Executor {
 public:
  explicit Failing(Thrown thrown) : thrown_(thrown) {}
  void run(int64_t, TaskRef) override { throw thrown_; }
  int threads() const override { return 2; }

 private:
  Thrown thrown_;
};

TEST(CErrors, NoExceptionLeaves) {
  Call call;
  Array<4> q(DType::float32, {8, 4, 300, 8}), k(DType::float32, {8, 2, 300, 8}), out = q;
  const attn_tensor cq = tensor(q), ck = tensor(k), cout = tensor(out);
  Failing<std::runtime_error> standard(std::runtime_error("no threads left"));
  set_executor(&standard);
  EXPECT_EQ(attn_attention(&cq, &ck, &ck, &cout, nullptr, nullptr), ATTN_INTERNAL_ERROR);
  EXPECT_STREQ(attn_last_error(), "no threads left");
  Failing<int> strange(7);
  set_executor(&strange);
  EXPECT_EQ(attn_attention(&cq, &ck, &ck, &cout, nullptr, nullptr), ATTN_INTERNAL_ERROR);
  EXPECT_STREQ(attn_last_error(), "an exception of an unknown type");
  set_executor(nullptr);
}

TEST(CMemory, RunsOut) {
  attn_kv_cache_config config{sizeof config, 1 << 20, 1024, 0, 1 << 24, 0, ATTN_FLOAT32, 0, 0, 0};  // 64 PiB a page
  attn_kv_cache* cache = nullptr;
  ASSERT_EQ(attn_kv_cache_create(&config, &cache), ATTN_OK) << attn_last_error();
  int64_t sequence = 0;
  ASSERT_EQ(attn_kv_cache_add(cache, &sequence), ATTN_OK);
  float zero = 0;
  const attn_tensor token{&zero, ATTN_FLOAT32, 4, {1, 1 << 20, 1, 1024}, {}};
  EXPECT_EQ(attn_kv_cache_append(cache, sequence, &token, &token), ATTN_OUT_OF_MEMORY);
  EXPECT_STREQ(attn_last_error(), "out of memory");
  attn_kv_cache_destroy(cache);
}

}  // namespace
}  // namespace attn::test
