// Products with weights of 8 and 4 bits: few rows beside a plain read of as many bytes, many rows beside our own
// products of float32 and oneDNN's of int8, which find their rows quantized. Each is checked against sums in float64 of
// the dequantized weights, then timed: the quickest of many samples in turn.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <vector>

#include "attn/ops_quantized.h"
#include "cold.h"
#include "modes.h"
#include "timer.h"

namespace bench {
namespace {

using attn::DType;
using attn::View;
using attn::ops::PackedMatrix;
using attn::ops::QuantizedMatrix;

constexpr double kSeconds = 1;  // for each row, unless --seconds says otherwise

struct Form {
  const char* name;
  int bits;
  int64_t group;
};
constexpr Form kForms[] = {
    {"int8, groups of 128", 8, 128}, {"int8, groups of 32", 8, 32}, {"int4, groups of 32", 4, 32}};

/// int8 x int8 -> int32 on oneDNN's own OpenMP threads, weights as oneDNN prefers them.
class OneDnn {
 public:
  OneDnn(int64_t M, int64_t N, int64_t K)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        product_({{{{M, K}, Type::u8, Tag::ab}, {{K, N}, Type::s8, Tag::any}, {{M, N}, Type::s32, Tag::ab}}, engine_}),
        a_({{M, K}, Type::u8, Tag::ab}, engine_),
        b_(dnnl::matmul::primitive_desc(
               {{{M, K}, Type::u8, Tag::ab}, {{K, N}, Type::s8, Tag::any}, {{M, N}, Type::s32, Tag::ab}}, engine_)
               .weights_desc(),
           engine_),
        c_({{M, N}, Type::s32, Tag::ab}, engine_) {}
  void run() {
    product_.execute(stream_, {{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}});
    stream_.wait();
  }

 private:
  using Type = dnnl::memory::data_type;
  using Tag = dnnl::memory::format_tag;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul product_;
  dnnl::memory a_, b_, c_;
};

struct Problem {
  int64_t M, N, K;
  attn::Tensor<float, 2> x, w, y;
  Problem(int64_t M_, int64_t N_, int64_t K_) : M(M_), N(N_), K(K_), x({M, K}), w({N, K}), y({M, N}) {
    attn::Random random(1);
    attn::fill_normal(x, random), attn::fill_normal(w, random, 0.02);
  }
  double flops() const { return 2.0 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K); }
};

/// The squared error of y next to sums in float64 is that of rows in 8 bits: at most a few steps of 1 / 254 of the
/// range.
bool is_right(const Problem& p, const QuantizedMatrix& q) {
  attn::Tensor<float, 2> numbers({p.N, p.K});
  attn::ops::dequantize(q, numbers);
  double error = 0, size = 0;
  for (int64_t i = 0; i < p.M; i += std::max<int64_t>(1, p.M / 7))
    for (int64_t j = 0; j < p.N; j += std::max<int64_t>(1, p.N / 61)) {
      double sum = 0;
      for (int64_t k = 0; k < p.K; ++k)
        sum += static_cast<double>(p.x.data()[i * p.K + k]) * static_cast<double>(numbers.data()[j * p.K + k]);
      error += std::pow(static_cast<double>(p.y.data()[i * p.N + j]) - sum, 2);
      size += sum * sum;
    }
  return error <= size * std::pow(4.0 / 254, 2);
}

/// Adds one row; `cold`: weights in memory.
bool add_product(const Form& form, Problem& p, bool cold, double seconds, double peak, Reading& reading,
                 Report& report) {
  const QuantizedMatrix q = attn::ops::quantize(p.w, {.bits = form.bits, .group = form.group});
  std::vector<PackedMatrix> packed(1, PackedMatrix(q));
  const int64_t bytes = packed[0].bytes();
  while (cold && static_cast<int64_t>(packed.size()) * bytes < kColdBytes) packed.emplace_back(q);
  const PackedMatrix plain(attn::ConstView<2>(p.w.data(), DType::float32, {p.K, p.N}, {1, p.K}));
  size_t copy = 0;
  const auto ours = [&] { attn::ops::matmul_packed(p.x, packed[copy++ % packed.size()], p.y); };
  ours();
  const bool correct = is_right(p, q);
  double best = NAN, of_float32 = NAN, of_onednn = NAN, read = NAN;
  if (correct) {
    std::optional<OneDnn> peer;
    if (!cold) peer.emplace(p.M, p.N, p.K);
    const auto none = [] { return NAN; };
    const auto taken = in_turn({[&] { return seconds_of(ours); }, cold ? Sample(none) : Sample([&] {
                                  return seconds_of([&] { attn::ops::matmul_packed(p.x, plain, p.y); });
                                }),
                                cold ? Sample(none) : Sample([&] { return seconds_of([&] { peer->run(); }); }),
                                cold ? Sample([&] { return reading.sample(bytes); }) : Sample(none)},
                               1, seconds);
    const auto quickest = [&](size_t n) { return *std::min_element(taken[n].begin(), taken[n].end()); };
    best = quickest(0), of_float32 = quickest(1), of_onednn = quickest(2);
    read = *std::max_element(taken[3].begin(), taken[3].end());
  }
  const double rate = static_cast<double>(bytes) / best * 1e-9;
  report.add({{"isa", attn::active_isa()},
              {"form", form.name},
              {"weights", cold ? "in memory" : "once"},
              {"M", p.M},
              {"N", p.N},
              {"K", p.K},
              {"us", best * 1e6},
              {"GOP/s", p.flops() / best * 1e-9},
              {"% of float32 peak", 100 * p.flops() / best * 1e-9 / peak},
              {"GB/s", cold ? rate : NAN},
              {"% of read", cold ? 100 * rate / read : NAN},
              {"float32 us", of_float32 * 1e6},
              {"ratio to float32", of_float32 / best},
              {"oneDNN int8 us", of_onednn * 1e6},
              {"ratio to oneDNN", of_onednn / best},
              {"verdict", correct ? "ok" : "WRONG"}});
  return correct;
}

}  // namespace

bool run_quantized(const Settings& settings, Report& report) {
  const int threads = settings.threads.back();
  attn::set_thread_count(threads);
  omp_set_num_threads(threads);
  const double seconds = settings.seconds > 0 ? settings.seconds : kSeconds, peak = peak_of(DType::float32);
  bool correct = true;
  Reading reading;
  for (const Form& form : kForms) {
    for (const auto& [K, N] : {std::pair{576, 1536}, {768, 3072}, {3072, 768}, {4096, 4096}, {576, 49152}})
      for (const int64_t M : {1, 2, 4, 8, 16}) {
        Problem problem(M, N, K);
        correct &= add_product(form, problem, true, seconds, peak, reading, report);
      }
    // Of all-MiniLM-L6-v2 with 2,048 tokens, of a prompt of 512 tokens of SmolLM2-135M and of LLaMA 2 7B.
    for (const attn::Shape<3>& size : {attn::Shape<3>{2048, 1152, 384},
                                       {2048, 1536, 384},
                                       {2048, 384, 1536},
                                       {512, 960, 576},
                                       {512, 3072, 576},
                                       {512, 576, 1536},
                                       {512, 4096, 4096}}) {
      Problem problem(size[0], size[1], size[2]);
      correct &= add_product(form, problem, false, seconds, peak, reading, report);
    }
  }
  return correct;
}

}  // namespace bench
