// heads: measures what the attention heads of a model do, from the recorded attention of its layers.
//
// `layers` are the self-attention of B texts of n tokens: q [B, H, n, D], k [B, Hk, n, D], lse [B, H, n]; B = 1 where a
// function takes one text. They are borrowed during the call only.
//
// ```cpp
// #include <cstdio>
// #include "attn/heads.h"
// int main() {
//   attn::Tensor<float, 4> q({1, 2, 50, 16}), out({1, 2, 50, 16});
//   attn::Random random(1);
//   attn::fill_normal(q, random);
//   attn::Tensor<float, 3> lse({1, 2, 50});
//   attn::attention(q, q, q, out, lse, {.causal = true});
//   attn::Tensor<int64_t, 2> ids({1, 50});
//   const attn::RecordedAttention layer{.q = q, .k = q, .lse = lse, .options = {.causal = true}};
//   attn::heads::Measures measures;
//   measures.add({&layer, 1}, {.ids = ids});
//   std::printf("%s %.2f\n", attn::heads::measures()[0].name.c_str(), measures.table()[0].values[0]);
// }
// ```
//
// Everything here depends on the attention matrix P as attention_weights() computes it: exactly 0 where a pair is
// masked, before dropout. P is never stored as a whole: measures take O(n) memory, the other functions a few rows at a
// time. docs/heads.md has the formulas.
//
// Sources: Clark et al. 2019 (arXiv:1906.04341), Voita et al. 2019 (arXiv:1905.09418), Olsson et al. 2022
// (arXiv:2209.11895), Xiao et al. 2023 (arXiv:2309.17453), Gu et al. 2024 (arXiv:2410.10781), Vig & Belinkov 2019
// (arXiv:1906.04284), Abnar & Zuidema 2020 (arXiv:2005.00928).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/record.h"

#pragma GCC visibility push(default)
namespace attn::heads {

/// The kind of a token.
enum class TokenKind : int { padding = -1, word = 0, punctuation = 1, start = 2, separator = 3 };

/// The texts that the layers were computed on. The views are borrowed.
struct Texts {
  ConstView<2> ids = {};    ///< int32/int64 [B, n]: equal tokens have equal ids
  ConstView<2> kinds = {};  ///< int32/int64 [B, n]: TokenKind; without data all are words
};

// ----------------------------------------------------------------------------------------------------------- measures

/// One measure. Its value for a head is the mean over texts of the mean over the tokens that it concerns.
struct Measure {
  std::string name = {};        ///< "previous"
  std::string unit = {};        ///< "share", "nats", "tokens" or "texts"
  std::string definition = {};  ///< in one line
  std::string source = {};      ///< "Clark et al. 2019"
  double threshold = 0;         ///< a head above it has this role; NaN: no source gives one
};
/// All measures, in the order of HeadValues::values.
const std::vector<Measure>& measures();

struct HeadValues {
  int64_t layer = 0, head = 0;
  std::vector<double> values = {};  ///< one per measure; NaN if no text had such tokens
};
/// The names of the measures above their thresholds.
std::vector<std::string> roles(const HeadValues& head);

/// Accumulates the measures of all heads over texts. Every text has the same weight, whatever its length.
class Measures {
 public:
  Measures();
  ~Measures();
  Measures(Measures&&) noexcept;
  Measures& operator=(Measures&&) noexcept;

  /// Adds texts: two passes of attention_statistics() per layer and one over the masks. All calls must have the layers
  /// and heads of the first. Texts without tokens are ignored. Throws Error with all reasons and then adds nothing.
  void add(std::span<const RecordedAttention> layers, const Texts& texts);
  int64_t texts() const;
  /// One entry per head, layer by layer. Throws Error if nothing was added.
  std::vector<HeadValues> table() const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

/// A sequence for the induction and duplicate-token measures: `start` if it is not negative, then `length` different
/// random tokens of [lowest, highest), repeated to `copies` copies. Throws Error if the range has fewer tokens.
std::vector<int64_t> repeated_tokens(int64_t length, int64_t copies, int64_t lowest, int64_t highest, int64_t start,
                                     uint64_t seed);

// ---------------------------------------------------------------------------------------------------------- distances

/// How differently heads attend: for each pair of heads the mean Jensen-Shannon divergence of their rows over all
/// tokens of all texts (Clark et al., without their smoothing). A sink counts as one more key. Takes O(heads n) memory
/// and heads^2 / 2 logarithms per weight.
class Distances {
 public:
  Distances();
  ~Distances();
  Distances(Distances&&) noexcept;
  Distances& operator=(Distances&&) noexcept;

