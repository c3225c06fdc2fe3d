// matmul() through oneDNN, and the OpenMP team that oneDNN runs on.
//
// A primitive is built once a shape and kept: building takes tens of microseconds, running a small product fewer.
// float64, which oneDNN does not multiply, is for checking gradients and takes plain blocked loops.
#include <omp.h>

#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "attn/ops.h"
#include "ops/blocks.h"
#include "ops/check.h"

namespace attn::ops {
namespace {

using dnnl::memory;

/// What a primitive depends on; strides as oneDNN counts them.
struct Key {
  std::array<int64_t, 12> fields;
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t field : key.fields) hash = (hash ^ static_cast<uint64_t>(field)) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
  }
};

memory::data_type type_of(DType dtype) {
  return dtype == DType::bfloat16 ? memory::data_type::bf16 : memory::data_type::f32;
}

/// Texts of ever new lengths bring ever new shapes. oneDNN's own cache keeps as many; a training has a few dozen.
constexpr size_t kMostPrimitives = 1024;

/// The primitives of one thread: oneDNN objects need no lock then, and a call in the steady state allocates little.
struct Primitives {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::unordered_map<Key, dnnl::matmul, KeyHash> built;
};

Primitives& primitives() {
  static thread_local Primitives instance;
  return instance;
}

memory::desc describe(const ConstView<2>& x) {
  // The stride of an axis of one element means nothing. oneDNN takes any, but chooses its implementation by it: the
  // best for a dense matrix, reference loops where no stride is 1.
  Shape<2> stride = x.stride;
  for (int axis : {0, 1})
    if (x.size[axis] == 1) stride[axis] = stride[1 - axis] == 1 ? x.size[1 - axis] : 1;
  return memory::desc({x.size[0], x.size[1]}, type_of(x.dtype), memory::dims{stride[0], stride[1]});
}

dnnl::matmul build(const Primitives& p, const ConstView<2>& a, const ConstView<2>& b, const ConstView<2>& c,
                   bool with_bias, bool accumulate) {
  dnnl::primitive_attr attributes;
  dnnl::post_ops after;
  if (accumulate) after.append_sum(1.0f);
  attributes.set_post_ops(after);
  if (!with_bias) return dnnl::matmul({{describe(a), describe(b), describe(c)}, attributes, p.engine});
  const memory::desc bias({1, c.size[1]}, memory::data_type::f32, memory::dims{c.size[1], 1});
  return dnnl::matmul({{describe(a), describe(b), bias, describe(c)}, attributes, p.engine});
}

void multiply(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options) {
  Primitives& p = primitives();
  const Key key{{a.size[0], a.size[1], b.size[1], a.stride[0], a.stride[1], b.stride[0], b.stride[1], c.stride[0],
                 static_cast<int64_t>(a.dtype), static_cast<int64_t>(c.dtype), options.bias ? 1 : 0,
                 options.accumulate ? 1 : 0}};
  auto found = p.built.find(key);
  if (found == p.built.end()) {
    if (p.built.size() == kMostPrimitives) p.built.clear();
    found = p.built.emplace(key, build(p, a, b, c, static_cast<bool>(options.bias), options.accumulate)).first;
  }
  const auto wrap = [&](const auto& x) { return memory(describe(x), p.engine, const_cast<void*>(x.data)); };
  std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, wrap(a)}, {DNNL_ARG_WEIGHTS, wrap(b)}, {DNNL_ARG_DST, wrap(c)}};
  if (options.bias) {
    const memory::desc bias({1, c.size[1]}, memory::data_type::f32, memory::dims{c.size[1], 1});
    arguments.emplace(DNNL_ARG_BIAS, memory(bias, p.engine, const_cast<void*>(options.bias.data)));
  }
  found->second.execute(p.stream, arguments);
  p.stream.wait();
}

/// c = a b + bias in float64: rows are shared out, the sum over K runs in order.
void multiply_float64(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options) {
  const double *pa = static_cast<const double*>(a.data), *pb = static_cast<const double*>(b.data);
  const double* bias = static_cast<const double*>(options.bias.data);
  double* pc = static_cast<double*>(c.data);
  parallel_for(c.size[0], [&](int64_t i) {
    double* row = pc + i * c.stride[0];
    for (int64_t j = 0; j < c.size[1]; ++j)
      row[j * c.stride[1]] = (options.accumulate ? row[j * c.stride[1]] : 0) + (bias ? bias[j] : 0);
    for (int64_t k = 0; k < a.size[1]; ++k) {
      const double x = pa[i * a.stride[0] + k * a.stride[1]];
      for (int64_t j = 0; j < c.size[1]; ++j) row[j * c.stride[1]] += x * pb[k * b.stride[0] + j * b.stride[1]];
    }
  });
}

