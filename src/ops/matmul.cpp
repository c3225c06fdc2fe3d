// matmul(): few rows times rows of weights by kernels of their own (matvec.cpp), large products of float32 on matrix
// tiles, where there are some (tile_matmul.cpp); all others through oneDNN: c is cut into blocks of rows and columns by
// its shape alone, and every block is a product of one thread, a task of parallel_for(). So products and attention
// share the threads, which sleep when there is nothing to do; oneDNN's own team, of OpenMP, would spin and take the
// cores from everybody else.
//
// A primitive is built once a shape and kept: building takes tens of microseconds, running a small product fewer.
// float64, which oneDNN does not multiply, is for checking gradients and takes plain blocked loops.
#include <omp.h>
#include <signal.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "attn/ops.h"
#include "ops/blocks.h"
#include "ops/check.h"
#include "ops/matmul_half.h"
#include "ops/matvec.h"
#include "ops/tile_matmul.h"

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

/// oneDNN multiplies bfloat16 on processors with AVX-512 or newer alone.
bool has_bfloat16() {
  static const bool has = [] {
    const auto any = memory::desc({16, 16}, memory::data_type::bf16, memory::format_tag::ab);
    try {
      return dnnl::matmul({{any, any, any}, primitives().engine}).get() != nullptr;
    } catch (const dnnl::error&) {
      return false;
    }
  }();
  return has;
}

/// While it lives, oneDNN takes this thread alone, and signals wait. A host may have a team of its own: the number is
/// put back. A handler that ran amid oneDNN's generated code wrote its frame into what that had there: one of six
/// products of 16 rows that SIGINT met ended in a corrupted heap (oneDNN 2.7).
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &signals_);
    omp_set_num_threads(1);
  }
  ~OneThread() {
    omp_set_num_threads(before_);
    pthread_sigmask(SIG_SETMASK, &signals_, nullptr);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
  sigset_t signals_;
};

