#include "attention/panel.h"

#include <algorithm>
#include <cmath>

#include "attention/elements.h"
#include "kernels/dispatch.h"

namespace attn::detail {
namespace {

int64_t saturating_sub(int64_t a, int64_t b) {
  int64_t difference = 0;
  return __builtin_sub_overflow(a, b, &difference) ? std::numeric_limits<int64_t>::min() : difference;
}

int64_t saturating_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

void add_row(Panel& panel, const Problem& p, const Sequence& s, int64_t query, int64_t head) {
  const int r = panel.rows++;
  panel.query[r] = s.query_begin + query;
  panel.head[r] = head;
  panel.place[r] = query + s.shift;
  const int64_t begin = std::max<int64_t>(0, saturating_sub(panel.place[r], p.left));
  const int64_t end = std::min(s.key_count, saturating_add(saturating_add(panel.place[r], p.right), 1));
  const bool empty = begin >= end;
  panel.begin[r] = empty ? 0 : begin;
  panel.end[r] = empty ? 0 : end;
}

void summarise(Panel& panel, int lanes) {
  panel.width = static_cast<int>(round_up(panel.rows, lanes));
  panel.low = panel.full_high = std::numeric_limits<int64_t>::max();
  panel.high = panel.full_low = 0;
  for (int r = 0; r < panel.rows; ++r) {
    panel.full_low = std::max(panel.full_low, panel.begin[r]);
    panel.full_high = std::min(panel.full_high, panel.end[r]);
    if (panel.begin[r] >= panel.end[r]) continue;
    panel.low = std::min(panel.low, panel.begin[r]);
    panel.high = std::max(panel.high, panel.end[r]);
  }
}

}  // namespace

double natural_lse(const TileKernels& tk, double reference, double sum) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (sum == 0) return -kInfinity;
  return reference == highest_score(tk) ? kInfinity : reference / kScoreUnit + std::log(sum);
}

Panel make_panel(const Problem& p, const Sequence& s, int64_t kv_head, int64_t first, int64_t rows, int lanes) {
  Panel panel;
  int64_t query = first / p.G, head = first % p.G;  // counted on: divisions a row are felt in short calls
  for (int64_t row = 0; row < rows; ++row) {
    add_row(panel, p, s, query, kv_head * p.G + head);
    if (++head == p.G) {
      head = 0;
      ++query;
    }
  }
  summarise(panel, lanes);
  return panel;
}

Panel make_head_panel(const Problem& p, const Sequence& s, int64_t head, int64_t first_query, int64_t rows, int lanes) {
  Panel panel;
  for (int64_t query = first_query; query < first_query + rows; ++query) add_row(panel, p, s, query, head);
  summarise(panel, lanes);
  return panel;
}

// ---------------------------------------------------------------------------------------------------- keys and values

KeyReader::KeyReader(const Problem& p, const Sequence& s, int64_t kv_head)
    : sequence_(s), keys_(side(p.k, p.D, s.pages.keys, kv_head)), values_(side(p.v, p.Dv, s.pages.values, kv_head)) {}

KeyReader::Side KeyReader::side(const ConstView<4>& view, int64_t depth, const void* const* pages,
                                int64_t kv_head) const {
  Side result;
  const int64_t element = size_of(view.dtype);
  if (pages) {
    result.row_stride = depth;
    result.page_offset = kv_head * sequence_.pages.page_size * depth * element;
  } else {
    result.base = at(view, sequence_.batch, kv_head, sequence_.key_begin);
    result.row_stride = view.size[2] == 1 ? 0 : view.stride[2];
    result.stride = depth == 1 ? 1 : view.stride[3];
  }
  result.row_bytes = result.row_stride * element;
  return result;
}

const void* KeyReader::locate(const Side& side, const void* const* pages, int64_t j) const {
  if (!pages) return side.base + j * side.row_bytes;
  const int64_t size = sequence_.pages.page_size;
  return static_cast<const char*>(pages[j / size]) + side.page_offset + j % size * side.row_bytes;
}

int64_t KeyReader::run(int64_t j) const {
  const PageTable& pages = sequence_.pages;
  return pages.keys ? pages.page_size - j % pages.page_size : std::numeric_limits<int64_t>::max();
}

void KeyReader::key_rows(int64_t begin, int64_t end, void** rows) const {
  for (int64_t j = begin; j < end; ++j) rows[j - begin] = const_cast<void*>(key(j));
}

void KeyReader::value_rows(int64_t begin, int64_t end, void** rows) const {
  for (int64_t j = begin; j < end; ++j) rows[j - begin] = const_cast<void*>(value(j));
}

// ------------------------------------------------------------------------------------------------ element-wise options

void TileOptions::layout(Arena& arena, const Problem& p, const TileKernels& tk) {
  const AttentionOptions& o = *p.options;
  if (o.bias) bias_ = arena.take(kBlockKeys * tk.panel * tk.acc_bytes);
  if (!o.alibi_slopes.empty()) {
    slope_ = arena.take(kernels::kMaxWidth * tk.acc_bytes);
    position_ = arena.take(kernels::kMaxWidth * tk.acc_bytes);
  }
  if (o.dropout > 0) keep_ = arena.take<uint64_t>(kBlockKeys * int64_t{sizeof(uint64_t)});
}

