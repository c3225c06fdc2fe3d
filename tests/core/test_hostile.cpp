// core and attention under calls that nobody should make: each is an Error that says what is wrong.
#include <functional>
#include <limits>

#include "attn/attention.h"
#include "support/hostile.h"

namespace attn::test {
namespace {

constexpr int64_t kLarge = int64_t{1} << 40, kLargest = std::numeric_limits<int64_t>::max();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(HostileCore, Shapes) {
  expect_refused({
      {"count_of, negative",
       [] {
         count_of(Shape<2>{3, -1});
       },
       {"[shape]", "[3, -1]", "negative"}},
      {"count_of, overflow",
       [] {
         count_of(Shape<3>{kLarge, kLarge, 2});
       },
       {"[shape]", "2^63"}},
      {"count_of, overflow beside 0",
       [] {
         count_of(Shape<3>{kLarge, kLarge, 0});
       },
       {"[shape]", "2^63"}},
      {"strides, overflow",
       [] {
         contiguous_strides(Shape<3>{2, kLarge, kLarge});
       },
       {"[shape]", "2^63"}},
      {"a view that overflows",
       [] {
         ConstView<3>(nullptr, DType::float32, {2, kLarge, kLarge});
       },
       {"2^63"}},
      {"the count of a view", [] { ConstView<1>(nullptr, DType::float32, {-5}).count(); }, {"[-5]"}},
      {"Tensor, negative",
       [] {
         Tensor<float, 2>({2, -3});
       },
       {"[shape]", "[2, -3]"}},
      {"Tensor, overflow",
       [] {
         Tensor<float, 2>({kLarge, kLarge});
       },
       {"2^63"}},
      {"Tensor, bytes overflow", [] { Tensor<double, 1>({kLargest / 4}); }, {"2^63"}},
      {"Buffer, negative", [] { Buffer(-1); }, {"[Buffer]", "-1"}},
  });
}

TEST(HostileCore, ThreadsAndRandomNumbers) {
  expect_refused({
      {"set_thread_count(-1)", [] { set_thread_count(-1); }, {"[set_thread_count]", "-1"}},
      {"parallel_for, negative", [] { parallel_for(-1, [](int64_t) {}); }, {"[parallel_for]", "-1"}},
      {"parallel_for, null pointer",
       [] {
         void (*none)(int64_t) = nullptr;
         parallel_for(2, none);
       },
       {"[parallel_for]", "function"}},
      {"parallel_for, empty function",
       [] { parallel_for(2, std::function<void(int64_t)>()); },
       {"[parallel_for]", "function"}},
      {"own_executor, negative", [] { own_executor().run(-1, [](int64_t) {}); }, {"[parallel_for]", "-1"}},
      {"below(0)", [] { Random(1).below(0); }, {"[Random::below]", "0"}},
      {"below(-7)", [] { Random(1).below(-7); }, {"[Random::below]", "-7"}},
      {"dropout_keeps, NaN", [] { dropout_keeps(1, kNaN, 0, 0, 0, 0); }, {"[dropout_keeps]", "probability"}},
      {"dropout_keeps, 1", [] { dropout_keeps(1, 1, 0, 0, 0, 0); }, {"[dropout_keeps]", "[0, 1)"}},
      {"dropout_keeps, negative place", [] { dropout_keeps(1, 0.5, 0, 0, 0, -3); }, {"[dropout_keeps]", "-3"}},
  });
}

/// A call of two heads that is good until a case spoils it.
struct Call {
  Tensor<float, 4> q{{1, 2, 3, 4}}, k{{1, 2, 5, 4}}, v{{1, 2, 5, 4}}, out{{1, 2, 3, 4}};
  Tensor<float, 3> lse{{1, 2, 3}};
  AttentionOptions options = {};

