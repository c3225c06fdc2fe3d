// The products of attention on matrix tiles: what gemm.kernel.h is for vectors.
//
//   scores   S^T[key][row]  = sum_d K[key, d] Q^T[d][row]     A = keys,     B = query
//   values   O^T[d][row]   += sum_key V[key, d] P[key][row]   A = values,   B = weights
//   outer    C[key][d]     += sum_row P[key][row] X[row][d]   A = weights,  B = x, all panels
// Operands are packed as parts.kernel.h says.
//
// Loops: 32 x 32 results in four tiles, the sum innermost in steps of 32, of each step the partial products: a tile is
// loaded for each product, which is the least that runs at full speed from the second-level cache. A result is stored
// just before its tile is needed again, four products later: a store that waits for its product fills the scheduler (73
// to 81 % of the peak in place of 92 to 98). Operands that pass by once are streamed. Scores are 32 keys at a time:
// while the tiles compute the next slice, or the product of the panel before with the values, the vector units turn the
// slices before into what the epilogue makes of them, two keys at a time, spread over all products. With N vector
// instructions a product takes max(16, min(N, 16 + N / 2)) cycles; in a phase apart they take no less.
// Edges - the last rows of what is in user memory, a panel that is not full - go through a zero-padded copy.
// Requires: TileDot's Unit configured; kernels/table.h for the arguments; panels of one or two vectors.
#pragma once

#include "kernels/parts.kernel.h"

namespace attn::kernels {
namespace {

/// Around a task, as TileKernels says.
template <class Unit>
void enter_tiles(void* before) {
  Unit::configure(before);
}
template <class Unit>
void leave_tiles(const void* before) {
  Unit::restore(before);
}

/// Up to two tiles of an operand and their parts, in bytes.
struct TileSide {
  const char* tile[2];
  int64_t row, part;
};

struct Nothing {
  template <int>
  void run() const {}
};

/// C += A B over 32 elements of the sum: R x C tiles, N partial products. start.run<t>() comes before the first product
/// of result t, between.run<n>() after the n-th product of every four. Partial products come in an order that changes
/// one operand at a time, the largest last where that is possible; those below the last bit are left out.
template <class Unit, int N, int R, int C>
struct TileStep {
  template <int a_part, int b_part, class Start, class Between>
  static inline __attribute__((always_inline)) void quad(const TileSide& a, const TileSide& b, const Start& start,
                                                         const Between& between) {
    if constexpr (a_part >= 0) Unit::template stream<4>(a.tile[0] + a_part * a.part, a.row);
    if constexpr (b_part >= 0) Unit::template load<6>(b.tile[0] + b_part * b.part, b.row);
    start.template run<0>();
    Unit::template multiply<0, 4, 6>();
    between.template run<0>();
    if constexpr (C == 2) {
      if constexpr (b_part >= 0) Unit::template load<7>(b.tile[1] + b_part * b.part, b.row);
      start.template run<1>();
      Unit::template multiply<1, 4, 7>();
      between.template run<1>();
    }
    if constexpr (R == 2) {
      if constexpr (a_part >= 0) Unit::template stream<5>(a.tile[1] + a_part * a.part, a.row);
      start.template run<2>();
      Unit::template multiply<2, 5, 6>();
      between.template run<2>();
    }
    if constexpr (R == 2 && C == 2) {
      start.template run<3>();
      Unit::template multiply<3, 5, 7>();
      between.template run<3>();
    }
  }