void multiply_block(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options) {
  const OneThread alone;
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

/// Equal parts of n, as few as have at most `most`, in whole `step`s.
int64_t part_of(int64_t n, int64_t most, int64_t step) {
  return std::max<int64_t>(1, div_up(div_up(n, div_up(n, most)), step) * step);
}

constexpr int64_t kLeast = int64_t{1} << 22, kMost = int64_t{1} << 30;  // multiply-adds of a task: 70 us, 20 ms
constexpr int64_t kTasks = 32, kFewTasks = 4;                           // where they may be larger than kLeast

int64_t rows_of_task(int64_t M, int64_t N, int64_t K, int64_t columns, int64_t least_rows) {
  const int64_t work = M * N * K;
  const int64_t tasks = std::max({std::min(work / kLeast, kTasks), work / kMost, int64_t{1}});
  return part_of(M, std::max(least_rows, div_up(M, div_up(tasks, div_up(N, columns)))), 16);
}

/// Rows and columns of a task. The sum over K is not cut.
///
/// Measured on one Zen 4 core, float32, GFLOP/s of blocks 48 x N, 96 x N, 256 x 512 and of the whole:
///   M 768, N 384, K 128: 102, 108, 113, 114;  M 2048, N 2304, K 768: -, -, 105, 104;  4096^3: -, -, 96, 107 (512 x
///   512: 101). One row, N 3072, K 768: 37 in blocks of 512 columns, 16 whole.
/// A b that is column by column, as weights do, is turned round by each task: on one Zen 5 core with M 512, N 768,
/// K 3072 blocks of 32 x 384, 64 x 192, 64 x 384, 64 x 768, 128 x 768 and the whole give 121, 155, 163, 218, 229, 238
/// (row by row 239, 245, 243, 190, 189, 196), with K 768 177, 210, 209, 219, 234, 243.
Shape<2> task_size(int64_t M, int64_t N, int64_t K, bool by_columns) {
  constexpr int64_t kFewRows = 16, kBytes = int64_t{1} << 19;  // few rows: reading b takes the time, 2 MB a task
  const int64_t work = M * N * K, least_rows = by_columns ? 64 : 16;
  int64_t widest = 512;
  if (M <= kFewRows) {
    widest = std::clamp<int64_t>(kBytes / K, 16, 512);
  } else if (by_columns) {
    const int64_t tasks = std::clamp<int64_t>(work / kLeast, 1, kFewTasks);
    widest = std::min<int64_t>(768, div_up(N, div_up(tasks, div_up(M, least_rows))));
  }
  const int64_t columns = part_of(N, widest, 16);
  return {rows_of_task(M, N, K, columns, least_rows), columns};
}

template <class Pointer>
BasicView<Pointer, 2> block_of(BasicView<Pointer, 2> x, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  x.data = static_cast<Byte*>(x.data) + (row * x.stride[0] + column * x.stride[1]) * size_of(x.dtype);
  x.size = {rows, columns};
  return x;
}

/// In tasks of `step` rows and columns; right(column, columns) is what a task multiplies by.
template <class Right>
void multiply_blocks(const ConstView<2>& a, const View<2>& c, const MatmulOptions& options, const Shape<2>& step,
                     const Right& right) {
  const int64_t M = c.size[0], N = c.size[1], K = a.size[1];
  const int64_t down = div_up(M, step[0]);
  parallel_for(down * div_up(N, step[1]), [&](int64_t task) {
    const int64_t row = task % down * step[0], column = task / down * step[1];
    const int64_t rows = std::min(step[0], M - row), columns = std::min(step[1], N - column);
    MatmulOptions own = options;
    if (own.bias) own.bias = {element_at(own.bias, column), own.bias.dtype, {columns}};
    multiply_block(block_of(a, row, rows, 0, K), right(column, columns), block_of(c, row, rows, column, columns), own);
  });
}

void multiply(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options) {
  const Shape<2> step = task_size(c.size[0], c.size[1], a.size[1], b.stride[1] != 1);
  multiply_blocks(a, c, options, step,
                  [&](int64_t column, int64_t columns) { return block_of(b, 0, b.size[0], column, columns); });
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------- packed

/// b of float32 that is column by column in blocks of columns, each dense and row by row. No task turns anything
/// round then, so that they may have few rows, and their columns need not depend on them. GFLOP/s on one Zen 5 core as
/// b is and packed, blocks 192, 384 and 768 wide, tasks of 64 rows:
///   K 384, N 1536:  M 512: 201, 237, 231, 241;  M 2048: 215, 235, 234, 238
///   K 3072, N 768:  M 512: 195, 233, 232, 179;  M 2048: 195, 234, 232, 185
/// Of 16 rows those of M 64 are 10 % slower, but more threads take them. Types of 16 bits gain nothing: bfloat16 row by
/// row is up to a third slower, for its pairs of terms have to be put together.
class Blocks {
 public:
  explicit Blocks(const ConstView<2>& b) : terms_(b.size[0]), columns_(part_of(b.size[1], kWidest, 16)) {
    const int64_t N = b.size[1];
    for (int64_t column = 0; column < N; column += columns_)
      blocks_.emplace_back(terms_ * std::min(columns_, N - column) * int64_t{sizeof(float)});
    parallel_for(div_up(N, kAtOnce), [&](int64_t task) {
      const int64_t first = task * kAtOnce, last = std::min(first + kAtOnce, N);
      for (int64_t k = 0; k < terms_; ++k)
        for (int64_t n = first; n < last; ++n) at(n, k) = static_cast<const float*>(b.data)[n * b.stride[1] + k];
    });
  }

  int64_t bytes() const {
    int64_t total = 0;
    for (const Buffer& block : blocks_) total += block.bytes();
    return total;
  }
  void multiply(const ConstView<2>& a, const View<2>& c, const MatmulOptions& options) const {
    const int64_t M = c.size[0], least_rows = std::clamp<int64_t>(div_up(M, kFewTasks), 16, 64);
    const Shape<2> step = {rows_of_task(M, c.size[1], terms_, columns_, least_rows), columns_};
    multiply_blocks(a, c, options, step, [&](int64_t column, int64_t columns) {
      return ConstView<2>(&at(column, 0), DType::float32, {terms_, columns}, {columns, 1});
    });
  }

 private:
  static constexpr int64_t kWidest = 384;
  static constexpr int64_t kAtOnce = 16;  // columns that are turned round together: a cache line of each row

  float& at(int64_t column, int64_t term) const {
    const Buffer& block = blocks_[column / columns_];
    const int64_t width = block.bytes() / (terms_ * int64_t{sizeof(float)});
    return static_cast<float*>(block.data())[term * width + column % columns_];
  }

  int64_t terms_, columns_;
  std::vector<Buffer> blocks_;
};

/// Both are empty where the product takes b itself.
struct PackedMatrix::Form {
  ConstView<2> b;
  std::optional<TileFactor> tiles;
  std::optional<Blocks> blocks;
};

namespace {

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
  for_row_blocks(c.size[0], c.size[1], [&](const RowBlock& b) {
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

/// `tiles` and `blocks`, if given, are of b.
void matmul(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options,
            const TileFactor* tiles, const Blocks* blocks) {
  Checker checker("matmul");
  require_type(checker, "a", a.dtype);
  checker.require(b.dtype == a.dtype, [&] { return "b is " + std::string(name_of(b.dtype)) + ", must have a's type"; });
  checker.require(c.dtype == a.dtype || (size_of(a.dtype) == 2 && c.dtype == DType::float32),
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
  checker.require(!options.batch_invariant || a.dtype == DType::float64 || lies_for_matvec(a, b),
                  "batch_invariant needs dense rows of a and dense columns of b");
  checker.require(!options.precision || is_known(*options.precision), [&] {
    return "unknown precision " + std::to_string(static_cast<int>(*options.precision)) +
           "; known are: full, high, fast";
  });
  checker.done();
  if (c.empty()) return;
  if (a.size[1] == 0) return add_nothing(c, options);
  if (a.dtype == DType::float64) return multiply_float64(a, b, c, options);
  if (is_matvec(a, b) || options.batch_invariant) return multiply_few_rows(a, b, c, options);
  if (a.dtype == DType::float32 && pays_on_tiles(c.size[0], c.size[1], a.size[1])) {
    return multiply_on_tiles(a, b, c, options, tiles && tiles->fits(options) ? tiles : nullptr);
  }
  try {
    if (a.dtype == DType::float16 || (a.dtype == DType::bfloat16 && !has_bfloat16())) multiply_half(a, b, c, options);
    else if (blocks) blocks->multiply(a, c, options);
    else multiply(a, b, c, options);
  } catch (const dnnl::error& error) {
    throw Error("matmul", {std::string("oneDNN: ") + error.what()});
  }
}

}  // namespace

void matmul(ConstView<2> a, ConstView<2> b, View<2> c, const MatmulOptions& options) {
  matmul(a, b, c, options, nullptr, nullptr);
}

PackedMatrix::PackedMatrix(ConstView<2> b) {
  constexpr int64_t kManyRows = int64_t{1} << 31;  // if these do not gain by tiles, none do
  Checker checker("PackedMatrix");
  require_type(checker, "b", b.dtype);
  require_factor(checker, "b", b);
  checker.done();
  auto form = std::make_shared<Form>();
  form->b = b;
  if (!b.empty() && b.dtype == DType::float32) {
    if (pays_on_tiles(kManyRows, b.size[1], b.size[0])) form->tiles.emplace(b);
    else if (b.stride[0] == 1) form->blocks.emplace(b);
  }
  form_ = std::move(form);
}

int64_t PackedMatrix::bytes() const {
  if (!form_) return 0;
  return (form_->tiles ? form_->tiles->bytes() : 0) + (form_->blocks ? form_->blocks->bytes() : 0);
}

void matmul_packed(ConstView<2> a, const PackedMatrix& b, View<2> c, const MatmulOptions& options) {
  if (!b) throw Error("matmul", {"b is an empty PackedMatrix"});
  const PackedMatrix::Form& form = *b.form_;
  matmul(a, form.b, c, options, form.tiles ? &*form.tiles : nullptr, form.blocks ? &*form.blocks : nullptr);
}

}  // namespace attn::ops
