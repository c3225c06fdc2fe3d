// Products of layers. Few rows times weights are what generating text consists of, beside a plain read of as many
// bytes; encoders, prompts and training have many rows, beside the peak of the unit that multiplies. Each is checked
// against sums in float64, then timed beside oneDNN: the quickest of many samples in turn, because other programs
// disturb every median. Weights "in memory" have many copies, of which every sample takes the next, so that no cache
// holds them.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <vector>

#include "attn/ops.h"
#include "cold.h"
#include "modes.h"
#include "timer.h"

namespace bench {
namespace {

using attn::ConstView;
using attn::DType;
using attn::View;

constexpr double kSeconds = 1;  // for each row, unless --seconds says otherwise

/// c [M, N] = a [M, K] b [K, N], as the three products of a linear layer store their factors; or its gelu.
struct Form {
  const char* name;
  bool packed, a_by_columns, b_by_columns, gelu = false;
};
constexpr Form kPacked = {"x W^T, packed", true, false, true};
constexpr Form kGelu = {"gelu(x W^T), packed", true, false, true, true};
constexpr Form kForward = {"x W^T", false, false, true};
constexpr Form kInput = {"dy W", false, false, false};
constexpr Form kWeight = {"dy^T x", false, true, false};

struct Product {
  Form form;
  DType dtype;
  int64_t M, N, K;

  int64_t weight_bytes() const { return N * K * attn::size_of(dtype); }
  double flops() const { return 2.0 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K); }
  /// Gradients of weights are float32.
  DType out_type() const { return form.a_by_columns ? DType::float32 : dtype; }
  ConstView<2> left(const void* a) const { return stored(a, M, K, form.a_by_columns); }
  ConstView<2> right(const void* b) const { return stored(b, K, N, form.b_by_columns); }
  View<2> out(void* c) const { return {c, out_type(), {M, N}}; }

 private:
  ConstView<2> stored(const void* x, int64_t rows, int64_t columns, bool by_columns) const {
    return {x, dtype, {rows, columns}, {by_columns ? 1 : columns, by_columns ? rows : 1}};
  }
};

/// The product by oneDNN, on its own OpenMP threads.
class OneDnn {
 public:
  /// None for a type that oneDNN does not multiply on this CPU.
  static std::optional<OneDnn> make(const Product& product) try {
    if (product.dtype == DType::float16) return std::nullopt;
    return OneDnn(product);
  } catch (const dnnl::error&) {
    return std::nullopt;
  }

  void run(const void* a, const void* b, void* c) const {
    const auto wrap = [&](const dnnl::memory::desc& of, const void* data) {
      return dnnl::memory(of, engine(), const_cast<void*>(data));
    };
    static dnnl::stream stream(engine());
    product_.execute(stream,
                     {{DNNL_ARG_SRC, wrap(a_, a)}, {DNNL_ARG_WEIGHTS, wrap(b_, b)}, {DNNL_ARG_DST, wrap(c_, c)}});
    stream.wait();
  }

 private:
  explicit OneDnn(const Product& p)
      : a_(describe(p.left(nullptr))),
        b_(describe(p.right(nullptr))),
        c_(describe(p.out(nullptr))),
        product_({{a_, b_, c_}, after(p.form), engine()}) {}

  static dnnl::primitive_attr after(const Form& form) {
    dnnl::primitive_attr attributes;
    dnnl::post_ops operations;
    if (form.gelu) operations.append_eltwise(1, dnnl::algorithm::eltwise_gelu_erf, 0, 0);
    attributes.set_post_ops(operations);
    return attributes;
  }

  static dnnl::engine& engine() {
    static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
    return cpu;
  }
  static dnnl::memory::desc describe(const ConstView<2>& x) {
    const auto type = x.dtype == DType::bfloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
    return {{x.size[0], x.size[1]}, type, dnnl::memory::dims{x.stride[0], x.stride[1]}};
  }

  dnnl::memory::desc a_, b_, c_;
  dnnl::matmul product_;
};

double number_at(const void* data, DType dtype, int64_t n) {
  if (dtype == DType::float32) return static_cast<const float*>(data)[n];
  if (dtype == DType::bfloat16) return static_cast<float>(static_cast<const attn::bfloat16*>(data)[n]);
  return static_cast<float>(static_cast<const attn::float16*>(data)[n]);
}

double at(const ConstView<2>& x, int64_t row, int64_t column) {
  return number_at(x.data, x.dtype, row * x.stride[0] + column * x.stride[1]);
}

/// max |c - expected| / max |expected|, of some rows and columns; sums and their gelu are computed in float64.
double error_of(const Product& product, const void* a, const void* b, void* c) {
  const ConstView<2> left = product.left(a), right = product.right(b), out = product.out(c);
  const int64_t down = std::max<int64_t>(1, product.M / 17), across = std::max<int64_t>(1, product.N / 61);
  double worst = 0, largest = 0;
  for (int64_t i = 0; i < product.M; i += down)
    for (int64_t j = 0; j < product.N; j += across) {
      double sum = 0;
      for (int64_t k = 0; k < product.K; ++k) sum += at(left, i, k) * at(right, k, j);
      const double expected = product.form.gelu ? sum / 2 * std::erfc(-sum / std::sqrt(2.0)) : sum;
      worst = std::max(worst, std::abs(at(out, i, j) - expected));
      largest = std::max(largest, std::abs(expected));
    }
  return worst / largest;
}

/// The right factor of products: the first of `memory`, or where `cold` as many copies as it has, in turn.
struct Weights {
  const attn::Buffer& memory;
  bool cold;
  int64_t bytes, copies;
  std::vector<attn::ops::PackedMatrix> packed = {};  ///< each of the copies, where the form is packed

