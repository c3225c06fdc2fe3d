// Matrix products on tiles: both factors packed as parts, then multiplied.
//
//   C[i][j] (+)= sum_k A[i, k] B[k, j] (+ bias[j])      A = sum of P bfloat16 parts, B too
// float32 as three parts takes six tile products, float16 as two takes all four, bfloat16 one.
// Packed: [panel of 32 lines] the 32 largest magnitudes, then [step of 32 terms][half of 16 lines][part] whole tiles.
// Pairs of parts are terms k and k + 16, so that lines of A that are term by term, and of B that are line by line, are
// cut as they are loaded; others are transposed in float32 first. Pairs of bfloat16 are neighbours, so that whole
// panels of A are multiplied where they are.
//
// Loops: panels of A, of B, steps; 32 x 32 sums in four tiles. The panels of B stay in the second-level cache while
// those of A pass by: C is then written along 32 rows, which the processor prefetches. Of the next panel of A some
// lines are prefetched into that cache with every step. One part: a panel of A with at most 512 terms stays in the
// first-level cache, so that one side alone comes from the second, whose rate limits the tiles. Lines of the next step
// of several parts, and of B where K is larger, are prefetched into the first-level cache after every product. Of B
// alone, that gains 30 % while other work shares the core's caches, and costs 12 % where nothing does. Sums in runs of
// 512 terms that wait in memory gained 7 % for K = 1536 and lost 12 % for K = 3072. Where C is overwritten in float32,
// blocks that are whole go there from the tiles; others by way of a buffer, which the vector units empty while the
// tiles are at the next block: of one part, a row between two products.
//
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
// Of B, in the second-level cache beside two panels of A. 1200 KiB are up to 7 % slower for float32.
constexpr int64_t kProductFarBytes = int64_t{900} << 10;
// Of packed A at a time. One MiB, which would stay in that cache too, is 10 % slower for float32 of 768 terms, and all
// of 2048 rows of 1536 terms 15 %.
constexpr int64_t kProductNearBytes = int64_t{4} << 20;

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

/// A panel as the tiles load it.
template <int P>
struct TilePanel {
  static constexpr int64_t kStep = 2 * P * kTileBytes, kHalf = P * kTileBytes;  // bytes of a packed one
  const char* memory = nullptr;                                                 // packed: magnitudes, then tiles
  const char* tiles = nullptr;
  int64_t row = 64, step = kStep;  // bytes from a row of a tile, and a step, to the next
  bool packed = true;

  static TilePanel at(const void* factor, int64_t n, int64_t bytes) {
    const char* memory = static_cast<const char*>(factor) + n * bytes;
    return {memory, memory + kMagnitudeBytes};
  }
  /// Rows of A where they are.
  static TilePanel in_place(const Factor& x, int64_t line) {
    const int64_t row = stored_bytes(x.type, x.line_stride);
    const char* memory = static_cast<const char*>(x.data) + line * row;
    return {memory, memory, row, kTileSum * 2, false};
  }
  const char* tiles_of(int64_t n) const { return tiles + n * (P > 1 ? kStep : step); }
  TileSide side(int64_t n) const {
    const char* first = tiles_of(n);
    if constexpr (P > 1) return packed_side(n);
    else return {{first, first + kTileRows * row}, row, kTileBytes};
  }
  TileSide packed_side(int64_t n) const {
    const char* first = tiles + n * kStep;
    return {{first, first + kHalf}, 64, kTileBytes};
  }
  uint32_t irregular() const { return packed ? irregular_lines(memory) : 0; }
};

