// ops under calls that nobody should make: each is an Error that says what is wrong.
#include <cmath>
#include <limits>

#include "attn/ops.h"
#include "support/hostile.h"

namespace attn::test {
namespace {

using namespace ops;

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

View<2> nothing(int64_t rows, int64_t columns) { return {nullptr, DType::float32, {rows, columns}}; }

/// Arrays of three rows of four numbers, and vectors.
struct Arrays {
  Tensor<float, 2> x{{3, 4}}, y{{3, 4}}, z{{3, 4}}, w{{3, 4}}, square{{4, 4}};
  Tensor<float, 1> four{{4}}, three{{3}}, other{{3}}, more{{4}};
  Tensor<int32_t, 2> whole{{3, 4}};
  std::vector<int64_t> ids = {0, 1, 2};

  View<2> strided(Tensor<float, 2>& of, int64_t row, int64_t column = 1) {
    return {of.data(), DType::float32, of.size(), {row, column}};
  }
};

TEST(HostileOps, Matmul) {
  expect_refused({
      {"nothing given",
       [] {
         matmul({nullptr, DType::int32, {}}, {}, {});
       },
       {"[matmul]", "a is int32"}},
      {"no data",
       [] { matmul(nothing(2, 2), nothing(2, 2), nothing(2, 2)); },
       {"[matmul]", "a has no data", "b has no data", "c has no data"}},
      {"shapes",
       [] {
         Arrays a;
         matmul(a.x, a.y, a.z);
       },
       {"[matmul]", "[3, 4]", "[M, K], [K, N], [M, N]"}},
      {"negative sizes",
       [] {
         Arrays a;
         View<2> x = a.x, c = a.y;
         x.size[0] = c.size[0] = -3;
         matmul(x, a.square, c);
       },
       {"[matmul]", "negative"}},
      {"negative stride",
       [] {
         Arrays a;
         matmul(a.strided(a.x, -4), a.square, a.y);
       },
       {"[matmul]", "a has strides [-4, 1]"}},
      {"rows that overlap",
       [] {
         Arrays a;
         matmul(a.x, a.strided(a.square, 2), a.y);
       },
       {"[matmul]", "b has strides [2, 1]"}},
      {"no unit stride",
       [] {
         Arrays a;
         matmul(a.strided(a.x, 8, 2), a.square, a.y);
       },
       {"[matmul]", "a has strides [8, 2]"}},
      {"strides beyond 64 bits",
       [] {
         Arrays a;
         matmul(a.strided(a.x, kLargest), a.square, a.y);
       },
       {"[matmul]", "a has strides"}},
      {"rows of the result overlap",
       [] {
         Arrays a;
         matmul(a.x, a.square, a.strided(a.y, 0));
       },
       {"[matmul]", "c has row stride 0"}},
      {"the result is an argument",
       [] {
         Arrays a;
         matmul(a.x, a.square, a.x);
       },
       {"[matmul]", "c overlaps a"}},
      {"sizes that no library multiplies",
       [] {
         float one = 1;
         const int64_t many = int64_t{1} << 33;
         matmul({&one, DType::float32, {many, 1}, {1, 1}}, {&one, DType::float32, {1, 1}},
                {&one, DType::float32, {many, 1}, {0, 1}});
       },
       {"[matmul]"}},
      {"bias",
       [] {
         Arrays a;
         matmul(a.x, a.square, a.y, {.bias = ConstView<1>(a.three)});
       },
       {"[matmul]", "bias", "[4]"}},
  });
}

TEST(HostileOps, Norms) {
  expect_refused({
      {"layer_norm of nothing",
       [] {
         layer_norm({nullptr, DType::int64, {}}, {}, {}, 0, {});
       },
       {"x is int64"}},
      {"layer_norm without data",
       [] {
         Arrays a;
         layer_norm(nothing(3, 4), a.four.view(), {}, 1e-5, nothing(3, 4));
       },
       {"[layer_norm]", "x has no data", "y has no data"}},
      {"layer_norm, weight, bias and statistics of other sizes",
       [] {
         Arrays a;
         layer_norm(a.x, a.three.view(), a.three.view(), -1, a.y, a.four.view(), a.four.view());
       },
       {"[layer_norm]", "weight is float32 [3]", "bias is float32 [3]", "epsilon", "mean is", "rstd is"}},
      {"layer_norm, epsilon NaN",
       [] {
         Arrays a;
         layer_norm(a.x, a.four.view(), {}, kNaN, a.y);
       },
       {"[layer_norm]", "epsilon is nan"}},
      {"layer_norm, strides beyond 64 bits",
       [] {
         Arrays a;
         layer_norm(a.strided(a.x, kLargest / 2), a.four.view(), {}, 1e-5, a.y);
       },
       {"[layer_norm]", "x has strides beyond"}},
      {"layer_norm, one array for mean and rstd",
       [] {
         Arrays a;
         layer_norm(a.x, a.four.view(), {}, 1e-5, a.y, a.three.view(), a.three.view());
       },
       {"[layer_norm]", "mean overlaps rstd"}},
      {"layer_norm_backward without statistics",
       [] {
         Arrays a;
         layer_norm_backward(a.x, a.four.view(), {}, {}, a.y, a.z, a.more.view());
       },
       {"[layer_norm_backward]", "mean is", "rstd is"}},
      {"rms_norm of whole numbers",
       [] {
         Arrays a;
         rms_norm(a.whole, a.four.view(), 1e-5, a.y);
       },
       {"[rms_norm]", "x is int32"}},
      {"rms_norm_backward, shapes",
       [] {
         Arrays a;
         rms_norm_backward(a.x, a.four.view(), a.three.view(), a.square, a.square, a.three.view());
       },
       {"[rms_norm_backward]", "dy is", "dx is", "dweight is"}},
  });
}

TEST(HostileOps, Elements) {
  expect_refused({
      {"activate by no function",
       [] {
         Arrays a;
         activate(static_cast<Activation>(99), a.x, a.y);
       },
       {"[activate]", "unknown activation 99"}},
      {"activate into nothing",
       [] {
         Arrays a;
         activate(Activation::relu, a.x, {});
       },
       {"[activate]", "y is float32 [0, 0]"}},
      {"activate, strides beyond 64 bits",
       [] {
         Arrays a;
         activate(Activation::relu, a.strided(a.x, std::numeric_limits<int64_t>::min()), a.y);
       },
       {"[activate]", "x has strides beyond"}},
      {"activate_backward, types",
       [] {
         Arrays a;
         activate_backward(Activation::relu, a.x, a.whole, a.y);
       },
       {"[activate_backward]", "dy is int32"}},
      {"activate_gated of odd width",
       [] {
         Arrays a;
         Tensor<float, 2> odd({3, 7});
         activate_gated(Activation::silu, odd, a.y);
       },
       {"[activate_gated]", "gate_up is float32 [3, 7]"}},
      {"activate_gated of a negative width",
       [] {
         Arrays a;
         View<2> y = a.y;
         y.size[1] = -2;
         activate_gated(Activation::silu, a.x, y);
       },
       {"[activate_gated]", "negative"}},
      {"activate_gated of a width beyond 64 bits",
       [] {
         Arrays a;
         View<2> y = a.y;
         y.size[1] = kLargest;
         activate_gated(Activation::silu, a.x, y);
       },
       {"[activate_gated]"}},
      {"activate_gated_backward without data",
       [] { activate_gated_backward(Activation::silu, nothing(3, 4), nothing(3, 2), nothing(3, 4)); },
       {"[activate_gated_backward]", "no data"}},
      {"add of another shape",
       [] {
         Arrays a;
         add(a.x, a.square, a.y);
       },
       {"[add]", "b is float32 [4, 4], must be float32 [3, 4]"}},
      {"scale of nothing",
       [] {
         scale({nullptr, DType::boolean, {}}, 1, {});
       },
       {"[scale]", "boolean"}},
      {"convert of whole numbers",
       [] {
         Arrays a;
         convert(a.whole, a.y);
       },
       {"[convert]", "x is int32"}},
      {"add_rows into another width",
       [] {
         Arrays a;
         add_rows(a.x, a.three.view());
       },
       {"[add_rows]", "total is float32 [3]"}},
      {"dropout, NaN",
       [] {
         Arrays a;
         dropout(a.x, kNaN, 0, 0, a.y);
       },
       {"[dropout]", "probability is nan"}},
      {"dropout, 1",
       [] {
         Arrays a;
         dropout(a.x, 1, 0, 0, a.y);
       },
       {"[dropout]", "[0, 1)"}},
      {"rope of no heads",
       [] {
         Arrays a;
         rope(a.x, 0, a.ids, a.y);
       },
       {"[rope]", "multiple of 0 heads"}},
      {"rope with two positions",
       [] {
         Arrays a;
         rope(a.x, 1, std::span(a.ids).first(2), a.y);
       },
       {"[rope]", "2 positions for 3 rows"}},
      {"rope with nonsense",
       [] {
         Arrays a;
         rope(a.x, 2, a.ids, a.y, {.theta = kNaN, .rotary_dim = -4});
       },
       {"[rope]", "theta", "rotated width"}},
  });
}

TEST(HostileOps, RowsAndLoss) {
  expect_refused({
      {"embedding of an id beyond the table",
       [] {
         Arrays a;
         a.ids[1] = 4;
         embedding(a.ids, a.square, a.x);
       },
       {"[embedding]", "ids[1] is 4"}},
      {"embedding of a negative id",
       [] {
         Arrays a;
         a.ids[2] = -1;
         embedding(a.ids, a.square, a.x);
       },
       {"[embedding]", "ids[2] is -1"}},
      {"embedding without a table",
       [] {
         Arrays a;
         embedding(a.ids, {}, a.x);
       },
       {"[embedding]", "must be in [0, 0)"}},
      {"embedding_backward of two ids",
       [] {
         Arrays a;
         embedding_backward(std::span(a.ids).first(2), a.x, a.square);
       },
       {"[embedding_backward]", "2 ids for 3 rows"}},
      {"mean_pool of a length 0",
       [] {
         Arrays a;
         const std::vector<int64_t> lengths = {0};
         Tensor<float, 2> out({1, 4});
         mean_pool(a.x, lengths, out);
       },
       {"[mean_pool]", "lengths[0] is 0"}},
      {"mean_pool of negative sizes",
       [] {
         Arrays a;
         View<2> out = a.y;
         out.size[0] = -1;
         mean_pool(a.x, {}, out);
       },
       {"[mean_pool]"}},
      {"mean_pool_backward, lengths",
       [] {
         Arrays a;
         Tensor<float, 2> dout({1, 4});
         mean_pool_backward(dout, {}, a.x);
       },
       {"[mean_pool_backward]", "0 lengths for 1 sequences"}},
      {"cross_entropy of a target beyond the logits",
       [] {
         Arrays a;
         a.ids[0] = 4;
         cross_entropy(a.x, a.ids, a.three.view(), a.other.view());
       },
       {"[cross_entropy]", "targets[0] is 4"}},
      {"cross_entropy of a target -2",
       [] {
         Arrays a;
         a.ids[0] = -2;
         cross_entropy(a.x, a.ids, a.three.view(), a.other.view());
       },
       {"[cross_entropy]", "targets[0] is -2"}},
      {"cross_entropy, one array for loss and lse",
       [] {
         Arrays a;
         cross_entropy(a.x, a.ids, a.three.view(), a.three.view());
       },
       {"[cross_entropy]", "loss overlaps lse"}},
      {"cross_entropy_backward of nothing",
       [] {
         cross_entropy_backward({nullptr, DType::float16, {}}, {}, {}, 1, {});
       },
       {"[cross_entropy_backward]", "float16"}},
  });
}

TEST(HostileOps, AdamW) {
  expect_refused({
      {"adamw with nonsense",
       [] {
         Arrays a;
         adamw(a.x, a.y, a.z, a.w,
               {.learning_rate = kNaN,
                .beta1 = 1,
                .beta2 = -1,
                .epsilon = -1,
                .weight_decay = kNaN,
                .gradient_factor = kNaN,
                .step = 0});
       },
       {"[adamw]", "learning_rate", "beta1", "beta2", "epsilon", "weight_decay", "gradient_factor", "step"}},
      {"adamw on one array",
       [] {
         Arrays a;
         adamw(a.x, a.y, a.z, a.z, {});
       },
       {"[adamw]", "first_moment overlaps second_moment"}},
      {"adamw of nothing",
       [] {
         adamw({nullptr, DType::bfloat16, {}}, {}, {}, {}, {});
       },
       {"[adamw]", "bfloat16"}},
      {"sum_of_squares without data", [] { sum_of_squares(nothing(2, 2)); }, {"[sum_of_squares]", "no data"}},
      {"sum_of_squares of a negative size",
       [] {
         View<2> x = nothing(2, 2);
         x.size[1] = -2;
         sum_of_squares(x);
       },
       {"[sum_of_squares]", "negative"}},
  });
}

}  // namespace
}  // namespace attn::test
