// Products of few rows with rows of weights, y = x W^T: what generating one token after another consists of. Each is
// checked against sums in float64, then timed beside oneDNN and beside a plain read of as many bytes: the quickest of
// many samples in turn, because other programs disturb every median. Weights "in memory" have many copies, of which
// every sample takes the next, so that no cache holds them; weights "in cache" are the same ones in every sample.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <vector>

#include "attn/ops.h"
#include "attn/peaks.h"
#include "modes.h"
#include "timer.h"

namespace bench {
namespace {

using attn::ConstView;
using attn::DType;
using attn::View;

constexpr int64_t kColdBytes = int64_t{1} << 28;  // eight times the largest cache that was measured
constexpr double kSeconds = 1;                    // for each row, unless --seconds says otherwise

struct ProductSize {
  int64_t K, N;
};

/// The product by oneDNN, in tasks of 512 columns on one thread each.
class OneDnn {
 public:
  /// None for a type that oneDNN does not multiply on this CPU.
  static std::optional<OneDnn> make(DType dtype, int64_t M, const ProductSize& size) try {
    if (dtype == DType::float16) return std::nullopt;
    return OneDnn(dtype, M, size);
  } catch (const dnnl::error&) {
    return std::nullopt;
  }
  OneDnn(DType dtype, int64_t M, const ProductSize& size)
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
  ProductSize size_;
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

struct Product {
  DType dtype;
  int64_t M;
  ProductSize size;

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

/// Plain reads of memory that no product touches, so that no cache holds it.
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

/// Adds one row. The weights are the first of `memory`, or where `cold` all copies in turn.
bool add_product(const Product& product, const attn::Buffer& memory, bool cold, double seconds, Reading& reading,
                 Report& report) {
  attn::Buffer x(product.M * product.size.K * attn::size_of(product.dtype));
  attn::Buffer y(product.M * product.size.N * attn::size_of(product.dtype));
  fill(x, product.dtype);
  const int64_t copies = cold ? memory.bytes() / product.bytes() : 1;
  int64_t copy = 0;
  const auto next = [&] { return static_cast<const char*>(memory.data()) + copy++ % copies * product.bytes(); };
  const auto ours = [&] { attn::ops::matmul(product.rows(x.data()), product.columns(next()), product.out(y.data())); };
  ours();
  const bool correct = product.error(x.data(), memory.data(), y.data()) <= error_bound(product.dtype);
  double best = NAN, of_onednn = NAN, read = NAN;
  if (correct) {
    const std::optional<OneDnn> peer = OneDnn::make(product.dtype, product.M, product.size);
    const auto none = [] { return NAN; };
    const auto taken =
        in_turn({[&] { return seconds_of(ours); },
                 peer ? Sample([&] { return seconds_of([&] { peer->run(x.data(), next(), y.data()); }); }) : none,
                 cold ? Sample([&] { return reading.sample(product.bytes()); }) : none},
                1, seconds);
    best = *std::min_element(taken[0].begin(), taken[0].end());
    of_onednn = *std::min_element(taken[1].begin(), taken[1].end());
    read = *std::max_element(taken[2].begin(), taken[2].end());
  }
  const double rate = static_cast<double>(product.bytes()) / best * 1e-9;
  report.add({{"isa", attn::active_isa()},
              {"weights", cold ? "in memory" : "in cache"},
              {"dtype", attn::name_of(product.dtype)},
              {"K", product.size.K},
              {"N", product.size.N},
              {"M", product.M},
              {"us", best * 1e6},
              {"GB/s", rate},
              {"read GB/s", read},
              {"% of read", 100 * rate / read},
              {"oneDNN us", of_onednn * 1e6},
              {"ratio", of_onednn / best},
              {"verdict", correct ? "ok" : "WRONG"}});
  return correct;
}

}  // namespace

bool run_products(const Settings& settings, Report& report) {
  attn::set_thread_count(settings.threads.back());
  const std::vector<ProductSize> cold = {{768, 768}, {768, 3072}, {3072, 768}, {4096, 4096}, {768, 50257}};
  const std::vector<ProductSize> warm = {{64, 64}, {64, 256}, {256, 256}, {256, 1024}, {768, 768}};
  bool correct = true;
  Reading reading;
  for (bool is_cold : {true, false}) {
    for (DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      attn::Buffer memory(is_cold ? kColdBytes : 4 << 20);
      fill(memory, dtype);
      for (const ProductSize& size : is_cold ? cold : warm)
        for (int64_t M : {1, 2, 4, 8})
          correct &= add_product({dtype, M, size}, memory, is_cold, settings.seconds > 0 ? settings.seconds : kSeconds,
                                 reading, report);
    }
  }
  return correct;
}

}  // namespace bench
