// Matrix products on tiles: both factors packed as parts, then multiplied.
//
//   C[i][j] (+)= sum_k A[i, k] B[k, j] (+ bias[j])      A = sum of P bfloat16 parts, B too
// float32 as three parts takes six tile products, float16 as two takes all four, bfloat16 one.
// Packed: [panel of 32 lines] the 32 largest magnitudes, then [step of 32 terms][half of 16 lines][part] whole tiles.
// Pairs are terms k and k + 16, so that lines of A that are term by term, and of B that are line by line, are cut as
// they are loaded; others are transposed in float32 first.
//
// Loops: panels of the near factor, of the far one, steps; 32 x 32 sums in four tiles. The far panels stay in the
// second-level cache, 1.2 MB at most, while the near ones pass by. After every tile product lines of the next step are
// fetched into the first-level cache, and with every step some of the next near panel into the second. Measured where
// tiles are (prototype): usual blocking, a panel in the first-level cache and C added to every 192 terms, 220 to 260
// GFLOP/s in place of 270 to 315; far blocks of 4 to 8 panels within 5 %, of 12 panels 15 to 20 % slower.
// Where C is overwritten, blocks that are whole go there from the tiles; others by way of a buffer, which the vector
// units empty while the tiles are at the next block.
// Requires: what ProductArgs says; Unit configured. Nothing outside the lines and terms is read or written.
#pragma once

#include "kernels/amx_products.kernel.h"
#include "kernels/finish.kernel.h"
#include "kernels/products_table.h"

namespace attn::kernels {
namespace {

constexpr int kProductPanel = 2 * kTileRows;
constexpr int64_t kMagnitudeBytes = kProductPanel * 4;
// One chain of 50,257 positive numbers in the tiles had six times the error of float32 products; parts of 1,024, added
// up, have less than those. Parts of 512 halve it once more and were not timed.
constexpr int64_t kMostProductTerms = 1024;
constexpr int64_t kFarPanels = 6;

// Of the largest of a line: the six products of parts that count are above 2^-112 then.
constexpr uint32_t kTooSmall = bits_of_power(-48);

template <int P>
int64_t product_panel_bytes(int64_t terms) {
  return kMagnitudeBytes + whole_steps(terms, kTileSum) * kProductPanel * 2 * P;
}

inline int64_t product_panels(const Factor& x) { return whole_steps(x.lines, kProductPanel) / kProductPanel; }

// ---------------------------------------------------------------------------------------------------------- packing

/// 16 x 16 numbers of a factor as they are in memory: a row is what is contiguous.
struct Square {
  ConstRows numbers;
  int64_t rows, columns;  // as many are the factor's; beyond them are zeros

  template <int kType, bool kWhole>
  F32::Reg row(int i) const {
    const ConstRow row{row_of(numbers, i).data, kType};
    if constexpr (kWhole) return Whole<F32>::load(row, 0);
    if (i >= rows) return F32::zero();
    return columns < F32::W ? Part<F32>{columns}.load(row, 0) : Whole<F32>::load(row, 0);
  }
};

inline bool terms_lie(const Factor& x) { return x.term_stride == 1; }

inline Square square_at(const Factor& x, int64_t line, int64_t term) {
  const auto left = [](int64_t n) { return n < 0 ? 0 : at_most(n, F32::W); };
  const int64_t first = line * x.line_stride + term * x.term_stride;
  const void* data = static_cast<const char*>(x.data) + stored_bytes(x.type, first);
  const int64_t lines = left(x.lines - line), terms = left(x.terms - term);
  if (terms_lie(x)) return {{data, x.line_stride, x.type}, lines, terms};
  return {{data, x.term_stride, x.type}, terms, lines};
}

/// Of bfloat16 no magnitudes are kept: it has no irregular lines.
template <int kType>
inline void raise(__m512i& largest, F32::Reg a, F32::Reg b) {
  if constexpr (kType != kBfloat16) largest = _mm512_max_epu32(largest, larger_magnitude(a, b));
}

/// The parts of pairs of both squares. Where a vector has one line, the magnitudes of row i go to largest[i]; otherwise
/// those of line n to lane n of largest[0].
template <int kType, int P, bool kLeft, bool kTransposed, bool kWhole>
inline __attribute__((always_inline)) void pack_tiles(const Square& first, const Square& second, uint16_t* out,
                                                      __m512i* largest) {
  __m512i lanes = _mm512_setzero_si512();
  if constexpr (kTransposed) {
    F32::Reg a[F32::W], b[F32::W];
    ATTN_UNROLL
    for (int i = 0; i < F32::W; ++i) {
      a[i] = first.row<kType, kWhole>(i);
      b[i] = second.row<kType, kWhole>(i);
      if constexpr (kLeft) raise<kType>(lanes, a[i], b[i]);
    }
    F32::transpose(a);
    F32::transpose(b);
    ATTN_UNROLL
    for (int i = 0; i < F32::W; ++i) {
      if constexpr (!kLeft) raise<kType>(lanes, a[i], b[i]);
      store_parts<P>(out + i * kTileSum, kTileBytes / 2, a[i], b[i]);
    }
  } else {
    ATTN_UNROLL
    for (int i = 0; i < F32::W; ++i) {
      const F32::Reg a = first.row<kType, kWhole>(i), b = second.row<kType, kWhole>(i);
      raise<kType>(kLeft ? largest[i] : lanes, a, b);
      store_parts<P>(out + i * kTileSum, kTileBytes / 2, a, b);
    }
  }
  if constexpr (kTransposed || !kLeft) *largest = _mm512_max_epu32(*largest, lanes);
}

template <int kType, int P, bool kLeft, bool kTransposed>
struct FactorPacking {
  const PackFactorArgs& args;

