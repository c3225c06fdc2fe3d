// A page that asks for what it shows, and the answers to it.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "attention/elements.h"
#include "attn/attention_statistics.h"
#include "view/page_data.h"
#include "view/page_json.h"
#include "view/text.h"

namespace attn::view {
namespace {

constexpr const char* kAnswer = "ServedPage::answer";
constexpr int64_t kMostNumbers = 1 << 22;

/// The fields of a question: what is missing, unknown, twice, no number or outside is a reason.
class Question {
 public:
  Question(std::string_view path, const ServedPage::Parameters& parameters)
      : path_(path), parameters_(parameters), checker_(kAnswer) {}

  /// The whole number `name`, from low to high.
  int64_t number(const std::string& name, int64_t low, int64_t high) {
    known_.push_back(name);
    const auto wrong = [&](const std::string& reason) {
      checker_.require(false, path_ + ": " + name + " " + reason);
      return low;
    };
    if (parameters_.count(name) != 1) return wrong("must be given once");
    const std::string& text = parameters_.find(name)->second;
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return wrong("must be a whole number");
    if (value < low || value > high)
      return wrong("is " + std::to_string(value) + ", must be from " + std::to_string(low) + " to " +
                   std::to_string(high));
    return value;
  }

  void require(bool condition, const std::string& reason) { checker_.require(condition, path_ + ": " + reason); }

  /// Throws if anything was wrong.
  void done() {
    for (const auto& [name, value] : parameters_)
      require(std::find(known_.begin(), known_.end(), name) != known_.end(), "the request has an unknown parameter");
    checker_.done();
  }

 private:
  std::string path_;
  const ServedPage::Parameters& parameters_;
  Checker checker_;
  std::vector<std::string> known_;
};

std::string bytes_of(const std::vector<float>& numbers) {
  std::string bytes(numbers.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

struct Asked {
  int64_t query, queries, key, keys, rows, columns;
};

std::vector<float> window_of(const RecordedAttention& head, const Asked& window) {
  if (window.rows == window.queries && window.columns == window.keys)
    return exact_window(kAnswer, head, window.query, window.queries, window.key, window.keys);
  const DType dtype = head.lse.dtype;
  const Buffer memory(window.rows * window.columns * size_of(dtype));
  const View<4> cells(memory.data(), dtype, {1, 1, window.rows, window.columns});
  attention_statistics(head.q, head.k, head.lse,
                       {.picture = {.cells = cells,
                                    .maximum = true,
                                    .first_query = window.query,
                                    .queries = window.queries,
                                    .first_key = window.key,
                                    .keys = window.keys}},
                       head.options);
  return checked_weights(kAnswer, memory.data(), dtype, window.rows * window.columns);
}

/// Rows of one head's queries or keys [1, 1, n, D], after the numbers that are there.
void append_rows(std::vector<float>& numbers, const ConstView<4>& x, int64_t first, int64_t count) {
  for (int64_t row = first; row < first + count; ++row)
    for (int64_t d = 0; d < x.size[3]; ++d) {
      const int64_t offset = row * x.stride[2] + d * x.stride[3];
      const char* element = static_cast<const char*>(x.data) + offset * size_of(x.dtype);
      numbers.push_back(static_cast<float>(detail::load_element(x.dtype, element)));
    }
}

std::vector<float> vectors_of(Question& question, const RecordedAttention& head) {
  const int64_t Lq = head.q.size[2], Lk = head.k.size[2];
  const int64_t query = question.number("query", 0, Lq - 1), key = question.number("key", 0, Lk - 1);
  const int64_t keys = question.number("keys", 1, Lk - key);
  question.require((1 + keys) * head.q.size[3] <= kMostNumbers,
                   "the answer would have too many numbers, must have at most 2^22");
  question.done();
  std::vector<float> numbers;
  append_rows(numbers, head.q, query, 1);
  append_rows(numbers, head.k, key, keys);
  return numbers;
}

Asked window_asked(Question& question, const RecordedAttention& head) {
  const int64_t Lq = head.q.size[2], Lk = head.k.size[2];
  Asked window{};
  window.query = question.number("query", 0, Lq - 1);
  window.queries = question.number("queries", 1, Lq - window.query);
  window.key = question.number("key", 0, Lk - 1);
  window.keys = question.number("keys", 1, Lk - window.key);
  window.rows = question.number("rows", 1, window.queries);
  window.columns = question.number("columns", 1, window.keys);
  return window;
}

}  // namespace

ServedPage::ServedPage(PageTexts texts, std::vector<RecordedAttention> layers, Selection selection)
    : texts_(std::move(texts)), layers_(std::move(layers)), selection_(std::move(selection)) {
  check_page("ServedPage", texts_, layers_, selection_);
}

std::string ServedPage::page() const {
  PageFrame frame{.texts = texts_, .kind = "served"};
  frame.thumbnail_rows = std::min<int64_t>(layers_[0].q.size[2], kThumbnail);
  frame.thumbnail_columns = std::min<int64_t>(layers_[0].k.size[2], kThumbnail);
  for (const int64_t l : selected(selection_.layers, static_cast<int64_t>(layers_.size()))) {
    const RecordedAttention& layer = layers_[l];
    const double scale = layer.options.scale.value_or(1 / std::sqrt(static_cast<double>(layer.q.size[3])));
    frame.layers += (frame.layers.empty() ? "\n" : ",\n") + ("{\"index\":" + std::to_string(l)) +
                    ",\"name\":" + json_string(layer.name) + ",\"scale\":" + number_json(scale) + ",\"heads\":[";
    for (const int64_t h : selected(selection_.heads, layer.q.size[1]))
      frame.layers += (frame.layers.back() == '[' ? "{\"name\":\"" : ",{\"name\":\"") + std::to_string(h) + "\"," +
                      scale_json({}) + "}";
    frame.layers += "]}";
  }
  return frame.html();
}

std::string ServedPage::answer(std::string_view path, const Parameters& parameters) const {
  Question question(path, parameters);
  const auto count = static_cast<int64_t>(layers_.size());
  const int64_t l = question.number("layer", 0, count - 1), h = question.number("head", 0, layers_[l].q.size[1] - 1);
  const auto is_selected = [](const std::vector<int64_t>& named, int64_t one) {
    return named.empty() || std::find(named.begin(), named.end(), one) != named.end();
  };
  question.require(is_selected(selection_.layers, l) && is_selected(selection_.heads, h), "the page has no such head");
  const RecordedAttention head = head_of(layers_[l], h);
  const int64_t Lq = head.q.size[2], Lk = head.k.size[2];
  if (path == "/vectors") return bytes_of(vectors_of(question, head));
  if (path == "/measures") {
    question.done();
    const std::vector<double> measures = look_at_head(head, PageTokens(texts_), {}).measures;
    return bytes_of(std::vector<float>(measures.begin(), measures.end()));
  }
  Asked window{0, Lq, 0, Lk, Lq, Lk};
  if (path == "/window") window = window_asked(question, head);
  else if (path == "/row") window = {question.number("query", 0, Lq - 1), 1, 0, Lk, 1, Lk};
  else if (path == "/column") window = {0, Lq, question.number("key", 0, Lk - 1), 1, Lq, 1};
  else throw Error(kAnswer, {"unknown path; known are: /vectors, /measures, /window, /row, /column"});
  question.require(window.rows <= kMostNumbers / window.columns,
                   "the answer would have too many numbers, must have at most 2^22");
  question.done();
  return bytes_of(window_of(head, window));
}

}  // namespace attn::view
