// What the public headers promise in their comments, used as a reader would use it. docs/CMakeLists.txt
// compiles the example of each header, which includes that header first.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <numeric>
#include <type_traits>

#include "attn/attention.h"
#include "support/errors.h"

namespace attn::test {
namespace {

template <class Half>
void use_as_a_number() {
  Half a;
  a = 1.0f;
  a = 2;
  Half b = a;
  a += b;
  EXPECT_EQ(a, 4);
  a *= 3.0f;
  a -= b;
  a /= 4.0f;
  EXPECT_EQ(a, 2.5f);
  EXPECT_TRUE(a == 2.5f && a > b && -a < 0);
  const float sum = a + b;
  const double wide = a;
  EXPECT_EQ(sum, 4.5f);
  EXPECT_EQ(wide, 2.5);
  EXPECT_EQ(std::max(a, b), a);
  EXPECT_EQ(Half(2.5f).bits, a.bits);
  static_assert(std::is_same_v<decltype(a + b), float>);
  static_assert(!std::is_convertible_v<float, Half> && !std::is_convertible_v<double, Half>, "rounding is written out");
  static_assert(sizeof(Half) == 2 && std::is_trivially_copyable_v<Half>);
}

TEST(Headers, HalfPrecisionNumbers) {
  use_as_a_number<bfloat16>();
  use_as_a_number<float16>();
  // Two additions in float would give 257: each assignment rounds.
  bfloat16 sum(256.0f);
  sum += 1.0f;
  sum += 1.0f;
  EXPECT_EQ(sum, 256.0f);
}

TEST(Headers, SlicesOfViews) {
  Tensor<float, 3> x({2, 3, 4});
  for (int64_t n = 0; n < x.count(); ++n) x[n] = static_cast<float>(n);
  const ConstView<3> view = x;
  const ConstView<3> middle = view.slice(1, 1, 3).slice(2, 3, 4);
  EXPECT_EQ(middle.size, (Shape<3>{2, 2, 1}));
  EXPECT_EQ(middle.stride, view.stride);
  EXPECT_EQ(static_cast<const float*>(middle.data), x.data() + 7);
  const View<2> column = x.view().select(2, 1);
  EXPECT_EQ(column.size, (Shape<2>{2, 3}));
  EXPECT_EQ(column.stride, (Shape<2>{12, 4}));
  const View<1> row = x.view().select(0, 1).select(0, 2);
  EXPECT_EQ(*static_cast<float*>(row.data), 20);
  EXPECT_EQ(row.size, (Shape<1>{4}));
  const View<1> backwards(x.data() + 3, DType::float32, {4}, {-1});
  EXPECT_EQ(*static_cast<float*>(backwards.slice(0, 1, 2).data), 2);
  EXPECT_TRUE(view.slice(2, 4, 4).empty());
  EXPECT_EQ(View<3>().slice(0, 0, 0).data, nullptr);

  const std::string no_axis = "[slice] the axis is 3, must be in [0, 3) for [2, 3, 4]";
  EXPECT_EQ(error_of([&] { view.slice(3, 0, 1); }), no_axis);
  EXPECT_EQ(error_of([&] { view.select(3, 0); }), no_axis);
  EXPECT_NE(error_of([&] { view.slice(-1, 0, 1); }).find("the axis is -1"), std::string::npos);
  EXPECT_EQ(error_of([&] { view.slice(1, 2, 4); }),
            "[slice] 2 to 4, the end not included, is not in axis 1 of [2, 3, 4]");
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{-1, 2}, {2, 1}, {INT64_MIN, INT64_MAX}})
    EXPECT_NE(error_of([&] { view.slice(0, begin, end); }).find("is not in axis 0"), std::string::npos);
  for (const int64_t index : {int64_t{-1}, int64_t{2}, INT64_MAX, INT64_MIN})
    EXPECT_NE(error_of([&] { view.select(0, index); }).find("is not in axis 0"), std::string::npos) << index;
}

