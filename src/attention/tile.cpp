#include "attention/tile.h"

#include "core/caches.h"

namespace attn::detail {
namespace {

/// True if no cache is taken to hold the keys and values of the call. Asking for rows that caches do hold costs a tenth
/// to a quarter of a token's time (8 MiB and less); not asking where they do not, up to half of it (9 MiB; Zen 4, which
/// has 1 and 32 MiB).
bool from_memory(const Problem& p) { return p.key_bytes >= caches().second + caches().third / 4; }

}  // namespace

void pack_query(const TileKernels& tk, const ConstView<4>& q, const Sequence& s, const Panel& panel, double scale,
                void* packed) {
  const PanelRows rows(q, s, panel);
  tk.pack_query(rows.with(packed, panel.width, scale));
}

kernels::ScoresArgs score_args(const Problem& p, const TileKernels& tk, const Panel& panel, const void* query,
                               const KeyRun& run) {
  kernels::ScoresArgs args{};
  args.query = query;
  args.width = panel.width;
  args.rows = panel.rows;
  args.keys = run.rows;
  args.key_stride = run.stride;
  args.count = run.count;
  args.depth = p.D;
  args.scale = score_scale(p);
  args.highest = highest_score(tk);
  args.from_memory = from_memory(p);
  return args;
}

kernels::ValuesArgs product_args(const Problem& p, const TileKernels& tk, const KeyRun& run, int64_t n,
                                 const Tile& tile, const void* weights, void* accumulator) {
  const int width = tile.panel->width;
  return {.weights = static_cast<const char*>(weights) + tk.weights_bytes(run.first - tile.begin, width),
          .width = width,
          .rows = tile.panel->rows,
          .values = run.rows,
          .value_stride = run.stride,
          .count = run.count,
          .depth = n,
          .out = accumulator,
          .from_memory = from_memory(p)};
}

namespace {

/// Every pair may meet: none is masked, or the rows have nothing that would spoil a weight of 0.
bool all_meet(const TileKernels& tk, BlockOperand& rows, const Tile& tile) {
  return (!tile.allowed && !tk.bounded) || rows.finite();
}

}  // namespace

void add_product(const Problem& p, const TileKernels& tk, BlockOperand& rows, int64_t n, const Tile& tile,
                 const void* weights, void* accumulator) {
  const bool all = all_meet(tk, rows, tile);
  const auto product = [&](const KeyRun& run) { tk.values(product_args(p, tk, run, n, tile, weights, accumulator)); };
  rows.for_runs(tile.begin, tile.count, product, !all);
  if (all) return;
  void* pointers[kernels::kMaxBlockKeys];
  tk.values_non_finite({.x = rows.list(tile.begin, tile.count, pointers),
                        .weights = weights,
                        .width = tile.panel->width,
                        .rows = tile.panel->rows,
                        .count = tile.count,
                        .allowed = tile.allowed,
                        .out = accumulator,
                        .out_stride = 0});
}

void LateProduct::set(const Problem& p, const TileKernels& tk, BlockOperand& rows, int64_t n, const Tile& tile,
                      const void* weights, void* accumulator) {
  waits_ = tk.late_values && all_meet(tk, rows, tile);
  if (waits_) args_ = product_args(p, tk, rows.run(tile.begin, tile.count), n, tile, weights, accumulator);
  else add_product(p, tk, rows, n, tile, weights, accumulator);
}

void TileScores::layout(Arena& arena, int64_t keys, bool softcap_slope, int64_t kept) {
  keys_.layout(arena, p_, tk_.key_rows, tk_, keys, p_.D, kept);
  if (softcap_slope && p_.options->softcap != 0) softcap_slope_ = arena.take(keys * tk_.panel * tk_.acc_bytes);
  options_.layout(arena, keys);
}

void TileScores::scores(const void* query, int64_t done, int64_t count, void* scores, void* maximum) {
  const int64_t first = tile_.begin + done;
  const int width = tile_.panel->width;
  keys_.for_runs(first, count, [&](const KeyRun& run) {
    kernels::ScoresArgs args = score_args(p_, tk_, *tile_.panel, query, run);
    args.scores = static_cast<char*>(scores) + scores_bytes(tk_, run.first - first, width);
    args.maximum = maximum;
    tk_.scores(args);
  });
}

void TileScores::masked_scores(const void* query, void* scores) {
  this->scores(query, 0, tile_.count, scores, nullptr);
  if (!options_.plain()) tk_.transform(options_.transform(scores, 0, tile_.count, softcap_slope_, nullptr));
}

void TileScores::probabilities(const void* query, const void* lse, void* weights) {
  if (options_.plain()) {
    const KeyRun run = keys_.run(tile_.begin, tile_.count);
    tk_.scores_probabilities(score_args(p_, tk_, *tile_.panel, query, run), lse, weights);
    return;
  }
  masked_scores(query, weights);
  kernels::SoftmaxArgs softmax{};
  softmax.scores = softmax.weights = weights;
  softmax.width = tile_.panel->width;
  softmax.count = tile_.count;
  softmax.reference = lse;
  tk_.probabilities(softmax);
}

}  // namespace attn::detail
