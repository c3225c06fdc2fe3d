#include "view/page_texts.h"

#include "attn/view_page.h"

namespace attn::view {
namespace {

void check(const SavedAttention& attention) {
  Checker checker("SavedAttention");
  check_tokens(checker, attention.layers, attention.tokens, attention.queries, attention.second);
  checker.done();
}

}  // namespace

void check_tokens(Checker& checker, const std::vector<RecordedAttention>& layers,
                  const std::vector<std::string>& tokens, const std::vector<std::string>& queries, int64_t second) {
  check_recorded(checker, layers);
  if (!checker.ok()) return;
  const int64_t Lq = layers[0].q.size[2], Lk = layers[0].k.size[2];
  const auto require_one_each = [&](const std::vector<std::string>& given, const char* what, int64_t count) {
    checker.require(given.empty() || static_cast<int64_t>(given.size()) == count, [&] {
      return "there are " + std::to_string(given.size()) + " tokens and " + std::to_string(count) + " " + what;
    });
  };
  require_one_each(tokens, "keys", Lk);
  require_one_each(queries, "queries", Lq);
  checker.require(second == -1 || (second > 0 && second < Lk), [&] {
    return "second is " + std::to_string(second) + ", must be -1, or from 1 to " + std::to_string(Lk - 1);
  });
}

bool SavedAttention::is_own_text() const {
  check(*this);
  return queries.empty() && layers[0].q.size[2] == layers[0].k.size[2];
}

std::vector<std::string> SavedAttention::key_labels() const {
  check(*this);
  if (!tokens.empty()) return tokens;
  std::vector<std::string> labels;
  for (int64_t n = 0; n < layers[0].k.size[2]; ++n) labels.push_back(std::to_string(n));
  return labels;
}

std::vector<std::string> SavedAttention::query_labels() const {
  const std::vector<std::string> keys = key_labels();
  if (!queries.empty()) return queries;
  const int64_t Lq = layers[0].q.size[2], later = layers[0].k.size[2] - Lq;
  const std::span<const int64_t> offset = layers[0].options.offset;
  const int64_t first = offset.empty() ? later : offset[0];
  const bool within = first >= 0 && first <= later;
  std::vector<std::string> labels;
  for (int64_t n = 0; n < Lq; ++n) labels.push_back(within ? keys[static_cast<size_t>(first + n)] : std::to_string(n));
  return labels;
}

PageTexts page_texts(const std::string& title, const SavedAttention& attention) {
  PageTexts texts{.title = title, .queries = attention.query_labels()};
  if (attention.is_own_text()) texts.second = attention.second;
  else texts.keys = attention.key_labels();
  return texts;
}

}  // namespace attn::view
