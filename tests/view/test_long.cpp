// Pages of long texts, which hold pictures, numbers of rows and their largest weights; and pages that ask for windows.
#include <gtest/gtest.h>
#include <zlib.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "attn/view_page.h"
#include "support/pages.h"
#include "support/pictures.h"
#include "support/tolerance.h"
#include "view/deflate.h"
#include "view/page_json.h"

namespace attn::test {
namespace {

using nlohmann::json;
using Strings = std::vector<std::string>;

std::vector<uint8_t> inflated(const std::string& base64) {
  const std::vector<uint8_t> packed = bytes_of(base64);
  std::vector<uint8_t> bytes(1 << 24);
  uLongf size = static_cast<uLong>(bytes.size());
  EXPECT_EQ(uncompress(bytes.data(), &size, packed.data(), static_cast<uLong>(packed.size())), Z_OK);
  bytes.resize(size);
  return bytes;
}

/// Numbers of `width` bytes, all lowest bytes first.
std::vector<uint32_t> from_planes(const std::vector<uint8_t>& bytes, size_t first, size_t count, size_t width) {
  std::vector<uint32_t> numbers(count);
  for (size_t byte = 0; byte < width; ++byte)
    for (size_t n = 0; n < count; ++n) numbers[n] |= uint32_t{bytes[first + byte * count + n]} << 8 * byte;
  return numbers;
}

double decoded(uint32_t code, int bits, int range) {
  const double last = std::exp2(bits) - 1;
  return code ? std::exp2(range * (code - last) / (last - 1)) : 0;
}

/// Bytes of a page without layers: what it has to have.
int64_t frame_bytes(const Strings& queries) {
  const view::PageTexts texts{.title = "t", .queries = queries};
  return static_cast<int64_t>(view::PageFrame{.texts = texts, .kind = "pooled"}.html().size());
}

/// The data of a pooled page, whatever the length of the text.
json pooled(const std::vector<RecordedAttention>& layers, int64_t most_bytes, const Strings& queries,
            const Strings& keys = {}, const Selection& selection = {},
            const std::vector<view::PageWindow>& windows = {}) {
  const view::PageTexts texts{.title = "t", .queries = queries, .keys = keys};
  view::PageFrame frame{.texts = texts, .kind = "pooled"};
  fill_pooled(frame, layers, {.selection = selection, .most_bytes = most_bytes, .windows = windows},
              view::zlib_deflate);
  EXPECT_LE(frame.html().size(), static_cast<size_t>(most_bytes));
  return json::parse(Page(frame.html()).data);
}

/// The largest weight of each band of rows and columns [rows, columns] of a part of P.
Values banded(const std::function<double(int64_t, int64_t)>& weight, int64_t queries, int64_t keys, int64_t rows,
              int64_t columns) {
  Values cells(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = 0; j < keys; ++j) {
      double& cell = cells[i * rows / queries * columns + j * columns / keys];
      cell = std::max(cell, weight(i, j));
    }
  return cells;
}

double largest_lse(const Text& text) {
  double largest = 0;
  for (int64_t n = 0; n < text.lse.count(); ++n) largest = std::max(largest, std::abs(text.lse.get(n)));
  return largest;
}

/// One of two heads, causal, of 300 tokens, as fine as three numbers of bytes allow.
TEST(PooledPage, HoldsWhatItSays) {
  constexpr int64_t kTokens = 300;
  for (int64_t more : {45'000, 90'000, 440'000}) {
    const int64_t most = frame_bytes(Strings(kTokens, "t")) + more;
    Text text("layer", kTokens, 2, 1, DType::float32, 3, {.causal = true});
    const RecordedAttention layer = text.attend().layer();
    const json data = pooled({layer}, most, Strings(kTokens, "t"), {}, {.heads = {1}});
    const int64_t rows = data["pooled"]["rows"], columns = data["pooled"]["columns"];
    const auto top = static_cast<int64_t>(data["layers"][0]["heads"][0]["ranks"].size());
    EXPECT_EQ(rows, more == 440'000 ? kTokens : more == 90'000 ? 128 : 64);
    EXPECT_TRUE(more == 440'000 ? top == 16 : top > 0) << top;
    const json& head = data["layers"][0]["heads"][0];
    EXPECT_EQ(head["name"], "1");
    const Array<4> all = text.weights();
    const auto weight = [&](int64_t i, int64_t j) { return std::min(all.get({0, 1, i, j}), 1.0); };
    const double statistic = statistic_bound(largest_lse(text), kTokens, DType::float32);

    const std::vector<uint8_t> cells = inflated(head["picture"]);
    ASSERT_EQ(static_cast<int64_t>(cells.size()), rows * columns);
    const Values expected = banded(weight, kTokens, kTokens, rows, columns);
    const double bound = log_code_bound(8, 24, statistic);
    EXPECT_LT(log_code_bound(8, 24, 0), 0.034) << "what view_page.h says";
    for (size_t n = 0; n < cells.size(); ++n) {
      const double shown = decoded(cells[n], 8, 24);
      ASSERT_TRUE(std::abs(shown - expected[n]) <= bound * expected[n] || (shown == 0 && expected[n] < 0x1p-24))
          << n << ": " << shown << ", not " << expected[n];
    }
    if (!top) continue;
    std::vector<std::vector<uint32_t>> keys, codes;
    for (const json& rank : head["ranks"]) {
      const std::vector<uint8_t> bytes = inflated(rank);
      keys.push_back(from_planes(bytes, 0, kTokens, 3));
      codes.push_back(from_planes(bytes, 3 * kTokens, kTokens, 2));
    }
    const std::vector<uint8_t> entropy_bytes = inflated(head["entropy"]), received_bytes = inflated(head["received"]);
    const std::vector<uint32_t> entropies = from_planes(entropy_bytes, 0, kTokens, 4);
    const std::vector<uint32_t> received = from_planes(received_bytes, 0, kTokens, 4);
    EXPECT_LT(log_code_bound(16, 32, 0), 0.00017) << "what view_page.h says";
    for (int64_t i = 0; i < kTokens; ++i) {
      Values row;
      double entropy = 0, column = 0;
      for (int64_t j = 0; j < kTokens; ++j) {
        row.push_back(weight(i, j));
        entropy -= row.back() > 0 ? row.back() * std::log(row.back()) : 0;
        column += weight(j, i);
      }
      EXPECT_NEAR(std::bit_cast<float>(entropies[i]), entropy, statistic * (1 + entropy) + kLostWeights) << i;
      EXPECT_NEAR(std::bit_cast<float>(received[i]), column, statistic * column + kLostWeights) << i;
      std::sort(row.rbegin(), row.rend());
      for (int64_t n = 0; n < top; ++n) {
        const uint32_t key = keys[n][i];
        const double shown = decoded(codes[n][i], 16, 32);
        if (row[n] == 0 || n > i) {
          EXPECT_EQ(shown, 0);
          continue;
        }
        if (row[n] < 0x1p-31) continue;
        ASSERT_LT(key, kTokens);
        EXPECT_NEAR(shown, row[n], log_code_bound(16, 32, statistic) * row[n]) << i << " " << n;
        EXPECT_NEAR(shown, weight(i, key), log_code_bound(16, 32, statistic) * shown) << i << " " << n;
      }
    }
  }
}

/// What the codes of single weights [rows, keys from `key(row)` on] say is what the weights are.
void expect_weights(const json& packed, int64_t rows, int64_t keys, double statistic,
                    const std::function<double(int64_t, int64_t)>& weight) {
  const auto count = static_cast<size_t>(rows * keys);
  const std::vector<uint8_t> bytes = inflated(packed);
  ASSERT_EQ(bytes.size(), 2 * count);
  const std::vector<uint32_t> codes = from_planes(bytes, 0, count, 2);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < keys; ++c) {
      const double shown = decoded(codes[r * keys + c], 16, 32), wanted = weight(r, c);
      ASSERT_TRUE(std::abs(shown - wanted) <= log_code_bound(16, 32, statistic) * wanted ||
                  (shown == 0 && wanted < 0x1p-31))
          << r << " " << c << ": " << shown << ", not " << wanted;
    }
}

/// Windows that are asked for, weights around each token, and the picture of mean weights, causal or not.
TEST(PooledPage, HasWindowsBandAndMeans) {
  constexpr int64_t kTokens = 290, kMore = 260'000;
  const int64_t kBytes = frame_bytes(Strings(kTokens, "t")) + kMore;
  for (const bool causal : {false, true}) {
    Text text("layer", kTokens, 2, 1, DType::float32, 3, {.causal = causal});
    const RecordedAttention layer = text.attend().layer();
    const json data = pooled({layer}, kBytes, Strings(kTokens, "t"), {}, {.heads = {1}},
                             {{100, 30, 7, 50}, {289, 1}, {0, -1, 33, 1}});
    EXPECT_EQ(data["pooled"]["windows"], (json{{100, 7, 30, 50}, {289, 0, 1, 290}, {0, 33, 290, 1}}));
    const Array<4> all = text.weights();
    const auto weight = [&](int64_t i, int64_t j) {
      return j < 0 || j >= kTokens ? 0 : std::min(all.get({0, 1, i, j}), 1.0);
    };
    const json& head = data["layers"][0]["heads"][0];
    const double statistic = statistic_bound(largest_lse(text), kTokens, DType::float32);
    expect_weights(head["windows"][0], 30, 50, statistic, [&](auto r, auto c) { return weight(100 + r, 7 + c); });
    expect_weights(head["windows"][1], 1, 290, statistic, [&](auto, auto c) { return weight(289, c); });
    expect_weights(head["windows"][2], 290, 1, statistic, [&](auto r, auto) { return weight(r, 33); });

    EXPECT_EQ(data["layers"][0]["reach"], causal ? json({nullptr, 0}) : json({nullptr, nullptr}));
    ASSERT_EQ(head["nearest"].size(), 64u);
    for (int64_t n = 0; n < 64; ++n) {
      const int64_t distance = causal ? -n : n % 2 ? -(n + 1) / 2 : n / 2;
      EXPECT_EQ(head["distances"][n], distance);
      expect_weights(head["nearest"][n], kTokens, 1, statistic, [&](auto i, auto) { return weight(i, i + distance); });
    }

    const int64_t rows = data["pooled"]["mean_rows"], columns = data["pooled"]["mean_columns"];
    const std::vector<uint8_t> means = inflated(head["mean"]["picture"]);
    ASSERT_EQ(static_cast<int64_t>(means.size()), rows * columns);
    EXPECT_EQ(rows, (int64_t{data["pooled"]["rows"]} + 1) / 2);
    Values sums(means.size()), counts(means.size());
    for (int64_t i = 0; i < kTokens; ++i)
      for (int64_t j = 0; j < kTokens; ++j) {
        const int64_t cell = i * rows / kTokens * columns + j * columns / kTokens;
        sums[cell] += weight(i, j);
        counts[cell] += 1;
      }
    EXPECT_LT(log_code_bound(8, 32, 0), 0.045) << "what view_page.h says";
    for (size_t n = 0; n < means.size(); ++n) {
      const double wanted = sums[n] / counts[n], shown = decoded(means[n], 8, 32);
      ASSERT_TRUE(std::abs(shown - wanted) <= log_code_bound(8, 32, statistic) * wanted ||
                  (shown == 0 && wanted < 0x1p-31))
          << n << ": " << shown << ", not " << wanted;
    }
  }
}

TEST(PooledPage, WindowsThatDoNotFit) {
  Text text("layer", 100, 1, 1, DType::float32, 3);
  const RecordedAttention layer = text.attend().layer();
  const auto refused = [&](const view::PageWindow& window, int64_t most = 1'000'000) {
    return reasons_of([&] { pooled({layer}, most, Strings(100, "t"), {}, {}, {window}); });
  };
  for (const view::PageWindow& window :
       {view::PageWindow{100, 1}, {0, 101}, {0, 0}, {-1, 2}, {0, 1, 99, 2}, {0, 1, 0, -2}, {5, INT64_MAX}})
    EXPECT_EQ(refused(window), Strings{"windows[0] must be within 100 queries and 100 keys, and not empty"});
  const Strings reasons = refused({}, frame_bytes(Strings(100, "t")) + 35'000);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].rfind("1 heads of 100 x 100 weights, with these windows, need a page of 0.", 0), 0u)
      << reasons[0];
}

/// More bytes are used, and never more than there are; too few are an Error that says how many are needed.
TEST(PooledPage, KeepsToItsBytes) {
  constexpr int64_t kTokens = 500;
  Text text("layer", kTokens, 4, 2, DType::float32, 4);
  const RecordedAttention layer = text.attend().layer();
  int64_t before = 0;
  const int64_t frame = frame_bytes(Strings(kTokens, "a token"));
  for (int64_t more = 110'000; more < 900'000; more += 90'000) {
    const json data = pooled({layer}, frame + more, Strings(kTokens, "a token"));
    const int64_t detail = static_cast<int64_t>(data["pooled"]["rows"]) * 100 +
                           static_cast<int64_t>(data["layers"][0]["heads"][0]["ranks"].size());
    EXPECT_GE(detail, before);
    before = detail;
  }
  EXPECT_GT(before, 0);
  const Strings reasons = reasons_of([&] { pooled({layer}, frame, Strings(kTokens, "a token")); });
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].rfind("4 heads of 500 x 500 weights need a page of 0.", 0), 0u) << reasons[0];
}

/// Heads take parts in turn, each as many as its neighbours but one, until the page is full: what is left has no room
/// for another.
TEST(PooledPage, UsesItsBytes) {
  constexpr int64_t kTokens = 3000, kBytes = 3'000'000;
  Text text("layer", kTokens, 40, 1, DType::float32, 4, {.causal = true});
  const RecordedAttention layer = text.attend().layer();
  const view::PageTexts texts{.title = "t", .queries = Strings(kTokens, "t")};
  view::PageFrame frame{.texts = texts, .kind = "pooled"};
  fill_pooled(frame, {layer}, {.most_bytes = kBytes}, view::zlib_deflate);
  const std::string page = frame.html();
  EXPECT_LE(page.size(), static_cast<size_t>(kBytes));
  size_t least = SIZE_MAX, most = 0, part = 0;
  const json data = json::parse(Page(page).data);
  for (const json& head : data["layers"][0]["heads"]) {
    EXPECT_TRUE(head.contains("entropy"));
    const size_t count = head["ranks"].size() + head["nearest"].size();
    least = std::min(least, count);
    most = std::max(most, count);
    for (const char* kind : {"ranks", "nearest"})
      for (const json& one : head[kind]) part = std::max(part, one.get_ref<const std::string&>().size());
  }
  EXPECT_GE(least, 2u);
  EXPECT_LE(most - least, 2u) << "one of each kind";
  EXPECT_GT(page.size() + 40 * 300 + 1000 + 2 * part, static_cast<size_t>(kBytes));
}

/// Beyond 2^26 weights a head a page is pooled.
TEST(PooledPage, ALimitTooSmallForThePageIsRefused) {
  constexpr int64_t kTokens = 8193;
  const float zero = 0;
  const ConstView<4> rows(&zero, DType::float32, {1, 1, kTokens, 1}, {0, 0, 0, 0});
  const RecordedAttention layer = {"l", rows, rows, ConstView<3>(&zero, DType::float32, {1, 1, kTokens}, {0, 0, 0})};
  const Strings reasons = reasons_of(
      [&] { view::html_page({.title = "t", .queries = Strings(kTokens, "t")}, {layer}, {.most_bytes = 1000}); });
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].rfind("1 heads of 8193 x 8193 weights need a page of 0.", 0), 0u) << reasons[0];
}