  /// Adds texts, as Measures::add().
  void add(std::span<const RecordedAttention> layers, const Texts& texts);
  /// The matrix [N, N] of all heads, layer by layer, in nats: 0 to ln 2. Throws Error if nothing was added.
  std::vector<double> divergences() const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

/// Classical scaling (Torgerson 1952): points [N, 2] whose distances approximate the square roots of these divergences
/// [N, N], which are a metric. The first axis has the largest variance; the largest coordinate of each axis is
/// positive. Throws Error for a matrix that is not square, symmetric and finite.
std::vector<double> scaled(std::span<const double> divergences);

/// Average-linkage clustering: the cluster of each of N heads, numbered in the order of their first heads. Throws Error
/// unless 1 <= count <= N.
std::vector<int64_t> clusters(std::span<const double> divergences, int64_t count);

// -------------------------------------------------------------------------------------------------- through the layers

/// Attention rollout (Abnar & Zuidema): how much of token `query` in the last layer comes from each token of the text,
/// [n], with sum 1. The graph has a node per token and layer, and an edge of weight (A_ij + [i = j]) / (sum_j A_ij + 1)
/// from token i of a layer to token j of the layer below; A is the mean over the heads. Takes O(n) memory and a pass
/// over the weights of each layer.
std::vector<double> rollout(std::span<const RecordedAttention> layers, int64_t query);

/// Attention flow on the same graph: the maximal flow from each token of the text to token `query` of the last layer,
/// [n], exact, by one run of Dinic's algorithm per token. Edges below `threshold` are omitted; the flow of a token is
/// then too small by at most *missing. At most 512 tokens; O(layers n^2) memory.
std::vector<double> flow(std::span<const RecordedAttention> layers, int64_t query, double threshold = 0,
                         double* missing = nullptr);

// -------------------------------------------------------------------------------------------------------------- syntax

/// A sentence with its dependency arcs.
struct Sentence {
  std::vector<std::string> words = {};
  std::vector<int64_t> governors = {};      ///< the governor of each word, from 0; -1 for the root
  std::vector<std::string> relations = {};  ///< of each word to its governor: "nsubj"
  int64_t line = 0;                         ///< first line in the file, from 1
};

/// Sentences of CoNLL-U (https://universaldependencies.org/format.html), from which it reads FORM, HEAD and DEPREL.
/// It skips comments, multiword tokens (3-4) and empty nodes (5.1). Throws Error with the first 20 wrong lines;
/// `source` is the file name that errors show.
std::vector<Sentence> read_conllu(std::string_view text, const std::string& source);

/// How often the word with the largest weight is that of an annotated arc (Clark et al. 2019, section 4.2).
struct Relation {
  std::string name = {};  ///< "nsubj"; the first is "all"
  int64_t arcs = 0;       ///< of the sentences; roots have none
  int64_t offset = 0;     ///< the most frequent offset from dependent to governor
  double baseline = 0;    ///< the share of arcs with that offset
  /// [heads of all layers]: share of arcs where the dependent attends most to its governor.
  std::vector<double> to_governor = {};
  std::vector<double> to_dependent = {};  ///< share of arcs whose dependent gets most weight from its governor
};

/// Accumulates relations over sentences. The weight from word a to word b is the sum over the tokens of b and the mean
/// over those of a. Weights of a word on itself and tokens outside words do not count. Takes O(heads words^2) memory.
class Syntax {
 public:
  Syntax();
  ~Syntax();
  Syntax(Syntax&&) noexcept;
  Syntax& operator=(Syntax&&) noexcept;

  /// Adds a sentence: layers of one text of n tokens; word_of [n] is the word of each token, or -1. Throws Error with
  /// all reasons and then adds nothing.
  void add(std::span<const RecordedAttention> layers, const Sentence& sentence, std::span<const int64_t> word_of);
  /// By descending number of arcs. Throws Error if no sentence had an arc.
  std::vector<Relation> relations() const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

// --------------------------------------------------------------------------------------------------------- coreference

/// A mention of an entity, by its governor: the word that its other words depend on.
struct Mention {
  int64_t word = 0;         ///< the governor, in the document
  std::string entity = {};  ///< mentions of one entity have the same
  std::string upos = {};    ///< of the governor: "PRON"
};

/// A text with annotated entities.
struct Document {
  std::vector<std::string> words = {};
  std::vector<int64_t> ends = {};  ///< of each sentence: the number of words up to its end
  std::vector<Mention> mentions = {};
  int64_t line = 0;  ///< first line in the file, from 1
};

/// Documents of CoNLL-U with the Entity of CorefUD 1.0 (https://ufal.mff.cuni.cz/corefud) in MISC: "# newdoc" begins a
/// document, "# global.Entity" names the fields. The governor of a mention is the annotated one, or its first word
/// whose HEAD is outside; mentions with an empty node as governor are skipped. Throws Error as read_conllu() does.
std::vector<Document> read_coreference(std::string_view text, const std::string& source);

/// Antecedent selection (Clark et al. 2019, section 4.3): how often a mention's governor attends most to the governor
/// of an antecedent, an earlier mention of the same entity.
struct MentionKind {
  std::string name = {};                   ///< the UPOS of the mentions' governors; the first is "all"
  int64_t mentions = 0;                    ///< with an antecedent
  double nearest = 0;                      ///< share whose nearest earlier mention is an antecedent
  int64_t offset = 0;                      ///< the most frequent offset to an antecedent's governor
  double baseline = 0;                     ///< share with an antecedent at that offset
  std::vector<double> to_antecedent = {};  ///< [heads of all layers]
};

/// Accumulates mentions over documents, or parts of them. Weights between words are those of Syntax.
class Coreference {
 public:
  Coreference();
  ~Coreference();
  Coreference(Coreference&&) noexcept;
  Coreference& operator=(Coreference&&) noexcept;

  /// Adds a document, as Syntax::add().
  void add(std::span<const RecordedAttention> layers, const Document& document, std::span<const int64_t> word_of);
  /// By descending number of mentions. Throws Error if no mention had an antecedent.
  std::vector<MentionKind> kinds() const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

}  // namespace attn::heads
#pragma GCC visibility pop