void TileOptions::set_panel(const Problem& p, const Sequence& s, const Panel& panel, const TileKernels& tk) {
  problem_ = &p;
  sequence_ = &s;
  panel_ = &panel;
  if (slope_) {
    for (int r = 0; r < panel.width; ++r)
      set(tk, slope_, r, r < panel.rows ? p.options->alibi_slopes[panel.head[r]] * kScoreUnit : 0.0);
  }
}

bool TileOptions::plain(const Problem& p) {
  const AttentionOptions& o = *p.options;
  return o.softcap == 0 && !o.bias && o.alibi_slopes.empty();
}

void TileOptions::start_tile(const TileKernels& tk, int64_t begin, int64_t count) {
  tile_begin_ = begin;
  const ConstView<4>& bias = problem_->options->bias;
  if (!bias) return;
  void* rows[kernels::kMaxWidth];
  for (int r = 0; r < panel_->rows; ++r)
    rows[r] =
        const_cast<char*>(at(bias, sequence_->batch, panel_->head[r], panel_->query[r], sequence_->key_begin + begin));
  const int64_t stride = last_stride(bias);
  kernels::RowsArgs args = rows_args(rows, panel_->rows, stride, bias.dtype, count);
  args.scale = kScoreUnit;
  args.dense = bias_;
  args.dense_stride = panel_->width;
  tk.pack_panel(args);
  if (stride != 1) return;
  // The rows of the next tile lie far apart in memory: ask for them while this one is computed.
  const int64_t ahead = std::min(count, sequence_->key_count - begin - count) * size_of(bias.dtype);
  for (int r = 0; r < panel_->rows; ++r)
    for (int64_t byte = 0; byte < ahead; byte += 64)
      __builtin_prefetch(static_cast<const char*>(rows[r]) + count * size_of(bias.dtype) + byte, 0, 2);
}

kernels::TransformArgs TileOptions::transform(const TileKernels& tk, void* scores, int64_t begin, int64_t count,
                                              uint64_t* allowed, void* factor, void* maximum) {
  const AttentionOptions& o = *problem_->options;
  kernels::TransformArgs args{};
  args.scores = scores;
  args.width = panel_->width;
  args.count = count;
  args.softcap = o.softcap * kScoreUnit;
  args.allowed = allowed;
  args.factor = factor;
  args.maximum = maximum;
  if (o.bias) args.bias = static_cast<const char*>(bias_) + (begin - tile_begin_) * panel_->width * tk.acc_bytes;
  if (slope_) {
    for (int r = 0; r < panel_->width; ++r)
      set(tk, position_, r, r < panel_->rows ? static_cast<double>(panel_->place[r] - begin) : 0.0);
    args.slope = slope_;
    args.position = position_;
  }
  return args;
}

const uint64_t* TileOptions::dropout(const TileKernels& tk, int64_t begin, int64_t count) {
  const AttentionOptions& o = *problem_->options;
  if (o.dropout == 0) return nullptr;
  tk.dropout({.seed = o.seed,
              .query = panel_->query,
              .head = panel_->head,
              .batch = sequence_->batch,
              .first_key = sequence_->key_begin + begin,
              .count = count,
              .threshold = static_cast<uint64_t>(std::floor(o.dropout * 0x1p32)),
              .width = panel_->rows,
              .keep = keep_});
  return keep_;
}

double TileOptions::keep_scale() const { return 1 / (1 - problem_->options->dropout); }

// --------------------------------------------------------------------------------------------------- non-finite values

namespace {

double weight_of(const TileKernels& tk, const void* weights, int64_t key, int lane, int width) {
  if (tk.weight_bytes == tk.acc_bytes) return get(tk, weights, key * width + lane);
  return static_cast<const bfloat16*>(weights)[(key / 2 * width + lane) * 2 + key % 2];
}

}  // namespace

void add_non_finite(const TileKernels& tk, void* const* rows, int64_t stride, DType dtype, int64_t depth,
                    const void* weights, int width, int panel_rows, int64_t count, const uint64_t* allowed, void* out,
                    int64_t out_stride) {
  for (int64_t key = 0; key < count; ++key) {
    for (int64_t d = 0; d < depth; ++d) {
      const double x = load_element(dtype, static_cast<const char*>(rows[key]) + d * stride * size_of(dtype));
      if (std::isfinite(x)) continue;
      for (int lane = 0; lane < panel_rows; ++lane) {
        if (!(allowed[key] >> lane & 1)) continue;
        const int64_t index = tk.out_index(d, lane, depth, out_stride);
        set(tk, out, index, get(tk, out, index) + weight_of(tk, weights, key, lane, width) * x);
      }
    }
  }
}

const TileKernels& select_kernels(DType dtype, bool few) {
  const kernels::Isa& isa = active_kernels();
  if (dtype == DType::float64) return *isa.f64;
  if (dtype == DType::bfloat16 && isa.bf16) return few ? *isa.bf16_few : *isa.bf16;
  if (!few) return *isa.f32;
  return dtype == DType::bfloat16 ? *isa.f32_few_bf16 : dtype == DType::float16 ? *isa.f32_few_f16 : *isa.f32_few;
}

int64_t few_rows(DType dtype) { return dtype == DType::float64 ? 0 : std::min(8, select_kernels(dtype, true).lanes); }

}  // namespace attn::detail
