// attention: exact scaled dot-product attention, forward, backward and decode, with every option in one fused path.
//
//   out_i = sum_j softmax_j(scale <q_i, k_j>) v_j
//
// ```cpp
// #include "attn/attention.h"
// int main() {
//   attn::Tensor<float, 4> q({2, 8, 100, 64}), k({2, 2, 100, 64}), v({2, 2, 100, 64}), out({2, 8, 100, 64});
//   attn::Random random(1);
//   for (attn::Tensor<float, 4>* x : {&q, &k, &v}) attn::fill_normal(*x, random);
//   const int64_t lengths[] = {100, 60};  // the second sequence is padded
//   attn::attention(q, k, v, out, {.causal = true, .key_length = lengths});
// }
// ```
//
// docs/operators/attention.md defines every option exactly. Extra memory is O(Lq + Lk), never Lq x Lk. Results are
// bitwise equal for any number of threads. Every function checks all arguments first: it throws attn::Error with every
// reason before it writes anything. Views and spans are borrowed until the function returns.
//
// Sources: Vaswani et al. 2017 (arXiv:1706.03762); online softmax: Milakov & Gimelshein 2018 (arXiv:1805.02867);
// tiling and recomputation: Dao et al. 2022 (arXiv:2205.14135); options as in ONNX Attention, opset 25.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/attention_options.h"
#include "attn/core.h"

