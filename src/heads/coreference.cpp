// Coreference: mentions of CoNLL-U's Entity, and how often the word that a head attends to most from a mention's
// governor is that of an antecedent.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "heads/conllu.h"
#include "heads/words.h"

namespace attn::heads {
namespace {

constexpr const char* kCoreference = "head_coreference";
constexpr std::string_view kUsualFields = "eid-etype-head-other";

// ------------------------------------------------------------------------------------------------------------- reading

/// A mention in the making; of one in several parts, "e1[2/3]", it has those before.
struct OpenMention {
  std::string entity = {};
  int64_t part = 1, parts = 1;
  int64_t governor = 0;  // which of its nodes, from 1; 0: the file does not say
  std::vector<const ConlluNode*> nodes = {};
};

/// The brackets of sentences: "(e1-person-2(e2-place-1)", "e1)".
class EntityReader {
 public:
  EntityReader(ConlluReasons& reasons, const std::string& fields)
      : reasons_(reasons), names_(fields_of(fields.empty() ? kUsualFields : fields, '-')) {}

  /// The mentions of a sentence that are written, whose first word is number `first` of the document.
  void read(const ConlluSentence& sentence, int64_t first, std::vector<Mention>& mentions) {
    sentence_ = &sentence.sentence;
    first_ = first;
    mentions_ = &mentions;
    for (const ConlluNode& node : sentence.nodes)
      for (const std::string_view field : fields_of(node.misc, '|'))
        if (field.starts_with("Entity=")) marked_.emplace(&node, field.substr(7));
    for (const ConlluNode& node : sentence.nodes) read_node(node);
    for (const OpenMention& mention : open_)
      reasons_.wrong(sentence_->line, "mention " + ConlluReasons::quoted(mention.entity) + " is not closed");
    for (const auto& [entity, mention] : parted_)
      reasons_.wrong(sentence_->line, "mention " + ConlluReasons::quoted(entity) + " lacks some of its parts");
    open_.clear();
    parted_.clear();
    marked_.clear();
  }

 private:
  /// What opens at a node has it, and so has what closes.
  void read_node(const ConlluNode& node) {
    std::string_view rest = marked_.contains(&node) ? marked_[&node] : std::string_view();
    std::vector<std::string_view> closing;
    while (!rest.empty()) {
      const bool opens = rest[0] == '(';
      if (opens) rest.remove_prefix(1);
      const size_t end = std::min(rest.find_first_of("()"), rest.size());
      const std::string_view name = rest.substr(0, end);
      const bool closes = end < rest.size() && rest[end] == ')';
      rest.remove_prefix(end + closes);
      if (opens) open(name, node.line);
      if (closes) closing.push_back(name.substr(0, name.find('-')));
      if (!opens && !closes)
        return reasons_.wrong(node.line,
                              "Entity has " + ConlluReasons::quoted(name) + " outside the parentheses of a mention");
    }
    for (OpenMention& mention : open_) mention.nodes.push_back(&node);
    for (const std::string_view name : closing) close(name, node.line);
  }

  void open(std::string_view text, int64_t line) {
    const std::vector<std::string_view> fields = fields_of(text, '-');
    const auto place = static_cast<size_t>(std::find(names_.begin(), names_.end(), "head") - names_.begin());
    OpenMention mention = named(fields[0], line);
    if (place < fields.size() && !fields[place].empty()) {
      const std::optional<int64_t> governor = whole_number(fields[place]);
      if (!governor || *governor == 0)
        reasons_.wrong(
            line, "the head of a mention is " + ConlluReasons::quoted(fields[place]) + ", must be a number from 1");
      mention.governor = governor.value_or(0);
    }
    if (mention.part > 1) {
      if (!parted_.contains(mention.entity))
        return reasons_.wrong(line, "a mention must not begin with a later part than its first");
      mention.nodes = std::move(parted_[mention.entity].nodes);
      parted_.erase(mention.entity);
    }
    open_.push_back(std::move(mention));
  }