TEST(PooledPage, AnLseOfOtherKeysIsRefused) {
  constexpr int64_t kTokens = 100;
  Text text("layer", kTokens, 3, 1, DType::float32, 5);
  text.attend().lse.set({0, 2, 7}, text.lse.get({0, 2, 7}) + 0.1);
  const Strings reasons = reasons_of([&] { pooled({text.layer()}, 1'000'000, Strings(kTokens, "t")); });
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].rfind("layers[0], head 2: lse does not belong to q, k", 0), 0u) << reasons[0];
}

// ---------------------------------------------------------------------------------------------------- a page that asks

constexpr int64_t kServed = 70;

std::vector<float> asked(const view::ServedPage& page, const std::string& path,
                         const std::map<std::string, int64_t>& fields) {
  view::ServedPage::Parameters parameters;
  for (const auto& [name, value] : fields) parameters.emplace(name, std::to_string(value));
  const std::string bytes = page.answer(path, parameters);
  return numbers_of<float>(std::vector<uint8_t>(bytes.begin(), bytes.end()));
}

view::ServedPage served(const Text& text) {
  return view::ServedPage({.title = "t", .queries = Strings(kServed, "t")}, {text.layer()});
}

TEST(ServedPage, AnswersAnyPart) {
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    Text text("layer", kServed, 4, 2, dtype, 6, {.causal = true});
    const view::ServedPage page = served(text.attend());
    const Array<4> all = text.weights();
    constexpr int64_t kHead = 3;
    const auto weight = [&](int64_t i, int64_t j) { return std::min(all.get({0, kHead, i, j}), 1.0); };
    const double bound = statistic_bound(largest_lse(text), kServed, dtype == DType::float64 ? dtype : DType::float32);
    const std::map<std::string, int64_t> head = {{"layer", 0}, {"head", kHead}};
    const auto with = [&](std::map<std::string, int64_t> more) {
      more.insert(head.begin(), head.end());
      return more;
    };
    for (int64_t rows : {20, 7}) {
      const int64_t columns = rows == 20 ? 30 : 11;
      const auto part = [&](int64_t i, int64_t j) { return weight(i + 40, j + 13); };
      const Values expected = banded(part, 20, 30, rows, columns);
      const std::vector<float> cells = asked(
          page, "/window",
          with({{"query", 40}, {"queries", 20}, {"key", 13}, {"keys", 30}, {"rows", rows}, {"columns", columns}}));
      ASSERT_EQ(cells.size(), expected.size());
      for (size_t n = 0; n < cells.size(); ++n)
        EXPECT_NEAR(cells[n], expected[n], (bound + kUnit32) * expected[n] + kPageLeastWeight) << rows << " " << n;
    }
    const std::vector<float> row = asked(page, "/row", with({{"query", 50}}));
    const std::vector<float> column = asked(page, "/column", with({{"key", 5}}));
    ASSERT_TRUE(row.size() == kServed && column.size() == kServed);
    for (int64_t n = 0; n < kServed; ++n) {
      EXPECT_EQ(row[n], static_cast<float>(weight(50, n)));
      EXPECT_EQ(column[n], static_cast<float>(weight(n, 5)));
    }
    const std::vector<float> vectors = asked(page, "/vectors", with({{"query", 9}, {"key", 3}, {"keys", 2}}));
    ASSERT_EQ(vectors.size(), 24u);
    for (int64_t d = 0; d < 8; ++d) {
      EXPECT_EQ(vectors[d], static_cast<float>(text.q.get({0, kHead, 9, d})));
      EXPECT_EQ(vectors[16 + d], static_cast<float>(text.k.get({0, 1, 4, d})));
    }
    const std::vector<float> measures = asked(page, "/measures", head);
    const std::vector<view::Measure> names = view::page_measures(true);
    ASSERT_EQ(measures.size(), names.size());
    const auto place =
        std::find_if(names.begin(), names.end(), [](const view::Measure& one) { return one.name == "first"; });
    double first = 0;
    for (int64_t i = 0; i < kServed; ++i) first += weight(i, 0) / kServed;
    EXPECT_NEAR(measures[place - names.begin()], first, bound * first + kLostWeights);
  }
}

