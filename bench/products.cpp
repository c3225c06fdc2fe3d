// attn_products: products of few rows with rows of weights, y = x W^T, which a text written token by token consists of.
// Checks each against sums in float64, then times it beside oneDNN and beside a plain read of as many bytes: the
// quickest of many samples in turn, for neighbours disturb every median. Weights that no cache would hold are in many
// copies, of which every sample takes the next; those of the last table stay where the cache has them.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "attn/ops.h"
#include "attn/peaks.h"
#include "clock.h"
#include "measure.h"

namespace bench {
namespace {

using attn::ConstView;
using attn::DType;
using attn::View;

constexpr int64_t kColdBytes = int64_t{1} << 28;  // eight times the largest cache that was measured
constexpr double kSeconds = 1;                    // for each line of a table

struct Size {
  int64_t K, N;
};

/// The product as ops::matmul had oneDNN do it before it had kernels of its own: a task 512 columns, one thread each.
class OneDnn {
 public:
  static bool has(DType dtype) { return dtype != DType::float16; }
  OneDnn(DType dtype, int64_t M, const Size& size)
      : type_(dtype == DType::bfloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32),
        bytes_(attn::size_of(dtype)),
        M_(M),
        size_(size),
        whole_(build(std::min(kColumns, size.N))),
        rest_(build(size.N % kColumns ? size.N % kColumns : kColumns)) {}

  void run(const void* x, const void* w, void* y) const {
    attn::parallel_for((size_.N + kColumns - 1) / kColumns, [&](int64_t task) {
      omp_set_num_threads(1);
      static thread_local dnnl::stream stream(engine());
      const int64_t first = task * kColumns, columns = std::min(kColumns, size_.N - first);
      const auto at = [&](const void* p, int64_t element) {
        return const_cast<char*>(static_cast<const char*>(p)) + element * bytes_;
      };
      (columns == kColumns ? whole_ : rest_)
          .execute(stream, {{DNNL_ARG_SRC, {row_major(M_, size_.K, size_.K), engine(), at(x, 0)}},
                            {DNNL_ARG_WEIGHTS, {weights(columns), engine(), at(w, first * size_.K)}},
                            {DNNL_ARG_DST, {row_major(M_, columns, size_.N), engine(), at(y, first)}}});
      stream.wait();
    });
  }

 private:
  static constexpr int64_t kColumns = 512;

  static dnnl::engine& engine() {
    static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
    return cpu;
  }
  dnnl::memory::desc row_major(int64_t rows, int64_t columns, int64_t stride) const {
    return {{rows, columns}, type_, dnnl::memory::dims{rows == 1 ? columns : stride, 1}};
  }
  dnnl::memory::desc weights(int64_t columns) const {
    return {{size_.K, columns}, type_, dnnl::memory::dims{1, size_.K}};
  }
  dnnl::matmul build(int64_t columns) const {
    return dnnl::matmul(
        {{row_major(M_, size_.K, size_.K), weights(columns), row_major(M_, columns, size_.N)}, engine()});
  }

  dnnl::memory::data_type type_;
  int64_t bytes_, M_;
  Size size_;
  dnnl::matmul whole_, rest_;
};

double number_at(const void* data, DType dtype, int64_t n) {
  if (dtype == DType::float32) return static_cast<const float*>(data)[n];
  if (dtype == DType::bfloat16) return static_cast<float>(static_cast<const attn::bfloat16*>(data)[n]);
  return static_cast<float>(static_cast<const attn::float16*>(data)[n]);
}

/// Numbers between -1 and 1 of a type, all over the memory.
void fill(const attn::Buffer& memory, DType dtype) {
  uint32_t state = 1;
  for (int64_t n = 0; n < memory.bytes() / attn::size_of(dtype); ++n) {
    state = state * 1664525u + 1013904223u;
    const float x = static_cast<float>(state >> 20) * 0x1p-11f - 1;
    if (dtype == DType::float32) static_cast<float*>(memory.data())[n] = x;
    else if (dtype == DType::bfloat16) static_cast<attn::bfloat16*>(memory.data())[n] = attn::bfloat16(x);
    else static_cast<attn::float16*>(memory.data())[n] = attn::float16(x);
  }
}

struct Line {
  DType dtype;
  int64_t M;
  Size size;

  int64_t bytes() const { return size.N * size.K * attn::size_of(dtype); }
  ConstView<2> rows(const void* x) const { return {x, dtype, {M, size.K}}; }
  ConstView<2> columns(const void* w) const { return {w, dtype, {size.K, size.N}, {1, size.K}}; }
  View<2> out(void* y) const { return {y, dtype, {M, size.N}}; }