  template <class Start, class Between>
  static inline __attribute__((always_inline)) void run(const TileSide& a, const TileSide& b, const Start& start,
                                                        const Between& between) {
    constexpr Nothing none;
    if constexpr (N == 1) {
      quad<0, 0>(a, b, start, between);
    } else if constexpr (N == 3) {
      quad<1, 0>(a, b, start, between);
      quad<0, -1>(a, b, none, between);
      quad<-1, 1>(a, b, none, between);
    } else if constexpr (N == 4) {
      quad<1, 0>(a, b, start, between);
      quad<-1, 1>(a, b, none, between);
      quad<0, -1>(a, b, none, between);
      quad<-1, 0>(a, b, none, between);
    } else {
      static_assert(N == 6);
      quad<2, 0>(a, b, start, between);
      quad<1, -1>(a, b, none, between);
      quad<-1, 1>(a, b, none, between);
      quad<0, -1>(a, b, none, between);
      quad<-1, 2>(a, b, none, between);
      quad<-1, 0>(a, b, none, between);
    }
  }
};

// A store after more than 128 products without one takes 280 to 320 ns, wherever operands come from (after 120: 20).
// So long sums store one of their results on the way, where it is overwritten later: outer products of float32 take 7.3
// ns a product in place of 8.7. Not beside the softmax, where that loses 1 to 5 %.
constexpr int64_t kProductsToStore = 96;

/// Results that are still in the tiles: R x C of them, `row` bytes from row to row. Nothing to store while base is
/// null.
template <class Unit, int R, int C>
struct TileResult {
  char* base = nullptr;
  int64_t row = 0;

  template <int t>
  char* at() const {
    return base + t / 2 * kTileRows * row + t % 2 * 64;
  }
  template <int t>
  void store() const {
    if constexpr (t / 2 < R && t % 2 < C)
      if (base) Unit::template store<t>(at<t>(), row);
  }
  void store_all() const {
    store<0>();
    store<1>();
    store<2>();
    store<3>();
  }
  /// At the start of a step of N partial products, `step` steps after the first.
  template <int N>
  void store_in_time(int64_t step) const {
    constexpr int64_t kSteps = kProductsToStore / (R * C * N);
    if (step > 0 && step % kSteps == 0) store<0>();
  }
};

/// Before the first product of a result: the one before it is stored, and the new one begins at 0,
template <class Unit, int R, int C>
struct FromZero {
  const TileResult<Unit, R, C>& before;
  template <int t>
  void run() const {
    before.template store<t>();
    Unit::template zero<t>();
  }
};

/// or at what its memory has.
template <class Unit, int R, int C>
struct FromMemory {
  const TileResult<Unit, R, C>&before, &now;
  template <int t>
  void run() const {
    before.template store<t>();
    Unit::template load<t>(now.template at<t>(), now.row);
  }
};

/// Results of 2 x C tiles, each a sum over `steps` steps of 32 elements.
template <class Unit, int C>
struct TileSum {
  TileSide a, b;  // of the first step
  int64_t a_step, b_step, steps;
  TileResult<Unit, 2, C> result;
  bool adds;  // to what is there
  bool begun = false;

  void next_step() {
    begun = true;
    for (int t = 0; t < 2; ++t) {
      a.tile[t] += a_step;
      b.tile[t] += b_step;
    }
  }
};

template <class Unit, int C>
struct FromEither {
  const TileResult<Unit, 2, C>& before;
  const TileSum<Unit, C>& now;
  template <int t>
  inline __attribute__((always_inline)) void run() const {
    if (now.begun) return;
    before.template store<t>();
    if (now.adds) Unit::template load<t>(now.result.template at<t>(), now.result.row);
    else Unit::template zero<t>();
  }
};

/// A copy of tiles that may not be read, or must not be taken, whole: 64 bytes of each of up to 32 rows, the rest 0.
template <int P>
struct EdgeTiles {
  alignas(64) char bytes[2][P][kTileBytes];