  char* panel(int64_t line) const {
    return static_cast<char*>(args.packed) + line / kProductPanel * product_panel_bytes<P>(args.x.terms);
  }
  __m512i* magnitudes(int64_t line) const { return reinterpret_cast<__m512i*>(panel(line)); }

  /// 32 lines x 32 terms.
  void step(int64_t line, int64_t term, __m512i* largest) const {
    constexpr int kVectors = kLeft && !kTransposed ? kTileRows : 1;  // of `largest`, a half
    const Factor& x = args.x;
    const bool whole = x.lines - line >= kProductPanel && x.terms - term >= kTileSum;
    auto* out = reinterpret_cast<uint16_t*>(panel(line) + kMagnitudeBytes + term * kProductPanel * 2 * P);
    for (int half = 0; half < 2; ++half, out += P * kTileBytes / 2, largest += kVectors) {
      const Square first = square_at(x, line + half * kTileRows, term);
      const Square second = square_at(x, line + half * kTileRows, term + F32::W);
      if (whole) pack_tiles<kType, P, kLeft, kTransposed, true>(first, second, out, largest);
      else pack_tiles<kType, P, kLeft, kTransposed, false>(first, second, out, largest);
    }
  }

  void run() const {
    if constexpr (kLeft && !kTransposed) {
      for (int64_t line = 0; line < args.x.lines; line += kProductPanel) {
        __m512i largest[kProductPanel] = {};
        for (int64_t term = 0; term < args.x.terms; term += kTileSum) step(line, term, largest);
        for (int n = 0; n < kProductPanel; ++n)
          reinterpret_cast<uint32_t*>(panel(line))[n] = _mm512_reduce_max_epu32(largest[n]);
      }
    } else {
      for (int64_t line = 0; line < args.x.lines; line += kProductPanel)
        __builtin_memset(panel(line), 0, kMagnitudeBytes);
      // Terms outside: where lines are contiguous, so are those of neighbouring panels.
      for (int64_t term = 0; term < args.x.terms; term += kTileSum)
        for (int64_t line = 0; line < args.x.lines; line += kProductPanel) step(line, term, magnitudes(line));
    }
  }
};

template <int kType, int P>
void pack_factor_parts(const PackFactorArgs& args) {
  const bool lie = terms_lie(args.x);
  if (args.left && lie) FactorPacking<kType, P, true, false>{args}.run();
  else if (args.left) FactorPacking<kType, P, true, true>{args}.run();
  else if (lie) FactorPacking<kType, P, false, true>{args}.run();
  else FactorPacking<kType, P, false, false>{args}.run();
}

// -------------------------------------------------------------------------------------------------- irregular lines

/// Bit n: line n of a packed panel.
inline uint32_t irregular_lines(const char* panel) {
  uint32_t lines = 0;
  for (int v = 0; v < 2; ++v) {
    const __m512i largest = _mm512_load_si512(panel + 64 * v);
    lines |= uint32_t{outside_of(largest, kTooSmall)} << (v * F32::W);
  }
  return lines;
}

/// Terms term .. term + 15 of 16 lines that become lanes.
template <int kType>
inline void lines_in_lanes(const Factor& x, int64_t line, int64_t term, F32::Reg (&terms)[F32::W]) {
  const Square square = square_at(x, line, term);
  ATTN_UNROLL
  for (int i = 0; i < F32::W; ++i) terms[i] = square.row<kType, false>(i);
  if (terms_lie(x)) F32::transpose(terms);
}

/// Of a 32 x 32 block at (row, column), the results of these rows and columns, one bit each.
template <int kType>
__attribute__((noinline)) void multiply_irregular(const ProductArgs& args, int64_t row, int64_t column, uint32_t rows,
                                                  uint32_t columns, float* sums) {
  const int count = static_cast<int>(at_most(args.a.lines - row, kProductPanel));
  for (int half = 0; half < 2; ++half, columns >>= F32::W) {
    const F32::Mask some = F32::mask(columns & 0xffff);
    F32::Reg sum[kProductPanel] = {};
    for (int64_t term = 0; term < args.a.terms; term += F32::W) {
      F32::Reg b[F32::W];
      lines_in_lanes<kType>(args.b, column + half * F32::W, term, b);
      for (int r = 0; r < count; ++r) {
        if (some == 0 && !(rows >> r & 1)) continue;
        alignas(64) float a[F32::W] = {};
        for (int64_t t = 0; t < at_most(args.a.terms - term, F32::W); ++t)
          a[t] =
              load_element<float>(kType, args.a.data, (row + r) * args.a.line_stride + (term + t) * args.a.term_stride);
        F32::Reg s = sum[r];
        ATTN_UNROLL
        for (int t = 0; t < F32::W; ++t) s = F32::fma(F32::set1(a[t]), b[t], s);
        sum[r] = s;
      }
    }
    for (int r = 0; r < count; ++r)
      _mm512_mask_store_ps(sums + r * kProductPanel + half * F32::W, rows >> r & 1 ? 0xffff : some, sum[r]);
  }
}

// --------------------------------------------------------------------------------------------------------- products

/// After every tile product: lines of the tiles that come next, of both sides.
template <int P, int kProducts>
struct FetchNext {
  static constexpr int kLines = (8 * P + kProducts - 1) / kProducts;  // 32 P of a side in 4 kProducts products
  const char *&a, *&b;

