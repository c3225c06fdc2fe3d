// attention_options: the options of attention(), and one list of them with their names, shapes and meanings.
//
// ```cpp
// #include <cstdio>
// #include "attn/attention_options.h"
// int main() {
//   const attn::AttentionOptions options{.softcap = 30, .causal = true};
//   const auto print = [](const attn::AttentionOption& option, const auto&) {
//     std::printf("%s %s: %s\n", option.name, option.shape, option.meaning);
//   };
//   attn::each_option(print, options);
// }
// ```
//
// The C interface, the Python package, files of recorded attention and the table in docs/operators/attention.md use
// this list. A new option is a field of AttentionOptions and a line of each_option().
#pragma once

#include <optional>
#include <span>

#include "attn/core.h"

#pragma GCC visibility push(default)
namespace attn {

/// The position p_i of query i on the key axis, which causal, window and ALiBi use. It must be given where Lq != Lk.
enum class Alignment {
  unspecified,   ///< allowed where Lq == Lk: p_i = i
  top_left,      ///< p_i = i
  bottom_right,  ///< p_i = i + key_length[b] - query_length[b]: the last query sees the last key
  offset         ///< p_i = i + offset[b]
};

/// A sliding window: query i attends to keys p_i - left to p_i + right, both included. -1 sets no limit on that side.
struct Window {
  int64_t left = -1;
  int64_t right = -1;
};

/// Block-sparse layout, in one of two forms. Query i may attend to key j
///   if allowed[b, h, i / query_block, j / key_block] is true; or
///   if j / key_block is in the list of the query block n = i / query_block: the rising numbers of key blocks
///   indices[offsets[b, h, n]] to indices[offsets[b, h, n + 1] - 1]. Memory and time grow with the listed blocks only.
/// attn/attention_layouts.h makes lists for the layouts of papers.
struct BlockLayout {
  ConstView<4> allowed = {};  ///< boolean [B|1, H|1, ceil(Lq / query_block), ceil(Lk / key_block)]
  int64_t query_block = 0;    ///< queries per block
  int64_t key_block = 0;      ///< keys per block
  ConstView<3> offsets = {};  ///< int64 [B|1, H|1, ceil(Lq / query_block) + 1]: where in `indices` lists begin and end
  ConstView<1> indices = {};  ///< int64 [any length]: numbers of key blocks; lists of several heads may share entries

  bool given() const { return allowed || offsets; }
};

/// The place of a call in a larger problem, the whole: q, k and v of the call are a shard of it, which are consecutive
/// batch elements, heads, queries and keys. Positions, lengths, packed sequences, blocks and dropout count in the
/// whole, so that every option means the same as there. Arrays over B, H, Lq and Lk have the extents of the shard; only
/// the last two axes of a block layout have those of the whole.
struct Shard {
  int64_t first_batch = 0;  ///< the index in the whole of batch element 0 of the call,
  int64_t first_head = 0;   ///< of head 0,
  int64_t first_query = 0;  ///< of query 0,
  int64_t first_key = 0;    ///< and of key 0
  int64_t queries = 0;      ///< Lq of the whole; 0: it ends with the call's queries
  int64_t keys = 0;         ///< Lk of the whole; 0: it ends with the call's keys

