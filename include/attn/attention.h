// attention: exact scaled dot-product attention, forward, backward and decode, with every option in one fused path.
//
//   out_i = sum_j softmax_j(scale <q_i, k_j>) v_j
//
// docs/operators/attention.md has the exact meaning of every option. Extra memory is O(Lq + Lk), never Lq x Lk; results
// are bitwise equal for any number of threads. All functions throw attn::Error, before anything is written, with every
// reason at once.
//
// Sources: Vaswani et al. 2017 (arXiv:1706.03762); online softmax: Milakov & Gimelshein 2018 (arXiv:1805.02867);
// tiling and recomputation: Dao et al. 2022 (arXiv:2205.14135); options as in ONNX Attention, opset 25.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/core.h"

#pragma GCC visibility push(default)
namespace attn {

/// Where query i stands on the key axis (p_i), needed by causal, window and ALiBi. Must be named when Lq != Lk.
enum class Alignment {
  unspecified,   ///< allowed when Lq == Lk: p_i = i
  top_left,      ///< p_i = i
  bottom_right,  ///< p_i = i + key_length[b] - query_length[b]: the last query sees the last key
  offset         ///< p_i = i + offset[b]
};

/// Keys from p_i - left to p_i + right, both ends included; -1 = no limit on that side.
struct Window {
  int64_t left = -1;
  int64_t right = -1;
};

/// Block-sparse layout: query i may see key j if allowed[b, h, i / query_block, j / key_block].
struct BlockLayout {
  ConstView<4> allowed = {};  ///< boolean [B|1, H|1, ceil(Lq / query_block), ceil(Lk / key_block)]
  int64_t query_block = 0;
  int64_t key_block = 0;
};

/// Every option of the operator; all of them compose. Views and spans are borrowed for the call.
/// An axis written X|1 may have extent 1, which is broadcast.
struct AttentionOptions {
  std::optional<double> scale = {};  ///< factor on <q, k>; default 1 / sqrt(D)
  double softcap = 0;                ///< c > 0: s = c tanh(s / c), before bias and mask
  bool causal = false;               ///< no key after p_i: the same as window.right = 0
  Window window = {};                ///< sliding window around p_i
  Alignment alignment = Alignment::unspecified;
  std::span<const int64_t> key_length = {};    ///< [B] keys that exist in each sequence; default Lk
  std::span<const int64_t> query_length = {};  ///< [B] for bottom_right alone; default Lq
  std::span<const int64_t> offset = {};        ///< [B] for Alignment::offset
  ConstView<4> mask = {};                      ///< boolean [B|1, H|1, Lq|1, Lk|1], true = attend; read in place
  ConstView<4> bias = {};                      ///< float [B|1, H|1, Lq|1, Lk|1], added to the scores; -infinity masks
  std::span<const float> alibi_slopes = {};    ///< [H]: s -= slope_h |p_i - j|
  ConstView<2> query_document = {};            ///< int32/int64 [B|1, Lq]; with key_document: only equal ids attend
  ConstView<2> key_document = {};              ///< int32/int64 [B|1, Lk]
  std::span<const int64_t> cu_query = {};  ///< packed sequences (B = 1): starts of each in Lq, then Lq. Positions and
  std::span<const int64_t> cu_key = {};    ///<   alignment count inside each sequence, mask and bias in the packed axes
  BlockLayout blocks = {};                 ///< block-sparse layout
  std::span<const float> sink = {};        ///< [H]: one more logit a row, in the denominator only
  double dropout = 0;                      ///< probability in [0, 1) of dropping a weight
  uint64_t seed = 0;                       ///< dropout is a function of (seed, b, h, i, j) alone
  Float32Precision float32_precision = Float32Precision::full;  ///< of float32 products on matrix tiles
  bool same_bits = false;  ///< a row's bits are the same however many rows the call has: see docs/numerics.md
};

/// out = attention(q, k, v).
///   q [B, H, Lq, D], k [B, Hk, Lk, D], v [B, Hk, Lk, Dv], out [B, H, Lq, Dv]: one floating type for all; any strides;
///   H % Hk == 0 and query head h reads key head h / (H / Hk); D and Dv up to 1024.
///   lse [B, H, Lq] (optional): natural log of the sum of exp(scores), with the sink; float32, or float64 for float64.
/// A row with no allowed key and no sink gives out = 0, lse = -infinity.
void attention(ConstView<4> q, ConstView<4> k, ConstView<4> v, View<4> out, View<3> lse = {},
               const AttentionOptions& options = {});

/// Where the gradients go; a view without data is not computed. Types may differ from q's (float32 for 16-bit inputs).
struct AttentionGradients {
  View<4> dq = {};     ///< [B, H, Lq, D]
  View<4> dk = {};     ///< [B, Hk, Lk, D]
  View<4> dv = {};     ///< [B, Hk, Lk, Dv]
  View<4> dbias = {};  ///< the bias's shape, summed over its broadcast axes
  View<1> dsink = {};  ///< [H]
};

/// Gradients from dout [B, H, Lq, Dv] and, optionally, dlse [B, H, Lq], given the forward's out and lse.
/// Probabilities are recomputed from lse; dropout is replayed from the seed.
void attention_backward(ConstView<4> q, ConstView<4> k, ConstView<4> v, ConstView<4> out, ConstView<3> lse,
                        ConstView<4> dout, const AttentionGradients& gradients, const AttentionOptions& options = {},
                        ConstView<3> dlse = {});

/// Any rectangle of the attention matrix: weights[b, h, r, c] = P[first_query + r, first_key + c], before dropout.
///   weights [B, H, rows, columns] within [B, H, Lq, Lk]; float32, or float64 for float64 inputs.
void attention_weights(ConstView<4> q, ConstView<4> k, ConstView<3> lse, View<4> weights, int64_t first_query,
                       int64_t first_key, const AttentionOptions& options = {});

/// The state of attention over the union of two disjoint key sets: (out, lse) <- (out, lse) + (out_b, lse_b).
///   out, out_b [B, H, Lq, Dv]; lse, lse_b [B, H, Lq]. Associative; (0, -infinity) is the identity.
void merge(View<4> out, View<3> lse, ConstView<4> out_b, ConstView<3> lse_b);

/// What a call will do.
struct AttentionPlan {
  std::string path;                  ///< e.g. "avx512: float32 multiply-adds, 48 queries in lanes, blocks of 256 keys"
  std::string isa;                   ///< instruction set in use
  int64_t tasks = 0;                 ///< independent units of work
  int64_t scratch_bytes = 0;         ///< extra memory, all threads together
  double flops = 0;                  ///< multiply-adds on allowed (query, key) pairs, counted as two
  DType unit_type = DType::float32;  ///< what the multiply-add unit takes, for peaks::unit_for(isa, unit_type)
  double unit_flops = 0;             ///< of that unit: matrix tiles take six products of bfloat16 for one of float32
};
AttentionPlan explain(ConstView<4> q, ConstView<4> k, ConstView<4> v, const AttentionOptions& options = {});
AttentionPlan explain_backward(ConstView<4> q, ConstView<4> k, ConstView<4> v, const AttentionOptions& options = {},
                               bool with_dbias = false);

/// True if dropout keeps the weight at (b, h, i, j), none of them negative; probability in [0, 1).
bool dropout_keeps(uint64_t seed, double probability, int64_t b, int64_t h, int64_t i, int64_t j);

// ----------------------------------------------------------------------------------------------- paged key/value cache

struct AttentionStatistics;  // attn/attention_statistics.h

/// Keys and values of many growing sequences, in fixed-size pages; appending never moves what is there.
/// Reading (attend) is safe from many threads; append, fork and remove need exclusive access. A cache that has been
/// moved away throws Error.
class KvCache {
 public:
  struct Config {
    int64_t kv_heads = 0;   ///< Hk
    int64_t head_dim = 0;   ///< D
    int64_t value_dim = 0;  ///< Dv; 0 = head_dim
    DType dtype = DType::float32;
    int64_t page_size = 64;  ///< tokens a page
    int64_t max_pages = 0;   ///< upper bound on memory; 0 = none
  };
  explicit KvCache(const Config& config);
  ~KvCache();
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;

