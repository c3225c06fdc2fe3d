// Random numbers that are a function of a counter alone, so that any part of a stream can be recomputed anywhere.
//
// Source: Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11. The tests hold philox()
// against the known answers published with it.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "attn/core.h"
#include "core/layout.h"

namespace attn {

std::array<uint32_t, 4> philox(uint64_t key, const std::array<uint32_t, 4>& counter) {
  auto [x0, x1, x2, x3] = counter;
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xd2511f53} * x0;
    const uint64_t product1 = uint64_t{0xcd9e8d57} * x2;
    x0 = static_cast<uint32_t>(product1 >> 32) ^ x1 ^ key0;
    x1 = static_cast<uint32_t>(product1);
    x2 = static_cast<uint32_t>(product0 >> 32) ^ x3 ^ key1;
    x3 = static_cast<uint32_t>(product0);
    key0 += 0x9e3779b9;  // the golden ratio and sqrt(3) - 1, as in the paper
    key1 += 0xbb67ae85;
  }
  return {x0, x1, x2, x3};
}

Random::Random(uint64_t seed, uint64_t stream, uint64_t drawn) : key_(seed), stream_(stream), drawn_(drawn) {
  if (drawn_ % 4 != 0) draw_block();
}

void Random::draw_block() {
  const uint64_t block = drawn_ / 4;
  words_ = philox(key_, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                         static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)});
}

uint32_t Random::next() {
  if (drawn_ % 4 == 0) draw_block();
  return words_[drawn_++ % 4];
}

double Random::uniform() {
  const uint64_t high = next();
  const uint64_t low = next();
  return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
}

double Random::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));  // 1 - uniform() is never 0
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

int64_t Random::below(int64_t bound) {
  if (bound <= 0) throw Error("Random::below", {"the bound is " + std::to_string(bound) + ", must be positive"});
  const uint64_t range = static_cast<uint64_t>(bound);
  const uint64_t whole =
      UINT64_MAX - UINT64_MAX % range;  // a multiple of range: what is above would favour small values
  for (;;) {
    const uint64_t high = next();
    const uint64_t value = high << 32 | next();
    if (value < whole) return static_cast<int64_t>(value % range);
  }
}

namespace {

template <class T>
void fill_row(Random& random, double deviation, void* data, int64_t count, int64_t stride) {
  for (int64_t n = 0; n < count; ++n)
    static_cast<T*>(data)[n * stride] =
        T(static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(deviation * random.normal()));
}

}  // namespace

void fill_normal(Random& random, double deviation, void* data, DType dtype, const int64_t* size, const int64_t* stride,
                 int rank) {
  Checker checker("fill_normal");
  checker.require(is_floating(dtype),
                  [&] { return "x is " + std::string(name_of(dtype)) + ", must be a floating type"; });
  detail::check_layout(checker, "x", size, stride, rank, size_of(dtype));
  const bool empty = std::find(size, size + rank, 0) != size + rank;
  checker.require(data || empty, "x has no data");
  checker.require(std::isfinite(deviation),
                  [&] { return "the deviation is " + std::to_string(deviation) + ", must be finite"; });
  checker.done();
  if (empty) return;
  const int last = rank - 1;
  std::vector<int64_t> index(static_cast<size_t>(rank), 0);
  const auto fill = dtype == DType::float64    ? fill_row<double>
                    : dtype == DType::float32  ? fill_row<float>
                    : dtype == DType::bfloat16 ? fill_row<bfloat16>
                                               : fill_row<float16>;
  for (int axis = last; axis >= 0;) {  // a row of the last axis, then the next index of those before it
    int64_t offset = 0;
    for (int before = 0; before < last; ++before) offset += index[static_cast<size_t>(before)] * stride[before];
    fill(random, deviation, static_cast<char*>(data) + offset * size_of(dtype), size[last], stride[last]);
    for (axis = last - 1; axis >= 0 && ++index[static_cast<size_t>(axis)] == size[axis]; --axis)
      index[static_cast<size_t>(axis)] = 0;
  }
}

}  // namespace attn
