// Products on matrix tiles: who packs what when. kernels/products_table.h says what a line and a term are.
//
//   for each part of the sum, for each group of rows of a
//     all threads pack the rows that are not multiplied where they are, and b if several tasks share its columns
//     for each block of columns and each block of rows, a task:  packs the columns of b if nobody has, multiplies
//
// A block of columns stays in a second-level cache while the rows pass by. An element's bits depend on its row, its
// column and K alone, so any way to divide the work among threads gives the same bits.
#include "ops/tile_matmul.h"

#include <algorithm>
#include <atomic>

#include "kernels/entered.h"
#include "kernels/products_table.h"
#include "ops/product_result.h"

namespace attn::ops {
namespace {

using kernels::Factor;
using kernels::ProductKernels;

// Every group of rows packs a b that is not packed before. With 4096 rows in a group that is 3 % of the work, estimated
// and not measured. The thread that calls keeps the packed rows: 25 MB for three parts of 1024 terms.
constexpr int64_t kMostPanels = 128;

std::atomic<Float32Precision> default_precision{Float32Precision::full};

int parts_of(Float32Precision precision) {
  if (precision == Float32Precision::full) return 3;
  return precision == Float32Precision::high ? 2 : 1;
}

/// Of numbers of this type.
int parts_of(DType dtype, const MatmulOptions& options) {
  if (dtype != DType::float32) return dtype == DType::bfloat16 ? 1 : 2;
  return parts_of(options.precision.value_or(matmul_precision()));
}

/// The stride of an axis of one element means nothing.
Factor factor_of(const ConstView<2>& x, int line_axis) {
  const int term_axis = 1 - line_axis;
  Factor factor{
      x.data,           static_cast<int>(x.dtype), x.stride[line_axis], x.stride[term_axis], x.size[line_axis],
      x.size[term_axis]};
  if (factor.terms == 1) factor.term_stride = 1;
  else if (factor.lines == 1 && factor.term_stride != 1) factor.line_stride = 1;
  return factor;
}

Factor part_of(Factor x, int64_t line, int64_t lines, int64_t term, int64_t terms) {
  const int64_t bytes = size_of(static_cast<DType>(x.type));
  x.data = static_cast<const char*>(x.data) + (line * x.line_stride + term * x.term_stride) * bytes;
  x.lines = lines;
  x.terms = terms;
  return x;
}

/// The parts of a sum, longer ones than one product may have: in terms, of which only the last part has a rest.
class Cuts {
 public:
  Cuts(const ProductKernels& k, int64_t terms)
      : step_(k.step), steps_(div_up(terms, k.step)), count_(div_up(terms, k.most_terms)), terms_(terms) {}
  int64_t count() const { return count_; }
  int64_t begin(int64_t cut) const { return std::min(steps_ * cut / count_ * step_, terms_); }

 private:
  int64_t step_, steps_, count_, terms_;
};

/// What the calling thread packs for all: rows of a, and b.
thread_local GrowingBuffer shared_rows, shared_columns;

class TileMatmul {
 public:
  TileMatmul(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options,
             const TileFactor* packed_b)
      : k_(packed_b ? packed_b->kernels() : *active_kernels().products),
        parts_(parts_of(a.dtype, options)),
        a_(factor_of(a, 0)),
        b_(factor_of(b, 1)),
        c_(c),
        options_(options),
        packed_b_(packed_b) {}

  void run() const {
    const Cuts cuts(k_, a_.terms);
    for (int64_t cut = 0; cut < cuts.count(); ++cut) {
      const int64_t term = cuts.begin(cut), terms = cuts.begin(cut + 1) - term;
      const int64_t group = rows_of_group(part_of(a_, 0, a_.lines, term, terms));
      for (int64_t row = 0; row < a_.lines; row += group) add_part(row, std::min(group, a_.lines - row), term, terms);
    }
  }

 private:
  /// One part of the sum for a group of rows.
  struct Part {
    int64_t row, term;  // where the group and the part begin
    Factor a, b;
    int64_t in_place = 0;            // rows of the group that are multiplied where they are
    const char* packed_a = nullptr;  // the other rows
    const char* packed_b = nullptr;  // all columns; null: each task packs its own
  };
  /// Numbers of blocks; a task has one of each.
  struct Blocks {
    int64_t columns, rows;
  };

  int64_t rows_of_group(const Factor& a) const {
    if (k_.takes_in_place(a)) return a.lines;
    if (!packed_b_) return kMostPanels * k_.panel;
    return std::max<int64_t>(1, k_.a_group_bytes / k_.bytes(k_.panel, a.terms, parts_)) * k_.panel;
  }

