// Parameters: what all threads draw, and weights that are packed, with their matrices or in place of them.
#include <cmath>

#include "attn/nn.h"
#include "support/errors.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace nn;

/// Element n is number n of the stream of its parameter, whichever thread draws it.
TEST(Parameters, ThreadsDrawTheNumbersOfOneStream) {
  const int64_t rows = 300, columns = 170;  // several tasks
  for (const Initialization initialization : {Initialization::gpt2, Initialization::xavier})
    for (const int threads : {1, 3}) {
      set_thread_count(threads);
      Parameters parameters({.initialization = initialization, .seed = 5});
      const Value drawn = Scope(parameters).variable("weight", {rows, columns});
      Random random(5, 1);
      const double limit = std::sqrt(6.0 / (rows + columns));
      for (int64_t n = 0; n < drawn.data().count(); ++n) {
        const double number =
            initialization == Initialization::gpt2 ? 0.02 * random.normal() : limit * (2 * random.uniform() - 1);
        ASSERT_EQ(drawn.data().data<float>()[n], static_cast<float>(number)) << n << ", threads " << threads;
      }
    }
  set_thread_count(0);
}

struct Layer {
  Parameters parameters;
  Linear linear;

  Layer(Purpose purpose, Precision precision)
      : parameters({.precision = precision, .seed = 3, .purpose = purpose}),
        linear(Scope(parameters), 40, 70, {.bias = true}) {}
  Values operator()(int64_t rows) const {
    Tape tape;
    return numbers(linear(tape, Value(random_array(parameters.dtype(), {rows, 40}, 2))).data());
  }
};

TEST(Parameters, PackedWeightsReplaceTheirMatricesInInference) {
  for (const Precision precision : {Precision::float32, Precision::float64, Precision::bfloat16, Precision::float16}) {
    Layer plain(Purpose::inference, precision), packed(Purpose::inference, precision);
    packed.parameters.pack();
    packed.parameters.pack();  // once more changes nothing
    const DType dtype = plain.parameters.dtype();
    for (const int64_t rows : {1, 3, 50}) {
      const Values expected = plain(rows), actual = packed(rows);
      for (size_t n = 0; n < expected.size(); ++n)
        ASSERT_NEAR(actual[n], expected[n], weight_bound(max_abs(expected), dtype)) << name_of(dtype);
    }
    const Value weight = packed.linear.weight;
    EXPECT_EQ(weight.is_freed(), !weight.packed().reads_matrix());
    EXPECT_EQ(weight.shape(), plain.linear.weight.shape());
    if (!weight.is_freed()) continue;
    EXPECT_EQ(error_of([&] { packed.parameters.tensors("a."); }),
              "[parameters] a.weight is packed, and its matrix was freed: open the model unpacked");
    EXPECT_EQ(error_of([&] { packed.parameters.refresh(); }), "[unpack] the matrix of the packed weight was freed");
    Tape tape({.record = true});
    const Value x(random_array(dtype, {2, 40}, 2), true);
    EXPECT_EQ(error_of([&] { packed.linear(tape, x); }),
              "[linear] a gradient of x needs the matrix of the weight, which was freed when it was packed");
  }
}

TEST(Parameters, PackedWeightsOfATrainingKeepTheirMatrices) {
  Layer layer(Purpose::training, Precision::float32);
  const Values before = layer(50);
  layer.parameters.pack();
  EXPECT_TRUE(layer.linear.weight.packed());
  EXPECT_FALSE(layer.linear.weight.is_freed());
  EXPECT_EQ(error_of([&] { Value(layer.linear.weight).pack_and_free(); }),
            "[pack_and_free] the weight wants a gradient");
  ops::scale(layer.linear.weight.data().flat(), 2, layer.linear.weight.data().flat());
  layer.parameters.refresh();
  EXPECT_FALSE(layer.linear.weight.packed());
  EXPECT_NE(layer(50), before);
}

TEST(Parameters, NamesCountsAndSchemes) {
  nn::Parameters parameters({.initialization = Initialization::gpt2, .seed = 1, .residual_factor = 0.5});
  const nn::Block layer(Scope(parameters) / "blocks" / "0", 64, {.attention = {.heads = 2}});
  ASSERT_NE(parameters.find("blocks.0.attention.qkv.weight"), nullptr);
  EXPECT_EQ(parameters.find("blocks.0.attention.qkv"), nullptr);
  EXPECT_EQ(parameters.count(), 12 * 64 * 64 + 13 * 64);
  const auto deviation = [&](const char* name) {
    double squares = 0;
    const Values values = numbers(parameters.find(name)->master);
    for (double value : values) squares += value * value;
    return std::sqrt(squares / static_cast<double>(values.size()));
  };
  EXPECT_NEAR(deviation("blocks.0.attention.qkv.weight") / 0.02, 1, rate_bound(0.5, 3 * 64 * 64) * 2);
  EXPECT_NEAR(deviation("blocks.0.feed_forward.down.weight") / 0.01, 1, rate_bound(0.5, 4 * 64 * 64) * 2);
  EXPECT_TRUE(parameters.find("blocks.0.feed_forward.up.weight")->decay);
  EXPECT_FALSE(parameters.find("blocks.0.feed_forward.up.bias")->decay);
  EXPECT_FALSE(parameters.find("blocks.0.norm_attention.weight")->decay);
}

}  // namespace
}  // namespace attn::test