  /// A new, empty sequence; returns its id.
  int64_t add();
  /// A new sequence that shares the first `length` tokens of `sequence`: whole pages are shared, a partial one copied.
  int64_t fork(int64_t sequence, int64_t length);
  /// Appends n tokens: k [1, Hk, n, D], v [1, Hk, n, Dv], of the cache's type. Strong guarantee: all or nothing.
  void append(int64_t sequence, ConstView<4> k, ConstView<4> v);
  /// Forgets the tokens from `length` on.
  void truncate(int64_t sequence, int64_t length);
  void remove(int64_t sequence);
  bool contains(int64_t sequence) const;
  int64_t length(int64_t sequence) const;
  int64_t pages_in_use() const;
  const Config& config() const;

  /// One call for a ragged batch: sequence s of `sequences` has the queries cu_query[s] .. cu_query[s + 1] of q.
  ///   q [1, H, total, D], out [1, H, total, Dv], lse [1, H, total] (optional), of the cache's type.
  /// By default causal with bottom_right alignment: the last query is the newest token. Options that name a batch
  /// element (offset) count sequences. A bias is [1, H|1, total|1, longest|1]: rows as in q, keys counted
  /// inside each sequence, up to the longest of them. Mask, documents and lengths do not apply to a cache.
  void attend(std::span<const int64_t> sequences, std::span<const int64_t> cu_query, ConstView<4> q, View<4> out,
              View<3> lse = {},
              const AttentionOptions& options = {.causal = true, .alignment = Alignment::bottom_right}) const;
  /// attention_statistics() of such a call, given its lse. Results and sets of keys are those of packed sequences: the
  /// keys of all `sequences`, one after the other, are the axis Lk, on which a key has its index.
  void statistics(std::span<const int64_t> sequences, std::span<const int64_t> cu_query, ConstView<4> q,
                  ConstView<3> lse, const AttentionStatistics& wanted,
                  const AttentionOptions& options = {.causal = true, .alignment = Alignment::bottom_right}) const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  State& state() const;
  std::unique_ptr<State> state_;
};

// ------------------------------------------------------------------------------------------------- instruction sets

/// Names of the instruction sets built into the library that this CPU can run, best first; "baseline" is always there.
std::vector<std::string> available_isas();
/// The one in use. Chosen at first use: the best, or the environment variable ATTN_ISA.
std::string active_isa();
/// Why one that this CPU has is not among them: the system may refuse a process the matrix tiles. Empty if all are
/// there.
std::string missing_isa();
/// Forces one; throws Error that lists the choices for a name that is unknown or that this CPU cannot run.
void set_isa(std::string_view name);

// -------------------------------------------------------------------------------------------------------- reference

/// The operator as plain float64 loops that a reader can verify by eye: the oracle of the tests. Any element type in;
/// arithmetic in float64; O(Lq x Lk) time, no tiling, one thread.
namespace reference {
void attention(ConstView<4> q, ConstView<4> k, ConstView<4> v, View<4> out, View<3> lse = {},
               const AttentionOptions& options = {});
void attention_backward(ConstView<4> q, ConstView<4> k, ConstView<4> v, ConstView<4> out, ConstView<3> lse,
                        ConstView<4> dout, const AttentionGradients& gradients, const AttentionOptions& options = {},
                        ConstView<3> dlse = {});
void attention_weights(ConstView<4> q, ConstView<4> k, ConstView<3> lse, View<4> weights, int64_t first_query,
                       int64_t first_key, const AttentionOptions& options = {});
}  // namespace reference

}  // namespace attn
#pragma GCC visibility pop