/// What the tokens are is part of the table: separators of a text that says where they are.
TEST(ServedPage, KnowsTheKindsOfTokens) {
  Text text("layer", 5, 1, 1, DType::float32, 6);
  const RecordedAttention layer = text.attend().layer();
  const std::vector<view::Measure> names = view::page_measures(true);
  const auto measure = [&](const view::PageTexts& texts, std::string_view name) {
    const std::vector<float> values = asked(view::ServedPage(texts, {layer}), "/measures", {{"layer", 0}, {"head", 0}});
    const auto place = std::find_if(names.begin(), names.end(), [&](const auto& one) { return one.name == name; });
    return values[place - names.begin()];
  };
  using enum heads::TokenKind;
  const view::PageTexts plain{.title = "t", .queries = {"a", "b", "a", "c", "d"}},
      marked{.title = "t", .queries = plain.queries, .kinds = {start, word, word, word, separator}};
  EXPECT_TRUE(std::isnan(measure(plain, "separator")));
  const Array<4> all = text.weights();
  double mean = 0;
  for (int64_t i = 0; i < 5; ++i) mean += all.get({0, 0, i, 4}) / 5;
  const double bound = statistic_bound(largest_lse(text), 5, DType::float32);
  EXPECT_NEAR(measure(marked, "separator"), mean, bound * mean + kLostWeights);
  EXPECT_NEAR(measure(marked, "duplicate"), all.get({0, 0, 2, 0}), bound + kLostWeights) << "equal texts are equal";
  const view::PageTexts few{.title = "t", .queries = plain.queries, .kinds = {word}};
  EXPECT_EQ(reasons_of([&] { view::ServedPage(few, {layer}); }),
            Strings{"1 kinds, must be one a token of a text that attends to itself"});
}