  template <int>
  inline __attribute__((always_inline)) void run() const {
    ATTN_UNROLL
    for (int i = 0; i < kLines; ++i) {
      _mm_prefetch(a + 64 * i, _MM_HINT_T0);
      _mm_prefetch(b + 64 * i, _MM_HINT_T0);
    }
    a += 64 * kLines;
    b += 64 * kLines;
    asm("" : "+r"(a), "+r"(b));  // g++ would keep the address of every line on the stack
  }
};

/// Walks over the blocks of C.
template <class Unit, int kType, int P>
class TileGemm {
  static constexpr int kProducts = TileDot<Unit, P, kType>::kScoreProducts;
  static constexpr int64_t kStepBytes = 2 * P * kTileBytes;

  /// 32 x 32 results.
  struct Block {
    const char *a = nullptr, *b = nullptr;  // packed panels
    int64_t row = 0, column = 0;
    TileResult<Unit, 2, 2> result = {};
    bool direct = true;  // to c from the tiles
  };

 public:
  explicit TileGemm(const ProductArgs& args)
      : args_(args),
        panel_(product_panel_bytes<P>(args.a.terms)),
        far_(product_panels(args.a_is_far ? args.a : args.b)),
        ahead_step_(whole_steps(kStepBytes / far_, 64)) {}

  void run() {
    const int64_t near = product_panels(args_.a_is_far ? args_.b : args_.a);
    Unit::fence();
    Block block = block_at(0, 0);
    for (int64_t n = 0; n < near; ++n) {
      const char* after = (args_.a_is_far ? block.b : block.a) + panel_;
      ahead_ = ahead_end_ = after;
      if (n + 1 < near) ahead_end_ += panel_;
      for (int64_t f = 0; f < far_; ++f) {
        const bool last = f + 1 == far_;
        const Block next = block_at(last ? n + 1 : n, last ? 0 : f + 1);
        choose_way(block);
        multiply(block, next);
        before_ = block;
        block = next;
      }
    }
    before_.result.store_all();
    if (!before_.direct) finish(before_);
  }

 private:
  Block block_at(int64_t near, int64_t far) const {
    const int64_t a = args_.a_is_far ? far : near, b = args_.a_is_far ? near : far;
    Block block;
    block.a = static_cast<const char*>(args_.packed_a) + a * panel_;
    block.b = static_cast<const char*>(args_.packed_b) + b * panel_;
    block.row = a * kProductPanel;
    block.column = b * kProductPanel;
    return block;
  }

  void choose_way(Block& block) {
    float* sums = buffers_[turn_ ^= 1];
    const ProductResult& to = args_.result;
    block.direct = to.out_type == kFloat32 && !to.addend && !to.bias && args_.a.lines - block.row >= kProductPanel &&
                   args_.b.lines - block.column >= kProductPanel &&
                   (irregular_lines(block.a) | irregular_lines(block.b)) == 0;
    if (block.direct)
      block.result = {static_cast<char*>(to.out) + (block.row * to.out_stride + block.column) * 4, to.out_stride * 4};
    else block.result = {reinterpret_cast<char*>(sums), kProductPanel * 4};
  }