/// Lines of a panel that will be needed, in the order of its tiles.
template <int P>
class LinesAhead {
 public:
  LinesAhead() = default;
  LinesAhead(const TilePanel<P>& panel, int64_t bytes)
      : at_(panel.memory),
        row_(panel.row),
        next_step_(panel.step - kProductPanel * panel.row),
        left_((panel.packed ? bytes : bytes - kMagnitudeBytes) / 64),
        packed_(panel.packed) {}
  LinesAhead(const char* first, int64_t bytes) : at_(first), row_(64), left_(bytes / 64) {}
  inline __attribute__((always_inline)) void fetch(int64_t lines) {
    for (; lines > 0 && left_ > 0; --lines, --left_) {
      _mm_prefetch(at_, _MM_HINT_T1);
      at_ += row_;
      if (P == 1 && !packed_ && left_ % kProductPanel == 1) at_ += next_step_;
    }
  }

 private:
  const char* at_ = nullptr;
  int64_t row_ = 0, next_step_ = 0, left_ = 0;
  bool packed_ = true;
};

/// After every tile product: lines of the tiles that come next, of both packed sides.
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

/// A whole block on its way from its buffer to c, a row after every tile product. c is bfloat16 or float32.
template <class Unit>
class BlockRows {
 public:
  BlockRows() = default;
  BlockRows(const ProductResult& to, const float* sums, int64_t row, int64_t column)
      : sums_(sums), out_type_(to.out_type), left_(kProductPanel) {
    if (to.bias) bias_ = static_cast<const float*>(to.bias) + column;
    out_ = at(to.out, row * to.out_stride + column);
    out_step_ = stored_bytes(out_type_, to.out_stride);
    if (!to.addend) return;
    addend_ = at(to.addend, row * to.addend_stride + column);
    addend_step_ = stored_bytes(out_type_, to.addend_stride);
  }

  inline __attribute__((always_inline)) void finish_next() {
    if (left_ == 0) return;
    F32::Reg a = F32::load(sums_), b = F32::load(sums_ + F32::W);
    if (bias_) {
      a = F32::add(a, F32::loadu(bias_));
      b = F32::add(b, F32::loadu(bias_ + F32::W));
    }
    if (addend_) {
      a = F32::add(addend(0), a);
      b = F32::add(addend(F32::W), b);
      addend_ += addend_step_;
    }
    if (out_type_ == kBfloat16) {
      Unit::store_bf16(out_, a, b);
    } else {
      F32::storeu(reinterpret_cast<float*>(out_), a);
      F32::storeu(reinterpret_cast<float*>(out_) + F32::W, b);
    }
    sums_ += kProductPanel;
    out_ += out_step_;
    --left_;
  }
  void finish_all() {
    while (left_ > 0) finish_next();
  }

 private:
  F32::Reg addend(int64_t j) const {
    if (out_type_ == kBfloat16) return F32::load_bf16(reinterpret_cast<const uint16_t*>(addend_) + j);
    return F32::loadu(reinterpret_cast<const float*>(addend_) + j);
  }
  char* at(const void* data, int64_t n) const {
    return const_cast<char*>(static_cast<const char*>(data)) + stored_bytes(out_type_, n);
  }

  const float* sums_ = nullptr;
  const float* bias_ = nullptr;
  char *out_ = nullptr, *addend_ = nullptr;
  int64_t out_step_ = 0, addend_step_ = 0;
  int out_type_ = kFloat32, left_ = 0;
};

/// After every tile product: a row of the block before, and where `kFetch` lines of B's tiles that come next.
template <class Unit, bool kFetch>
struct FinishRow {
  BlockRows<Unit>& rows;
  const char*& b;

  template <int>
  inline __attribute__((always_inline)) void run() const {
    if constexpr (kFetch) {
      constexpr int kLines = 8;
      ATTN_UNROLL
      for (int i = 0; i < kLines; ++i) _mm_prefetch(b + 64 * i, _MM_HINT_T0);
      b += 64 * kLines;
    }
    rows.finish_next();
  }
};