  /// Tile t: `rows` of 16 rows of `from`, and of each the numbers that `some` names, in P parts.
  void fill(int t, const char* from, int64_t row, int64_t part, int64_t rows, __mmask32 some = ~__mmask32{0}) {
    for (int i = 0; i < P; ++i)
      for (int64_t r = 0; r < kTileRows; ++r)
        _mm512_store_si512(bytes[t][i] + 64 * r,
                           _mm512_maskz_loadu_epi16(r < rows ? some : 0, from + i * part + r * row));
  }
  /// To be loaded next.
  template <class Unit>
  TileSide side() const {
    Unit::fence();
    return {{bytes[0][0], bytes[1][0]}, 64, kTileBytes};
  }
};

// ----------------------------------------------------------------------------------------------------------- values

/// Dims 16 tile .. + 31 of the product with values. Of keys after the last whole 32, the last step's b has too many.
template <class Dot, int NV>
inline TileSum<typename Dot::Unit, NV> sum_of_values(const ValuesArgs& args, int64_t tile) {
  constexpr int64_t kStepBytes = Dot::kParts * kTileBytes, kWidth = NV * F32::W;
  const int64_t tiles = whole_steps(args.depth, kTileRows) / kTileRows;
  const char* values = static_cast<const char*>(args.values) + tile * kStepBytes;
  const char* weights = static_cast<const char*>(args.weights);
  return {.a = {{values, values + kStepBytes}, 64, kTileBytes},
          .b = {{weights, weights + 64}, Dot::kParts * kWidth * 4, kWidth * 4},
          .a_step = tiles * kStepBytes,
          .b_step = kTileSum * Dot::kParts * kWidth * 2,
          .steps = whole_steps(args.count, kTileSum) / kTileSum,
          .result = {static_cast<char*>(args.out) + tile * kTileRows * kWidth * 4, kWidth * 4},
          .adds = true};
}

template <class Dot, int NV>
struct TileValuesLoop {
  using Unit = typename Dot::Unit;
  const ValuesArgs& args;
  const EdgeTiles<Dot::kParts>& last_weights;  // of the keys after the last whole 32

  template <int R>
  void dims(int64_t tile, TileResult<Unit, 2, NV>& before) const {
    Unit::fence();
    TileSum<Unit, NV> now = sum_of_values<Dot, NV>(args, tile);
    for (int64_t step = 0; step < now.steps; ++step, now.next_step()) {
      const bool whole = (step + 1) * kTileSum <= args.count;
      now.result.template store_in_time<Dot::kSumProducts>(step);
      TileStep<Unit, Dot::kSumProducts, R, NV>::run(now.a, whole ? now.b : last_weights.template side<Unit>(),
                                                    FromEither<Unit, NV>{before, now}, Nothing{});
    }
    before = now.result;
  }
};

template <class Dot>
struct TileValues {
  using Unit = typename Dot::Unit;
  const ValuesArgs& args;

  template <int NV>
  void run() const {
    EdgeTiles<Dot::kParts> edge;
    const TileValuesLoop<Dot, NV> loop{args, edge};
    if (const int64_t left = args.count % kTileSum; left > 0) {
      const TileSum<Unit, NV> sum = sum_of_values<Dot, NV>(args, 0);
      const int64_t last = args.count / kTileSum * sum.b_step;
      for (int t = 0; t < NV; ++t) edge.fill(t, sum.b.tile[t] + last, sum.b.row, sum.b.part, (left + 1) / 2);
    }
    const int64_t tiles = whole_steps(args.depth, kTileRows) / kTileRows;
    TileResult<Unit, 2, NV> before;
    int64_t tile = 0;
    for (; tile + 2 <= tiles; tile += 2) loop.template dims<2>(tile, before);
    before.store_all();
    if (tile == tiles) return;
    before = {};
    loop.template dims<1>(tile, before);
    TileResult<Unit, 1, NV>{before.base, before.row}.store_all();
  }
};

template <class Dot>
void tile_values(const ValuesArgs& args) {
  if (args.count > 0) for_width<F32::W, 2>(args.width, TileValues<Dot>{args});
}

// ----------------------------------------------------------------------------------------------------------- scores

/// Where the tiles of scores are.
template <class Dot, int NV>
struct TileScoresSides {
  static constexpr int64_t kWidth = NV * F32::W;
  const ScoresArgs& args;

