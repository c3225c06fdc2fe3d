// The operations of which a loss of one's own is made: values by plain formulas, gradients against differences, types,
// broadcasting, refusals; and AdamW.
#include "attn/autograd_operations.h"

#include <cmath>

#include "attn/autograd_statistics.h"
#include "attn/nn_adamw.h"
#include "support/errors.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace autograd;
using attn::Array;
using Shapes = std::vector<std::vector<int64_t>>;
using Operation = std::function<Value(Tape&, const std::vector<Value>&)>;

struct Case {
  const char* name;
  Shapes inputs;
  Operation run;
};

/// Every operation, over every kind of broadcasting, axis and order.
const std::vector<Case>& cases() {
  using In = const std::vector<Value>&;
  const auto subtracted = [](Tape& t, In x) { return subtract(t, x[0], x[1]); };
  const auto multiplied = [](Tape& t, In x) { return multiply(t, x[0], x[1]); };
  const auto added = [](Tape& t, In x) { return add(t, x[0], x[1]); };
  static const std::vector<Case> all = {
      {"subtract", {{2, 3, 4}, {2, 3, 4}}, subtracted},
      {"subtract, a row", {{2, 3, 4}, {4}}, subtracted},
      {"subtract, from a column", {{3, 1}, {2, 3, 4}}, subtracted},
      {"subtract, each of each", {{5, 1}, {3}}, subtracted},
      {"multiply", {{2, 3, 4}, {2, 3, 4}}, multiplied},
      {"multiply, a column", {{2, 3, 4}, {2, 1, 1}}, multiplied},
      {"multiply, one number", {{1}, {2, 3, 4}}, multiplied},
      {"multiply, a middle axis", {{2, 3, 4}, {2, 1, 4}}, multiplied},
      {"add, a row", {{2, 3, 4}, {3, 1}}, added},
      {"a square", {{2, 3}}, [](Tape& t, In x) { return multiply(t, x[0], x[0]); }},
      {"add_linear", {{2, 3, 5}, {2, 3, 4}, {5, 4}}, [](Tape& t, In x) { return add_linear(t, x[0], x[1], x[2]); }},
      {"add_linear to its own input", {{2, 4}, {4, 4}}, [](Tape& t, In x) { return add_linear(t, x[0], x[0], x[1]); }},
      {"linear_activated",
       {{2, 3, 4}, {5, 4}},
       [](Tape& t, In x) { return linear_activated(t, ops::Activation::gelu, x[0], x[1]); }},
      {"sigmoid", {{3, 5}}, [](Tape& t, In x) { return sigmoid(t, x[0]); }},
      {"sum", {{2, 3, 4}}, [](Tape& t, In x) { return sum(t, x[0]); }},
      {"mean", {{2, 3, 4}}, [](Tape& t, In x) { return mean(t, x[0]); }},
      {"sum_over 0", {{2, 3, 4}}, [](Tape& t, In x) { return sum_over(t, x[0], 0); }},
      {"sum_over 1", {{2, 3, 4}}, [](Tape& t, In x) { return sum_over(t, x[0], 1); }},
      {"mean_over 2", {{2, 3, 4}}, [](Tape& t, In x) { return mean_over(t, x[0], 2); }},
      {"softmax", {{2, 3, 5}}, [](Tape& t, In x) { return softmax(t, x[0]); }},
      {"log_softmax", {{2, 3, 5}}, [](Tape& t, In x) { return log_softmax(t, x[0]); }},
      {"mean_squared_error", {{4, 3}, {4, 3}}, [](Tape& t, In x) { return mean_squared_error(t, x[0], x[1]); }},
      {"concat 0", {{2, 3}, {1, 3}, {4, 3}}, [](Tape& t, In x) { return concat(t, x, 0); }},
      {"concat 1", {{2, 3, 2}, {2, 0, 2}, {2, 1, 2}}, [](Tape& t, In x) { return concat(t, x, 1); }},
      {"concat of itself",
       {{2, 3}},
       [](Tape& t, In x) {
         return concat(t, {x[0], x[0]}, 1);
       }},
      {"slice 0", {{4, 3}}, [](Tape& t, In x) { return slice(t, x[0], 0, 1, 3); }},
      {"slice 1", {{2, 5, 3}}, [](Tape& t, In x) { return slice(t, x[0], 1, 2, 5); }},
      {"transpose 0 2", {{2, 3, 4}}, [](Tape& t, In x) { return transpose(t, x[0], 0, 2); }},
      {"transpose 1 2", {{2, 3, 4}}, [](Tape& t, In x) { return transpose(t, x[0], 2, 1); }},
      {"transpose, none", {{2, 3}}, [](Tape& t, In x) { return transpose(t, x[0], 1, 1); }},
      {"reshape",
       {{2, 6}},
       [](Tape& t, In x) {
         return reshape(t, x[0], {3, 2, 2});
       }},
      {"select_rows, one of them twice",
       {{2, 3, 4}},
       [](Tape& t, In x) {
         return select_rows(t, x[0], {4, 1, 1}, {1, 3});
       }},
  };
  return all;
}