/// A unit for TileStep, which streams the tiles of A; where `kStreamsB` those of B instead, while A stays.
template <class Unit, bool kStreamsB>
struct StreamingUnit : Unit {
  template <int t>
  static void load(const void* p, int64_t row) {
    if constexpr (kStreamsB) Unit::template stream<t>(p, row);
    else Unit::template load<t>(p, row);
  }
  template <int t>
  static void stream(const void* p, int64_t row) {
    if constexpr (kStreamsB) Unit::template load<t>(p, row);
    else Unit::template stream<t>(p, row);
  }
};

/// Walks over the blocks of C.
template <class Unit, int kType, int P>
class TileGemm {
  static constexpr int kProducts = TileDot<Unit, P, kType>::kScoreProducts;
  static constexpr int64_t kStepLines = 2 * P * kTileBytes / 64;
  static constexpr int64_t kNearSteps = 16;  // of one part, 32 KiB of a panel, which stay in the first-level cache
  using Next = FetchNext<P, kProducts>;

  /// 32 x 32 results.
  struct Block {
    TilePanel<P> a, b;
    int64_t row = 0, column = 0;
    TileResult<Unit, 2, 2> result = {};
    bool direct = true;  // to c from the tiles
    bool edge = false;   // not whole, or with irregular lines
  };

 public:
  explicit TileGemm(const ProductArgs& args)
      : args_(args),
        panel_(product_panel_bytes<P>(args.a.terms)),
        steps_(whole_steps(args.a.terms, kTileSum) / kTileSum),
        near_(product_panels(args.a)),
        far_(product_panels(args.b)),
        ahead_lines_(P == 1 && near_ == 1 ? kStepLines : (kStepLines + far_ - 1) / far_) {}

  void run() {
    Unit::fence();
    const int64_t count = near_ * far_;
    Block blocks[3];  // in turn
    begin(blocks[0], 0);
    for (int64_t n = 0; n < count; ++n) {
      if (n % far_ == 0) fetch_panel_after(n / far_);
      begin(blocks[(n + 1) % 3], n + 1);
      before_ = &blocks[(n + 2) % 3];
      multiply(blocks[n % 3], blocks[(n + 1) % 3]);
    }
    const Block& last = blocks[(count - 1) % 3];
    last.result.store_all();
    if (!last.direct) finish(last);
  }

 private:
  TilePanel<P> a_panel(int64_t n) const {
    const int64_t line = n * kProductPanel;
    if (line < args_.in_place) return TilePanel<P>::in_place(args_.a, line);
    return TilePanel<P>::at(args_.packed_a, n - args_.in_place / kProductPanel, panel_);
  }
  /// While panel n is multiplied, the next one; of a single one, B, which then passes by once, from memory.
  void fetch_panel_after(int64_t n) {
    constexpr int64_t kAheadBytes = 8192;
    if (P == 1 && near_ == 1)
      ahead_ = LinesAhead<P>(static_cast<const char*>(args_.packed_b) + kAheadBytes, far_ * panel_);
    else ahead_ = n + 1 < near_ ? LinesAhead<P>(a_panel(n + 1), panel_) : LinesAhead<P>();
  }

  /// Number `number` in the order of panels of A, then of B.
  void begin(Block& block, int64_t number) {
    const int64_t n = number / far_, f = number % far_;
    const ProductResult& to = args_.result;
    block.a = a_panel(n);
    block.b = TilePanel<P>::at(args_.packed_b, f, panel_);
    block.row = n * kProductPanel;
    block.column = f * kProductPanel;
    if (n == near_) return;  // to be prefetched at most
    block.edge = args_.a.lines - block.row < kProductPanel || args_.b.lines - block.column < kProductPanel ||
                 (block.a.irregular() | block.b.irregular()) != 0;
    block.direct = !block.edge && to.out_type == kFloat32 && !to.addend && !to.bias;
    if (block.direct)
      block.result = {static_cast<char*>(to.out) + (block.row * to.out_stride + block.column) * 4, to.out_stride * 4};
    else block.result = {reinterpret_cast<char*>(buffers_[turn_ ^= 1]), kProductPanel * 4};
  }