  /// "e1" or "e1[2/3]".
  OpenMention named(std::string_view name, int64_t line) {
    const size_t bracket = name.find('[');
    OpenMention mention{.entity = std::string(name.substr(0, bracket))};
    if (mention.entity.empty()) reasons_.wrong(line, "an entity has no name");
    if (bracket == std::string_view::npos) return mention;
    const std::string_view parts = name.substr(bracket + 1, name.size() - bracket - 2);
    const size_t slash = std::min(parts.find('/'), parts.size());
    mention.part = whole_number(parts.substr(0, slash)).value_or(0);
    mention.parts = slash < parts.size() ? whole_number(parts.substr(slash + 1)).value_or(0) : 0;
    if (mention.part < 1 || mention.part > mention.parts || name.back() != ']')
      reasons_.wrong(line, "the part of a mention is " + ConlluReasons::quoted(name) + ", must be as in e1[1/2]");
    return mention;
  }

  void close(std::string_view name, int64_t line) {
    const OpenMention wanted = named(name, line);
    const auto found = std::find_if(open_.rbegin(), open_.rend(), [&](const OpenMention& mention) {
      return mention.entity == wanted.entity && mention.part == wanted.part;
    });
    if (found == open_.rend())
      return reasons_.wrong(line, "mention " + ConlluReasons::quoted(name) + " was not opened");
    OpenMention mention = std::move(*found);
    open_.erase(std::next(found).base());
    if (mention.part < mention.parts) parted_[mention.entity] = std::move(mention);
    else finish(mention, line);
  }

  void finish(const OpenMention& mention, int64_t line) {
    if (mention.governor > static_cast<int64_t>(mention.nodes.size()))
      return reasons_.wrong(line, "the head of mention " + ConlluReasons::quoted(mention.entity) + " is " +
                                      std::to_string(mention.governor) + ", must be at most " +
                                      std::to_string(mention.nodes.size()) + ", its number of words");
    const ConlluNode* node =
        mention.governor > 0 ? mention.nodes[static_cast<size_t>(mention.governor - 1)] : top_of(mention);
    if (node && node->word >= 0) mentions_->push_back({first_ + node->word, mention.entity, node->upos});
  }

  /// The first word that depends on a word outside; a mention of empty nodes has none.
  const ConlluNode* top_of(const OpenMention& mention) const {
    std::set<int64_t> own;
    for (const ConlluNode* node : mention.nodes)
      if (node->word >= 0) own.insert(node->word);
    for (const ConlluNode* node : mention.nodes)
      if (node->word >= 0 && !own.contains(sentence_->governors[static_cast<size_t>(node->word)])) return node;
    return nullptr;
  }

