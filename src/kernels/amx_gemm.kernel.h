// Matrix products on tiles, C = A B, of factors that are packed as amx_factors.kernel.h says.
//
//   C[i][j] (+)= sum_k A[i, k] B[k, j] (+ bias[j])      A = sum of P bfloat16 parts, B too
// float32 as three parts takes six tile products, float16 as two takes all four, bfloat16 one. Whole panels of rows of
// bfloat16 are also multiplied where they are.
//
// Loops: panels of A, panels of B, steps of 32 terms; 32 x 32 sums in four tiles.
//
// The panels of B stay in the second-level cache while the panels of A pass by. Consecutive blocks then write the same
// 32 rows of C, and the processor prefetches rows. Every step prefetches some lines of the next panel of A into the
// second-level cache.
//
// With one part and at most 512 terms, the panel of A stays in the first-level cache. The tiles then load B alone from
// the second-level cache, whose rate limits them otherwise. With more terms, every tile product prefetches lines of B
// for the next step into the first-level cache, and with several parts lines of both factors. For bfloat16 with 768
// terms that gains 30 % while other work shares the caches of the core, and loses 12 % on a core of its own. Stretches
// of 512 terms whose sums wait in memory gained 7 % for 1536 terms and lost 12 % for 3072, so there are none.
//
// Where float32 results overwrite C, the tiles store whole blocks there. Other blocks go to a buffer, and the vector
// units finish them while the tiles multiply the next block: with one part, a row after every tile product. There they
// activate bfloat16 results too: products of 384 terms take 1.5 times as long with gelu, and 2.3 with a pass after.
//
// Requires: what ProductArgs says; Unit configured. Nothing outside the lines and terms is read or written.
#pragma once

#include "kernels/activation.kernel.h"
#include "kernels/amx_factors.kernel.h"
#include "kernels/finish.kernel.h"

namespace attn::kernels {
namespace {

// One chain of 50,257 positive numbers in the tiles had six times the error of float32 products; parts of 1,024, added
// up, have less than those. Parts of 512 halve it once more and were not timed.
constexpr int64_t kMostProductTerms = 1024;
// Panels of B that stay in a second-level cache of 2 MiB beside two panels of A. 1200 KiB are up to 7 % slower for
// float32.
constexpr int64_t kBlockBytesOfB = int64_t{900} << 10;
// Panels of A that are packed before they are multiplied. 1 MiB is 10 % slower for float32 with 768 terms; all 2048
// rows at once are 15 % slower with 1536 terms.
constexpr int64_t kGroupBytesOfA = int64_t{4} << 20;

// Of the largest of a line: the six products of parts that count are above 2^-112 then.
constexpr uint32_t kTooSmall = bits_of_power(-48);

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

/// Prefetches into the second-level cache, some lines at a time, in the order of a panel's tiles.
class LinesAhead {
 public:
  LinesAhead() = default;
  template <int P>
  LinesAhead(const TilePanel<P>& panel, int64_t bytes)
      : at_(panel.memory),
        row_(panel.row),
        to_next_step_(panel.packed ? 0 : panel.step - kProductPanel * panel.row),
        left_((panel.packed ? bytes : bytes - kMagnitudeBytes) / 64) {}
  /// Contiguous memory.
  LinesAhead(const char* first, int64_t bytes) : at_(first), left_(bytes / 64) {}

  inline __attribute__((always_inline)) void fetch(int64_t lines) {
    for (; lines > 0 && left_ > 0; --lines, --left_) {
      _mm_prefetch(at_, _MM_HINT_T1);
      at_ += row_;
      if (to_next_step_ != 0 && left_ % kProductPanel == 1) at_ += to_next_step_;
    }
  }

 private:
  const char* at_ = nullptr;
  int64_t row_ = 64;          // bytes to the line of the next row,
  int64_t to_next_step_ = 0;  // and after 32 rows as many more to the next step
  int64_t left_ = 0;          // lines
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

/// Rounds 32 results to bfloat16 and stores F of them. So a pass of its own over c gives the same.
template <class Unit, class F>
void store_activated(char* out, F32::Reg a, F32::Reg b) {
  Unit::store_bf16(out, a, b);
  const uint16_t* rounded = reinterpret_cast<const uint16_t*>(out);
  const F32::Reg first = F::value(F32::load_bf16(rounded)), second = F::value(F32::load_bf16(rounded + F32::W));
  Unit::store_bf16(out, first, second);
}

/// A whole block on its way from its buffer to c, a row after every tile product. c is bfloat16 or float32, and
/// bfloat16 where it is activated.
template <class Unit>
class BlockRows {
 public:
  BlockRows() = default;
  BlockRows(const ProductArgs& args, const float* sums, int64_t row, int64_t column)
      : sums_(sums), out_type_(args.result.out_type), left_(kProductPanel) {
    const ProductResult& to = args.result;
    if (args.activation != kNoFunction)
      store_ = with_function<F32, Places::sixteen_bits>(
          args.activation, [](auto f) -> StoreRow { return store_activated<Unit, decltype(f)>; });
    if (to.bias) bias_ = static_cast<const float*>(to.bias) + column;
    out_ = at(to.out, row * to.out_stride + column);
    out_step_ = stored_bytes(out_type_, to.out_stride);
    if (!to.addend) return;
    addend_ = at(to.addend, row * to.addend_stride + column);
    addend_step_ = stored_bytes(out_type_, to.addend_stride);
  }