/// Products of no terms, K = 0: oneDNN leaves some of them as they were.
void add_nothing(const View<2>& c, const MatmulOptions& options) {
  const kernels::ElementKernels& k = kernels_for(c.dtype);
  const kernels::ConstRows bias = {options.bias.data, 0, static_cast<int>(options.bias.dtype)};
  for_row_blocks(c.size[0], c.size[1], [&](const Block& b) {
    const kernels::Rows rows = rows_at(c, b);
    if (options.bias && options.accumulate) {
      k.add({.rows = b.rows, .columns = b.columns, .a = rows_at(ConstView<2>(c), b), .b = bias, .y = rows});
    } else if (options.bias) {
      k.scale({.rows = b.rows, .columns = b.columns, .x = bias, .factor = 1, .y = rows});
    } else if (!options.accumulate) {
      fill_zero(c, b);
    }
  });
}

/// The matrix or its transpose, whichever has last stride 1.
ConstView<2> rows_first(const ConstView<2>& x) {
  if (x.stride[1] == 1 || x.size[1] <= 1) return x;
  return {x.data, x.dtype, {x.size[1], x.size[0]}, {x.stride[1], x.stride[0]}};
}

/// The team that libgomp keeps for parallel regions, which oneDNN's are.
class OpenMpExecutor : public Executor {
 public:
  void run(int64_t tasks, TaskRef body) override {
    if (tasks == 1 || omp_in_parallel()) {
      for (int64_t task = 0; task < tasks; ++task) body(task);
      return;
    }
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t task = 0; task < tasks; ++task) body(task);
  }
  int threads() const override { return omp_get_max_threads(); }
};

}  // namespace

void matmul(ConstView<2> a, ConstView<2> b, View<2> c, const MatmulOptions& options) {
  Checker checker("matmul");
  require_type(checker, "a", a.dtype);
  checker.require(b.dtype == a.dtype, [&] { return "b is " + std::string(name_of(b.dtype)) + ", must have a's type"; });
  checker.require(c.dtype == a.dtype || (a.dtype == DType::bfloat16 && c.dtype == DType::float32),
                  [&] { return "c is " + std::string(name_of(c.dtype)) + ", must have a's type"; });
  checker.require(a.size[1] == b.size[0] && c.size[0] == a.size[0] && c.size[1] == b.size[1], [&] {
    return "shapes a " + to_string(a.size) + ", b " + to_string(b.size) + ", c " + to_string(c.size) +
           " must be [M, K], [K, N], [M, N]";
  });
  require_factor(checker, "a", a);
  require_factor(checker, "b", b);
  require_output(checker, "c", c, c.dtype, c.size);
  checker.require(c.size[0] <= 1 || c.stride[0] >= 0,
                  [&] { return "c has row stride " + std::to_string(c.stride[0]) + ", must not be negative"; });
  require_apart(checker, "c", c, "a", rows_first(a), Sharing::none);
  require_apart(checker, "c", c, "b", rows_first(b), Sharing::none);
  if (options.bias) {
    checker.require(options.bias.dtype == parameter_type(a.dtype), "bias must be float32 (float64 for float64)");
    checker.require(options.bias.size[0] == c.size[1] && (options.bias.stride[0] == 1 || c.size[1] <= 1),
                    [&] { return "bias must be dense, [N] = [" + std::to_string(c.size[1]) + "]"; });
  }
  checker.done();
  if (c.empty()) return;
  if (a.size[1] == 0) return add_nothing(c, options);
  if (a.dtype == DType::float64) return multiply_float64(a, b, c, options);
  try {
    multiply(a, b, c, options);
  } catch (const dnnl::error& error) {
    throw Error("matmul", {std::string("oneDNN: ") + error.what()});
  }
}

Executor& matmul_executor(int threads) {
  if (threads < 0) throw Error("matmul_executor", {std::to_string(threads) + " threads, must be 0 (as it is) or more"});
  if (threads > 0) omp_set_num_threads(threads);
  static OpenMpExecutor executor;
  return executor;
}

}  // namespace attn::ops
