// Unigram: Viterbi's algorithm finds the tokens with the largest sum of scores. A character that no token covers is the
// unknown token, with the lowest score of all tokens minus 10; adjacent unknown characters are one token.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "attn/core.h"
#include "text/model.h"
#include "text/trie.h"
#include "text/unicode.h"

namespace attn::text {
namespace {

constexpr double kUnknownPenalty = 10;
constexpr double kLargestSum = 100'000;  // SentencePiece restarts its float32 sums at 0 beyond this

class UnigramModel final : public TokenModel {
 public:
  explicit UnigramModel(const JsonFields& fields)
      : TokenModel(Vocabulary()), source_(fields.source()), is_single_(fields.boolean("float32", false)) {
    const io::Json& list = fields.at("vocab");
    fields.require(list.is_array() && !list.empty(), "vocab", "a list of tokens and scores");
    for (const io::Json& entry : list) {
      const std::string name = "vocab: entry " + std::to_string(scores_.size());
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
        fields.refuse(name + " is " + io::as_shown(entry) + ", must be a token and its score");
      vocabulary_.add(entry[0].get_ref<const std::string&>(), static_cast<int64_t>(scores_.size()), fields);
      scores_.push_back(entry[1].get<double>());
      lowest_ = std::min(lowest_, scores_.back());
    }
    if (fields.has("unk_id"))
      unknown_ = static_cast<uint32_t>(fields.number("unk_id", static_cast<int64_t>(scores_.size()) - 1));
    if (fields.boolean("byte_fallback", false)) {
      char name[8];
      for (unsigned byte = 0; byte < 256; ++byte) {
        std::snprintf(name, sizeof name, "<0x%02X>", byte);
        bytes_.push_back(vocabulary_.find(name));
      }
    }
    std::vector<bool> is_matched(scores_.size(), true);  // SentencePiece has tokens that no text can give
    if (fields.has("unmatched"))
      for (const io::Json& entry : fields.at("unmatched")) {
        const int64_t id = io::whole_number(entry).value_or(vocabulary_.size());
        fields.require(id < vocabulary_.size(), "unmatched", "a list of ids");
        is_matched[static_cast<size_t>(id)] = false;
      }
    std::vector<std::pair<std::string_view, uint32_t>> entries;
    for (int64_t id = 0; id < vocabulary_.size(); ++id)
      if (!vocabulary_.token(id).empty() && is_matched[static_cast<size_t>(id)])
        entries.emplace_back(vocabulary_.token(id), static_cast<uint32_t>(id));
    trie_ = Trie(std::move(entries));
  }

  std::string kind() const override { return "unigram"; }

  void encode(std::string_view piece, WordCache&, std::vector<int64_t>& ids) const override {
    std::vector<ViterbiStep> steps(piece.size() + 1);
    size_t farthest = 0;  // the largest end of a step
    const auto reach = [&](size_t end, double score, size_t begin, uint32_t id) {
      ViterbiStep& step = steps[end];
      if (step.begin == kNowhere || score > step.score) step = {score, begin, id};
      farthest = std::max(farthest, end);
    };
    for (size_t at = 0; at < piece.size();) {
      size_t next = at;
      next_character(piece, next);
      if (is_single_ && std::abs(steps[at].score) > kLargestSum) restart_sums(steps, at, farthest);
      const double score = steps[at].score;
      bool is_covered = false;
      trie_.walk(piece.substr(at), [&](size_t length, uint32_t id) {
        reach(at + length, sum(score, scores_[id]), at, id);
        is_covered |= at + length == next;
      });
      if (!is_covered) {
        if (unknown_ == Vocabulary::kNone) refuse(piece.substr(at, next - at));
        reach(next, sum(score, sum(lowest_, -kUnknownPenalty)), at, unknown_);
      }
      at = next;
    }
    const size_t first = ids.size();
    for (size_t end = piece.size(); end > 0;) {  // back to the beginning
      size_t begin = steps[end].begin;
      if (steps[end].id == unknown_) {
        while (begin > 0 && steps[begin].id == unknown_) begin = steps[begin].begin;
        append_unknown(piece.substr(begin, end - begin), ids);
      } else {
        ids.push_back(steps[end].id);
      }
      end = begin;
    }
    std::reverse(ids.begin() + static_cast<int64_t>(first), ids.end());
  }

 private:
  static constexpr size_t kNowhere = SIZE_MAX;
  struct ViterbiStep {
    double score = 0;
    size_t begin = kNowhere;
    uint32_t id = 0;
  };

  /// SentencePiece sums in float32, which decides between paths of nearly the same sum.
  double sum(double a, double b) const {
    return is_single_ ? static_cast<double>(static_cast<float>(a) + static_cast<float>(b)) : a + b;
  }

  /// Makes the sums of the steps from `begin` to `last` those of a text that begins at `begin`.
  void restart_sums(std::vector<ViterbiStep>& steps, size_t begin, size_t last) const {
    const double offset = steps[begin].score;
    for (size_t at = begin; at <= last; ++at)
      if (steps[at].begin != kNowhere) steps[at].score = sum(steps[at].score, -offset);
  }

  /// The joined unknown characters may be a token, which the search did not choose because of its score.
  void append_unknown(std::string_view text, std::vector<int64_t>& ids) const {
    if (const uint32_t id = vocabulary_.find(text); id != Vocabulary::kNone) return ids.push_back(id);
    const bool has_bytes = !bytes_.empty() && std::none_of(text.begin(), text.end(), [&](char byte) {
      return bytes_[static_cast<uint8_t>(byte)] == Vocabulary::kNone;
    });
    if (!has_bytes) return ids.push_back(unknown_);
    for (size_t n = text.size(); n-- > 0;) ids.push_back(bytes_[static_cast<uint8_t>(text[n])]);
  }

  [[noreturn]] void refuse(std::string_view character) const {
    throw Error("encode", {source_ + ": the vocabulary has no token for " + io::in_quotes(character) +
                           ", and the model has no unk_id"});
  }

  std::string source_;
  bool is_single_;
  std::vector<double> scores_;
  double lowest_ = std::numeric_limits<double>::infinity();
  uint32_t unknown_ = Vocabulary::kNone;
  std::vector<uint32_t> bytes_;
  Trie trie_;
};

}  // namespace

std::unique_ptr<TokenModel> read_unigram(const JsonFields& fields) { return std::make_unique<UnigramModel>(fields); }

}  // namespace attn::text