/// Every question is checked: what is missing, unknown, twice, no number, outside or too much.
TEST(ServedPage, RefusesOtherQuestions) {
  Text text("layer", kServed, 2, 2, DType::float32, 6);
  const view::ServedPage page = served(text.attend());
  const view::ServedPage one({.queries = Strings(kServed, "t")}, {text.layer()}, {.heads = {1}});
  using Parameters = view::ServedPage::Parameters;
  const auto said = [&](const view::ServedPage& of, const std::string& path, const Parameters& parameters) {
    const Strings reasons = reasons_of([&] { of.answer(path, parameters); });
    return reasons.empty() ? "" : reasons[0];
  };
  const Parameters head = {{"layer", "0"}, {"head", "0"}};
  const auto with = [&](const Parameters& more) {
    Parameters all = head;
    all.insert(more.begin(), more.end());
    return all;
  };
  EXPECT_EQ(said(page, "/row", with({{"query", "3"}})), "");
  EXPECT_EQ(said(page, "/row", head), "/row: query must be given once");
  EXPECT_EQ(said(page, "/row", with({{"query", "3"}, {"query", "3"}})), "/row: query must be given once");
  EXPECT_EQ(said(page, "/row", with({{"query", "70"}})), "/row: query is 70, must be from 0 to 69");
  EXPECT_EQ(said(page, "/row", with({{"query", "-1"}})), "/row: query is -1, must be from 0 to 69");
  for (const char* no : {"", "3x", "0x3", " 3", "3.0", "1e1", "99999999999999999999", "NaN"})
    EXPECT_EQ(said(page, "/row", with({{"query", no}})), "/row: query must be a whole number") << no;
  EXPECT_EQ(said(page, "/row", with({{"query", "3"}, {"key", "3"}})), "/row: the request has an unknown parameter");
  EXPECT_EQ(said(page, "/column", with({{"key", "70"}})), "/column: key is 70, must be from 0 to 69");
  EXPECT_EQ(said(page, "/measures", {{"layer", "1"}, {"head", "0"}}), "/measures: layer is 1, must be from 0 to 0");
  EXPECT_EQ(said(page, "/measures", {{"layer", "0"}, {"head", "2"}}), "/measures: head is 2, must be from 0 to 1");
  EXPECT_EQ(said(one, "/measures", head), "/measures: the page has no such head");
  EXPECT_EQ(said(page, "/vectors", with({{"query", "0"}, {"key", "69"}, {"keys", "2"}})),
            "/vectors: keys is 2, must be from 1 to 1");
  for (const char* path : {"", "/", "/rows", "/../row", "/window/"}) EXPECT_NE(said(page, path, head), "") << path;
  const Parameters window = with({{"query", "60"}, {"queries", "10"}, {"key", "0"}, {"keys", "70"}});
  for (const auto& [rows, columns] : {std::pair{"11", "1"}, {"1", "71"}, {"0", "1"}}) {
    Parameters asked = window;
    asked.insert({{"rows", rows}, {"columns", columns}});
    EXPECT_NE(said(page, "/window", asked), "") << rows << " x " << columns;
  }
  EXPECT_EQ(
      said(page, "/window",
           with({{"query", "60"}, {"queries", "11"}, {"key", "60"}, {"keys", "11"}, {"rows", "1"}, {"columns", "1"}})),
      "/window: queries is 11, must be from 1 to 10");
  EXPECT_EQ(
      said(page, "/window",
           with({{"query", "60"}, {"queries", "10"}, {"key", "60"}, {"keys", "11"}, {"rows", "1"}, {"columns", "1"}})),
      "/window: keys is 11, must be from 1 to 10");
  EXPECT_EQ(reasons_of([&] { view::ServedPage({.queries = {"a"}}, {text.layer()}); }),
            (Strings{"layers[0]: 70 queries and 70 keys, must be as many as 1 tokens"}));
}

