// ops: matrices with gaps between their rows and nothing after their last element, and the comparisons of test_ops*.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <new>
#include <span>

#include "attn/ops.h"
#include "errors.h"
#include "tolerance.h"

namespace attn::test {

/// The instruction sets that differ in these kernels: sets with tiles have those of AVX-512.
inline void for_each_isa_of_elements(const std::function<void(const std::string&)>& body) {
  for_each_isa([&](const std::string& isa) {
    if (!isa.starts_with("amx")) body(isa);
  });
}

/// Rows of a stride, that end where memory ends. All ones at birth, which is NaN: what is never written shows.
class Matrix {
 public:
  Matrix(DType dtype, int64_t rows, int64_t columns, int64_t gap = 0)
      : dtype_(dtype), size_{rows, columns}, stride_(columns + gap) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    bytes_ = rows == 0 ? 0 : ((rows - 1) * stride_ + columns) * size_of(dtype);
    const int64_t whole = (bytes_ + page - 1) / page * page;
    void* base = mmap(nullptr, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(static_cast<std::byte*>(base) + whole, page, PROT_NONE) != 0)
      throw std::bad_alloc();
    memory_ = std::shared_ptr<void>(base, [total = whole + page](void* p) { munmap(p, total); });
    data_ = static_cast<std::byte*>(base) + whole - bytes_;
    std::memset(data_, 0xff, bytes_);
  }
  static Matrix like(const Matrix& other) { return {other.dtype_, other.size_[0], other.size_[1], other.gap()}; }
  Matrix copy() const {
    Matrix other = like(*this);
    std::memcpy(other.data_, data_, bytes_);
    return other;
  }

  DType dtype() const { return dtype_; }
  int64_t rows() const { return size_[0]; }
  int64_t columns() const { return size_[1]; }
  int64_t gap() const { return stride_ - size_[1]; }
  double get(int64_t r, int64_t c) const { return load_element(data_, dtype_, r * stride_ + c); }
  void set(int64_t r, int64_t c, double value) { store_element(data_, dtype_, r * stride_ + c, value); }
  double get(int64_t c) const { return get(0, c); }

  operator View<2>() { return {data_, dtype_, size_, {stride_, 1}}; }
  operator ConstView<2>() const { return {data_, dtype_, size_, {stride_, 1}}; }
  /// Row 0.
  View<1> row() { return {data_, dtype_, {size_[1]}}; }
  ConstView<1> row() const { return {data_, dtype_, {size_[1]}}; }
  /// Columns first .. first + count - 1.
  View<2> columns(int64_t first, int64_t count) {
    return {data_ + first * size_of(dtype_), dtype_, {size_[0], count}, {stride_, 1}};
  }

  Matrix& fill(double value) {
    return fill_with([value](int64_t, int64_t) { return value; });
  }
  Matrix& fill_normal(Random& random, double deviation = 1) {
    return fill_with([&](int64_t, int64_t) { return deviation * random.normal(); });
  }
  template <class F>
  Matrix& fill_with(const F& value) {
    for (int64_t r = 0; r < rows(); ++r)
      for (int64_t c = 0; c < columns(); ++c) set(r, c, value(r, c));
    return *this;
  }

  bool gaps_are_untouched() const {
    for (int64_t r = 0; r + 1 < rows(); ++r)
      for (int64_t n = (r * stride_ + columns()) * size_of(dtype_); n < (r + 1) * stride_ * size_of(dtype_); ++n)
        if (data_[n] != std::byte{0xff}) return false;
    return true;
  }
  bool same_bits(const Matrix& other) const {
    return bytes_ == other.bytes_ && std::memcmp(data_, other.data_, bytes_) == 0;
  }

 private:
  DType dtype_;
  Shape<2> size_;
  int64_t stride_;
  int64_t bytes_ = 0;
  std::shared_ptr<void> memory_;
  std::byte* data_ = nullptr;
};

/// A matrix that is stored as it is or transposed, in rows with a gap.
struct Operand {
  Matrix stored;
  ConstView<2> view;