  /// The block, and what is left to do for the one before.
  void multiply(const Block& block, const Block& next) {
    if constexpr (P > 1) {
      multiply_steps(block, next, [](const Next& fetch) { return fetch; });
    } else if (steps_ > kNearSteps) {
      multiply_steps(block, next, [this](const Next& fetch) { return FinishRow<Unit, true>{rows_, fetch.b}; });
    } else {
      multiply_steps(block, next, [this](const Next& fetch) { return FinishRow<Unit, false>{rows_, fetch.b}; });
    }
    rows_.finish_all();
  }

  /// between(next) is what runs after the products of a step.
  template <class Between>
  inline __attribute__((always_inline)) void multiply_steps(const Block& block, const Block& next,
                                                            const Between& between) {
    using Step = TileStep<StreamingUnit<Unit, P == 1>, kProducts, 2, 2>;
    for (int64_t step = 0; step < steps_; ++step) {
      const bool last = step + 1 == steps_;
      const char* next_a = last ? next.a.tiles : block.a.tiles_of(step + 1);
      const char* next_b = last ? next.b.tiles : block.b.tiles_of(step + 1);
      const TileSide a = block.a.side(step), b = block.b.packed_side(step);
      ahead_.fetch(ahead_lines_);
      block.result.template store_in_time<kProducts>(step);
      if (step > 0) {
        Step::run(a, b, Nothing{}, between(Next{next_a, next_b}));
      } else {
        Step::run(a, b, FromZero<Unit, 2, 2>{before_->result}, between(Next{next_a, next_b}));
        finish_before();
      }
    }
  }

  /// Row by row between the products to come, or at once where they are many.
  void finish_before() {
    const Block& block = *before_;
    if (block.direct) return;
    if (P == 1 && !block.edge) rows_ = BlockRows<Unit>(args_.result, sums_in(block), block.row, block.column);
    else finish(block);
  }

  static float* sums_in(const Block& block) { return reinterpret_cast<float*>(block.result.base); }

  /// From the buffer to c.
  __attribute__((noinline)) void finish(const Block& block) const {
    float* sums = sums_in(block);
    if constexpr (kType != kBfloat16) {
      const uint32_t rows = block.a.irregular(), columns = block.b.irregular();
      if ((rows | columns) != 0) multiply_irregular<kType>(args_, block.row, block.column, rows, columns, sums);
    }
    const int64_t height = at_most(args_.a.lines - block.row, kProductPanel);
    const int64_t width = at_most(args_.b.lines - block.column, kProductPanel);
    finish_rows<F32>(args_.result, sums, kProductPanel, block.row, height, block.column, width);
  }

  const ProductArgs& args_;
  const int64_t panel_;  // bytes
  const int64_t steps_;
  const int64_t near_, far_;   // panels of A and B
  const int64_t ahead_lines_;  // with every step
  LinesAhead<P> ahead_;
  const Block* before_ = nullptr;  // still in the tiles; the first block has one with nothing to store
  BlockRows<Unit> rows_;           // of the one before
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

/// Rows of bfloat16 are what a tile of A has. Those that are a multiple of 2 KiB apart would share a few sets of the
/// first-level cache.
inline bool takes_in_place(const Factor& a) {
  return a.type == kBfloat16 && a.term_stride == 1 && a.terms % kTileSum == 0 && a.line_stride % kTileSum == 0 &&
         a.line_stride % 1024 != 0;
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
                                              .far_bytes = kProductFarBytes,
                                              .near_bytes = kProductNearBytes,
                                              .bytes = packed_factor_bytes,
                                              .takes_in_place = takes_in_place,
                                              .pack = pack_factor,
                                              .multiply = multiply_factors<Unit>,
                                              .enter = enter_tiles<Unit>,
                                              .leave = leave_tiles<Unit>};

}  // namespace
}  // namespace attn::kernels