TEST(ServedPage, AnLseOfOtherKeysIsRefused) {
  Text text("layer", kServed, 1, 1, DType::float32, 6);
  text.attend().lse.set({0, 0, 9}, -20);
  const view::ServedPage page = served(text);
  const Strings reasons = reasons_of([&] { asked(page, "/row", {{"layer", 0}, {"head", 0}, {"query", 9}}); });
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].rfind("lse does not belong to q and k", 0), 0u) << reasons[0];
}

/// It connects to where it came from; it holds no weights.
TEST(ServedPage, PolicyAllowsItsOwnRequestsOnly) {
  Text text("layer", kServed, 2, 2, DType::float32, 6);
  const std::string page = served(text.attend()).page();
  EXPECT_NE(page.find("; connect-src 'self'; base-uri 'none'"), std::string::npos);
  for (const char* word : {"http:", "https:", "src=", "innerHTML", "eval(", "unsafe", "{{"})
    EXPECT_EQ(page.find(word), std::string::npos) << word;
  const json data = json::parse(Page(page).data);
  EXPECT_EQ(data["kind"], "served");
  EXPECT_EQ(data["layers"][0]["heads"].size(), 2u);
  EXPECT_LT(Page(page).data.size(), 20'000u);
}

}  // namespace
}  // namespace attn::test