  Weights(const Product& product, const attn::Buffer& all, bool is_cold)
      : memory(all),
        cold(is_cold),
        bytes(product.weight_bytes()),
        copies(cold ? std::max<int64_t>(1, memory.bytes() / bytes) : 1) {
    for (int64_t n = 0; product.form.packed && n < copies; ++n) packed.emplace_back(product.right(at(n)));
  }
  const void* at(int64_t n) const { return static_cast<const char*>(memory.data()) + n % copies * bytes; }
};

/// Adds one row.
bool add_product(const Product& product, const Weights& weights, double seconds, double peak, Reading& reading,
                 Report& report) {
  attn::Buffer a(product.M * product.K * attn::size_of(product.dtype));
  attn::Buffer c(product.M * product.N * attn::size_of(product.out_type()));
  fill(a, product.dtype);
  const bool cold = weights.cold;
  int64_t copy = 0;
  attn::ops::MatmulOptions options;
  if (product.form.gelu) options.activation = attn::ops::Activation::gelu;
  const auto ours = [&] {
    const int64_t n = copy++ % weights.copies;
    const ConstView<2> left = product.left(a.data());
    const View<2> out = product.out(c.data());
    if (product.form.packed) attn::ops::matmul_packed(left, weights.packed[n], out, options);
    else attn::ops::matmul(left, product.right(weights.at(n)), out, options);
  };
  ours();
  const bool correct = error_of(product, a.data(), weights.at(0), c.data()) <= error_bound(product.dtype);
  double best = NAN, of_onednn = NAN, read = NAN;
  if (correct) {
    const std::optional<OneDnn> peer = OneDnn::make(product);
    const auto none = [] { return NAN; };
    const auto taken = in_turn(
        {[&] { return seconds_of(ours); },
         peer ? Sample([&] { return seconds_of([&] { peer->run(a.data(), weights.at(copy++), c.data()); }); }) : none,
         cold ? Sample([&] { return reading.sample(product.weight_bytes()); }) : none},
        1, seconds);
    best = *std::min_element(taken[0].begin(), taken[0].end());
    of_onednn = *std::min_element(taken[1].begin(), taken[1].end());
    read = *std::max_element(taken[2].begin(), taken[2].end());
  }
  const double rate = static_cast<double>(product.weight_bytes()) / best * 1e-9;
  const double gflops = product.flops() / best * 1e-9;
  report.add({{"isa", attn::active_isa()},
              {"form", product.form.name},
              {"weights", cold ? "in memory" : "once"},
              {"dtype", attn::name_of(product.dtype)},
              {"M", product.M},
              {"N", product.N},
              {"K", product.K},
              {"us", best * 1e6},
              {"GFLOP/s", gflops},
              {"% of peak", 100 * gflops / peak},
              {"GB/s", cold ? rate : NAN},
              {"% of read", 100 * rate / read},
              {"oneDNN us", of_onednn * 1e6},
              {"ratio", of_onednn / best},
              {"verdict", correct ? "ok" : "WRONG"}});
  return correct;
}

/// Shapes of all-MiniLM-L6-v2 with 2,048 tokens, of a prompt of 512 tokens and a training step of 4 x 64 of GPT-2.
const std::vector<Product> kManyRows = {
    {kPacked, {}, 2048, 1152, 384}, {kPacked, {}, 2048, 1536, 384}, {kPacked, {}, 2048, 384, 1536},
    {kPacked, {}, 512, 2304, 768},  {kPacked, {}, 512, 3072, 768},  {kPacked, {}, 512, 768, 3072},
    {kForward, {}, 256, 3072, 768}, {kForward, {}, 256, 768, 3072}, {kForward, {}, 256, 50257, 768},
    {kInput, {}, 256, 768, 3072},   {kInput, {}, 256, 3072, 768},   {kInput, {}, 256, 768, 50257},
    {kWeight, {}, 3072, 768, 256},  {kWeight, {}, 768, 3072, 256},  {kWeight, {}, 50257, 768, 256},
    {kGelu, {}, 2048, 1536, 384},   {kGelu, {}, 512, 3072, 768},
};

}  // namespace

bool run_products(const Settings& settings, Report& report) {
  const int threads = settings.threads.back();
  attn::set_thread_count(threads);
  omp_set_num_threads(threads);
  const double seconds = settings.seconds > 0 ? settings.seconds : kSeconds;
  bool correct = true;
  Reading reading;
  for (DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    attn::Buffer memory(kColdBytes);
    fill(memory, dtype);
    const double peak = peak_of(dtype);
    for (const auto& [K, N] : {std::pair{768, 768}, {768, 3072}, {3072, 768}, {4096, 4096}, {768, 50257}})
      for (const Form& form : {kPacked, kForward}) {
        const Weights weights({form, dtype, 1, N, K}, memory, true);
        for (int64_t M : {1, 2, 4, 8, 16})
          correct &= add_product({form, dtype, M, N, K}, weights, seconds, peak, reading, report);
      }
    for (Product product : kManyRows) {
      product.dtype = dtype;
      correct &= add_product(product, {product, memory, false}, seconds, peak, reading, report);
    }
  }
  return correct;
}

}  // namespace bench