  TileSide keys(int64_t key, int64_t d) const {
    const int64_t row = args.key_stride * 2;
    const char* first = static_cast<const char*>(args.keys) + key * row + d * 2;
    return {{first, first + kTileRows * row}, row, whole_steps(args.depth, kTileSum) * 2};
  }
  TileSide query(int64_t d) const {
    const char* first = static_cast<const char*>(args.query) + d * kWidth * 2;
    return {{first, first + 64}, kWidth * 4, whole_steps(args.depth, kTileSum) * kWidth * 2};
  }
};

/// The last keys, fewer than 32, of which none beyond `count` is read.
template <class Dot, int NV, int R>
__attribute__((noinline)) void last_tile_scores(const ScoresArgs& args, int64_t key, int64_t count, float* slice) {
  using Unit = typename Dot::Unit;
  constexpr int N = Dot::kScoreProducts;
  const TileScoresSides<Dot, NV> sides{args};
  EdgeTiles<Dot::kParts> edge;
  const TileResult<Unit, R, NV> none, result{reinterpret_cast<char*>(slice), NV * 64};
  const FromZero<Unit, R, NV> start{none};
  for (int64_t d = 0; d < args.depth; d += kTileSum) {
    const TileSide keys = sides.keys(key, d);
    for (int t = 0; t < R; ++t) edge.fill(t, keys.tile[t], keys.row, keys.part, count - t * kTileRows);
    if (d == 0) TileStep<Unit, N, R, NV>::run(edge.template side<Unit>(), sides.query(d), start, Nothing{});
    else TileStep<Unit, N, R, NV>::run(edge.template side<Unit>(), sides.query(d), Nothing{}, Nothing{});
  }
  result.store_all();
}

/// A number of a query or key: the sum of its parts, or itself.
template <int P>
inline float number_of_parts(const char* first, int64_t part, int half, bool itself) {
  float x = 0;
  if (itself) {
    __builtin_memcpy(&x, first + half * part, sizeof x);
    return x;
  }
  for (int i = P - 1; i >= 0; --i) {
    uint16_t bits;
    __builtin_memcpy(&bits, first + i * part + 2 * half, sizeof bits);
    x += from_bf16(bits);
  }
  return x;
}

/// The scores of keys and queries that are out of range.
template <class Dot, int NV>
__attribute__((noinline)) void mend_scores(const ScoresArgs& args, int64_t key, int64_t count, uint64_t keys,
                                           uint64_t queries, float* slice) {
  constexpr int P = Dot::kParts;
  const TileScoresSides<Dot, NV> sides{args};
  const TileSide k = sides.keys(key, 0), q = sides.query(0);
  for (int64_t i = 0; i < count; ++i) {
    const bool key_itself = keys >> i & 1;
    for (int lane = 0; lane < NV * F32::W; ++lane) {
      const bool query_itself = queries >> lane & 1;
      if (!key_itself && !query_itself) continue;
      double sum = 0;
      for (int64_t pair = 0; pair < whole_steps(args.depth, kTileSum) / 2; ++pair)
        for (int half = 0; half < 2; ++half)
          sum += double{number_of_parts<P>(k.tile[0] + i * k.row + 4 * pair, k.part, half, key_itself)} *
                 double{number_of_parts<P>(q.tile[0] + pair * q.row + 4 * lane, q.part, half, query_itself)};
      slice[i * NV * F32::W + lane] = static_cast<float>(sum);
    }
  }
}

/// The same for a finished slice, if there are any.
template <class Dot, int NV>
inline __attribute__((always_inline)) void mend_slice(const ScoresArgs& args, int64_t key, int64_t count,
                                                      float* slice) {
  if constexpr (!Dot::kBounded) return;
  if (args.depth == 0) return;
  const int64_t depth = whole_steps(args.depth, kTileSum), elements = Dot::kParts * depth;
  const uint64_t keys = range_mask(static_cast<const uint16_t*>(args.keys) + key * args.key_stride, elements);
  const uint64_t queries = range_mask(args.query, elements * NV * F32::W);
  if ((keys | queries) != 0) mend_scores<Dot, NV>(args, key, count, keys, queries, slice);
}

/// Scores on their way from the tiles to the epilogue: a ring of two slices. Nothing in here may have its address
/// taken, and the epilogue is a copy: else g++ leaves sums and maxima in memory.
template <class Dot, int NV, class Epilogue>
struct WaitingScores {
  using V = typename Dot::Acc;
  static constexpr int64_t kSlice = 2 * kTileRows, kRing = 2 * kSlice, kWidth = NV * V::W;
  const ScoresArgs& args;
  const Epilogue epilogue;
  float* const ring;
  const typename V::Reg scale, highest;
  int64_t key = 0, stored = 0;       // the next for the epilogue, and where those end that may go there
  int64_t pace = 1, until_take = 0;  // places between products to a take, so that the takes spread over all