  /// Blocks of columns that fit the cache, and where these are fewer than the threads, blocks of rows. All threads have
  /// equally many tasks if the panels allow it.
  Blocks blocks_for_threads(const Part& part) const {
    const int64_t panels = div_up(part.b.lines, k_.panel), rows = div_up(part.a.lines, k_.panel);
    const int64_t threads = thread_count();
    const int64_t fit = std::max<int64_t>(1, k_.b_block_bytes / k_.bytes(k_.panel, part.b.terms, parts_));
    int64_t columns = div_up(panels, fit);
    if (columns >= threads) return {std::min(panels, round_up(columns, threads)), 1};
    while (columns < panels && threads % columns != 0) ++columns;
    return {columns, std::min(rows, div_up(threads, columns))};
  }

  /// Lines packed by all threads.
  const char* pack_shared(const Factor& x, bool left, GrowingBuffer& memory) const {
    char* packed = static_cast<char*>(memory.at_least(k_.bytes(x.lines, x.terms, parts_)));
    const int64_t share = div_up(div_up(x.lines, k_.panel), thread_count()) * k_.panel;
    parallel_for_flushed(div_up(x.lines, share), [&](int64_t task) {
      const int64_t begin = task * share;
      k_.pack({.x = part_of(x, begin, std::min(share, x.lines - begin), 0, x.terms),
               .left = left,
               .parts = parts_,
               .packed = packed + k_.bytes(begin, x.terms, parts_)});
    });
    return packed;
  }

  void add_part(int64_t row, int64_t rows, int64_t term, int64_t terms) const {
    Part part{row, term, part_of(a_, row, rows, term, terms), part_of(b_, 0, b_.lines, term, terms)};
    if (k_.takes_in_place(part.a)) part.in_place = rows / k_.panel * k_.panel;
    const Factor others = part_of(part.a, part.in_place, rows - part.in_place, 0, terms);
    if (others.lines > 0) part.packed_a = pack_shared(others, true, shared_rows);
    const Blocks blocks = blocks_for_threads(part);
    if (packed_b_) part.packed_b = static_cast<const char*>(packed_b_->at(0, term));
    else if (blocks.rows > 1) part.packed_b = pack_shared(part.b, false, shared_columns);

    const int64_t row_panels = div_up(rows, k_.panel), column_panels = div_up(b_.lines, k_.panel);
    parallel_for_flushed(blocks.columns * blocks.rows, [&](int64_t task) {
      const auto edge = [&](int64_t panels, int64_t n, int64_t count, int64_t lines) {
        return std::min(panels * n / count * k_.panel, lines);
      };
      const int64_t down = task % blocks.rows, across = task / blocks.rows;
      const int64_t top = edge(row_panels, down, blocks.rows, rows);
      const int64_t left = edge(column_panels, across, blocks.columns, b_.lines);
      multiply(part, top, edge(row_panels, down + 1, blocks.rows, rows) - top, left,
               edge(column_panels, across + 1, blocks.columns, b_.lines) - left);
    });
  }

  /// Rows and columns of a part.
  void multiply(const Part& part, int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    const int64_t terms = part.a.terms;
    const Factor a = part_of(part.a, row, rows, 0, terms), b = part_of(part.b, column, columns, 0, terms);
    const void* packed_b = part.packed_b ? part.packed_b + k_.bytes(column, terms, parts_) : nullptr;
    if (!packed_b) {
      void* own = thread_scratch(k_.bytes(columns, terms, parts_));
      k_.pack({.x = b, .left = false, .parts = parts_, .packed = own});
      packed_b = own;
    }
    kernels::ProductResult result = product_result(c_, options_, part.row + row, column);
    if (part.term > 0) {
      result.bias = nullptr;
      result.addend = result.out;
      result.addend_stride = result.out_stride;
    }
    const int64_t in_place = std::clamp<int64_t>(part.in_place - row, 0, rows);
    const int64_t packed_row = std::max<int64_t>(row - part.in_place, 0);
    const bool is_last = part.term + terms == a_.terms;
    const bool in_registers =
        is_last && options_.activation && a_.type == kernels::kBfloat16 && c_.dtype == DType::bfloat16;
    const kernels::Entered entered(k_);
    k_.multiply({.a = a,
                 .b = b,
                 .in_place = in_place,
                 .packed_a = part.packed_a + k_.bytes(packed_row, terms, parts_),
                 .packed_b = packed_b,
                 .parts = parts_,
                 .result = result,
                 .activation = in_registers ? static_cast<int>(*options_.activation) : kernels::kNoFunction});
    if (is_last && !in_registers) activate_block(c_, options_, {part.row + row, rows, column, columns});
  }

