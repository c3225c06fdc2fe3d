// matmul() chooses the kernels. matvec.cpp multiplies few rows with weights where they are. tile_matmul.cpp multiplies
// on matrix tiles, on CPUs that have them: large products, and all with weights that are packed for tiles, of bfloat16
// or for more than eight rows. quantized_matmul.cpp has weights of 8 or 4 bits, panel_matmul.cpp everything else.
#include "attn/ops.h"
#include "ops/check.h"
#include "ops/matvec.h"
#include "ops/packed_matrix.h"
#include "ops/product_result.h"
#include "ops/work.h"

namespace attn::ops {

namespace {

/// Products of no terms, K = 0.
void add_nothing(const View<2>& c, MatmulOptions options) {
  const kernels::ElementKernels& k = kernels_for(c.dtype);
  const kernels::ConstRows bias = {options.bias.data, 0, static_cast<int>(options.bias.dtype)};
  begin_with_addend(c, options);
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
  if (options.activation) activate(*options.activation, c, c);
}

/// The matrix or its transpose, whichever has last stride 1.
ConstView<2> rows_first(const ConstView<2>& x) {
  if (x.stride[1] == 1 || x.size[1] <= 1) return x;
  return {x.data, x.dtype, {x.size[1], x.size[0]}, {x.stride[1], x.stride[0]}};
}

void check_matmul(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options,
                  bool reads_b) {
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
  if (reads_b) require_factor(checker, "b", b);
  require_output(checker, "c", c, c.dtype, c.size);
  checker.require(c.size[0] <= 1 || c.stride[0] >= 0,
                  [&] { return "c has row stride " + std::to_string(c.stride[0]) + ", must not be negative"; });
  require_apart(checker, "c", c, "a", rows_first(a), Sharing::none);
  if (reads_b) require_apart(checker, "c", c, "b", rows_first(b), Sharing::none);
  if (options.bias) {
    checker.require(options.bias.dtype == parameter_type(a.dtype), "bias must be float32 (float64 for float64)");
    checker.require(options.bias.size[0] == c.size[1] && (options.bias.stride[0] == 1 || c.size[1] <= 1),
                    [&] { return "bias must be dense, [N] = [" + std::to_string(c.size[1]) + "]"; });
  }
  if (options.addend) {
    require_input(checker, "addend", options.addend, c.dtype, c.size);
    require_apart(checker, "c", c, "addend", options.addend, Sharing::same);
    checker.require(!options.accumulate, "accumulate and addend must not both be given");
  }
  if (options.activation) require_function(checker, *options.activation);
  checker.require(!options.batch_invariant || a.dtype == DType::float64 || lies_for_matvec(a, b),
                  "batch_invariant needs dense rows of a and dense columns of b");
  checker.require(!options.precision || is_known(*options.precision), [&] {
    return "unknown precision " + std::to_string(static_cast<int>(*options.precision)) +
           "; known are: full, high, fast";
  });
  checker.done();
}

/// A matrix that nobody reads.
ConstView<2> without_numbers(DType dtype, const Shape<2>& size) {
  static const char nothing = 0;
  return {&nothing, dtype, size, {1, size[0]}};
}

/// Rows of a are quantized, so no stride of b and no precision matters.
void multiply(const ConstView<2>& a, const QuantizedColumns& b, const View<2>& c, const MatmulOptions& options) {
  Checker checker("matmul");
  checker.require(a.dtype != DType::float64, "a is float64, must be float32, bfloat16 or float16 as b is quantized");
  checker.require(a.stride[1] == 1 || a.size[1] <= 1, "a has columns apart, must have dense rows as b is quantized");
  checker.done();
  check_matmul(a, without_numbers(a.dtype, b.size()), c, options, false);
  const ProfileSpan span("matmul", [&] { return work_of_product(a, static_cast<double>(b.bytes()), c, options); });
  if (c.empty()) return;
  if (a.size[1] == 0) return add_nothing(c, options);
  multiply_quantized(a, b, c, options);
}

/// `tiles` and `panels`, if given, are of b.
void matmul(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options,
            const TileFactor* tiles, const PackedColumns* panels) {
  check_matmul(a, b, c, options, !panels && !(tiles && a.dtype == DType::bfloat16));
  const ProfileSpan span("matmul", [&] { return work_of_product(a, bytes_of(b), c, options); });
  if (c.empty()) return;
  if (a.size[1] == 0) return add_nothing(c, options);
  if (panels) return multiply_panels(a, b, c, options, panels);
  if (a.dtype == DType::float64) return multiply_panels(a, b, c, options);
  if (tiles && !tiles->fits(options)) tiles = nullptr;
  if (tiles && a.dtype == DType::bfloat16) return multiply_on_tiles(a, b, c, options, tiles);
  if (is_matvec(a, b) || options.batch_invariant) return multiply_few_rows(a, b, c, options);
  if ((tiles && has_tiles()) || pays_on_tiles(c.size[0], c.size[1], a.size[1]))
    return multiply_on_tiles(a, b, c, options, tiles);
  multiply_panels(a, b, c, options);
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
  if (!b.empty()) {
    if (b.dtype != DType::float64 && pays_on_tiles(kManyRows, b.size[1], b.size[0])) form->tiles.emplace(b);
    else form->panels.emplace(b);
  }
  form_ = std::move(form);
}

PackedMatrix::PackedMatrix(const QuantizedMatrix& w) {
  check_quantized("PackedMatrix", w);
  auto form = std::make_shared<Form>();
  form->b = without_numbers(DType::float32, {w.terms, w.rows});
  form->quantized.emplace(w);
  form_ = std::move(form);
}

Shape<2> PackedMatrix::size() const { return form_ ? form_->b.size : Shape<2>{}; }
bool PackedMatrix::is_quantized() const { return form_ && form_->quantized; }

bool PackedMatrix::reads_matrix() const {
  return !form_ || !(form_->panels || form_->quantized || (form_->tiles && form_->b.dtype == DType::bfloat16));
}

int64_t PackedMatrix::bytes() const {
  if (!form_) return 0;
  return (form_->tiles ? form_->tiles->bytes() : 0) + (form_->panels ? form_->panels->bytes() : 0) +
         (form_->quantized ? form_->quantized->bytes() : 0);
}

void matmul_packed(ConstView<2> a, const PackedMatrix& b, View<2> c, const MatmulOptions& options) {
  if (!b) throw Error("matmul", {"b is an empty PackedMatrix"});
  const PackedMatrix::Form& form = *b.form_;
  if (form.quantized) return multiply(a, *form.quantized, c, options);
  matmul(a, form.b, c, options, form.tiles ? &*form.tiles : nullptr, form.panels ? &*form.panels : nullptr);
}

}  // namespace attn::ops