  ConlluReasons& reasons_;
  std::vector<std::string_view> names_;  // of an opening bracket's fields
  const Sentence* sentence_ = nullptr;
  int64_t first_ = 0;
  std::vector<Mention>* mentions_ = nullptr;
  std::map<const ConlluNode*, std::string_view> marked_;
  std::vector<OpenMention> open_;
  std::map<std::string, OpenMention> parted_;
};

// ------------------------------------------------------------------------------------------------------------ counting

/// Sums over the mentions of a kind.
struct MentionCounts {
  int64_t mentions = 0, nearest = 0;
  std::map<int64_t, int64_t> offsets = {};  // from a mention's governor to those of its antecedents
  std::vector<int64_t> right = {};          // [heads of all layers]
};

/// A mention that has an antecedent.
struct Anaphor {
  int64_t word = 0;
  std::string upos = {};
  std::set<int64_t> antecedents = {};  // their governors
  bool nearest = false;                // the nearest mention before is one
};

std::vector<Anaphor> anaphors_of(const std::vector<Mention>& mentions) {
  std::map<int64_t, std::map<std::string, std::string>> at;  // word -> the entities whose governor it is -> upos
  for (const Mention& mention : mentions) at[mention.word].emplace(mention.entity, mention.upos);
  std::map<std::string, std::set<int64_t>> before;
  std::vector<Anaphor> anaphors;
  for (auto word = at.begin(); word != at.end(); ++word)
    for (const auto& [entity, upos] : word->second) {
      std::set<int64_t>& words = before[entity];
      if (!words.empty()) anaphors.push_back({word->first, upos, words, std::prev(word)->second.contains(entity)});
      words.insert(word->first);
    }
  return anaphors;
}

}  // namespace

std::vector<Document> read_coreference(std::string_view text, const std::string& source) {
  ConlluReasons reasons(source);
  const ConlluFile file = read_conllu_file(text, reasons);
  EntityReader entities(reasons, file.entity_fields);
  std::vector<Document> documents;
  for (const ConlluSentence& read : file.sentences) {
    if (documents.empty() || read.begins_document) documents.emplace_back().line = read.sentence.line;
    Document& document = documents.back();
    entities.read(read, static_cast<int64_t>(document.words.size()), document.mentions);
    document.words.insert(document.words.end(), read.sentence.words.begin(), read.sentence.words.end());
    document.ends.push_back(static_cast<int64_t>(document.words.size()));
  }
  reasons.done();
  return documents;
}

struct Coreference::State {
  std::vector<int64_t> heads_of_layer = {};
  std::map<std::string, MentionCounts> kinds = {};
};

Coreference::Coreference() : state_(std::make_unique<State>()) {}
Coreference::~Coreference() = default;
Coreference::Coreference(Coreference&&) noexcept = default;
Coreference& Coreference::operator=(Coreference&&) noexcept = default;

void Coreference::add(std::span<const RecordedAttention> layers, const Document& document,
                      std::span<const int64_t> word_of) {
  if (!state_) throw Error(kCoreference, {"these counts have been moved from"});
  Checker checker(kCoreference);
  check_recorded(checker, layers, {.own_text = true});
  checker.done();
  const auto words = static_cast<int64_t>(document.words.size());
  const std::vector<int64_t> tokens = tokens_of_words(checker, words, word_of, layers[0].q.size[2]);
  for (const Mention& mention : document.mentions)
    checker.require(mention.word >= 0 && mention.word < words, [&] {
      return "a mention's governor is word " + std::to_string(mention.word) + ", must be in [0, " +
             std::to_string(words) + ")";
    });
  std::vector<int64_t> counts;
  for (const RecordedAttention& layer : layers) counts.push_back(layer.q.size[1]);
  checker.require(state_->heads_of_layer.empty() || state_->heads_of_layer == counts,
                  "the layers must have as many heads as in the documents before");
  checker.done();

  State next = *state_;
  next.heads_of_layer = counts;
  const auto all = static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const std::vector<Anaphor> anaphors = anaphors_of(document.mentions);
  const auto each_kind = [&](const Anaphor& anaphor, const auto& body) {
    for (const std::string& name : {anaphor.upos, std::string()}) body(next.kinds[name]);  // "" is all of them
  };
  for (const Anaphor& anaphor : anaphors)
    each_kind(anaphor, [&](MentionCounts& kind) {
      kind.right.resize(all);
      ++kind.mentions;
      kind.nearest += anaphor.nearest;
      for (const int64_t word : anaphor.antecedents) ++kind.offsets[word - anaphor.word];
    });
  size_t at = 0;
  for (const RecordedAttention& layer : layers) {
    const std::vector<double> weights = word_weights(layer, words, word_of, tokens);
    for (int64_t h = 0; h < layer.q.size[1]; ++h, ++at)
      for (const Anaphor& anaphor : anaphors) {
        const double* row = weights.data() + (h * words + anaphor.word) * words;
        const int64_t best = largest_of(words, anaphor.word, [&](int64_t other) { return row[other]; });
        if (anaphor.antecedents.contains(best)) each_kind(anaphor, [&](MentionCounts& kind) { ++kind.right[at]; });
      }
  }
  *state_ = std::move(next);
}

std::vector<MentionKind> Coreference::kinds() const {
  if (!state_ || state_->kinds.empty()) throw Error(kCoreference, {"no mention with an antecedent was added"});
  std::vector<MentionKind> result;
  for (const auto& [name, counts] : state_->kinds) {
    const auto best = std::max_element(counts.offsets.begin(), counts.offsets.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto share = [mentions = counts.mentions](int64_t right) {
      return static_cast<double>(right) / static_cast<double>(mentions);
    };
    MentionKind& one = result.emplace_back();
    one.name = name.empty() ? "all" : name;
    one.mentions = counts.mentions;
    one.nearest = share(counts.nearest);
    one.offset = best->first;
    one.baseline = share(best->second);
    std::transform(counts.right.begin(), counts.right.end(), std::back_inserter(one.to_antecedent), share);
  }
  std::stable_sort(result.begin() + 1, result.end(),
                   [](const MentionKind& a, const MentionKind& b) { return a.mentions > b.mentions; });
  return result;
}

}  // namespace attn::heads