#pragma GCC visibility push(default)
namespace attn {

/// out = attention(q, k, v).
///   q [B, H, Lq, D], k [B, Hk, Lk, D], v [B, Hk, Lk, Dv], out [B, H, Lq, Dv]: one floating type for all; any strides.
///   If it has 16 bits, out may be float32: a state to merge, not rounded. H is a multiple of Hk; query head h reads
///   key head h / (H / Hk). D and Dv are at most 1024.
///   lse [B, H, Lq], if wanted: the natural logarithm of the sum of exp(scores), with the sink; float32, or float64 for
///   float64. The backward, attention_weights() and attention_statistics() take it.
/// A row without an allowed key and without a sink gets out = 0 and lse = -infinity. Query rows beyond query_length are
/// computed like all others.
void attention(ConstView<4> q, ConstView<4> k, ConstView<4> v, View<4> out, View<3> lse,
               const AttentionOptions& options = {});
inline void attention(ConstView<4> q, ConstView<4> k, ConstView<4> v, View<4> out,
                      const AttentionOptions& options = {}) {
  attention(q, k, v, out, View<3>(), options);
}

/// The gradients that attention_backward() writes. A view without data is not computed. A gradient's type may differ
/// from q's, as float32 for 16-bit inputs.
struct AttentionGradients {
  View<4> dq = {};     ///< [B, H, Lq, D]
  View<4> dk = {};     ///< [B, Hk, Lk, D]
  View<4> dv = {};     ///< [B, Hk, Lk, Dv]
  View<4> dbias = {};  ///< shape of the bias, summed over its broadcast axes
  View<1> dsink = {};  ///< [H]
};

/// Gradients of a loss from dout [B, H, Lq, Dv] and, if given, dlse [B, H, Lq]; out and lse are the forward's results,
/// options its options. The function recomputes the attention weights from lse and repeats the dropout of the seed. It
/// overwrites the gradients.
void attention_backward(ConstView<4> q, ConstView<4> k, ConstView<4> v, ConstView<4> out, ConstView<3> lse,
                        ConstView<4> dout, const AttentionGradients& gradients, const AttentionOptions& options = {},
                        ConstView<3> dlse = {});

/// Computes a rectangle of the attention matrix P: weights[b, h, r, c] = P[first_query + r, first_key + c], before
/// dropout.
///   weights [B, H, rows, columns] within [B, H, Lq, Lk]; float32, or float64 for float64 inputs; lse [B, H, Lq].
void attention_weights(ConstView<4> q, ConstView<4> k, ConstView<3> lse, View<4> weights, int64_t first_query,
                       int64_t first_key, const AttentionOptions& options = {});

/// Merges attention over two disjoint sets of keys: (out, lse) becomes the result over their union.
///   out, out_b [B, H, Lq, Dv]; lse, lse_b [B, H, Lq]. The operation is associative; (0, -infinity) is its identity.
void merge(View<4> out, View<3> lse, ConstView<4> out_b, ConstView<3> lse_b);

/// What a call of attention() or attention_backward() will do; explain() computes it without running anything.
struct AttentionPlan {
  std::string path = {};             ///< e.g. "avx512: float32 multiply-adds, 48 queries in lanes, blocks of 256 keys"
  std::string isa = {};              ///< instruction set in use
  int64_t tasks = 0;                 ///< independent units of work
  int64_t scratch_bytes = 0;         ///< extra memory, all threads together
  double flops = 0;                  ///< of multiply-adds on allowed (query, key) pairs, each counted as two
  DType unit_type = DType::float32;  ///< operands of the multiply-add unit, for peaks::unit_for(isa, unit_type)
  double unit_flops = 0;             ///< of that unit: on matrix tiles a float32 product is six of bfloat16
};
AttentionPlan explain(ConstView<4> q, ConstView<4> k, ConstView<4> v, const AttentionOptions& options = {});
AttentionPlan explain_backward(ConstView<4> q, ConstView<4> k, ConstView<4> v, const AttentionOptions& options = {},
                               bool with_dbias = false);

/// True if dropout keeps the attention weight at (b, h, i, j). No index is negative; probability is in [0, 1).
bool dropout_keeps(uint64_t seed, double probability, int64_t b, int64_t h, int64_t i, int64_t j);

// ----------------------------------------------------------------------------------------------- paged key/value cache

struct AttentionStatistics;  // attn/attention_statistics.h

/// What a streaming cache keeps of each sequence: the first `sink_tokens` tokens and the last `window`. Attention takes
/// positions among the kept tokens, not in the text (StreamingLLM, Xiao et al. 2023, arXiv:2309.17453).
struct Streaming {
  int64_t sink_tokens = 0;
  int64_t window = 0;  ///< tokens, the newest included; 0 = the cache keeps all tokens, and sink_tokens must be 0
  int64_t kept() const { return sink_tokens + window; }
  /// The cache position of token `token` of a text when it is the newest.
  int64_t position(int64_t token) const { return window > 0 && token >= kept() ? kept() - 1 : token; }
};

/// How a KVCache stores keys and values.
enum class KVStorage : uint8_t {
  exact,  ///< as they are given
  int8    ///< each key and each value of a head as 8-bit integers with one float32 scale, max |x| / 127
};
constexpr auto enum_names(KVStorage) { return std::to_array<std::string_view>({"exact", "int8"}); }

/// The shape of a KVCache.
struct KVCacheConfig {
  int64_t kv_heads = 0;   ///< Hk
  int64_t head_dim = 0;   ///< D
  int64_t value_dim = 0;  ///< Dv; 0 = head_dim
  DType dtype = DType::float32;
  int64_t page_size = 64;  ///< tokens per KV page
  int64_t max_pages = 0;   ///< limit on the KV pages in use; 0 = none
  Streaming streaming = {};
  /// int8: attention is exact over the rounded keys and values, each off by at most max |x| / 254. A key or value with
  /// a number that is not finite becomes NaN as a whole.
  KVStorage storage = KVStorage::exact;
  int64_t page_bytes() const;  ///< memory of one KV page
};

/// Keys and values of many growing sequences, in KV pages of fixed size. Appending moves nothing that is stored.
/// Many threads may read a cache (attend, statistics, length ...) at once; add, fork, append, truncate and remove need
/// exclusive access. Every method of a moved-from cache throws Error.
class KVCache {
 public:
  explicit KVCache(const KVCacheConfig& config);
  ~KVCache();
  KVCache(KVCache&&) noexcept;
  KVCache& operator=(KVCache&&) noexcept;

  /// Makes an empty sequence and returns its id.
  int64_t add();
  /// Makes a sequence that has the first `length` tokens of `sequence`, and returns its id. Full KV pages are shared, a
  /// partial one is copied. Of a streaming sequence with evicted tokens, `length` is 0 or its length; so in truncate().
  int64_t fork(int64_t sequence, int64_t length);
  /// Copies n tokens to the end, or rounds them: k [1, Hk, n, D], v [1, Hk, n, Dv], of the cache's type. On an error
  /// nothing changes.
  /// A streaming cache evicts the earlier tokens that no query of the new ones attends to, and frees their pages.
  void append(int64_t sequence, ConstView<4> k, ConstView<4> v);
  /// Removes the tokens from `length` on.
  void truncate(int64_t sequence, int64_t length);
  void remove(int64_t sequence);
  bool contains(int64_t sequence) const;
  /// The number of tokens, evicted ones included.
  int64_t length(int64_t sequence) const;
  int64_t pages_in_use() const;
  const KVCacheConfig& config() const;