TEST(Headers, AxesInAnotherOrder) {
  Tensor<float, 4> x({2, 3, 4, 5});  // as PyTorch's [B, L, H, D]
  for (int64_t n = 0; n < x.count(); ++n) x[n] = static_cast<float>(n);
  const View<4> heads = x.view().permute({0, 2, 1, 3});
  EXPECT_EQ(heads.size, (Shape<4>{2, 4, 3, 5}));
  EXPECT_EQ(heads.stride, (Shape<4>{60, 5, 20, 1}));
  const ConstView<3> columns(x.data(), {2, 3, 20});
  EXPECT_EQ(columns.heads(4).size, heads.size);
  EXPECT_EQ(columns.heads(4).stride, heads.stride);
  EXPECT_EQ(*static_cast<const float*>(columns.heads(4).select(0, 1).select(0, 2).select(0, 1).data), x(1, 1, 2, 0));
  EXPECT_EQ(x(1, 1, 2, 3), 93);
  EXPECT_EQ(columns.slice(2, 5, 15).heads(2).stride, (Shape<4>{60, 5, 20, 1})) << "of a part of the columns";
  EXPECT_EQ(error_of([&] {
              x.view().permute({0, 1, 1, 3});
            }),
            "[permute] the axes are [0, 1, 1, 3], must name each of 0 to 3 once");
  EXPECT_NE(error_of([&] { x.view().permute({0, 1, 2, 4}); }).find("must name"), std::string::npos);
  EXPECT_EQ(error_of([&] { columns.heads(3); }), "[heads] the count is 3, must divide the 20 columns");
  EXPECT_EQ(error_of([&] { columns.heads(0); }), "[heads] the count is 0, must divide the 20 columns");
}

TEST(Headers, ArraysOfATypeKnownAtRunTime) {
  const Array x({1.f, 2.f, 3.f, 4.f, 5.f, 6.f}, {2, 3});
  EXPECT_EQ(x.describe(), "float32 [2, 3]");
  EXPECT_EQ(x.data<float>()[4], 5);
  EXPECT_EQ(x.number(4), 5);
  EXPECT_EQ(x.values<int>(), (std::vector<int>{1, 2, 3, 4, 5, 6}));
  const View<2> column = x.view<2>().slice(1, 2, 3);
  EXPECT_EQ(column.size, (Shape<2>{2, 1}));
  EXPECT_EQ(*static_cast<const float*>(column.data), 3);
  const ConstView<2> taken = x;
  EXPECT_EQ(taken.data, x.data());
  const std::vector<double> numbers = {7};
  EXPECT_EQ(Array(numbers, {1, 1}).item<double>(), 7);
  EXPECT_EQ(Array(std::span<const int64_t>(), {0, 4}).count(), 0);
  EXPECT_TRUE(Array({false, true}, {2}).data<bool>()[1]);
  EXPECT_EQ(Array({bfloat16(2.5f)}, {1}).number(0), 2.5);
  EXPECT_EQ(Array({int32_t{-7}}, {1}).number(0), -7);
  EXPECT_EQ(Array(DType::int64, Shape<2>{2, 3}).shape(), (std::vector<int64_t>{2, 3}));

  EXPECT_EQ(error_of([&] { x.data<double>(); }), "[Array] the array is float32 [2, 3], must be float64");
  EXPECT_EQ(error_of([&] { x.item<float>(); }), "[Array] the array is float32 [2, 3], must have 1 element");
  EXPECT_EQ(error_of([&] { x.view<3>(); }), "[Array] the array is float32 [2, 3], must have 3 axes for this view");
  EXPECT_EQ(error_of([] { Array({1.f, 2.f}, {3}); }), "[Array] the array is float32 [3], must have 2 elements");
}

TEST(Headers, ShapesAndStrides) {
  const Shape<3> size = {2, 3, 4};
  EXPECT_EQ(contiguous_strides(size), (Shape<3>{12, 4, 1}));
  EXPECT_EQ(contiguous_strides(std::array<int64_t, 2>{5, 7}), (Shape<2>{7, 1}));
  EXPECT_EQ(contiguous_strides(Shape<2>{5, 0}), (Shape<2>{0, 1}));
  EXPECT_EQ(count_of(size), 24);
  EXPECT_EQ(count_of(std::array<int64_t, 2>{5, 0}), 0);
  EXPECT_EQ(to_string(size), "[2, 3, 4]");
  static_assert(count_of(Shape<2>{5, 7}) == 35 && contiguous_strides(Shape<2>{5, 7})[0] == 7);
  EXPECT_TRUE(View<2>(nullptr, DType::float32, {5, 0}).empty());
  EXPECT_FALSE(View<2>(nullptr, DType::float32, {5, 1}).empty());
}