  WaitingScores(const ScoresArgs& a, const Epilogue& e, float* r)
      : args(a),
        epilogue(e),
        ring(r),
        scale(V::set1(static_cast<float>(args.scale))),
        highest(V::set1(static_cast<float>(args.highest))) {}

  float* at(int64_t k) const { return ring + k % kRing * kWidth; }

  /// Scores of keys up to `end`, at most a slice of them new, are in the ring.
  inline __attribute__((always_inline)) void arrive(int64_t end) {
    if (end > stored) mend_slice<Dot, NV>(args, stored, end - stored, at(stored));
    stored = end;
  }
  template <int MT>
  inline __attribute__((always_inline)) void take() {
    const float* scores = at(key);
    typename V::Reg c[MT][NV];
    ATTN_UNROLL
    for (int i = 0; i < MT; ++i) {
      ATTN_UNROLL
      for (int v = 0; v < NV; ++v) {
        c[i][v] = V::load(scores + (i * NV + v) * V::W);
        if constexpr (Epilogue::kScaled && Dot::kScalesScores) c[i][v] = V::mul(c[i][v], scale);
        if constexpr (Epilogue::kLimited) c[i][v] = V::min(highest, c[i][v]);
      }
    }
    epilogue.template apply<MT>(key, c);
    key += MT;
  }
  inline __attribute__((always_inline)) void take_to(int64_t end) {
    while (key + 2 <= end) take<2>();
    if (key < end) take<1>();
  }
};

/// What runs between products. With more parts there are products enough for less after each.
template <class Dot, class Waiting>
struct TakeBetween {
  static constexpr int N = Dot::kScoreProducts, kEvery = N == 1 ? 1 : N == 3 ? 2 : 4, kOfFour = 4 / kEvery;
  Waiting& waiting;