  /// max |y - sum in float64| / max |sum|, of some columns.
  double error(const void* x, const void* w, const void* y) const {
    const int64_t step = std::max<int64_t>(1, size.N / 61);
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < M; ++i) {
      for (int64_t j = 0; j < size.N; j += step) {
        double sum = 0;
        for (int64_t k = 0; k < size.K; ++k)
          sum += number_at(x, dtype, i * size.K + k) * number_at(w, dtype, j * size.K + k);
        worst = std::max(worst, std::abs(number_at(y, dtype, i * size.N + j) - sum));
        largest = std::max(largest, std::abs(sum));
      }
    }
    return worst / largest;
  }
};

/// Plain reads of memory that no product touches: what a product has just read is in a cache.
class Reading {
 public:
  Reading() : memory_(kColdBytes) { fill(memory_, DType::float32); }
  /// GB/s of the next so many bytes.
  double sample(int64_t bytes) {
    if (at_ + bytes > memory_.bytes()) at_ = 0;
    const char* begin = static_cast<const char*>(memory_.data()) + at_;
    at_ += bytes / 64 * 64;
    return attn::peaks::measure_read(begin, bytes);
  }

 private:
  attn::Buffer memory_;
  int64_t at_ = 0;
};

/// One line of a table; the weights are the first of `memory`, or where `cold` all of its copies in turn.
bool print_line(const Line& line, const attn::Buffer& memory, bool cold, Reading& reading) {
  attn::Buffer x(line.M * line.size.K * attn::size_of(line.dtype)), y(line.M * line.size.N * attn::size_of(line.dtype));
  fill(x, line.dtype);
  const int64_t copies = cold ? memory.bytes() / line.bytes() : 1;
  int64_t copy = 0;
  const auto next = [&] { return static_cast<const char*>(memory.data()) + copy++ % copies * line.bytes(); };
  const auto ours = [&] { attn::ops::matmul(line.rows(x.data()), line.columns(next()), line.out(y.data())); };
  ours();
  const double error = line.error(x.data(), memory.data(), y.data());
  std::printf("  %-9s %5ld %6ld %3ld ", std::string(attn::name_of(line.dtype)).c_str(), static_cast<long>(line.size.K),
              static_cast<long>(line.size.N), static_cast<long>(line.M));
  if (!(error <= error_bound(line.dtype))) {
    std::printf("WRONG: error %.1e\n", error);
    return false;
  }
  const OneDnn peer(OneDnn::has(line.dtype) ? line.dtype : DType::float32, line.M, line.size);
  double best = std::numeric_limits<double>::infinity(), best_peer = best, read = 0;
  for (const double end = seconds_now() + kSeconds; seconds_now() < end;) {
    best = std::min(best, seconds_of(ours));
    if (OneDnn::has(line.dtype))
      best_peer = std::min(best_peer, seconds_of([&] { peer.run(x.data(), next(), y.data()); }));
    if (cold) read = std::max(read, reading.sample(line.bytes()));
  }
  const double rate = static_cast<double>(line.bytes()) / best * 1e-9;
  std::printf("%9.1f us %7.1f", best * 1e6, rate);
  if (cold) std::printf(" %7.1f %6.0f %%", read, 100 * rate / read);
  if (OneDnn::has(line.dtype)) std::printf("  oneDNN %9.1f us, %5.2f times ours", best_peer * 1e6, best_peer / best);
  std::printf("\n");
  std::fflush(stdout);
  return true;
}

bool print_table(bool cold, const std::vector<Size>& sizes, const std::vector<int64_t>& rows) {
  std::printf("\n%s: type, K, N, M; time, GB/s of weights%s\n", cold ? "From memory" : "From the cache",
              cold ? ", GB/s of a plain read, share of it" : "");
  bool correct = true;
  Reading reading;
  for (DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    attn::Buffer memory(cold ? kColdBytes : 4 << 20);
    fill(memory, dtype);
    for (const Size& size : sizes)
      for (int64_t M : rows) correct &= print_line({dtype, M, size}, memory, cold, reading);
  }
  return correct;
}

int run() {
  std::printf("Quickest samples, %d threads, %s.\n", attn::thread_count(), std::string(attn::active_isa()).c_str());
  bool correct = print_table(true, {{768, 768}, {768, 3072}, {3072, 768}, {4096, 4096}, {768, 50257}}, {1, 2, 4, 8});
  correct &= print_table(false, {{64, 64}, {64, 256}, {256, 256}, {256, 1024}, {768, 768}}, {1, 2, 4, 8});
  return correct ? 0 : 1;
}

}  // namespace
}  // namespace bench

int main() try { return bench::run(); } catch (const std::exception& error) {
  std::fprintf(stderr, "attn_products: %s\n", error.what());
  return 2;
}