template <class T>
void use_tensor(T value) {
  Tensor<T, 4> tensor({2, 1, 1, 3});
  for (T& x : tensor) EXPECT_EQ(x, T{});
  for (T& x : tensor) x = value;
  tensor[0] = T{};
  const Tensor<T, 4> copy = tensor;
  EXPECT_NE(copy.data(), tensor.data());
  int64_t found = 0;
  for (const T& x : copy) found += x == value;
  EXPECT_EQ(found, 5);
  const ConstView<4> view = copy;
  EXPECT_EQ(view.dtype, dtype_of<T>());
  EXPECT_EQ(view.data, copy.data());

  Tensor<T, 4> moved = std::move(tensor);
  EXPECT_EQ(moved[5], value);
  EXPECT_EQ(tensor.count(), 0);  // NOLINT: on purpose
  EXPECT_FALSE(View<4>(tensor));
  tensor = moved;
  EXPECT_EQ(tensor[5], value);
}

TEST(Headers, TensorsOfEveryElementType) {
  use_tensor<float>(1.5f);
  use_tensor<double>(1.5);
  use_tensor<bfloat16>(bfloat16(1.5f));
  use_tensor<float16>(float16(1.5f));
  use_tensor<bool>(true);
  use_tensor<int32_t>(-7);
  use_tensor<int64_t>(-7);
}

TEST(Headers, TensorsWithoutElements) {
  Tensor<float, 2> none, empty({3, 0});
  EXPECT_EQ(std::accumulate(none.begin(), none.end(), 0.0f), 0);
  EXPECT_EQ(empty.begin(), empty.end());
  EXPECT_EQ(empty.size(), (Shape<2>{3, 0}));
  const Tensor<float, 2> copy = none;
  EXPECT_EQ(copy.count(), 0);
}

TEST(Headers, BuffersOfNoBytes) {
  const Buffer buffer(0, true);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.bytes(), 0);
}

std::atomic<int64_t> total{0};
void add_task(int64_t task) { total += task; }

struct Adder {
  void operator()(int64_t task) { total += task; }
};

TEST(Headers, ParallelForTakesWhateverCanBeCalled) {
  const auto expect_sum = [](int64_t sum) { EXPECT_EQ(total.exchange(0), sum); };
  parallel_for(4, add_task);
  expect_sum(6);
  parallel_for(4, &add_task);
  expect_sum(6);
  void (*const pointer)(int64_t) = add_task;
  parallel_for(4, pointer);
  expect_sum(6);
  parallel_for(4, [](int64_t task) { total += task; });
  expect_sum(6);
  const std::function<void(int64_t)> function = add_task;
  parallel_for(4, function);
  expect_sum(6);
  parallel_for(4, Adder{});
  expect_sum(6);
  Adder adder;
  parallel_for(4, adder);
  expect_sum(6);
  int64_t calls = 0;
  auto count = [calls](int64_t) mutable { total = ++calls; };
  parallel_for(1, count);
  parallel_for(1, count);
  expect_sum(2);
  parallel_for(0, add_task);
  own_executor().run(0, add_task);
  own_executor().run(4, add_task);
  expect_sum(6);
}

/// The masks of attention() are tensors of bool, its documents of int32.
TEST(Headers, MasksAreTensors) {
  Tensor<float, 4> q({1, 1, 2, 1}), k({1, 1, 3, 1}), v({1, 1, 3, 1}), out({1, 1, 2, 1});
  std::iota(v.begin(), v.end(), 1.0f);
  Tensor<bool, 4> mask({1, 1, 1, 3});
  mask[1] = true;
  attention(q, k, v, out, {.mask = mask});
  EXPECT_EQ(out[0], 2);
  EXPECT_EQ(out[1], 2);
  Tensor<int32_t, 2> mine({1, 2}), theirs({1, 3});
  theirs[0] = theirs[1] = 1;
  attention(q, k, v, out, {.query_segment_ids = mine, .key_segment_ids = theirs});
  EXPECT_EQ(out[1], 3);
}

}  // namespace
}  // namespace attn::test