  /// Attention of a ragged batch in one call: sequence s of `sequences` has the queries cu_seqlens_q[s] to
  /// cu_seqlens_q[s + 1] - 1 of q.
  ///   q [1, H, total, D], out [1, H, total, Dv], lse [1, H, total] if wanted, of the cache's type.
  /// The default is causal with bottom_right alignment: the last query is the newest token. `offset` has one entry per
  /// sequence. A bias is [1, H|1, total|1, longest|1]: its rows are those of q, its keys count inside each sequence, up
  /// to the longest. Masks, segment ids and lengths are refused.
  ///
  /// In a streaming cache a query attends to the sink tokens and to the last `window` tokens up to its own; window,
  /// ALiBi and bias of the options count cache positions. The queries are those of the last append, the options causal
  /// with bottom_right alignment. Rotary keys and queries are rotated by positions in the text. `sink_queries`, shaped
  /// as q, are the same queries rotated by cache positions, Streaming::position(); they are for the sink tokens of
  /// queries whose text has evicted tokens. Without them q is used.
  void attend(std::span<const int64_t> sequences, std::span<const int64_t> cu_seqlens_q, ConstView<4> q, View<4> out,
              View<3> lse, const AttentionOptions& options = {.causal = true, .alignment = Alignment::bottom_right},
              ConstView<4> sink_queries = {}) const;
  void attend(std::span<const int64_t> sequences, std::span<const int64_t> cu_seqlens_q, ConstView<4> q, View<4> out,
              const AttentionOptions& options = {.causal = true, .alignment = Alignment::bottom_right}) const {
    attend(sequences, cu_seqlens_q, q, out, View<3>(), options);
  }
  /// attention_statistics() of such a call, given its lse, of a cache that keeps all tokens. Results and key sets have
  /// the axes of packed sequences: Lk is the keys of all `sequences` one after the other.
  void statistics(std::span<const int64_t> sequences, std::span<const int64_t> cu_seqlens_q, ConstView<4> q,
                  ConstView<3> lse, const AttentionStatistics& wanted,
                  const AttentionOptions& options = {.causal = true, .alignment = Alignment::bottom_right}) const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  State& state() const;
  std::unique_ptr<State> state_;
};

// ------------------------------------------------------------------------------------------------- instruction sets

/// The instruction sets that the library was built with and that this CPU can run, best first. The last is "baseline".
std::vector<std::string> available_isas();
/// The instruction set in use: the best one, or the one that the environment variable ATTN_ISA names.
std::string active_isa();
/// Why an instruction set of this CPU is missing from available_isas(), as where the system refuses matrix tiles to the
/// process. Empty if none is missing.
std::string missing_isa();
/// Uses this instruction set from now on, in the whole process. Throws Error that lists the choices for an unknown name
/// and for one that this CPU cannot run.
void set_isa(std::string_view name);

// -------------------------------------------------------------------------------------------------------- reference

/// The operator as plain float64 loops that a reader can verify by eye: the oracle of the tests. Arguments as above, of
/// any element type. One thread, no tiling, O(Lq x Lk) time.
namespace reference {
void attention(ConstView<4> q, ConstView<4> k, ConstView<4> v, View<4> out, View<3> lse,
               const AttentionOptions& options = {});
inline void attention(ConstView<4> q, ConstView<4> k, ConstView<4> v, View<4> out,
                      const AttentionOptions& options = {}) {
  reference::attention(q, k, v, out, View<3>(), options);
}
void attention_backward(ConstView<4> q, ConstView<4> k, ConstView<4> v, ConstView<4> out, ConstView<3> lse,
                        ConstView<4> dout, const AttentionGradients& gradients, const AttentionOptions& options = {},
                        ConstView<3> dlse = {});
void attention_weights(ConstView<4> q, ConstView<4> k, ConstView<3> lse, View<4> weights, int64_t first_query,
                       int64_t first_key, const AttentionOptions& options = {});
}  // namespace reference

}  // namespace attn
#pragma GCC visibility pop
