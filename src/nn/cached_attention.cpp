// Attention of new tokens to those in a KV cache: of this process, or one that ranks share.
#include "nn/cached_attention.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "attn/autograd_ranks.h"
#include "nn/check.h"

namespace attn::nn {
namespace {

using autograd::Heads;

/// lse [1, H, B L] of a cache's packed queries as [B, H, L].
Array sequences_first(const Array& packed, int64_t B, int64_t H, int64_t L) {
  Array lse(packed.dtype(), {B, H, L});
  const int64_t bytes = L * size_of(packed.dtype());
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h)
      std::copy_n(static_cast<const char*>(packed.data()) + (h * B + b) * bytes, bytes,
                  static_cast<char*>(lse.data()) + (b * H + h) * bytes);
  return lse;
}

/// The rows first .. first + count of x [1, H, L, D].
View<4> rows_of(View<4> x, int64_t first, int64_t count) {
  x.data = static_cast<char*>(x.data) + first * x.stride[2] * size_of(x.dtype);
  x.size[2] = count;
  return x;
}

/// [B, H, L, D] inside [B, L, C] as [1, H, B L, D], with the same strides.
View<4> packed(View<4> x) {
  return {x.data, x.dtype, {1, x.size[1], x.size[0] * x.size[2], x.size[3]}, {0, x.stride[1], x.stride[2], 1}};
}

/// Appends and attends with a bias by distance, which differs from sequence to sequence: one after the other.
///   starts [B + 1]; out [1, H, rows, Dv]; lse [1, H, rows], if wanted
/// In a streaming cache all queries from its last position on have the same distances, in a call of their own.
void attend_by_distance(const QueryKeyValue& heads, const CacheSlot& slot, std::span<const int64_t> starts,
                        const Distances& distances, const View<4>& out, const View<3>& lse, AttentionOptions& options) {
  KVCache& cache = *slot.cache;
  const Streaming& streaming = cache.config().streaming;
  for (size_t b = 0; b < slot.sequences.size(); ++b) {
    const int64_t before = cache.length(slot.sequences[b]), L = starts[b + 1] - starts[b];
    const int64_t early = streaming.window > 0 ? std::clamp<int64_t>(streaming.kept() - before, 0, L) : L;
    for (int64_t first = 0, count = 0; first < L; first += count) {
      count = first < early ? early : L - early;
      const auto part = [&](const View<4>& x) { return rows_of(x, starts[b] + first, count); };
      const auto part_of = [&](const Heads& x) { return part(packed(x.view())); };
      cache.append(slot.sequences[b], part_of(heads.k), part_of(heads.v));
      const int64_t keys = streaming.position(before + first + count - 1) + 1;
      options.bias = distances.view(streaming.position(before + first), count, keys);
      if (first >= early) options.bias.stride[2] = 0;
      View<3> own = lse;
      own.size[2] = count;
      if (lse) own.data = static_cast<char*>(own.data) + (starts[b] + first) * size_of(own.dtype);
      const int64_t cu_seqlens_q[] = {0, count};
      cache.attend(slot.sequences.subspan(b, 1), cu_seqlens_q, part_of(heads.q), part(out), own, options);
    }
  }
}

/// Appends and attends in one call, with the shapes of attend_by_distance().
void attend_at_once(const QueryKeyValue& heads, const CacheSlot& slot, std::span<const int64_t> starts,
                    const View<4>& out, const View<3>& lse, const AttentionOptions& options) {
  const View<4> k = packed(heads.k.view()), v = packed(heads.v.view());
  for (size_t b = 0; b < slot.sequences.size(); ++b) {
    const int64_t count = starts[b + 1] - starts[b];
    slot.cache->append(slot.sequences[b], rows_of(k, starts[b], count), rows_of(v, starts[b], count));
  }
  slot.cache->attend(slot.sequences, starts, packed(heads.q.view()), out, lse, options,
                     heads.sink_q.array ? packed(heads.sink_q.view()) : View<4>());
}

/// The learned logits of a layer with sinks.
std::vector<float> sinks_of(const Value& sink) {
  std::vector<float> sinks(sink ? static_cast<size_t>(sink.data().count()) : 0);
  if (sink) ops::convert(sink.data().flat(), View<2>(sinks.data(), {1, sink.data().count()}));
  return sinks;
}

/// Of a cache that ranks share: all of them compute the same new tokens, which one of them keeps. Each attends to the
/// tokens that it has, and the states are merged.
Value attend_shared(Tape& tape, const QueryKeyValue& heads, const CacheSlot& slot, AttentionOptions options,
                    const Value& sink) {
  const int64_t L = heads.q.array.shape()[1], H = heads.q.heads, width = heads.v.width;
  const DType wide = heads.q.array.dtype() == DType::float64 ? DType::float64 : DType::float32;
  const Array states = tape.array(wide, {1, L, H * width}), lse(wide, {1, H, L});
  const std::vector<float> sinks = sinks_of(slot.ranks->rank() == 0 ? sink : Value());
  options.sink = sinks;
  if (!slot.keeps) options.causal = false;  // all that this rank has is before the new tokens
  const std::vector<int64_t> starts = {0, L};
  const View<4> out = packed(Heads{{}, 0, H, width}.view_of(states));
  if (slot.keeps) append_shared(heads, slot);
  slot.cache->attend(slot.sequences, starts, packed(heads.q.view()), out, lse.view<3>(), options);
  cluster::merge(*slot.ranks, out, lse.view<3>());
  if (wide == heads.q.array.dtype()) return tape.result("attention", states, {});
  const Array result = tape.array(heads.q.array.dtype(), states.shape());
  ops::convert(states.flat(), result.flat());
  return tape.result("attention", result, {});
}

}  // namespace

