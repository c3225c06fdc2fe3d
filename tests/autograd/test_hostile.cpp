// autograd under calls that nobody should make: each is an Error that names the operation and says what is wrong.
#include <limits>

#include "attn/autograd_operations.h"
#include "support/hostile.h"

namespace attn::test {
namespace {

using namespace autograd;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kLarge = int64_t{1} << 40;

Array zeros(std::vector<int64_t> shape, DType dtype = DType::float32) { return Array(dtype, std::move(shape)); }
Value value(std::vector<int64_t> shape, DType dtype = DType::float32) { return Value(zeros(std::move(shape), dtype)); }
Value leaf(std::vector<int64_t> shape) { return Value(zeros(std::move(shape)), true); }

TEST(HostileAutograd, Arrays) {
  expect_refused({
      {"a negative extent",
       [] {
         zeros({2, -1});
       },
       {"[shape]", "[2, -1]"}},
      {"overflow",
       [] {
         zeros({kLarge, kLarge});
       },
       {"[shape]", "2^63"}},
      {"no such type", [] { zeros({2}, static_cast<DType>(99)); }, {"[Array]", "element type"}},
      {"over no memory", [] { Array(DType::float32, {2}, std::shared_ptr<void>()); }, {"[Array]", "memory"}},
      {"over memory, negative", [] { Array(DType::float32, {-2}, std::make_shared<float>()); }, {"[shape]", "[-2]"}},
      {"reshaped to another count",
       [] {
         zeros({2, 3}).reshaped({7});
       },
       {"[reshaped]", "[2, 3]", "[7]"}},
      {"reshaped to a negative extent",
       [] {
         zeros({2, 3}).reshaped({-2, -3});
       },
       {"[-2, -3]"}},
      {"a tape's array of a negative extent", [] { Tape().array(DType::float32, {-1}); }, {"[shape]", "[-1]"}},
      {"a tape's array of no type", [] { Tape().array(static_cast<DType>(99), {1}); }, {"[Array]", "element type"}},
  });
  EXPECT_FALSE(Array().clone());
  Array().fill_zero();
  EXPECT_EQ(Array().rows().count(), 0);
  EXPECT_EQ(zeros({3, 0}).rows().size, (Shape<2>{3, 0}));
}

TEST(HostileAutograd, Values) {
  expect_refused({
      {"of no array", [] { Value(Array(), false); }, {"[Value]", "no array"}},
      {"a gradient of whole numbers", [] { Value(zeros({1}, DType::int32), true); }, {"[Value]", "int32"}},
      {"a gradient kept in whole numbers", [] { Value(zeros({1}), true, DType::int64); }, {"[Value]", "int64"}},
      {"empty: data", [] { Value().data(); }, {"[Value]", "empty"}},
      {"empty: shape", [] { Value().shape(); }, {"[Value]", "empty"}},
      {"empty: dtype", [] { Value().dtype(); }, {"[Value]", "empty"}},
      {"empty: gradient", [] { Value().gradient(); }, {"[Value]", "empty"}},
      {"empty: gradient_is_empty", [] { Value().gradient_is_empty(); }, {"[Value]", "empty"}},
      {"empty: clear_gradient", [] { Value().clear_gradient(); }, {"[Value]", "empty"}},
      {"empty: gradient_memory", [] { Tape().gradient_memory(Value()); }, {"[Value]", "empty"}},
      {"empty: add_gradient", [] { Tape().add_gradient(Value(), zeros({1})); }, {"[Value]", "empty"}},
      {"moved away",
       [] {
         Value x = value({2});
         const Value y = std::move(x);
         x.data();  // NOLINT: on purpose
       },
       {"[Value]", "empty"}},
      {"a gradient of another shape",
       [] {
         Tape().add_gradient(leaf({2, 3}), zeros({3, 2}));
       },
       {"[add_gradient]", "[3, 2]", "[2, 3]"}},
      {"a gradient of no memory",
       [] {
         Tape().add_gradient(leaf({2, 3}), Array());
       },
       {"[add_gradient]", "no array"}},
      {"a gradient of whole numbers",
       [] { Tape().add_gradient(leaf({2}), zeros({2}, DType::int32)); },
       {"[add_gradient]", "int32"}},
  });
}

/// A tape that records, and the loss of two rows on it.
struct Recorded {
  Tape tape{{.record = true, .training = true}};
  Value logits = leaf({2, 3});
  Value loss = cross_entropy(tape, logits, {0, 1});
};

TEST(HostileAutograd, Tapes) {
  expect_refused({
      {"backward from an empty value", [] { Recorded().tape.backward(Value()); }, {"[backward]", "root"}},
      {"backward from many elements",
       [] {
         Recorded r;
         r.tape.backward(add(r.tape, r.logits, r.logits));
       },
       {"[backward]", "one element", "[2, 3]"}},
      {"backward from what wants no gradient", [] { Recorded().tape.backward(value({1})); }, {"[backward]"}},
      {"backward twice",
       [] {
         Recorded r;
         r.tape.backward(r.loss);
         r.tape.backward(r.loss);
       },
       {"[backward]", "once"}},
      {"backward twice, without a root",
       [] {
         Recorded r;
         r.tape.add_gradient(r.loss, zeros({1}));
         r.tape.backward();
         r.tape.backward();
       },
       {"[backward]", "once"}},
      {"backward on another tape",
       [] {
         Recorded r, other;
         r.tape.backward(other.loss);
       },
       {"[backward]", "this tape"}},
      {"backward on a tape that does not record", [] { Tape().backward(); }, {"[backward]", "record"}},
      {"backward by NaN",
       [] {
         Recorded r;
         r.tape.backward(r.loss, kNaN);
       },
       {"[backward]", "factor"}},
      {"backward from bfloat16",
       [] {
         Tape tape({.record = true});
         const Value x(zeros({1}, DType::bfloat16), true);
         tape.backward(activate(tape, ops::Activation::relu, x));
       },
       {"[backward]", "bfloat16"}},
      {"a result of no array", [] { Tape().result("op", Array(), {}); }, {"[Value]", "no array"}},
      {"a step that is empty",
       [] {
         Recorded r;
         r.tape.record(r.loss, std::function<void()>());
       },
       {"[record]", "empty"}},
      {"recompute without a function",
       [] {
         Recorded r;
         recompute(r.tape, r.logits, nullptr);
       },
       {"[recompute]", "function"}},
      {"recompute of an empty value",
       [] {
         Recorded r;
         recompute(r.tape, {}, [](Tape&, const Value& x) { return x; });
       },
       {"[recompute]", "x is an empty value"}},
      {"recompute of a block that gives nothing",
       [] {
         Recorded r;
         recompute(r.tape, r.logits, [](Tape&, const Value&) { return Value(); });
       },
       {"[Value]", "empty"}},
  });
}

TEST(HostileAutograd, ProductsAndNorms) {
  expect_refused({
      {"linear of empty values",
       [] {
         Tape tape;
         linear(tape, {}, {});
       },
       {"[linear]", "x is an empty value", "weight is an empty value"}},
      {"linear with a weight of another width",
       [] {
         Tape tape;
         linear(tape, value({2, 5, 4}), value({3, 5}));
       },
       {"[linear]", "weight is float32 [3, 5], must be [N, 4]"}},
      {"linear with a weight of rank 3",
       [] {
         Tape tape;
         linear(tape, value({2, 4}), value({3, 2, 4}));
       },
       {"[linear]", "weight is float32 [3, 2, 4], must be [N, K]"}},
      {"linear with a bias of another width",
       [] {
         Tape tape;
         linear(tape, value({2, 4}), value({3, 4}), value({4}));
       },
       {"[linear]", "bias is float32 [4], must be [3]"}},
      {"add_linear to a residual of another shape",
       [] {
         Tape tape;
         add_linear(tape, value({3, 3}), value({2, 4}), value({3, 4}));
       },
       {"[add_linear]", "residual is float32 [3, 3], must be float32 [2, 3]"}},
      {"add_linear to a residual of another type",
       [] {
         Tape tape;
         add_linear(tape, value({2, 3}, DType::float64), value({2, 4}), value({3, 4}));
       },
       {"[add_linear]", "residual is float64 [2, 3], must be float32 [2, 3]"}},
      {"linear of a number",
       [] {
         Tape tape;
         linear(tape, value({}), value({3, 1}));
       },
       {"[linear]", "x is float32 []"}},
      {"linear into whole numbers",
       [] {
         Tape tape;
         linear(tape, value({2, 4}), value({3, 4}), {}, DType::int32);
       },
       {"[matmul]", "int32"}},
      {"linear of types that differ",
       [] {
         Tape tape;
         linear(tape, value({2, 4}), value({3, 4}, DType::float64));
       },
       {"[matmul]", "float64"}},
      {"layer_norm of empty values",
       [] {
         Tape tape;
         layer_norm(tape, {}, {}, {}, 1e-5);
       },
       {"[layer_norm]", "x is an empty value", "weight is an empty value"}},
      {"layer_norm of another width",
       [] {
         Tape tape;
         layer_norm(tape, value({2, 4}), value({2, 2}), value({5}), 1e-5);
       },
       {"[layer_norm]", "weight is float32 [2, 2], must be [4]", "bias is float32 [5], must be [4]"}},
      {"rms_norm of another width",
       [] {
         Tape tape;
         rms_norm(tape, value({2, 4}), value({3}), 1e-5);
       },
       {"[rms_norm]", "weight is float32 [3], must be [4]"}},
      {"rms_norm, epsilon NaN",
       [] {
         Tape tape;
         rms_norm(tape, value({2, 4}), value({4}), kNaN);
       },
       {"[rms_norm]", "epsilon"}},
  });
}

TEST(HostileAutograd, Elements) {
  expect_refused({
      {"activate of an empty value",
       [] {
         Tape tape;
         activate(tape, ops::Activation::relu, {});
       },
       {"[activate]", "x is an empty value"}},
      {"activate of a number",
       [] {
         Tape tape;
         activate_gated(tape, ops::Activation::relu, value({}));
       },
       {"[activate_gated]", "gate_up is float32 []"}},
      {"activate_gated of odd width",
       [] {
         Tape tape;
         activate_gated(tape, ops::Activation::relu, value({2, 5}));
       },
       {"[activate_gated]", "[2, 5]"}},
      {"add of the same count in another shape",
       [] {
         Tape tape;
         add(tape, value({2, 3}), value({3, 2}));
       },
       {"[add]", "a is float32 [2, 3] and b is float32 [3, 2]"}},
      {"add of an empty value",
       [] {
         Tape tape;
         add(tape, value({2, 3}), {});
       },
       {"[add]", "b is an empty value"}},
      {"dropout of NaN, also where nothing trains",
       [] {
         Tape tape;
         dropout(tape, value({2}), kNaN);
       },
       {"[dropout]", "probability"}},
      {"dropout of an empty value",
       [] {
         Tape tape;
         dropout(tape, {}, 0);
       },
       {"[dropout]", "x is an empty value"}},
      {"rope of more columns than there are",
       [] {
         Tape tape;
         rope(tape, value({2, 8}), 3, 4, {0, 1}, {});
       },
       {"[rope]", "3 heads of width 4", "[2, 8]"}},
      {"rope of so many heads that their columns overflow",
       [] {
         Tape tape;
         rope(tape, value({2, 8}), kLarge, kLarge, {0, 1}, {});
       },
       {"[rope]", "[2, 8]"}},
      {"rope of negative heads",
       [] {
         Tape tape;
         rope(tape, value({2, 8}), -2, -4, {0, 1}, {});
       },
       {"[rope]", "-2 heads of width -4"}},
      {"rope with a position too few",
       [] {
         Tape tape;
         rope(tape, value({1, 2, 8}), 2, 4, {0}, {});
       },
       {"[rope]", "1 positions for 2 rows"}},
  });
}

TEST(HostileAutograd, RowsAndLoss) {
  expect_refused({
      {"embedding of an id beyond the table",
       [] {
         Tape tape;
         embedding(tape, {0, 5}, value({5, 2}), {2});
       },
       {"[embedding]", "ids[1] is 5"}},
      {"embedding into another shape",
       [] {
         Tape tape;
         embedding(tape, {0, 1, 2}, value({5, 2}), {2, 2});
       },
       {"[embedding]", "3 ids", "[2, 2]"}},
      {"embedding into a negative shape",
       [] {
         Tape tape;
         embedding(tape, {0}, value({5, 2}), {-1, -1});
       },
       {"[-1, -1]"}},
      {"embedding from a table of rank 3",
       [] {
         Tape tape;
         embedding(tape, {0}, value({5, 2, 2}), {1});
       },
       {"[embedding]", "table is float32 [5, 2, 2], must be [V, C]"}},
      {"mean_pool of rank 2",
       [] {
         Tape tape;
         mean_pool(tape, value({6, 2}), {1});
       },
       {"[mean_pool]", "x is float32 [6, 2], must be [B, L, C]"}},
      {"mean_pool of a length beyond L",
       [] {
         Tape tape;
         mean_pool(tape, value({2, 3, 2}), {3, 4});
       },
       {"[mean_pool]", "lengths[1] is 4"}},
      {"scale_heads of rank 2",
       [] {
         Tape tape;
         scale_heads(tape, value({6, 2}), value({1, 2}));
       },
       {"[scale_heads]", "x is float32 [6, 2], must be [B, L, C]"}},
      {"scale_heads without gates",
       [] {
         Tape tape;
         scale_heads(tape, value({2, 3, 2}), {});
       },
       {"[scale_heads]", "gates is an empty value"}},
      {"scale_heads of gates that do not divide",
       [] {
         Tape tape;
         scale_heads(tape, value({2, 3, 2}), value({4, 3}));
       },
       {"[scale_heads]", "gates are [4, 3]"}},
      {"select_rows beyond the rows",
       [] {
         Tape tape;
         select_rows(tape, value({2, 3, 2}), {6, 0}, {2});
       },
       {"[select_rows]", "index[0] is 6", "[0, 6)"}},
      {"select_rows of a negative index",
       [] {
         Tape tape;
         select_rows(tape, value({2, 3, 2}), {0, -1}, {2});
       },
       {"[select_rows]", "index[1] is -1"}},
      {"select_rows of an index too few",
       [] {
         Tape tape;
         select_rows(tape, value({2, 3, 2}), {0}, {2});
       },
       {"[embedding]", "1 ids for a result of [2] rows"}},
      {"heads_first of rank 2",
       [] {
         Tape tape;
         heads_first(tape, value({2, 3}));
       },
       {"[heads_first]", "x is float32 [2, 3], must be [Lq, Lk, H]"}},
      {"cross_entropy of a target beyond the logits",
       [] {
         Tape tape;
         cross_entropy(tape, value({2, 3}), {0, 3});
       },
       {"[cross_entropy]", "targets[1] is 3"}},
      {"cross_entropy of a target too few",
       [] {
         Tape tape;
         cross_entropy(tape, value({2, 3}), {0});
       },
       {"[cross_entropy]", "1 targets for 2 rows"}},
      {"cross_entropy of an empty value",
       [] {
         Tape tape;
         cross_entropy(tape, {}, {});
       },
       {"[cross_entropy]", "logits is an empty value"}},
  });
}

TEST(HostileAutograd, Attention) {
  expect_refused({
      {"heads of no array", [] { Heads().view(); }, {"[Heads]", "empty"}},
      {"heads of rank 2",
       [] {
         Heads{value({3, 4}), 0, 1, 4}.view();
       },
       {"[Heads]", "[3, 4], must be [B, L, C]"}},
      {"heads beyond the columns",
       [] {
         Heads{value({1, 3, 8}), 4, 2, 4}.view();
       },
       {"[Heads]", "2 heads of width 4 from column 4", "[1, 3, 8]"}},
      {"heads before the columns",
       [] {
         Heads{value({1, 3, 8}), -4, 2, 4}.view();
       },
       {"[Heads]", "column -4"}},
      {"heads that overflow",
       [] {
         Heads{value({1, 3, 8}), 0, kLarge, kLarge}.view();
       },
       {"[Heads]", "[1, 3, 8]"}},
      {"no heads",
       [] {
         Heads{value({1, 3, 8}), 0, 0, 4}.view();
       },
       {"[Heads]", "0 heads"}},
      {"heads inside another array",
       [] {
         Heads{value({1, 3, 8}), 0, 2, 4}.view_of(zeros({1, 3, 4}));
       },
       {"[Heads]"}},
      {"attention of nothing",
       [] {
         Tape tape;
         attention(tape, {}, {}, {}, {});
       },
       {"[attention]", "q is an empty value", "k is an empty value", "v is an empty value"}},
      {"attention of heads outside",
       [] {
         Tape tape;
         const Value x = value({1, 3, 8});
         attention(tape, {x, 0, 2, 4}, {x, 0, 2, 8}, {x, 8, 2, 4}, {});
       },
       {"[attention]", "k: 2 heads of width 8", "v: 2 heads of width 4 from column 8"}},
      {"attention with a bias of rank 2",
       [] {
         Tape tape;
         const Value x = value({1, 3, 8});
         attention(tape, {x, 0, 2, 4}, {x, 0, 2, 4}, {x, 0, 2, 4}, {}, value({3, 3}));
       },
       {"[attention]", "bias is float32 [3, 3], must be [B|1, H|1, Lq|1, Lk|1]"}},
      {"attention of lengths that differ",
       [] {
         Tape tape;
         const Value x = value({1, 3, 8}), y = value({2, 3, 8});
         attention(tape, {x, 0, 2, 4}, {y, 0, 2, 4}, {y, 0, 2, 4}, {});
       },
       {"[attention]", "batch"}},
  });
}

}  // namespace
}  // namespace attn::test
