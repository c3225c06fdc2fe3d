// The factors of matrix products on tiles, C = A B, packed as parts.
//
//   [panel of 32 lines] the 32 largest magnitudes, then [step of 32 terms][half of 16 lines][part] whole tiles
// A line is a row of A or a column of B. float32 is three parts (fewer in less precision), float16 two, bfloat16 one.
// Pairs of parts are terms k and k + 16: so vectors of A that have 16 terms of a line, and those of B that have a term
// of 16 lines, are split as they are loaded; other vectors are transposed in float32 first. Pairs of bfloat16 are
// neighbouring terms, as they are in rows of A.
//
// Loops: panels, steps; in the other order where the lines of a term are contiguous.
// Requires: what PackFactorArgs says. Nothing outside the lines and terms is read; what is packed beyond them is 0.
#pragma once

#include "kernels/amx_products.kernel.h"
#include "kernels/columns.kernel.h"
#include "kernels/products_table.h"

namespace attn::kernels {
namespace {

constexpr int kProductPanel = 2 * kTileRows;
constexpr int64_t kMagnitudeBytes = kProductPanel * 4;

template <int P>
int64_t product_panel_bytes(int64_t terms) {
  return kMagnitudeBytes + whole_steps(terms, kTileSum) * kProductPanel * 2 * P;
}

inline int64_t product_panels(const Factor& x) { return whole_steps(x.lines, kProductPanel) / kProductPanel; }

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

inline void raise(__m512i& largest, F32::Reg a, F32::Reg b) {
  largest = _mm512_max_epu32(largest, larger_magnitude(a, b));
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
      if constexpr (kLeft) raise(lanes, a[i], b[i]);
    }
    F32::transpose(a);
    F32::transpose(b);
    ATTN_UNROLL
    for (int i = 0; i < F32::W; ++i) {
      if constexpr (!kLeft) raise(lanes, a[i], b[i]);
      store_parts<P>(out + i * kTileSum, kTileBytes / 2, a[i], b[i]);
    }
  } else {
    ATTN_UNROLL
    for (int i = 0; i < F32::W; ++i) {
      const F32::Reg a = first.row<kType, kWhole>(i), b = second.row<kType, kWhole>(i);
      raise(kLeft ? largest[i] : lanes, a, b);
      store_parts<P>(out + i * kTileSum, kTileBytes / 2, a, b);
    }
  }
  if constexpr (kTransposed || !kLeft) *largest = _mm512_max_epu32(*largest, lanes);
}

/// 16 lines x 32 terms of bfloat16, in pairs of neighbours: where terms are contiguous a vector has the pairs of a
/// line, otherwise a pair of every line. No magnitudes are kept: bfloat16 has no irregular lines.
template <bool kTransposed, bool kWhole>
inline __attribute__((always_inline)) void pack_pairs(const Factor& x, int64_t line, int64_t term, uint16_t* out) {
  const auto left = [](int64_t n, int64_t most) { return kWhole ? most : n < 0 ? 0 : at_most(n, most); };
  const int64_t lines = left(x.lines - line, kTileRows), terms = left(x.terms - term, kTileSum);
  const auto* first = static_cast<const uint16_t*>(x.data) + line * x.line_stride + term * x.term_stride;
  F32::Reg pairs[F32::W];
  if (terms_lie(x)) {
    const __mmask32 some = kWhole ? ~__mmask32{0} : static_cast<__mmask32>((uint64_t{1} << terms) - 1);
    ATTN_UNROLL
    for (int i = 0; i < kTileRows; ++i)
      pairs[i] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(i < lines ? some : 0, first + i * x.line_stride));
  } else {
    const __mmask16 some = kWhole ? __mmask16(0xffff) : static_cast<__mmask16>((1u << lines) - 1);
    ATTN_UNROLL
    for (int i = 0; i < kTileRows; ++i)
      pairs[i] = _mm512_castsi512_ps(row_pairs(first + 2 * i * x.term_stride, x.term_stride, terms - 2 * i, some));
  }
  if constexpr (kTransposed) F32::transpose(pairs);
  ATTN_UNROLL
  for (int i = 0; i < kTileRows; ++i) _mm512_store_ps(out + i * kTileSum, pairs[i]);
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
      if constexpr (kType == kBfloat16) {
        if (whole) pack_pairs<kTransposed, true>(x, line + half * kTileRows, term, out);
        else pack_pairs<kTransposed, false>(x, line + half * kTileRows, term, out);
      } else {
        const Square first = square_at(x, line + half * kTileRows, term);
        const Square second = square_at(x, line + half * kTileRows, term + F32::W);
        if (whole) pack_tiles<kType, P, kLeft, kTransposed, true>(first, second, out, largest);
        else pack_tiles<kType, P, kLeft, kTransposed, false>(first, second, out, largest);
      }
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

}  // namespace
}  // namespace attn::kernels