  template <int product>
  inline __attribute__((always_inline)) void run() const {
    if constexpr (product % kEvery == kEvery - 1) {
      if (waiting.key == waiting.stored || --waiting.until_take > 0) return;
      waiting.until_take = waiting.pace;
      waiting.template take<2>();
    }
  }
};

/// The product with the values of another tile that an epilogue wants on the way, if it can be had so; null = none.
template <class Dot, int NV, class Epilogue>
inline const ValuesArgs* late_values(const Epilogue& epilogue) {
  if constexpr (requires { epilogue.late; }) {
    const ValuesArgs* late = epilogue.late;
    if (!late || (late->width == NV * F32::W && late->count % kTileSum == 0 && late->depth % (2 * kTileRows) == 0))
      return late;
    tile_values<Dot>(*late);
  }
  return nullptr;
}

/// Slices of scores, and in between two tiles of dims of the late product at a time: whole ones, `count` keys. Their
/// sums keep the tiles busy while the vector units have slices before them; each is stored when the next begins.
template <class Dot, int NV, class Epilogue>
inline __attribute__((always_inline)) void whole_slices(const ScoresArgs& args, int64_t count, const ValuesArgs* late,
                                                        WaitingScores<Dot, NV, Epilogue>& waiting) {
  using Unit = typename Dot::Unit;
  using Waiting = WaitingScores<Dot, NV, Epilogue>;
  using Between = TakeBetween<Dot, Waiting>;
  const TileScoresSides<Dot, NV> sides{args};
  const int64_t slices = count / Waiting::kSlice, pairs = late ? late->depth / (2 * kTileRows) : 0;
  const int64_t score_steps = whole_steps(args.depth, kTileSum) / kTileSum;
  const int64_t steps =
      slices * score_steps * Dot::kScoreProducts + (late ? pairs * late->count / kTileSum * Dot::kSumProducts : 0);
  waiting.pace = slices > 0 ? steps * Between::kOfFour / (count / 2) : 1;
  TileResult<Unit, 2, NV> before;
  for (int64_t slice = 0, pair = 0; slice < slices || pair < pairs;) {
    const bool values = (pair + 1) * slices <= pairs * slice;
    const int64_t key = slice * Waiting::kSlice;
    TileSum<Unit, NV> now =
        values ? sum_of_values<Dot, NV>(*late, 2 * pair)
               : TileSum<Unit, NV>{.a = sides.keys(key, 0),
                                   .b = sides.query(0),
                                   .a_step = kTileSum * 2,
                                   .b_step = kTileSum * Waiting::kWidth * 2,
                                   .steps = score_steps,
                                   .result = {reinterpret_cast<char*>(waiting.at(key)), Waiting::kWidth * 4},
                                   .adds = false};
    ++(values ? pair : slice);
    waiting.take_to(key - Waiting::kRing);
    for (int64_t step = 0; step < now.steps; ++step, now.next_step()) {
      const FromEither<Unit, NV> start{before, now};
      if (Dot::kScoreProducts == Dot::kSumProducts || !values)
        TileStep<Unit, Dot::kScoreProducts, 2, NV>::run(now.a, now.b, start, Between{waiting});
      else TileStep<Unit, Dot::kSumProducts, 2, NV>::run(now.a, now.b, start, Between{waiting});
      if (step == 0) waiting.arrive(key);
    }
    before = now.result;
  }
  waiting.take_to(count - Waiting::kRing);
  before.store_all();
  waiting.arrive(count);
}

template <class Dot, int NV, class Epilogue>
requires Dot::kTiles inline __attribute__((always_inline)) void for_scores(const ScoresArgs& args,
                                                                           const Epilogue& epilogue) {
  using Waiting = WaitingScores<Dot, NV, Epilogue>;
  alignas(64) float ring[Waiting::kRing * Waiting::kWidth];
  Waiting waiting(args, epilogue, ring);
  const ValuesArgs* late = late_values<Dot, NV>(epilogue);
  // Rows without elements have the scores of a sum of nothing.
  const int64_t whole = args.depth > 0 ? args.count / Waiting::kSlice * Waiting::kSlice : 0;
  Dot::Unit::fence();
  whole_slices<Dot, NV>(args, whole, late, waiting);
  for (int64_t key = whole, left = args.count - whole; left > 0; key += Waiting::kSlice, left -= Waiting::kSlice) {
    const int64_t n = at_most(left, Waiting::kSlice);
    float* slice = waiting.at(key);
    waiting.take_to(key);
    if (args.depth == 0) __builtin_memset(slice, 0, sizeof ring / 2);
    else if (n > kTileRows) last_tile_scores<Dot, NV, 2>(args, key, n, slice);
    else last_tile_scores<Dot, NV, 1>(args, key, n, slice);
    waiting.arrive(key + n);
  }
  waiting.take_to(args.count);
}

// ------------------------------------------------------------------------------------------------------------ outer

/// The numbers of an outer row that belong to rows.
inline __mmask32 numbers_of(int rows) {
  const auto first_pairs = [](int n) { return n < kTileRows ? (uint32_t{1} << 2 * n) - 1 : ~uint32_t{0}; };
  const uint32_t second = rows > kTileRows ? first_pairs(rows - kTileRows) : 0;
  return (first_pairs(rows) & 0x55555555) | (second & 0xaaaaaaaa);
}

template <class Dot>
struct TileOuterLoop {
  using Unit = typename Dot::Unit;
  static constexpr int P = Dot::kParts;
  const OuterArgs& args;

