// heads: what the heads of a model do, in named numbers, from queries, keys and lse of its layers.
//
// Everything here is a function of the attention matrix P as attention_weights() gives it: exactly 0 where a pair is
// masked, before dropout. P is never stored whole: the measures take O(n) memory, the rest a few rows of it at a time,
// and the cost is said beside each. docs/heads.md has the formulas.
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

#include "attn/attention.h"

#pragma GCC visibility push(default)
namespace attn::heads {

/// The attention of one layer on B texts of n tokens that look at themselves.
struct Layer {
  ConstView<4> q = {};            ///< [B, H, n, D], after rotary positions
  ConstView<4> k = {};            ///< [B, Hk, n, D]
  ConstView<3> lse = {};          ///< [B, H, n]
  AttentionOptions options = {};  ///< of the forward, as attention_weights() takes them
};

/// What a token is.
enum class Kind : int { padding = -1, word = 0, punctuation = 1, start = 2, separator = 3 };

/// The texts that layers were computed on.
struct Texts {
  ConstView<2> ids = {};    ///< int32/int64 [B, n]: equal tokens have equal numbers
  ConstView<2> kinds = {};  ///< int32/int64 [B, n]: the Kind of each; without data all are words
};

// ----------------------------------------------------------------------------------------------------------- measures

/// One measure. Its value for a head is the mean over texts of the mean over the tokens that it is about.
struct Measure {
  std::string name;        ///< "previous"
  std::string unit;        ///< "share", "nats", "tokens" or "texts"
  std::string definition;  ///< in a line
  std::string source;      ///< "Clark et al. 2019"
  double threshold;        ///< above it the head is called by the name; NaN: nobody has named one
};
/// All of them, in the order of HeadValues::values.
const std::vector<Measure>& measures();

struct HeadValues {
  int64_t layer = 0, head = 0;
  std::vector<double> values = {};  ///< one a measure; NaN where no text has had such tokens
};
/// The names of the measures that are above their thresholds.
std::vector<std::string> roles(const HeadValues& head);

/// The measures of all heads, over one text after another: each text weighs the same, however long it is.
class Measures {
 public:
  Measures();
  ~Measures();
  Measures(Measures&&) noexcept;
  Measures& operator=(Measures&&) noexcept;

  /// Two passes of attention_statistics() a layer, and one over what the masks allow. Layers and heads are those of the
  /// first call. Texts without a token count nothing. Throws Error with all reasons, and has then added nothing.
  void add(std::span<const Layer> layers, const Texts& texts);
  int64_t texts() const;
  /// Layer by layer. Throws Error where nothing was added.
  std::vector<HeadValues> table() const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

/// A sequence for the scores of induction and of duplicates: `start` if it is not negative, then `length` different
/// tokens drawn from [lowest, highest), then the same again, `copies` times in all. Throws Error where there are fewer
/// than `length` tokens.
std::vector<int64_t> repeated_tokens(int64_t length, int64_t copies, int64_t lowest, int64_t highest, int64_t start,
                                     uint64_t seed);

// ---------------------------------------------------------------------------------------------------------- distances

/// How differently heads attend: of each two the mean, over the tokens of texts, of the Jensen-Shannon divergence of
/// their rows, as Clark et al. have it but for their smoothing; here a text weighs as much as its tokens are. What a
/// sink takes counts as one more key. All heads of a band of rows are in memory at once, O(heads n); the time is that
/// of heads^2 / 2 logarithms a weight.
class Distances {
 public:
  Distances();
  ~Distances();
  Distances(Distances&&) noexcept;
  Distances& operator=(Distances&&) noexcept;