std::vector<Value> inputs_of(const Case& c, DType dtype) {
  std::vector<Value> inputs;
  for (const auto& shape : c.inputs) inputs.emplace_back(random_array(dtype, shape, 40 + inputs.size()), true);
  return inputs;
}

TEST(TapeOperations, GradientsAreThoseOfDifferences) {
  for (const Case& c : cases()) {
    const std::vector<Value> inputs = inputs_of(c, DType::float64);
    std::vector<std::pair<std::string, Value>> leaves;
    for (const Value& input : inputs)
      if (input.data().count() > 0) leaves.emplace_back("input " + std::to_string(leaves.size()), input);
    expect_gradients(c.name, leaves, [&](Tape& tape) { return c.run(tape, inputs); });
  }
}

/// Values and gradients of all types beside those of float64 on the same numbers: computed wide and rounded once, twice
/// where a gradient is added to another one. What a sum adds up counts, not what it comes to.
TEST(TapeOperations, TypesAreRoundedOnce) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const Case& c : cases()) {
      const std::vector<Value> inputs = inputs_of(c, dtype);
      std::vector<Value> wide;
      for (const Value& input : inputs) {
        Array array(DType::float64, input.shape());
        ops::convert(input.data().flat(), array.flat());
        wide.emplace_back(array, true);
      }
      Tape tape({.record = true}), exact({.record = true});
      const Value y = c.run(tape, inputs), reference = c.run(exact, wide);
      EXPECT_EQ(y.shape(), reference.shape()) << c.name;
      const bool is_loss = y.data().count() == 1;
      EXPECT_EQ(y.dtype(), is_loss ? DType::float32 : dtype) << c.name;
      const Array dy = random_array(dtype, y.shape(), 77);
      Array wide_dy(DType::float64, y.shape());
      ops::convert(dy.flat(), wide_dy.flat());
      tape.add_gradient(y, dy), exact.add_gradient(reference, wide_dy);
      tape.backward(), exact.backward();
      // Normal numbers: what is added up is of size 1, whatever it comes to.
      const auto expect_close = [&](const Values& actual, const Values& expected, double roundings, const char* what) {
        EXPECT_LE(max_abs_error(actual, expected), rounding_bound(dtype, std::max(1.0, max_abs(expected)), roundings))
            << c.name << ", " << what << ", " << name_of(dtype);
      };
      expect_close(numbers(y.data()), numbers(reference.data()), 2, "value");
      for (size_t n = 0; n < inputs.size(); ++n)
        expect_close(gradient_of(inputs[n]), gradient_of(wide[n]), 8, "gradient");
    }
  }
}

Value of(std::vector<int64_t> shape, const Values& values) {
  Array array(DType::float64, std::move(shape));
  std::copy(values.begin(), values.end(), static_cast<double*>(array.data()));
  return Value(array);
}