  bool operator==(const Shard&) const = default;
};

/// Every option of the operator. All of them compose; each_option() has the meaning of each. Views and spans are
/// borrowed until the call returns. An axis written X|1 has extent X or 1; extent 1 is broadcast.
struct AttentionOptions {
  std::optional<double> scale = {};
  double softcap = 0;
  bool causal = false;
  Window window = {};
  Alignment alignment = Alignment::unspecified;
  std::span<const int64_t> key_length = {};    ///< [B]
  std::span<const int64_t> query_length = {};  ///< [B]
  std::span<const int64_t> offset = {};        ///< [B]
  ConstView<4> mask = {};                      ///< boolean [B|1, H|1, Lq|1, Lk|1]
  ConstView<4> bias = {};                      ///< floating [B|1, H|1, Lq|1, Lk|1]
  std::span<const float> alibi_slopes = {};    ///< [H]
  ConstView<2> query_segment_ids = {};         ///< int32 or int64 [B|1, Lq]
  ConstView<2> key_segment_ids = {};           ///< int32 or int64 [B|1, Lk]
  std::span<const int64_t> cu_seqlens_q = {};  ///< [sequences + 1]
  std::span<const int64_t> cu_seqlens_k = {};  ///< [sequences + 1]
  BlockLayout blocks = {};
  std::span<const float> sink = {};  ///< [H]
  double dropout = 0;
  uint64_t seed = 0;
  Float32Precision float32_precision = Float32Precision::full;
  bool batch_invariant = false;
  Shard shard = {};
};

/// The description of an option. The strings are literals.
struct AttentionOption {
  const char* name;       ///< of the field in C++, C, Python and files
  const char* type;       ///< of the value, or of an array's elements
  const char* shape;      ///< of an array, as "[B]"; "" for a single value
  const char* otherwise;  ///< the default
  const char* meaning;    ///< one line
};

/// Calls visit(option, fields...) for every option in the order of AttentionOptions; `fields` are the members of this
/// name of all `structs`, which are AttentionOptions or have members of the same names.
template <class Visit, class... Structs>
void each_option(const Visit& visit, Structs&... structs) {
  visit({"scale", "number", "", "1 / sqrt(D)", "factor on the dot product <q, k>"}, structs.scale...);
  visit({"softcap", "number", "", "0", "c > 0: a score s becomes c tanh(s / c), before bias and masks"},
        structs.softcap...);
  visit({"causal", "boolean", "", "false", "query i attends to no key after p_i, as with window.right = 0"},
        structs.causal...);
  visit({"window", "(left, right)", "", "(-1, -1)",
         "keys from p_i - left to p_i + right, both included; -1 sets no limit"},
        structs.window...);
  visit({"alignment", "name", "", "none",
         "p_i: top_left is i, bottom_right i + key_length[b] - query_length[b], offset i + offset[b]; must be given "
         "where Lq != Lk and p_i matters"},
        structs.alignment...);
  visit({"key_length", "integer", "[B]", "Lk", "keys of each sequence: only j < key_length[b] is allowed"},
        structs.key_length...);
  visit({"query_length", "integer", "[B]", "Lq",
         "queries of each sequence, for bottom_right only; rows beyond it are computed too"},
        structs.query_length...);
  visit({"offset", "integer", "[B]", "none", "with alignment offset: p_i = i + offset[b]"}, structs.offset...);
  visit({"mask", "boolean", "[B|1, H|1, Lq|1, Lk|1]", "none", "true: the query attends to the key"}, structs.mask...);
  visit({"bias", "floating", "[B|1, H|1, Lq|1, Lk|1]", "none", "added to the score; -infinity masks"}, structs.bias...);
  visit({"alibi_slopes", "float32", "[H]", "none", "the score loses slope |p_i - j|"}, structs.alibi_slopes...);
  visit({"query_segment_ids", "int32 or int64", "[B|1, Lq]", "none",
         "a query attends only to keys with an equal id in key_segment_ids"},
        structs.query_segment_ids...);
  visit({"key_segment_ids", "int32 or int64", "[B|1, Lk]", "none", "see query_segment_ids"},
        structs.key_segment_ids...);
  visit({"cu_seqlens_q", "integer", "[sequences + 1]", "none",
         "packed sequences, B = 1: the start of each in Lq, then Lq"},
        structs.cu_seqlens_q...);
  visit({"cu_seqlens_k", "integer", "[sequences + 1]", "none", "the same in Lk"}, structs.cu_seqlens_k...);
  visit({"blocks", "(allowed, query_block, key_block)", "[B|1, H|1, query blocks, key blocks]", "none",
         "boolean: query i may attend to key j if allowed[b, h, i / query_block, j / key_block]; or, as lists of key "
         "blocks, (offsets [B|1, H|1, query blocks + 1], indices, query_block, key_block)"},
        structs.blocks...);
  visit({"sink", "float32", "[H]", "none", "one more logit per row, in the denominator of the softmax only"},
        structs.sink...);
  visit({"dropout", "number", "", "0", "probability in [0, 1) of dropping an attention weight"}, structs.dropout...);
  visit({"seed", "uint64", "", "0", "of dropout, which depends on (seed, b, h, i, j) only"}, structs.seed...);
  visit({"float32_precision", "name", "", "full", "full, high or fast: precision of float32 products on matrix tiles"},
        structs.float32_precision...);
  visit({"batch_invariant", "boolean", "", "false", "a row has the same bits for any number of rows in the call"},
        structs.batch_invariant...);
  visit({"shard", "(first_batch, first_head, first_query, first_key, queries, keys)", "", "(0, 0, 0, 0, 0, 0)",
         "the call is a part of a whole of so many queries and keys (0: it ends there), in which positions, lengths, "
         "packed sequences, blocks and dropout count"},
        structs.shard...);
}

}  // namespace attn
#pragma GCC visibility pop
