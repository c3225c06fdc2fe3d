// The public boundary: every condition of the operator, checked once, before anything is computed.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/problem.h"
#include "core/numbers.h"

namespace attn::detail {
namespace {

constexpr int64_t kMaxDepth = 1024;
constexpr int64_t kFar = int64_t{1} << 60;   // of positions: sums of a few of them do not overflow
constexpr int64_t kMaxDropoutHeads = 65536;  // a head has 16 bits of the dropout counter

std::string text(int64_t value) { return std::to_string(value); }

/// "bias has size [..], must be [B|1, H|1, Lq|1, Lk|1] = [..]"
void check_broadcast(Checker& checker, const char* name, const ConstView<4>& view, const Shape<4>& full) {
  bool fits = true;
  for (int axis = 0; axis < 4; ++axis) fits = fits && (view.size[axis] == full[axis] || view.size[axis] == 1);
  checker.require(fits, [&] {
    return std::string(name) + " has size " + to_string<4>(view.size) + ", must be " + to_string<4>(full) +
           kAxesMayBeOne;
  });
}

void check_span(Checker& checker, const char* name, int64_t size, const char* axis, int64_t expected) {
  checker.require(size == 0 || size == expected, [&] {
    return std::string(name) + " has " + text(size) + " entries, must have " + axis + " = " + text(expected);
  });
}

void check_in_range(Checker& checker, const char* name, std::span<const int64_t> values, int64_t low, int64_t high) {
  for (size_t b = 0; b < values.size(); ++b) {
    if (values[b] >= low && values[b] <= high) continue;
    checker.require(false, [&] {
      return std::string(name) + "[" + std::to_string(b) + "] is " + text(values[b]) + ", must be in [" + text(low) +
             ", " + text(high) + "]";
    });
    return;
  }
}

void check_cumulative(Checker& checker, const char* name, std::span<const int64_t> starts, int64_t total) {
  bool rising = !starts.empty() && starts.front() >= 0 && starts.back() <= total;
  for (size_t t = 1; t < starts.size(); ++t) rising = rising && starts[t - 1] <= starts[t];
  checker.require(rising, [&] { return std::string(name) + " must rise, within 0 .. " + text(total); });
}

/// Blocks of an axis; a block may be larger than 2^62.
int64_t count_blocks(int64_t n, int64_t block) { return n / block + (n % block != 0); }

void check_allowed(Checker& checker, const BlockLayout& blocks, const Problem& p) {
  check_layout(checker, "blocks.allowed", blocks.allowed);
  checker.require(blocks.allowed.dtype == DType::boolean, "blocks.allowed must be boolean");
  const Shape<4> full = {p.B, p.H, count_blocks(p.queries, blocks.query_block), count_blocks(p.keys, blocks.key_block)};
  const Shape<4>& size = blocks.allowed.size;
  checker.require((size[0] == full[0] || size[0] == 1) && (size[1] == full[1] || size[1] == 1) && size[2] == full[2] &&
                      size[3] == full[3],
                  [&] {
                    return "blocks.allowed has size " + to_string<4>(size) + ", must be " + to_string<4>(full) +
                           " (the first two axes may be 1)";
                  });
}

/// "blocks.offsets[0, 3, 2] is 4, must be in [5, 9]"
std::string outside(const std::string& element, int64_t value, int64_t low, int64_t high) {
  return "blocks." + element + " is " + text(value) + ", must be in [" + text(low) + ", " + text(high) + "]";
}

/// The lists of batch element b and head h: the first entry that is wrong.
bool check_lists_of(Checker& checker, const BlockLayout& blocks, int64_t key_blocks, int64_t b, int64_t h) {
  const ConstView<3>& offsets = blocks.offsets;
  const auto offset = [&](int64_t n) {
    const int64_t at = b * offsets.stride[0] + h * offsets.stride[1] + n * offsets.stride[2];
    return static_cast<const int64_t*>(offsets.data)[at];
  };
  for (int64_t n = 0, least = 0; n < offsets.size[2]; least = offset(n++))
    if (offset(n) < least || offset(n) > blocks.indices.size[0])
      return checker.require(false, [&] {
        return outside("offsets" + to_string<3>({b, h, n}), offset(n), least, blocks.indices.size[0]);
      });
  for (int64_t n = 0; n + 1 < offsets.size[2]; ++n)
    for (int64_t t = offset(n), least = 0; t < offset(n + 1); ++t) {
      const int64_t index = static_cast<const int64_t*>(blocks.indices.data)[t * blocks.indices.stride[0]];
      if (index < least || index >= key_blocks)
        return checker.require(false, [&] {
          return outside("indices[" + text(t) + "]", index, least, key_blocks - 1) +
                 ": a list rises, and the last of the key blocks is " + text(key_blocks - 1);
        });
      least = index + 1;
    }
  return true;
}

void check_lists(Checker& checker, const BlockLayout& blocks, const Problem& p) {
  const ConstView<3>& offsets = blocks.offsets;
  const Shape<3> full = {p.B, p.H, count_blocks(p.queries, blocks.query_block) + 1};
  const auto is_int64 = [&](const char* name, DType dtype) {
    return checker.require(dtype == DType::int64, [&] {
      return std::string(name) + " is " + std::string(name_of(dtype)) + ", must be int64";
    });
  };
  bool valid = is_int64("blocks.offsets", offsets.dtype);
  valid = (!blocks.indices || is_int64("blocks.indices", blocks.indices.dtype)) && valid;
  valid = check_layout(checker, "blocks.offsets", offsets) && valid;
  valid = check_layout(checker, "blocks.indices", blocks.indices) && valid;
  valid = checker.require(blocks.indices || blocks.indices.empty(), "blocks.indices must have data") && valid;
  const Shape<3>& size = offsets.size;
  valid = checker.require(
              (size[0] == full[0] || size[0] == 1) && (size[1] == full[1] || size[1] == 1) && size[2] == full[2],
              [&] {
                return "blocks.offsets has size " + to_string<3>(size) + ", must be " + to_string<3>(full) +
                       " (the first two axes may be 1)";
              }) &&
          valid;
  // Elements that repeat (stride 0) are looked at once.
  const auto extent = [&](int axis) {
    return offsets.stride[axis] == 0 ? std::min<int64_t>(size[axis], 1) : size[axis];
  };
  for (int64_t b = 0; valid && b < extent(0); ++b)
    for (int64_t h = 0; valid && h < extent(1); ++h)
      valid = check_lists_of(checker, blocks, count_blocks(p.keys, blocks.key_block), b, h);
}

void check_blocks(Checker& checker, const BlockLayout& blocks, const Problem& p) {
  const bool has_pairs = p.B > 0 && p.H > 0 && p.Lq > 0 && p.Lk > 0;  // an empty layout has no data
  if (!blocks.given()) {
    checker.require(!has_pairs || (blocks.query_block == 0 && blocks.key_block == 0 && !blocks.indices),
                    "blocks have sizes or indices, but neither blocks.allowed nor blocks.offsets is given");
    return;
  }
  if (!checker.require(!blocks.allowed || (!blocks.offsets && !blocks.indices),
                       "blocks are given as allowed and as lists (offsets, indices), must be one of them") ||
      !checker.require(blocks.query_block > 0 && blocks.key_block > 0, "blocks must have positive block sizes"))
    return;
  if (blocks.allowed) check_allowed(checker, blocks, p);
  else check_lists(checker, blocks, p);
}

}  // namespace

double load_row_value(const ConstView<3>& view, int64_t b, int64_t h, int64_t i) {
  const int64_t offset = b * view.stride[0] + h * view.stride[1] + i * view.stride[2];
  if (view.dtype == DType::float64) return static_cast<const double*>(view.data)[offset];
  return static_cast<const float*>(view.data)[offset];
}

void store_row_value(const View<3>& view, int64_t b, int64_t h, int64_t i, double value) {
  const int64_t offset = b * view.stride[0] + h * view.stride[1] + i * view.stride[2];
  if (view.dtype == DType::float64) static_cast<double*>(view.data)[offset] = value;
  else static_cast<float*>(view.data)[offset] = static_cast<float>(value);
}

void fill_zero_row(const View<4>& view, int64_t b, int64_t h, int64_t i) {
  const int64_t bytes = size_of(view.dtype);
  char* row = at(view, b, h, i);
  if (view.stride[3] == 1) {
    std::memset(row, 0, view.size[3] * bytes);
    return;
  }
  for (int64_t j = 0; j < view.size[3]; ++j) std::memset(row + j * view.stride[3] * bytes, 0, bytes);
}

void check_tensor(Checker& checker, const char* name, const ConstView<4>& view, const Shape<4>& expected) {
  checker.require(is_floating(view.dtype), [&] {
    return std::string(name) + " is " + std::string(name_of(view.dtype)) + ", must be a floating type";
  });
  checker.require(view.size == expected, [&] {
    return std::string(name) + " has size " + to_string<4>(view.size) + ", must be " + to_string<4>(expected);
  });
  check_layout(checker, name, view);
}

void check_row_values(Checker& checker, const char* name, const ConstView<3>& view, const Problem& p) {
  const Shape<3> expected = {p.B, p.H, p.Lq};
  checker.require(view.size == expected, [&] {
    return std::string(name) + " has size " + to_string<3>(view.size) +
           ", must be [B, H, Lq] = " + to_string<3>(expected);
  });
  const DType dtype = p.q.dtype == DType::float64 ? DType::float64 : DType::float32;
  checker.require(view.dtype == dtype, [&] {
    return std::string(name) + " is " + std::string(name_of(view.dtype)) + ", must be " + std::string(name_of(dtype));
  });
  check_layout(checker, name, view);
}

void check_ids(Checker& checker, const char* name, const ConstView<2>& view, int64_t batch, int64_t length) {
  check_layout(checker, name, view);
  checker.require(view.dtype == DType::int32 || view.dtype == DType::int64, [&] {
    return std::string(name) + " is " + std::string(name_of(view.dtype)) + ", must be int32 or int64";
  });
  checker.require((view.size[0] == batch || view.size[0] == 1) && view.size[1] == length, [&] {
    return std::string(name) + " has size " + to_string<2>(view.size) + ", must be [" + text(batch) + "|1, " +
           text(length) + "]";
  });
}

bool has_positions(const Problem& p) {
  const AttentionOptions& o = *p.options;
  if (o.alignment != Alignment::unspecified) return true;
  if (o.cu_seqlens_q.empty()) return p.queries == p.keys;
  return std::equal(o.cu_seqlens_q.begin(), o.cu_seqlens_q.end(), o.cu_seqlens_k.begin(), o.cu_seqlens_k.end());
}

std::string unnamed_alignment(const Problem& p) {
  return "alignment must be given (top_left, bottom_right or offset): Lq = " + text(p.queries) +
         " differs from Lk = " + text(p.keys);
}

void check_bias(Checker& checker, const ConstView<4>& bias, const Shape<4>& pairs) {
  checker.require(is_floating(bias.dtype), [&] {
    return "bias is " + std::string(name_of(bias.dtype)) + ", must be a floating type; a boolean one is a mask";
  });
  check_broadcast(checker, "bias", bias, pairs);
  check_layout(checker, "bias", bias);
}

namespace {

bool is_packed(const AttentionOptions& o) { return !o.cu_seqlens_q.empty() || !o.cu_seqlens_k.empty(); }

/// How many sequences there are: packed ones, or one a batch element.
int64_t sequence_count(const Problem& p, const AttentionOptions& o) {
  return is_packed(o) ? static_cast<int64_t>(std::max<size_t>(o.cu_seqlens_q.size(), 1)) - 1 : p.B;
}

}  // namespace

void check_numbers(Checker& checker, const AttentionOptions& o) {
  checker.require(std::isfinite(o.scale.value_or(1)),
                  [&] { return "scale is " + std::to_string(*o.scale) + ", must be finite"; });
  checker.require(std::isfinite(o.softcap) && o.softcap >= 0,
                  [&] { return "softcap is " + std::to_string(o.softcap) + ", must be finite and not negative"; });
  checker.require(o.dropout >= 0 && o.dropout < 1,
                  [&] { return "dropout is " + std::to_string(o.dropout) + ", must be in [0, 1)"; });
  checker.require(o.float32_precision <= Float32Precision::fast, [&] {
    return "float32_precision is " + std::to_string(static_cast<int>(o.float32_precision)) +
           ", must be full, high or fast";
  });
  checker.require(o.window.left >= -1 && o.window.right >= -1, [&] {
    return "window is {" + text(o.window.left) + ", " + text(o.window.right) + "}, must be -1 (no limit) or more";
  });
}

namespace {

void resolve_scores(Checker& checker, Problem& p, const AttentionOptions& o) {
  check_numbers(checker, o);
  p.scale = o.scale.value_or(p.D > 0 ? 1 / std::sqrt(static_cast<double>(p.D)) : 1.0);
  checker.require(o.dropout == 0 || p.H <= kMaxDropoutHeads - p.shard().first_head, [&] {
    const int64_t first = p.shard().first_head;
    return (first == 0 ? "H is " + text(p.H) : "shard.first_head + H is " + text(saturating_add(first, p.H))) +
           ", must be at most 65536 with dropout";
  });
  check_span(checker, "alibi_slopes", static_cast<int64_t>(o.alibi_slopes.size()), "H", p.H);
  check_span(checker, "sink", static_cast<int64_t>(o.sink.size()), "H", p.H);
}

void resolve_window(Problem& p, const AttentionOptions& o) {
  if (o.window.left >= 0) p.left = o.window.left;
  if (o.window.right >= 0) p.right = o.window.right;
  if (o.causal) p.right = std::min<int64_t>(p.right, 0);
}

/// Sets the lengths of the whole. Only an axis that is inside it is looked at further.
void resolve_shard(Checker& checker, Problem& p) {
  const Shard& shard = p.shard();
  const std::array<int64_t, 6> all = {shard.first_batch, shard.first_head, shard.first_query,
                                      shard.first_key,   shard.queries,    shard.keys};
  if (!checker.require(std::all_of(all.begin(), all.end(), [](int64_t n) { return n >= 0 && n <= kFar; }),
                       "shard must have numbers in [0, 2^60]"))
    return;
  const auto length = [&](const char* first_name, int64_t first, const char* axis, int64_t n, int64_t whole) {
    const int64_t end = saturating_add(first, n);
    checker.require(whole == 0 || end <= whole, [&] {
      return std::string("shard.") + first_name + " + " + axis + " is " + text(end) + ", must be at most " +
             text(whole) + " = " + axis + " of the whole";
    });
    return std::max(whole, end);
  };
  p.queries = length("first_query", shard.first_query, "Lq", p.Lq, shard.queries);
  p.keys = length("first_key", shard.first_key, "Lk", p.Lk, shard.keys);
}

/// Packed sequences, lengths, and where the queries are on the key axis.
void check_positions(Checker& checker, const Problem& p, const AttentionOptions& o) {
  const bool packed = is_packed(o);
  const int64_t entries = sequence_count(p, o);
  const char* axis = packed ? "one a sequence" : "B";
  if (packed) {
    checker.require(p.B == 1, [&] { return "B is " + text(p.B) + ", must be 1 with cu_seqlens_q and cu_seqlens_k"; });
    checker.require(o.cu_seqlens_q.size() == o.cu_seqlens_k.size() && o.cu_seqlens_q.size() >= 2, [&] {
      return "cu_seqlens_q has " + std::to_string(o.cu_seqlens_q.size()) + " entries and cu_seqlens_k " +
             std::to_string(o.cu_seqlens_k.size()) + ", must have the same number, at least 2";
    });
    check_cumulative(checker, "cu_seqlens_q", o.cu_seqlens_q, p.queries);
    check_cumulative(checker, "cu_seqlens_k", o.cu_seqlens_k, p.keys);
  }
  check_span(checker, "key_length", static_cast<int64_t>(o.key_length.size()), axis, entries);
  check_span(checker, "query_length", static_cast<int64_t>(o.query_length.size()), axis, entries);
  check_span(checker, "offset", static_cast<int64_t>(o.offset.size()), axis, entries);
  check_in_range(checker, "key_length", o.key_length, 0, p.keys);
  check_in_range(checker, "query_length", o.query_length, 0, p.queries);
  check_in_range(checker, "offset", o.offset, -kFar, kFar);
  checker.require(o.alignment != Alignment::offset || !o.offset.empty(), "alignment is offset, but no offset is given");
  checker.require(o.alignment == Alignment::offset || o.offset.empty(), "offset is given, but alignment is not offset");
  const bool positional = o.causal || o.window.left >= 0 || o.window.right >= 0 || !o.alibi_slopes.empty();
  checker.require(!positional || (packed && !checker.ok()) || has_positions(p), [&] { return unnamed_alignment(p); });
}

void check_masks(Checker& checker, const Problem& p, const AttentionOptions& o) {
  const Shape<4> pairs = {p.B, p.H, p.Lq, p.Lk};
  if (o.mask) {
    checker.require(o.mask.dtype == DType::boolean, [&] {
      return "mask is " + std::string(name_of(o.mask.dtype)) +
             ", must be boolean (true = attend); a float mask is a bias";
    });
    check_broadcast(checker, "mask", o.mask, pairs);
    check_layout(checker, "mask", o.mask);
  }
  if (o.bias) check_bias(checker, o.bias, pairs);
  checker.require(bool(o.query_segment_ids) == bool(o.key_segment_ids),
                  "query_segment_ids and key_segment_ids must be given together");
  if (o.query_segment_ids) check_ids(checker, "query_segment_ids", o.query_segment_ids, p.B, p.Lq);
  if (o.key_segment_ids) check_ids(checker, "key_segment_ids", o.key_segment_ids, p.B, p.Lk);
  check_blocks(checker, o.blocks, p);
}

/// The intersection of a range of the whole with a shard: it begins at index `begin` of the shard, and leaves out the
/// first `skipped` elements of the range.
struct Intersection {
  Intersection(int64_t whole_begin, int64_t whole_count, int64_t first, int64_t n)
      : begin(std::clamp<int64_t>(whole_begin - first, 0, n)),
        count(std::clamp<int64_t>(whole_begin + whole_count - first, 0, n) - begin),
        skipped(begin + first - whole_begin) {}
  int64_t begin, count, skipped;
};

void list_sequences(Problem& p, const AttentionOptions& o) {
  const bool packed = is_packed(o);
  const auto queries = [&](int64_t begin, int64_t end) {
    return Intersection(begin, end - begin, p.shard().first_query, p.Lq);
  };
  // Queries before the first and after the last packed sequence exist, but see nothing.
  if (packed)
    for (const Intersection& none : {queries(0, o.cu_seqlens_q.front()), queries(o.cu_seqlens_q.back(), p.queries)})
      if (none.count > 0) p.sequences.push_back({.query_begin = none.begin, .query_count = none.count});
  for (int64_t t = 0; t < sequence_count(p, o); ++t) {
    const int64_t query_begin = packed ? o.cu_seqlens_q[t] : 0, key_begin = packed ? o.cu_seqlens_k[t] : 0;
    const int64_t query_end = packed ? o.cu_seqlens_q[t + 1] : p.queries;
    int64_t key_count = packed ? o.cu_seqlens_k[t + 1] - key_begin : p.keys, shift = 0;
    if (!o.key_length.empty()) key_count = std::min(key_count, o.key_length[t]);
    const int64_t query_length = o.query_length.empty() ? query_end - query_begin : o.query_length[t];
    if (o.alignment == Alignment::bottom_right) shift = key_count - query_length;
    if (o.alignment == Alignment::offset) shift = o.offset[t];
    const Intersection of_queries = queries(query_begin, query_end);
    const Intersection of_keys(key_begin, key_count, p.shard().first_key, p.Lk);
    p.sequences.push_back({.batch = packed ? 0 : t,
                           .query_begin = of_queries.begin,
                           .query_count = of_queries.count,
                           .key_begin = of_keys.begin,
                           .key_count = of_keys.count,
                           .shift = of_queries.skipped + shift - of_keys.skipped});
  }
}

/// Rows that repeat (stride 0) may be more than 64 bits can count.
int64_t count_key_bytes(const Problem& p) {
  int64_t keys = 0;
  for (const Sequence& s : p.sequences) keys = saturating_add(keys, s.key_count);
  return saturating_mul(saturating_mul(keys, p.Hk),
                        row_bytes(p.storage, p.k.dtype, p.D) + row_bytes(p.storage, p.k.dtype, p.Dv));
}

}  // namespace

void resolve_options(Checker& checker, Problem& p, const AttentionOptions& o) {
  p.options = &o;
  p.queries = p.Lq;
  p.keys = p.Lk;
  resolve_shard(checker, p);
  resolve_scores(checker, p, o);
  resolve_window(p, o);
  check_positions(checker, p, o);
  check_masks(checker, p, o);
  if (!checker.ok()) return;
  list_sequences(p, o);
  p.key_bytes = count_key_bytes(p);
}

Problem make_problem(Checker& checker, const ConstView<4>& q, const ConstView<4>& k, const ConstView<4>& v,
                     const AttentionOptions& options) {
  Problem p;
  p.q = q;
  p.k = k;
  p.v = v;
  p.B = q.size[0];
  p.H = q.size[1];
  p.Lq = q.size[2];
  p.D = q.size[3];
  p.Hk = k.size[1];
  p.Lk = k.size[2];
  p.Dv = v.size[3];
  p.options = &options;
  checker.require(is_floating(q.dtype), [&] {
    return "q is " + std::string(name_of(q.dtype)) + ", must be float32, float64, bfloat16 or float16";
  });
  checker.require(k.dtype == q.dtype && v.dtype == q.dtype, [&] {
    return "q, k and v must have one type, not " + std::string(name_of(q.dtype)) + ", " +
           std::string(name_of(k.dtype)) + ", " + std::string(name_of(v.dtype));
  });
  bool valid = check_layout(checker, "q", q);
  valid = check_layout(checker, "k", k) && valid;
  valid = check_layout(checker, "v", v) && valid;
  const auto shapes = [&] {
    return ": q is " + to_string<4>(q.size) + ", k is " + to_string<4>(k.size) + ", v is " + to_string<4>(v.size);
  };
  checker.require(k.size[0] == p.B && v.size[0] == p.B,
                  [&] { return "q, k and v must have the same batch B" + shapes(); });
  checker.require(k.size[3] == p.D, [&] { return "k must have q's head width D" + shapes(); });
  checker.require(v.size[1] == p.Hk && v.size[2] == p.Lk,
                  [&] { return "v must have k's heads Hk and length Lk" + shapes(); });
  checker.require(p.Hk > 0 ? p.H % p.Hk == 0 : p.H == 0,
                  [&] { return "k has Hk = " + text(p.Hk) + " heads, which must divide H = " + text(p.H); });
  checker.require(p.D <= kMaxDepth && p.Dv <= kMaxDepth, [&] {
    return "D = " + text(p.D) + " and Dv = " + text(p.Dv) + " must be at most " + text(kMaxDepth);
  });
  if (p.Hk > 0) p.G = p.H / p.Hk;
  if (valid) resolve_options(checker, p, options);
  const auto given = [](const ConstView<4>& view) { return view.data != nullptr || view.empty(); };
  checker.require(!valid || (given(q) && given(k) && given(v)), "q, k and v must have data");
  return p;
}

void check_gradients(Checker& checker, const Problem& p, const AttentionGradients& gradients) {
  const AttentionOptions& o = *p.options;
  if (gradients.dq) check_tensor(checker, "dq", gradients.dq, p.q.size);
  if (gradients.dk) check_tensor(checker, "dk", gradients.dk, p.k.size);
  if (gradients.dv) check_tensor(checker, "dv", gradients.dv, p.v.size);
  if (checker.require(!gradients.dbias || o.bias, "dbias is requested, but there is no bias") && gradients.dbias)
    check_tensor(checker, "dbias", gradients.dbias, o.bias.size);
  if (checker.require(!gradients.dsink || !o.sink.empty(), "dsink is requested, but there is no sink") &&
      gradients.dsink) {
    checker.require(gradients.dsink.size[0] == p.H && is_floating(gradients.dsink.dtype),
                    [&] { return "dsink must be of a floating type and of size [H] = [" + text(p.H) + "]"; });
    check_layout(checker, "dsink", gradients.dsink);
  }
}

}  // namespace attn::detail