  /// As Measures::add().
  void add(std::span<const Layer> layers, const Texts& texts);
  /// [N, N], layer by layer, in nats: 0 to ln 2. Throws Error where nothing was added.
  std::vector<double> divergences() const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

/// Points [N, 2] whose distances are nearest to the roots of these divergences [N, N], which are a metric: classical
/// scaling (Torgerson 1952). The first axis is the one of largest variance; of each the sign is that of its largest
/// coordinate. Throws Error for what is no such matrix.
std::vector<double> scaled(std::span<const double> divergences);

/// The cluster of each of N heads, of `count`, numbered in the order in which they appear: the two whose heads are
/// nearest on the mean are joined until so many are left. Throws Error unless 1 <= count <= N.
std::vector<int64_t> clusters(std::span<const double> divergences, int64_t count);

// -------------------------------------------------------------------------------------------------- through the layers

/// Abnar & Zuidema's graph of a text: a node a token and layer, and from token i of layer l to token j below it an edge
/// of (A_ij + [i = j]) / (sum_j A_ij + 1), with A the mean of the layer's heads: half of it is the residual stream.
///
/// Attention rollout: how much of token `query` of the last layer comes from each token of the text, [n]; 1 in all.
/// O(n) memory and a pass over the weights of each layer.
std::vector<double> rollout(std::span<const Layer> layers, int64_t query);

/// Attention flow: the most that can flow from each token of the text to token `query` of the last layer [n], exactly,
/// by Dinic's algorithm, a run a token. Edges below `threshold` are left out: with 0 none, and otherwise the flow of a
/// token is too small by at most `missing`, if it is not null. At most 512 tokens; O(layers n^2) memory.
std::vector<double> flow(std::span<const Layer> layers, int64_t query, double threshold = 0, double* missing = nullptr);

// -------------------------------------------------------------------------------------------------------------- syntax

/// A sentence with its dependency arcs.
struct Sentence {
  std::vector<std::string> words = {};
  std::vector<int64_t> heads = {};          ///< of each word the word that it depends on, from 0; -1: none, the root
  std::vector<std::string> relations = {};  ///< of each word to that one: "nsubj"
  int64_t line = 0;                         ///< where it begins in its file, from 1
};

/// Sentences of CoNLL-U (https://universaldependencies.org/format.html), of which FORM, HEAD and DEPREL are read.
/// Comments, ranges of multiword tokens (3-4) and empty nodes (5.1) are passed over. Throws Error with the lines that
/// are wrong, the first 20 of them; `source` is the name that it uses.
std::vector<Sentence> read_conllu(std::string_view text, const std::string& source);

/// How often a word that a head looks at most is the one of an annotated arc (Clark et al. 2019, section 4.2).
struct Relation {
  std::string name;                       ///< "nsubj"; the first is "all"
  int64_t arcs = 0;                       ///< of the sentences; the root has none
  int64_t offset = 0;                     ///< the commonest place of the head, from the dependent
  double baseline = 0;                    ///< the share of arcs with that offset
  std::vector<double> to_head = {};       ///< [heads of all layers]: the dependent's row has its largest weight there
  std::vector<double> to_dependent = {};  ///< the head's row has the largest weight on the dependent of all rows
};

/// Counts over one sentence after another. The weight of word b for word a is the sum over the tokens of b, the mean
/// over those of a; a word's weight on itself, and tokens of no word, do not count. O(heads words^2) memory.
class Syntax {
 public:
  Syntax();
  ~Syntax();
  Syntax(Syntax&&) noexcept;
  Syntax& operator=(Syntax&&) noexcept;

  /// Layers of one text of n tokens; word_of [n]: the word of each, or -1. Throws Error with all reasons, and has then
  /// added nothing.
  void add(std::span<const Layer> layers, const Sentence& sentence, std::span<const int64_t> word_of);
  /// By falling number of arcs. Throws Error where no sentence had an arc.
  std::vector<Relation> relations() const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

// --------------------------------------------------------------------------------------------------------- coreference

/// Words that name an entity, by the head of them.
struct Mention {
  int64_t word = 0;         ///< the head word, in the document
  std::string entity = {};  ///< mentions of one entity have the same
  std::string upos = {};    ///< of the head word: "PRON"
};

/// A text whose entities are annotated.
struct Document {
  std::vector<std::string> words = {};
  std::vector<int64_t> ends = {};  ///< of each sentence: the number of words up to its end
  std::vector<Mention> mentions = {};
  int64_t line = 0;  ///< where it begins in its file, from 1
};

/// Documents of CoNLL-U with the Entity of CorefUD 1.0 (https://ufal.mff.cuni.cz/corefud) in MISC: "# newdoc" begins a
/// document, "# global.Entity" names the fields. A mention's head is the one that the file says, or else its first word
/// whose HEAD is outside; what has an empty node for a head is passed over. Throws Error as read_conllu() does.
std::vector<Document> read_coreference(std::string_view text, const std::string& source);

/// How often the word that a head looks at most from a mention's head word is the head word of an antecedent: of a
/// mention of the same entity before it (antecedent selection, Clark et al. 2019, section 4.3).
struct MentionKind {
  std::string name;      ///< the UPOS of the mentions' head words; the first is "all"
  int64_t mentions = 0;  ///< those that have an antecedent
  double nearest = 0;    ///< the share whose nearest mention before is an antecedent
  int64_t offset = 0;    ///< the place, from a mention's head word, that most often has an antecedent's
  double baseline = 0;   ///< the share that has one there
  std::vector<double> to_antecedent = {};  ///< [heads of all layers]
};

/// Counts over one document, or part of one, after another; weights between words as Syntax has them.
class Coreference {
 public:
  Coreference();
  ~Coreference();
  Coreference(Coreference&&) noexcept;
  Coreference& operator=(Coreference&&) noexcept;

  /// As Syntax::add().
  void add(std::span<const Layer> layers, const Document& document, std::span<const int64_t> word_of);
  /// By falling number of mentions. Throws Error where no mention had an antecedent.
  std::vector<MentionKind> kinds() const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

}  // namespace attn::heads
#pragma GCC visibility pop