  Operand(DType dtype, int64_t rows, int64_t columns, bool transposed, uint64_t seed)
      : stored(dtype, transposed ? columns : rows, transposed ? rows : columns, 3), view(stored) {
    Random random(seed);
    stored.fill_normal(random);
    view = stored;
    if (transposed) view = {view.data, dtype, {rows, columns}, {view.stride[1], view.stride[0]}};
  }
  double get(int64_t r, int64_t c) const {
    return load_element(view.data, view.dtype, r * view.stride[0] + c * view.stride[1]);
  }
};

/// What an element should be: the terms after it have this magnitude, and its sum this many further roundings.
struct Expected {
  double value;
  double magnitude;
  double roundings = 0;
};

/// Every element is what expected(r, c) says, and the gaps hold what they held.
template <class F>
testing::AssertionResult holds(const Matrix& actual, const F& expected) {
  for (int64_t r = 0; r < actual.rows(); ++r)
    for (int64_t c = 0; c < actual.columns(); ++c) {
      const Expected e = expected(r, c);
      const double bound = element_bound(e.value, e.magnitude, e.roundings, actual.dtype());
      if (!(distance(actual.get(r, c), e.value) <= bound))
        return testing::AssertionFailure()
               << "(" << r << ", " << c << ") is " << actual.get(r, c) << ", not " << e.value << " within " << bound;
    }
  if (!actual.gaps_are_untouched()) return testing::AssertionFailure() << "a gap between rows was written";
  return testing::AssertionSuccess();
}

inline DType parameter_of(DType dtype) { return dtype == DType::float64 ? dtype : DType::float32; }

inline constexpr DType kStorage[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16};

/// Widths around one and two vectors of every instruction set, and around the unrolled loops.
inline std::vector<int64_t> widths() {
  std::vector<int64_t> all = {64, 65, 100, 131, 200};
  for (int64_t C = 1; C <= 33; C += by_effort(4, 1, 1)) all.push_back(C);
  return all;
}

/// body(type, columns, gap, what it is) on every instruction set.
template <class Body>
void for_each_layout(const Body& body) {
  for_each_isa_of_elements([&](const std::string& isa) {
    for (DType dtype : kStorage)
      for (int64_t C : widths())
        for (int64_t gap : {0, 3})
          body(dtype, C, gap,
               std::string(name_of(dtype)) + ", " + std::to_string(C) + " columns, gap " + std::to_string(gap) +
                   " on " + isa);
  });
}

/// run() returns matrices; all of them must be the same, bit for bit, on one, two and three threads.
template <class Run>
void expect_same_on_all_threads(const Run& run) {
  for_each_isa_of_elements([&](const std::string& isa) {
    set_thread_count(1);
    const std::vector<Matrix> alone = run();
    for (int threads : {2, 3}) {
      set_thread_count(threads);
      const std::vector<Matrix> together = run();
      for (size_t n = 0; n < alone.size(); ++n)
        EXPECT_TRUE(alone[n].same_bits(together[n])) << "result " << n << " on " << threads << " threads, " << isa;
    }
    set_thread_count(0);
  });
}

/// d loss / d input(r, c) is gradient(r, c), by central differences in float64. loss() reads `input`.
template <class Loss>
void expect_gradient(const char* what, Matrix& input, const Matrix& gradient, const Loss& loss) {
  ASSERT_EQ(input.dtype(), DType::float64);
  for (int64_t r = 0; r < input.rows(); ++r)
    for (int64_t c = 0; c < input.columns(); ++c) {
      const double value = input.get(r, c);
      input.set(r, c, value + kDifferenceStep);
      const double above = loss();
      input.set(r, c, value - kDifferenceStep);
      const double below = loss();
      input.set(r, c, value);
      const double slope = (above - below) / (2 * kDifferenceStep);
      EXPECT_LE(std::abs(gradient.get(r, c) - slope), difference_bound(slope))
          << what << "(" << r << ", " << c << ") is " << gradient.get(r, c) << ", the difference quotient " << slope;
    }
}

/// sum of weights * y: a loss whose gradient in y is `weights`.
inline double product(const Matrix& weights, const Matrix& y) {
  double sum = 0;
  for (int64_t r = 0; r < y.rows(); ++r)
    for (int64_t c = 0; c < y.columns(); ++c) sum += weights.get(r, c) * y.get(r, c);
  return sum;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace attn::test