TEST(TapeOperations, PackedWeightsActivateAsTheyMultiply) {
  const Value x(random_array(DType::float64, {20, 30}, 1)), weight(random_array(DType::float64, {40, 30}, 2));
  const Value bias(random_array(DType::float64, {40}, 3));
  Tape tape;
  const auto fused = [&] { return numbers(linear_activated(tape, ops::Activation::silu, x, weight, bias).data()); };
  const Values expected = numbers(activate(tape, ops::Activation::silu, linear(tape, x, weight, bias)).data());
  EXPECT_EQ(fused(), expected);
  Value(weight).pack_and_free();
  ASSERT_TRUE(weight.packed());
  EXPECT_EQ(fused(), expected);
}

TEST(TapeOperations, ValuesByHand) {
  Tape t;
  const Value x = of({2, 3}, {1, 2, 3, 4, 5, 6}), row = of({3}, {10, 20, 30}), column = of({2, 1}, {1, -1});
  const auto values = [](const Value& y) { return numbers(y.data()); };
  EXPECT_EQ(values(subtract(t, x, row)), (Values{-9, -18, -27, -6, -15, -24}));
  EXPECT_EQ(values(multiply(t, x, column)), (Values{1, 2, 3, -4, -5, -6}));
  EXPECT_EQ(values(add(t, column, row)), (Values{11, 21, 31, 9, 19, 29}));
  EXPECT_EQ(add(t, column, row).shape(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(values(sum(t, x)), Values{21});
  EXPECT_EQ(values(mean(t, x)), Values{3.5});
  EXPECT_EQ(values(sum_over(t, x, 0)), (Values{5, 7, 9}));
  EXPECT_EQ(values(mean_over(t, x, 1)), (Values{2, 5}));
  EXPECT_EQ(mean_over(t, x, 1).shape(), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(values(transpose(t, x, 0, 1)), (Values{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(values(slice(t, x, 1, 1, 3)), (Values{2, 3, 5, 6}));
  EXPECT_EQ(values(concat(t, {x, column}, 1)), (Values{1, 2, 3, 1, 4, 5, 6, -1}));
  EXPECT_EQ(values(mean_squared_error(t, x, of({2, 3}, {1, 2, 3, 4, 5, 0}))), Values{6});
  EXPECT_EQ(values(sigmoid(t, of({4}, {0, 1000, -1000, -kInf}))), (Values{0.5, 1, 0, 0}));
  EXPECT_EQ(values(softmax(t, of({2, 2}, {1000, 1000, -kInf, 5}))), (Values{0.5, 0.5, 0, 1}));
  EXPECT_EQ(values(log_softmax(t, of({2}, {-1000, 1000}))), (Values{-2000, 0}));
  for (const double none : values(softmax(t, of({2}, {-kInf, -kInf})))) EXPECT_TRUE(std::isnan(none));
  for (const double none : values(softmax(t, of({2}, {kNaN, 1})))) EXPECT_TRUE(std::isnan(none));
  EXPECT_EQ(values(sum(t, of({0, 3}, {}))), Values{0});
}

TEST(TapeOperations, BitsDoNotDependOnThreads) {
  Value x(random_array(DType::float32, {130, 300}, 5), true), y(random_array(DType::float32, {300}, 6), true);
  const auto run = [&](int threads) {
    set_thread_count(threads);
    x.clear_gradient(), y.clear_gradient();
    Tape tape({.record = true});
    const Value product = multiply(tape, softmax(tape, x), sigmoid(tape, subtract(tape, x, y)));
    tape.backward(sum(tape, transpose(tape, concat(tape, {product, x}, 0), 0, 1)));
    std::vector<Values> results = {numbers(product.data()), gradient_of(x), gradient_of(y)};
    set_thread_count(0);
    return results;
  };
  EXPECT_TRUE(run(1) == run(4));
}

TEST(TapeOperations, SayWhatIsWrong) {
  Tape t;
  const Value x(Array(DType::float32, {2, 3})), wide(Array(DType::float64, {2, 3})), whole(Array(DType::int64, {2, 3}));
  const auto expect = [](const std::string& message, const std::function<void()>& run) {
    EXPECT_NE(error_of(run).find(message), std::string::npos) << error_of(run);
  };
  expect("[multiply] a is an empty value; b is int64 [2, 3], must be of a floating type",
         [&] { multiply(t, {}, whole); });
  expect("[subtract] b is float64 [2, 3], must be float32", [&] { subtract(t, x, wide); });
  expect("[add] a is float32 [2, 3] and b is float32 [2]: their axes, matched from the last one on, must be equal or 1",
         [&] { add(t, x, Value(Array(DType::float32, {2}))); });
  expect("[sum_over] axis is 2, must be in [0, 2) for x, float32 [2, 3]", [&] { sum_over(t, x, 2); });
  expect("[mean_over] axis is -1, must be in [0, 2)", [&] { mean_over(t, x, -1); });
  expect("[mean_over] axis 0 of x, float32 [0, 3], is empty", [&] {
    mean_over(t, Value(Array(DType::float32, {0, 3})), 0);
  });
  expect("[softmax] x is int64", [&] { softmax(t, whole); });
  expect("[log_softmax] x is an empty value", [&] { log_softmax(t, {}); });
  expect("[sigmoid] x is int64", [&] { sigmoid(t, whole); });
  expect("[sum] x is an empty value", [&] { sum(t, {}); });
  expect("[mean_squared_error] target is float64 [2, 3], must be float32", [&] { mean_squared_error(t, x, wide); });
  expect("target is float32 [3], must be [2, 3]", [&] { mean_squared_error(t, x, Value(Array(DType::float32, {3}))); });
  const Value none(Array(DType::float32, {0}));
  expect("[mean_squared_error] x is float32 [0], must not be empty", [&] { mean_squared_error(t, none, none); });
  expect("[concat] there are no values", [&] { concat(t, {}, 0); });
  expect("[concat] axis is 4, must be in [0, 2) for x", [&] { concat(t, {x, x}, 4); });
  expect("[concat] values[1] is float64 [2, 3], must be float32; values[2] is an empty value", [&] {
    concat(t, {x, wide, {}}, 0);
  });
  expect("values[1] is float32 [3], must be [2, 3] (free along the axis)", [&] {
    concat(t, {x, Value(Array(DType::float32, {3}))}, 0);
  });
  expect("[slice] 2 to 4, the end not included, is not in axis 1 of x, float32 [2, 3]", [&] { slice(t, x, 1, 2, 4); });
  expect("[slice] 2 to 1", [&] { slice(t, x, 1, 2, 1); });
  expect("[slice] axis is 2", [&] { slice(t, x, 2, 0, 1); });
  expect("[transpose] axis is 5, must be in [0, 2) for x, float32 [2, 3]; axis is -1", [&] { transpose(t, x, 5, -1); });
  expect("[reshape] x is float32 [2, 3], must have as many elements as [4]", [&] { reshape(t, x, {4}); });
  expect("[reshape] x is float32 [2, 3], must have as many elements as [-2, -3]", [&] { reshape(t, x, {-2, -3}); });
}

// ---------------------------------------------------------------------------------------------------------- AdamW

TEST(AdamW, IsAdamwOverAllParameters) {
  for (const nn::Precision precision : {nn::Precision::float32, nn::Precision::bfloat16}) {
    nn::Parameters parameters({.precision = precision, .seed = 2});
    const nn::Linear layer(nn::Scope(parameters) / "layer", 3, 2, {.bias = true}),
        idle(nn::Scope(parameters) / "idle", 3, 2);
    std::vector<Array> expected, first, second;
    for (const nn::Parameter& parameter : parameters.all()) {
      expected.push_back(parameter.master.clone());
      first.emplace_back(parameter.master.dtype(), parameter.master.shape());
      second.emplace_back(parameter.master.dtype(), parameter.master.shape());
    }
    nn::AdamW optimizer(parameters, {.learning_rate = 0.1, .weight_decay = 0.5});
    const Value x(random_array(parameters.dtype(), {4, 3}, 3)), target(random_array(parameters.dtype(), {4, 2}, 4));
    double before = kInf;
    for (int64_t step = 1; step <= 5; ++step) {
      optimizer.options.gradient_factor = step == 2 ? 0.5 : 1;
      parameters.clear_gradients();
      Tape tape({.record = true});
      const Value loss = mean_squared_error(tape, layer(tape, x), target);
      tape.backward(loss);
      double squares = 0;
      for (size_t n = 0; n < expected.size(); ++n) {
        const nn::Parameter& parameter = parameters.all()[n];
        if (parameter.value.gradient_is_empty()) continue;
        for (const double g : gradient_of(parameter.value)) squares += g * g;
        ops::adamw(expected[n].flat(), parameter.value.gradient().flat(), first[n].flat(), second[n].flat(),
                   {.learning_rate = 0.1,
                    .weight_decay = parameter.decay ? 0.5 : 0,
                    .gradient_factor = optimizer.options.gradient_factor,
                    .step = step});
      }
      EXPECT_LE(std::abs(optimizer.gradient_norm() - std::sqrt(squares)),
                rounding_bound(DType::float64, std::sqrt(squares), 2 * static_cast<double>(parameters.count())));
      optimizer.step();
      EXPECT_EQ(optimizer.options.step, step + 1);
      EXPECT_LT(numbers(loss.data())[0], before);
      before = numbers(loss.data())[0];
    }
    for (size_t n = 0; n < expected.size(); ++n) {
      const nn::Parameter& parameter = parameters.all()[n];
      EXPECT_TRUE(numbers(parameter.master) == numbers(expected[n])) << parameter.name;
      const std::vector<io::NamedTensor> state = optimizer.tensors();
      EXPECT_EQ(state[2 * n].name, "adamw.m." + parameter.name);
      for (const auto& [tensor, moment] : {std::pair(state[2 * n], first[n]), std::pair(state[2 * n + 1], second[n])})
        EXPECT_EQ(io::bytes_of(tensor), io::bytes_of({"", moment.dtype(), moment.shape(), moment.data()}));
      Array copy(parameter.value.dtype(), parameter.master.shape());
      ops::convert(parameter.master.flat(), copy.flat());
      EXPECT_TRUE(numbers(parameter.value.data()) == numbers(copy)) << "layers compute with it: " << parameter.name;
    }
  }
}

/// Saved after two of four steps and loaded into others: the same bits.
TEST(AdamW, ContinuesFromAFile) {
  struct Training {
    nn::Parameters parameters{{.precision = nn::Precision::bfloat16, .seed = 2}};
    nn::Linear layer{nn::Scope(parameters) / "layer", 3, 2};
    nn::AdamW optimizer{parameters, {.learning_rate = 0.1, .weight_decay = 0.5}};
    void steps(int count) {
      for (int step = 0; step < count; ++step) {
        Tape tape({.record = true});
        const Value x(random_array(parameters.dtype(), {4, 3}, 3)), target(random_array(parameters.dtype(), {4, 2}, 4));
        parameters.clear_gradients();
        tape.backward(mean_squared_error(tape, layer(tape, x), target));
        optimizer.step();
      }
    }
    std::string file() const {
      std::vector<io::NamedTensor> all = parameters.tensors("model.");
      for (const io::NamedTensor& tensor : optimizer.tensors()) all.push_back(tensor);
      return io::format_safetensors(all, {});
    }
  };
  Training whole, other;
  whole.steps(2);
  const io::Safetensors half = io::Safetensors::parse(whole.file(), "file");
  const int64_t step = whole.optimizer.options.step;
  whole.steps(2);
  other.parameters.load(half, "model.");
  other.optimizer.load(half, step);
  other.steps(2);
  EXPECT_EQ(other.file(), whole.file());
  const std::string other_names = error_of([&] { other.parameters.load(half); });
  EXPECT_NE(other_names.find("layer.weight"), std::string::npos);
  EXPECT_NE(other_names.find("layer.bias"), std::string::npos) << "all that are missing";
  EXPECT_EQ(other.file(), whole.file());
}

TEST(AdamW, RefusesParametersOfInference) {
  nn::Parameters parameters({.purpose = nn::Purpose::inference});
  EXPECT_EQ(error_of([&] { nn::AdamW optimizer(parameters); }),
            "[AdamW] the parameters are made for inference: they have no gradients");
}

}  // namespace
}  // namespace attn::test