  void forward() { attention(q, k, v, out, lse.view(), options); }
  View<4> far(Tensor<float, 4>& x) {
    View<4> view = x;
    view.stride[2] = kLargest / 2;
    return view;
  }
};

TEST(HostileCore, Attention) {
  expect_refused({
      {"all views empty",
       [] { attention({}, {}, {}, View<4>(nullptr, DType::int32, {})); },
       {"[attention]", "out is int32"}},
      {"views without data",
       [] {
         const Shape<4> size = {1, 1, 2, 2};
         attention({nullptr, DType::float32, size}, {nullptr, DType::float32, size}, {nullptr, DType::float32, size},
                   {nullptr, DType::float32, size});
       },
       {"[attention]", "q, k and v must have data", "out must have data"}},
      {"a negative size",
       [] {
         Call c;
         ConstView<4> q = c.q;
         q.size[2] = -3;
         attention(q, c.k, c.v, c.out);
       },
       {"[attention]", "negative"}},
      {"out without data and of a negative size",
       [] {
         Call c;
         View<4> out(nullptr, DType::float32, {1, 2, 3, 4});
         out.size[2] = -1;
         attention(c.q, c.k, c.v, out);
       },
       {"[attention]", "out has size", "negative", "out must have data"}},
      {"documents with strides beyond 64 bits",
       [] {
         Call c;
         const Tensor<int32_t, 2> ids({1, 5});
         ConstView<2> far(ids.data(), DType::int32, {1, 5}, {kLargest / 2, kLargest / 2});
         c.options.query_segment_ids = ConstView<2>(ids.data(), {1, 3});
         c.options.key_segment_ids = far;
         c.forward();
       },
       {"[attention]", "key_segment_ids has strides beyond"}},
      {"blocks with strides beyond 64 bits",
       [] {
         Call c;
         const Tensor<bool, 4> allowed({1, 1, 2, 3});
         c.options.blocks = {allowed, 2, 2};
         c.options.blocks.allowed.stride[3] = kLargest;
         c.forward();
       },
       {"[attention]", "blocks.allowed has strides beyond"}},
      {"blocks of 2^63 - 1",
       [] {
         Call c;
         const Tensor<bool, 4> allowed({1, 1, 2, 1});
         c.options.blocks = {allowed, kLargest, kLargest};
         c.forward();
       },
       {"[attention]", "blocks.allowed has size [1, 1, 2, 1], must be [1, 2, 1, 1]"}},
      {"block lists with strides beyond 64 bits",
       [] {
         Call c;
         const Tensor<int64_t, 3> offsets({1, 1, 3});
         c.options.blocks = {{}, 2, 2, offsets, {}};
         c.options.blocks.offsets.stride[2] = kLargest;
         c.options.blocks.indices.size[0] = -1;
         c.forward();
       },
       {"[attention]", "blocks.offsets has strides beyond", "blocks.indices has a negative size"}},
      {"block lists without data",
       [] {
         Call c;
         const Tensor<int64_t, 3> offsets({1, 1, 3});
         c.options.blocks = {{}, 2, 2, offsets, {}};
         c.options.blocks.indices.size[0] = 4;
         c.forward();
       },
       {"[attention]", "blocks.indices must have data"}},
      {"block lists of 2^63 - 1",
       [] {
         Call c;
         const std::vector<int64_t> offsets = {0, 1}, indices = {1};
         c.options.blocks = {{}, kLargest, kLargest, {offsets.data(), {1, 1, 2}}, {indices.data(), {1}}};
         c.forward();
       },
       {"[attention]", "blocks.indices[0] is 1, must be in [0, 0]"}},
      {"blocks without a layout",
       [] {
         Call c;
         c.options.blocks.query_block = 4;
         c.forward();
       },
       {"[attention]", "blocks.allowed"}},
      {"weights of a negative rectangle",
       [] {
         Call c;
         View<4> weights(nullptr, DType::float32, {1, 2, 1, 1});
         weights.size[2] = -1;
         attention_weights(c.q, c.k, c.lse.view(), weights, 0, 0);
       },
       {"[attention_weights]", "negative", "weights must have data"}},
      {"weights beyond the matrix",
       [] {
         Call c;
         Tensor<float, 4> weights({1, 2, 3, 5});
         attention_weights(c.q, c.k, c.lse.view(), weights, kLargest, -kLargest);
       },
       {"[attention_weights]", "exceed Lq", "exceed Lk"}},
      {"explain nonsense",
       [] {
         Call c;
         c.options.scale = kNaN;
         c.options.window = {-9, -9};
         c.options.dropout = 2;
         explain(c.q, c.k, c.v, c.options);
       },
       {"[explain]", "scale", "window", "dropout"}},
      {"explain_backward of empty views",
       [] {
         explain_backward({nullptr, DType::boolean, {}}, {}, {});
       },
       {"boolean"}},
      {"set_isa of nothing", [] { set_isa(""); }, {"[set_isa]", "choices"}},
      {"set_isa of a text", [] { set_isa(std::string(1000, 'x')); }, {"[set_isa]", "choices"}},
  });
}

TEST(HostileCore, Backward) {
  expect_refused({
      {"out, lse and dout without data",
       [] {
         Call c;
         AttentionGradients to;
         to.dq = c.out;
         attention_backward(c.q, c.k, c.v, {nullptr, DType::float32, {1, 2, 3, 4}},
                            {nullptr, DType::float32, {1, 2, 3}}, {nullptr, DType::float32, {1, 2, 3, 4}}, to);
       },
       {"[attention_backward]", "out, lse and dout must have data"}},
      {"dsink with strides beyond 64 bits",
       [] {
         Call c;
         const std::vector<float> sink = {1, 2};
         Tensor<float, 1> dsink({2});
         c.options.sink = sink;
         AttentionGradients to;
         to.dsink = dsink;
         to.dsink.stride[0] = kLargest;
         attention_backward(c.q, c.k, c.v, c.out, c.lse.view(), c.q, to, c.options);
       },
       {"[attention_backward]", "dsink has strides beyond"}},
      {"merge of other shapes",
       [] {
         Call c;
         Tensor<float, 4> other({1, 2, 4, 4});
         merge(c.out, c.lse.view(), other, ConstView<3>(c.lse.view()));
       },
       {"[merge]", "out_b has size [1, 2, 4, 4]"}},
      {"merge with strides beyond 64 bits",
       [] {
         Call c;
         merge(c.far(c.out), c.lse.view(), c.q, Tensor<float, 3>({1, 2, 3}).view());
       },
       {"[merge]", "out has strides beyond"}},
      {"merge of negative sizes",
       [] {
         View<4> out(nullptr, DType::float32, {1, 1, 1, 1});
         out.size[2] = -1;
         merge(out, {}, out, {});
       },
       {"[merge]", "negative"}},
  });
}

TEST(HostileCore, Reference) {
  expect_refused({
      {"forward without data",
       [] {
         reference::attention({nullptr, DType::float32, {1, 1, 2, 2}}, {}, {}, {});
       },
       {"[reference::attention]"}},
      {"forward of other shapes",
       [] {
         Call c;
         reference::attention(c.q, c.k, c.out, c.out);
       },
       {"[reference::attention]", "v must have k's heads"}},
      {"forward into another shape",
       [] {
         Call c;
         reference::attention(c.q, c.k, c.v, c.k);
       },
       {"[reference::attention]", "out is float32 of size [1, 2, 5, 4]"}},
      {"backward without data",
       [] {
         Call c;
         reference::attention_backward(c.q, c.k, c.v, {}, {}, {}, {});
       },
       {"[reference::attention_backward]", "dout"}},
      {"weights beyond the matrix",
       [] {
         Call c;
         Tensor<float, 4> weights({1, 2, 3, 5});
         reference::attention_weights(c.q, c.k, c.lse.view(), weights, 1, 1);
       },
       {"[reference::attention_weights]", "exceed Lq"}},
  });
}

KVCache moved_away() {
  KVCache cache({.kv_heads = 1, .head_dim = 4});
  const KVCache other = std::move(cache);
  return cache;  // NOLINT: on purpose
}

TEST(HostileCore, Cache) {
  expect_refused({
      {"a default configuration", [] { KVCache(KVCacheConfig{}); }, {"[KVCache]", "kv_heads", "head_dim"}},
      {"a negative configuration",
       [] { KVCache({.kv_heads = -1, .head_dim = -2, .dtype = DType::int32, .page_size = -1, .max_pages = -1}); },
       {"[KVCache]", "kv_heads", "head_dim", "dtype", "page_size", "max_pages"}},
      {"moved away: add", [] { moved_away().add(); }, {"[KVCache", "moved"}},
      {"moved away: length", [] { moved_away().length(0); }, {"moved"}},
      {"moved away: pages_in_use", [] { moved_away().pages_in_use(); }, {"moved"}},
      {"moved away: config", [] { moved_away().config(); }, {"moved"}},
      {"moved away: truncate", [] { moved_away().truncate(0, 0); }, {"moved"}},
      {"moved away: fork", [] { moved_away().fork(0, 0); }, {"moved"}},
      {"moved away: remove", [] { moved_away().remove(0); }, {"moved"}},
      {"moved away: append", [] { moved_away().append(0, {}, {}); }, {"moved"}},
      {"moved away: attend", [] { moved_away().attend({}, {}, {}, {}); }, {"moved"}},
      {"no such sequence", [] { KVCache({.kv_heads = 1, .head_dim = 4}).length(-1); }, {"no sequence -1"}},
      {"fork beyond the end",
       [] {
         KVCache cache({.kv_heads = 1, .head_dim = 4});
         cache.fork(cache.add(), 1);
       },
       {"[KVCache::fork]", "[0, 0]"}},
      {"truncate below 0",
       [] {
         KVCache cache({.kv_heads = 1, .head_dim = 4});
         cache.truncate(cache.add(), -1);
       },
       {"[KVCache::truncate]", "-1"}},
      {"append of nothing",
       [] {
         KVCache cache({.kv_heads = 1, .head_dim = 4});
         cache.append(cache.add(), {}, {});
       },
       {"[KVCache::append]", "k has size"}},
      {"append of a negative count",
       [] {
         KVCache cache({.kv_heads = 1, .head_dim = 4});
         View<4> k(nullptr, DType::float32, {1, 1, 1, 4});
         k.size[2] = -1;
         cache.append(cache.add(), k, k);
       },
       {"[KVCache::append]", "negative"}},
      {"attend with nothing",
       [] {
         KVCache cache({.kv_heads = 1, .head_dim = 4});
         cache.attend({}, {}, {}, {});
       },
       {"[KVCache::attend]", "cu_seqlens_q"}},
  });
}

}  // namespace
}  // namespace attn::test