  /// Results [key, key + 32) x 16 C columns: `now` says where they are. keys < 32 may be all there are.
  template <int C>
  void columns(int64_t key, int64_t keys, int64_t column, const TileResult<Unit, 2, C>& before,
               const TileResult<Unit, 2, C>& now) const {
    Unit::fence();
    const FromMemory<Unit, 2, C> start{before, now};
    EdgeTiles<P> edge;
    for (int n = 0; n < args.panel_count; ++n) {
      const OuterPanel& panel = args.panels[n];
      constexpr int64_t part = kTileSum * 2, row = P * part;
      const char* weights = static_cast<const char*>(panel.weights) + key * row;
      TileSide a{{weights, weights + kTileRows * row}, row, part};
      if (keys < 2 * kTileRows || panel.rows < kTileSum) {
        for (int t = 0; t < 2; ++t) edge.fill(t, a.tile[t], row, part, keys - t * kTileRows, numbers_of(panel.rows));
        a = edge.template side<Unit>();
      }
      const char* x = static_cast<const char*>(panel.x) + column * 4;
      const TileSide b{{x, x + 64}, P * args.x_stride * 4, args.x_stride * 4};
      now.template store_in_time<Dot::kSumProducts>(n);
      if (n == 0) TileStep<Unit, Dot::kSumProducts, 2, C>::run(a, b, start, Nothing{});
      else TileStep<Unit, Dot::kSumProducts, 2, C>::run(a, b, Nothing{}, Nothing{});
    }
  }

  /// 32 keys, all columns.
  void whole_keys(int64_t key) const {
    TileResult<Unit, 2, 2> before;
    const int64_t row = args.x_stride * 4;
    char* out = static_cast<char*>(args.out) + key * row;
    int64_t column = 0;
    for (; column + 32 <= args.x_stride; column += 32) {
      const TileResult<Unit, 2, 2> now{out + column * 4, row};
      columns<2>(key, 2 * kTileRows, column, before, now);
      before = now;
    }
    before.store_all();
    if (column == args.x_stride) return;
    const TileResult<Unit, 2, 1> none, now{out + column * 4, row};
    columns<1>(key, 2 * kTileRows, column, none, now);
    now.store_all();
  }

  /// Fewer than 32: their results go through a copy, so that no others are written.
  void last_keys(int64_t key, int64_t keys) const {
    alignas(64) char sums[2 * kTileRows * 64];
    const TileResult<Unit, 2, 1> none, now{sums, 64};
    const int64_t row = args.x_stride * 4;
    for (int64_t column = 0; column < args.x_stride; column += 16) {
      char* out = static_cast<char*>(args.out) + key * row + column * 4;
      for (int64_t r = 0; r < 2 * kTileRows; ++r)
        if (r < keys) __builtin_memcpy(sums + 64 * r, out + r * row, 64);
        else __builtin_memset(sums + 64 * r, 0, 64);
      columns<1>(key, keys, column, none, now);
      now.store_all();
      for (int64_t r = 0; r < keys; ++r) __builtin_memcpy(out + r * row, sums + 64 * r, 64);
    }
  }
};

template <class Dot>
void tile_outer(const OuterArgs& args) {
  if (args.panel_count == 0) return;
  const TileOuterLoop<Dot> loop{args};
  int64_t key = 0;
  for (; key + 2 * kTileRows <= args.count; key += 2 * kTileRows) loop.whole_keys(key);
  if (key < args.count) loop.last_keys(key, args.count - key);
}

}  // namespace
}  // namespace attn::kernels