void append_shared(const QueryKeyValue& heads, const CacheSlot& slot) {
  slot.cache->append(slot.sequences[0], packed(heads.k.view()), packed(heads.v.view()));
}

Value attend_cached(Tape& tape, const QueryKeyValue& heads, const CacheSlot& slot, AttentionOptions options,
                    const Distances& distances, const Value& sink, AttentionTrace* trace) {
  const std::vector<int64_t> starts =
      starts_of(options.cu_seqlens_q, heads.q.array.shape()[0], heads.q.array.shape()[1]);
  options.cu_seqlens_q = options.cu_seqlens_k = {};
  const int64_t B = heads.q.array.shape()[0], L = heads.q.array.shape()[1], H = heads.q.heads, width = heads.v.width;
  options.dropout = 0;
  if (slot.ranks) {
    options.alignment = Alignment::bottom_right;
    return attend_shared(tape, heads, slot, options, sink);
  }
  if (trace) *trace = {heads.q, heads.k, {}, options, distances.table, sink, slot.cache->length(slot.sequences[0])};
  const Array out = tape.array(heads.q.array.dtype(), {B, L, H * width});
  const View<4> results = packed(Heads{{}, 0, H, width}.view_of(out));
  options.alignment = Alignment::bottom_right;
  const std::vector<float> sinks = sinks_of(sink);
  options.sink = sinks;
  Array lse;
  if (trace) lse = Array(out.dtype() == DType::float64 ? DType::float64 : DType::float32, {H, B * L});
  const View<3> lse_of_all = trace ? View<3>(lse.data(), lse.dtype(), {1, H, B * L}) : View<3>();
  if (distances.table) attend_by_distance(heads, slot, starts, distances, results, lse_of_all, options);
  else attend_at_once(heads, slot, starts, results, lse_of_all, options);
  if (trace) trace->lse = sequences_first(lse, B, H, L);
  if (trace && distances.table) trace->options.bias = options.bias;
  return tape.result("attention", out, {});
}

std::vector<int64_t> CacheSlot::positions(std::span<const int64_t> cu_seqlens) const {
  Checker checker("CacheSlot");
  checker.require(!cu_seqlens.empty() && cu_seqlens[0] == 0 && std::is_sorted(cu_seqlens.begin(), cu_seqlens.end()),
                  "cu_seqlens must rise from 0 to the number of new tokens");
  const auto B = static_cast<int64_t>(cu_seqlens.size()) - 1;
  if (cache) check_sequences(checker, *this, B);
  checker.done();
  std::vector<int64_t> all(static_cast<size_t>(cu_seqlens.back()));
  for (int64_t b = 0; b < B; ++b)
    std::iota(all.begin() + cu_seqlens[b], all.begin() + cu_seqlens[b + 1],
              !cache  ? 0
              : ranks ? first
                      : cache->length(sequences[b]));
  return all;
}

}  // namespace attn::nn