  const ProductKernels& k_;
  const int parts_;
  const Factor a_, b_;
  const View<2>& c_;
  const MatmulOptions& options_;
  const TileFactor* packed_b_;
};

}  // namespace

void set_matmul_precision(Float32Precision precision) {
  if (!is_known(precision))
    throw Error("set_matmul_precision",
                {"unknown precision " + std::to_string(static_cast<int>(precision)) + "; known are: full, high, fast"});
  default_precision.store(precision, std::memory_order_relaxed);
}

Float32Precision matmul_precision() { return default_precision.load(std::memory_order_relaxed); }

// From figures of the prototype, one Sapphire Rapids core, 768 to 4096 terms, a number's packing and a multiply-add in
// ns: 0.2 to 0.45, where both factors are transposed or large; 0.0053 on tiles, 0.012 in PyTorch's float32. So packing
// M + N lines pays from M N / (M + N) = 30 to 62 on; the smallest measured, 96 (M 128, N 384), had 1.27 to 1.76 times
// PyTorch's speed. The least work, 25 us of tile products beside two jobs of the threads, is reckoned, not measured.
bool pays_on_tiles(int64_t M, int64_t N, int64_t K) {
  constexpr double kLeastLines = 64, kLeastWork = 1 << 22;
  const double m = static_cast<double>(M), n = static_cast<double>(N), k = static_cast<double>(K);
  return has_tiles() && m * n >= kLeastLines * (m + n) && m * n * k >= kLeastWork;
}

bool has_tiles() { return active_kernels().products != nullptr; }

TileFactor::TileFactor(const ConstView<2>& b)
    : kernels_(active_kernels().products),
      parts_(parts_of(b.dtype, {})),
      dtype_(b.dtype),
      columns_(b.size[1]),
      terms_(b.size[0]) {
  const ProductKernels& k = *kernels_;
  const Cuts cuts(k, terms_);
  const int64_t panels = div_up(columns_, k.panel);
  for (int64_t cut = 0; cut < cuts.count(); ++cut) {
    const int64_t term = cuts.begin(cut), terms = cuts.begin(cut + 1) - term;
    packed_.emplace_back(k.bytes(columns_, terms, parts_));
    parallel_for_flushed(panels, [&](int64_t panel) {
      const int64_t column = panel * k.panel, columns = std::min<int64_t>(k.panel, columns_ - column);
      k.pack({.x = part_of(factor_of(b, 1), column, columns, term, terms),
              .left = false,
              .parts = parts_,
              .packed = const_cast<void*>(at(column, term))});
    });
  }
}

bool TileFactor::fits(const MatmulOptions& options) const { return parts_of(dtype_, options) == parts_; }

const void* TileFactor::at(int64_t column, int64_t term) const {
  const ProductKernels& k = *kernels_;
  const Cuts cuts(k, terms_);
  int64_t cut = 0;
  while (cuts.begin(cut) < term) ++cut;
  return static_cast<const char*>(packed_[cut].data()) + k.bytes(column, cuts.begin(cut + 1) - term, parts_);
}

int64_t TileFactor::bytes() const {
  int64_t total = 0;
  for (const SharedBuffer& part : packed_) total += part.bytes();
  return total;
}

void multiply_on_tiles(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options,
                       const TileFactor* packed) {
  // Parts of a sum are added in c: they must not be rounded to 16 bits there.
  constexpr int64_t kRows = 2048;
  const ProductKernels& k = packed ? packed->kernels() : *active_kernels().products;
  if (c.dtype == DType::float32 || a.size[1] <= k.most_terms) return TileMatmul(a, b, c, options, packed).run();
  for (int64_t row = 0; row < c.size[0]; row += kRows) {
    const int64_t rows = std::min(kRows, c.size[0] - row);
    const View<2> out = c.slice(0, row, row + rows);
    static thread_local GrowingBuffer memory;
    const View<2> sums(memory.at_least(rows * c.size[1] * size_of(DType::float32)), DType::float32, {rows, c.size[1]});
    MatmulOptions part = options;
    if (options.accumulate) part.addend = out;
    else if (options.addend) part.addend = options.addend.slice(0, row, row + rows);
    part.accumulate = false;
    begin_with_addend(sums, part);
    part.activation.reset();
    TileMatmul(a.slice(0, row, row + rows), b, sums, part, packed).run();
    convert(sums, out);
    if (options.activation) activate(*options.activation, out, out);
  }
}

}  // namespace attn::ops