  static TileSide side(const char* tiles) { return {{tiles, tiles + P * kTileBytes}, 64, kTileBytes}; }

  /// The block, and what is left to do for the one before. `next` is fetched.
  void multiply(const Block& block, const Block& next) {
    using Step = TileStep<Unit, kProducts, 2, 2>;
    const char *a = block.a + kMagnitudeBytes, *b = block.b + kMagnitudeBytes;
    const int64_t steps = whole_steps(args_.a.terms, kTileSum) / kTileSum;
    for (int64_t step = 0; step < steps; ++step) {
      const char* next_a = step + 1 < steps ? a + kStepBytes : next.a + kMagnitudeBytes;
      const char* next_b = step + 1 < steps ? b + kStepBytes : next.b + kMagnitudeBytes;
      const FetchNext<P, kProducts> fetch{next_a, next_b};
      fetch_ahead();
      block.result.template store_in_time<kProducts>(step);
      if (step > 0) {
        Step::run(side(a), side(b), Nothing{}, fetch);
      } else {
        Step::run(side(a), side(b), FromZero<Unit, 2, 2>{before_.result}, fetch);
        if (!before_.direct) finish(before_);
      }
      a += kStepBytes;
      b += kStepBytes;
    }
  }

  /// This step's share of the next near panel, into the second-level cache: all of it while the far panels are met.
  void fetch_ahead() {
    for (int64_t n = 0; n < ahead_step_ && ahead_ < ahead_end_; n += 64, ahead_ += 64)
      _mm_prefetch(ahead_, _MM_HINT_T1);
  }

  /// From the buffer to c.
  __attribute__((noinline)) void finish(const Block& block) const {
    auto* sums = reinterpret_cast<float*>(block.result.base);
    const uint32_t rows = irregular_lines(block.a), columns = irregular_lines(block.b);
    if ((rows | columns) != 0) multiply_irregular<kType>(args_, block.row, block.column, rows, columns, sums);
    const int64_t height = at_most(args_.a.lines - block.row, kProductPanel);
    const int64_t width = at_most(args_.b.lines - block.column, kProductPanel);
    finish_rows<F32>(args_.result, sums, kProductPanel, block.row, height, block.column, width);
  }

  const ProductArgs& args_;
  const int64_t panel_;  // bytes
  const int64_t far_;    // panels
  const int64_t ahead_step_;
  const char *ahead_ = nullptr, *ahead_end_ = nullptr;
  Block before_;  // still in the tiles; at first none
  int turn_ = 0;
  alignas(64) float buffers_[2][kProductPanel * kProductPanel];
};

// ------------------------------------------------------------------------------------------------------------ table

/// run<type, P>() for a type and a number of parts, which the 16-bit types have one of.
template <class Run>
inline auto with_parts(int type, int parts, const Run& run) {
  if (type == kBfloat16) return run.template operator()<kBfloat16, 1>();
  if (type == kFloat16) return run.template operator()<kFloat16, 2>();
  if (parts == 3) return run.template operator()<kFloat32, 3>();
  if (parts == 2) return run.template operator()<kFloat32, 2>();
  return run.template operator()<kFloat32, 1>();
}

inline int64_t packed_factor_bytes(int64_t lines, int64_t terms, int parts) {
  const int64_t panels = whole_steps(lines, kProductPanel) / kProductPanel;
  return panels * (kMagnitudeBytes + whole_steps(terms, kTileSum) * kProductPanel * 2 * parts);
}

inline void pack_factor(const PackFactorArgs& args) {
  with_parts(args.x.type, args.parts, [&]<int kType, int P>() { pack_factor_parts<kType, P>(args); });
}

template <class Unit>
void multiply_factors(const ProductArgs& args) {
  with_parts(args.a.type, args.parts, [&]<int kType, int P>() { TileGemm<Unit, kType, P>(args).run(); });
}

template <class Unit>
constexpr ProductKernels products_on_tiles = {.panel = kProductPanel,
                                              .step = kTileSum,
                                              .most_terms = kMostProductTerms,
                                              .far_panels = kFarPanels,
                                              .bytes = packed_factor_bytes,
                                              .pack = pack_factor,
                                              .multiply = multiply_factors<Unit>,
                                              .enter = enter_tiles<Unit>,
                                              .leave = leave_tiles<Unit>};

}  // namespace
}  // namespace attn::kernels
