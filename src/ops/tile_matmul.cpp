// Products on matrix tiles: who packs what when. kernels/products_table.h says what a line and a term are.
//
//   for each group of near lines, for each part of the sum
//     all threads pack the group;  for each block of far lines, a task:  pack it, multiply it with the group
//
// Near is the factor with fewer lines: every number is packed once, but where near has more than one group. An
// element's bits depend on its row, its column and K alone, so the threads may cut the work as suits them.
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

// 4096 lines, 25 MB of three parts of 1024 terms, which a thread that calls keeps. Packing far again for the next group
// is 3 % of the work then, reckoned; not measured.
constexpr int64_t kMostNearPanels = 128;

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

/// Memory of a thread that grows and stays.
void* grown(Buffer& memory, int64_t bytes) {
  if (memory.bytes() < bytes) {
    memory = {};
    memory = Buffer(bytes);
  }
  return memory.data();
}

/// A thread's packed near factor.
void* near_memory(int64_t bytes) {
  static thread_local Buffer memory;
  return grown(memory, bytes);
}

class TileMatmul {
 public:
  TileMatmul(const ConstView<2>& a, const ConstView<2>& b, const View<2>& c, const MatmulOptions& options,
             const TileFactor* packed_b)
      : k_(packed_b ? packed_b->kernels() : *active_kernels().products),
        parts_(parts_of(a.dtype, options)),
        a_is_far_(c.size[0] > c.size[1]),
        near_(a_is_far_ ? factor_of(b, 1) : factor_of(a, 0)),
        far_(a_is_far_ ? factor_of(a, 0) : factor_of(b, 1)),
        c_(c),
        options_(options),
        packed_b_(packed_b) {}

  void run() const {
    const Cuts cuts(k_, near_.terms);
    const int64_t group = kMostNearPanels * k_.panel;
    for (int64_t line = 0; line < near_.lines; line += group) {
      const int64_t lines = std::min(group, near_.lines - line);
      for (int64_t cut = 0; cut < cuts.count(); ++cut) {
        const int64_t term = cuts.begin(cut), terms = cuts.begin(cut + 1) - term;
        add_part(line, term, part_of(near_, line, lines, term, terms), part_of(far_, 0, far_.lines, term, terms));
      }
    }
  }

 private:
  void pack(const Factor& x, bool left, void* packed) const {
    k_.pack({.x = x, .left = left, .parts = parts_, .packed = packed});
  }

  /// All threads pack near, where b is not both near and packed already.
  const void* packed_near(int64_t line, int64_t term, const Factor& near) const {
    if (packed_b_ && a_is_far_) return packed_b_->at(line, term);
    char* packed = static_cast<char*>(near_memory(k_.bytes(near.lines, near.terms, parts_)));
    const int64_t share = div_up(div_up(near.lines, k_.panel), thread_count()) * k_.panel;
    parallel_for_flushed(div_up(near.lines, share), [&](int64_t task) {
      const int64_t begin = task * share;
      pack(part_of(near, begin, std::min(share, near.lines - begin), 0, near.terms), !a_is_far_,
           packed + k_.bytes(begin, near.terms, parts_));
    });
    return packed;
  }

  /// One part of the sum, from `term` on, of near lines `line` and on.
  void add_part(int64_t line, int64_t term, const Factor& near, const Factor& far) const {
    const void* packed = packed_near(line, term, near);
    const int64_t threads = thread_count();
    const int64_t panels = div_up(far.lines, k_.panel);
    const int64_t blocks = std::min(panels, round_up(div_up(panels, k_.far_panels), threads));
    parallel_for_flushed(blocks, [&](int64_t task) {
      const int64_t begin = panels * task / blocks * k_.panel;
      const int64_t end = std::min(panels * (task + 1) / blocks * k_.panel, far.lines);
      multiply(line, near, packed, begin, part_of(far, begin, end - begin, 0, far.terms), term);
    });
  }

  void multiply(int64_t near_line, const Factor& near, const void* packed_near, int64_t far_line, const Factor& far,
                int64_t term) const {
    const void* packed_far = packed_b_ && !a_is_far_ ? packed_b_->at(far_line, term) : nullptr;
    if (!packed_far) {
      void* scratch = thread_scratch(k_.bytes(far.lines, far.terms, parts_));
      pack(far, a_is_far_, scratch);
      packed_far = scratch;
    }
    const int64_t row = a_is_far_ ? far_line : near_line, column = a_is_far_ ? near_line : far_line;
    kernels::ProductResult result = product_result(c_, options_, row, column);
    if (term > 0) {
      result.bias = nullptr;
      result.addend = result.out;
      result.addend_stride = result.out_stride;
    }
    const kernels::Entered entered(k_);
    k_.multiply({.a = a_is_far_ ? far : near,
                 .b = a_is_far_ ? near : far,
                 .packed_a = a_is_far_ ? packed_far : packed_near,
                 .packed_b = a_is_far_ ? packed_near : packed_far,
                 .parts = parts_,
                 .a_is_far = a_is_far_,
                 .result = result});
    if (term + far.terms == near_.terms)
      activate_block(c_, options_, {row, (a_is_far_ ? far : near).lines, column, (a_is_far_ ? near : far).lines});
  }

  const ProductKernels& k_;
  const int parts_;
  const bool a_is_far_;
  const Factor near_, far_;
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
    static thread_local Buffer memory;
    const View<2> sums(grown(memory, rows * c.size[1] * size_of(DType::float32)), DType::float32, {rows, c.size[1]});
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