  template <bool kActivated>
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
    if constexpr (kActivated) {
      store_(out_, a, b);
    } else if (out_type_ == kBfloat16) {
      Unit::store_bf16(out_, a, b);
    } else {
      F32::storeu(reinterpret_cast<float*>(out_), a);
      F32::storeu(reinterpret_cast<float*>(out_) + F32::W, b);
    }
    sums_ += kProductPanel;
    out_ += out_step_;
    --left_;
  }
  template <bool kActivated>
  void finish_all() {
    while (left_ > 0) finish_next<kActivated>();
  }

 private:
  using StoreRow = void (*)(char* out, F32::Reg a, F32::Reg b);
  F32::Reg addend(int64_t j) const {
    if (out_type_ == kBfloat16) return F32::load_bf16(reinterpret_cast<const uint16_t*>(addend_) + j);
    return F32::loadu(reinterpret_cast<const float*>(addend_) + j);
  }
  char* at(const void* data, int64_t n) const {
    return const_cast<char*>(static_cast<const char*>(data)) + stored_bytes(out_type_, n);
  }

  StoreRow store_ = nullptr;
  const float* sums_ = nullptr;
  const float* bias_ = nullptr;
  char *out_ = nullptr, *addend_ = nullptr;
  int64_t out_step_ = 0, addend_step_ = 0;
  int out_type_ = kFloat32, left_ = 0;
};

/// After every tile product: a row of the block before, and where `kFetch` lines of B's tiles that come next.
template <class Unit, bool kFetch, bool kActivated>
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
    rows.template finish_next<kActivated>();
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
        a_panels_(product_panels(args.a)),
        b_panels_(product_panels(args.b)),
        ahead_lines_(P == 1 && a_panels_ == 1 ? kStepLines : (kStepLines + b_panels_ - 1) / b_panels_) {}

  void run() {
    Unit::fence();
    const int64_t count = a_panels_ * b_panels_;
    Block blocks[3];  // in turn
    begin(blocks[0], 0);
    for (int64_t n = 0; n < count; ++n) {
      if (n % b_panels_ == 0) fetch_panel_after(n / b_panels_);
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
    if (P == 1 && a_panels_ == 1)
      ahead_ = LinesAhead(static_cast<const char*>(args_.packed_b) + kAheadBytes, b_panels_ * panel_);
    else ahead_ = n + 1 < a_panels_ ? LinesAhead(a_panel(n + 1), panel_) : LinesAhead();
  }

  /// Number `number` in the order of panels of A, then of B.
  void begin(Block& block, int64_t number) {
    const int64_t n = number / b_panels_, f = number % b_panels_;
    const ProductResult& to = args_.result;
    block.a = a_panel(n);
    block.b = TilePanel<P>::at(args_.packed_b, f, panel_);
    block.row = n * kProductPanel;
    block.column = f * kProductPanel;
    if (n == a_panels_) return;  // to be prefetched at most
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
    } else {
      if constexpr (kType == kBfloat16)
        if (args_.activation != kNoFunction) return multiply_one_part<true>(block, next);
      multiply_one_part<false>(block, next);
    }
  }

  template <bool kActivated>
  void multiply_one_part(const Block& block, const Block& next) {
    if (steps_ > kNearSteps)
      multiply_steps(block, next, [this](const Next& fetch) {
        return FinishRow<Unit, true, kActivated>{rows_, fetch.b};
      });
    else
      multiply_steps(block, next, [this](const Next& fetch) {
        return FinishRow<Unit, false, kActivated>{rows_, fetch.b};
      });
    rows_.template finish_all<kActivated>();
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
    if (P == 1 && !block.edge) rows_ = BlockRows<Unit>(args_, sums_in(block), block.row, block.column);
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
    if (args_.activation == kNoFunction) return;
    const ProductResult& to = args_.result;
    uint16_t* const out = static_cast<uint16_t*>(to.out) + block.row * to.out_stride + block.column;
    activate<F32>({.function = args_.activation,
                   .rows = height,
                   .columns = width,
                   .x = {out, to.out_stride, to.out_type},
                   .up = {},
                   .y = {out, to.out_stride, to.out_type}});
  }

  const ProductArgs& args_;
  const int64_t panel_;  // bytes
  const int64_t steps_;
  const int64_t a_panels_, b_panels_;
  const int64_t ahead_lines_;  // with every step
  LinesAhead ahead_;
  const Block* before_ = nullptr;  // still in the tiles; the first block has one with nothing to store
  BlockRows<Unit> rows_;           // of the one before
  int turn_ = 0;
  alignas(64) float buffers_[2][kProductPanel * kProductPanel];
};

// ------------------------------------------------------------------------------------------------------------ table

/// Rows of bfloat16 are what a tile of A has. Those that are a multiple of 2 KiB apart would share a few sets of the
/// first-level cache.
inline bool takes_in_place(const Factor& a) {
  return a.type == kBfloat16 && a.term_stride == 1 && a.terms % kTileSum == 0 && a.line_stride % kTileSum == 0 &&
         a.line_stride % 1024 != 0;
}

template <class Unit>
void multiply_factors(const ProductArgs& args) {
  with_parts(args.a.type, args.parts, [&]<int kType, int P>() { TileGemm<Unit, kType, P>(args).run(); });
}

template <class Unit>
constexpr ProductKernels products_on_tiles = {.panel = kProductPanel,
                                              .step = kTileSum,
                                              .most_terms = kMostProductTerms,
                                              .b_block_bytes = kBlockBytesOfB,
                                              .a_group_bytes = kGroupBytesOfA,
                                              .bytes = packed_factor_bytes,
                                              .takes_in_place = takes_in_place,
                                              .pack = pack_factor,
                                              .multiply = multiply_factors<Unit>,
                                              .enter = enter_tiles<Unit>,
                                              .leave = leave_tiles<Unit>};

}  // namespace
}  // namespace attn::kernels
