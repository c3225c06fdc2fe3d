// Writes the pages that test_page.py opens, and beside each option's page the weights that the library computes.
//
// usage: pages FOLDER
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "attn/view_page.h"
#include "support/pictures.h"
#include "support/tolerance.h"

namespace attn::test {
namespace {

using nlohmann::json;

const std::vector<std::string> kTokens = {"the",         "日本語テスト長い語",
                                          "שלום",        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
                                          "\x1b[31mred", "a rather long token, longer than its place",
                                          " x ",         "é",
                                          "\u202eabc",   "WWWWWWWWWWWWWWWW"};

std::vector<std::string> tokens(int64_t n) {
  std::vector<std::string> list;
  for (int64_t t = 0; t < n; ++t) list.push_back(kTokens[static_cast<size_t>(t) % kTokens.size()]);
  return list;
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw Error("pages", {path + " cannot be written"});
}

/// Tokens, weights [H][n][n] and how close each must be shown.
json expected(const Text& text) {
  const Array<4> weights = text.weights();
  double largest = 0;  // of the scores, as far as they matter: exp(-110) is no float32
  for (int64_t n = 0; n < text.lse.count(); ++n)
    if (std::isfinite(text.lse.get(n))) largest = std::max(largest, std::abs(text.lse.get(n)) + 110);
  json heads = json::array();
  for (int64_t h = 0; h < text.heads(); ++h) {
    json rows = json::array();
    for (int64_t i = 0; i < text.tokens(); ++i) {
      json row = json::array();
      for (int64_t j = 0; j < text.tokens(); ++j) row.push_back(std::min(weights.get({0, h, i, j}), 1.0));
      rows.push_back(row);
    }
    heads.push_back(rows);
  }
  return {{"name", text.name},
          {"weights", heads},
          {"most_said", kPageMostSaid},
          {"least", kPageLeastWeight},
          {"bound", shown_weight_bound(0, largest, text.q.dtype())}};
}

void write_pages(const std::string& folder) {
  std::filesystem::create_directories(folder);
  constexpr int64_t kFew = 9;
  json list = json::array();
  for (const auto& text : texts_of_every_option(kFew)) {
    write(folder + "/option_" + text->name + ".html", view::html_page(text->name, tokens(kFew), {text->layer()}));
    list.push_back(expected(*text));
  }
  write(folder + "/options.json", list.dump());

  for (int64_t n : {1, 5, 17, 60, 318, 600}) {
    Text text("layer 0", n, 2, 1, DType::float32, 7, {.causal = true});
    text.attend();
    write(folder + "/tokens_" + std::to_string(n) + ".html", view::html_page("tokens", tokens(n), {text.layer()}));
  }
  std::vector<std::unique_ptr<Text>> deep;
  std::vector<RecordedAttention> layers;
  for (int l = 0; l < 4; ++l) {
    const std::string name = "layer " + std::to_string(l);
    deep.push_back(
        std::make_unique<Text>(name, 2000, 4, 4, DType::float32, 20 + l, AttentionOptions{.causal = true}, 32, 1));
    layers.push_back(deep.back()->attend().layer());
  }
  write(folder + "/tokens_2000.html", view::html_page("2,000 tokens", tokens(2000), layers));
  for (bool causal : {false, true}) {
    Text flat("flat", 600, 1, 1, DType::float32, 3, {.causal = causal}, 8, 0);
    flat.attend();
    write(folder + (causal ? "/flat_causal.html" : "/flat.html"), view::html_page("flat", tokens(600), {flat.layer()}));
  }
  Text a("layer 0", 9, 4, 2, DType::float32, 31), b("layer 1", 9, 4, 4, DType::float32, 32),
      c("layer 2", 9, 4, 1, DType::float32, 33);
  layers = {a.attend().layer(), b.attend().layer(), c.attend().layer()};
  write(folder + "/selected.html", view::html_page("some", tokens(9), layers, {.layers = {2, 0}, .heads = {3, 1}}));
}

/// A dense array as it is in memory.
template <int Rank>
void write_numbers(const std::string& path, const Array<Rank>& array) {
  write(path, std::string(reinterpret_cast<const char*>(array.bytes().data()), array.bytes().size()));
}

/// Beside each page q, k and lse, which its weights are computed from.
void write_with_numbers(const std::string& name, const Text& text, const std::string& page) {
  write(name + ".html", page);
  write_numbers(name + ".q", text.q);
  write_numbers(name + ".k", text.k);
  write_numbers(name + ".lse", text.lse);
}

/// A pair of "sentences" of a token each, whose two heads have weights of 0.99 and 0.01; and tokens that are bytes.
void write_small_pages(const std::string& folder) {
  Text pair("layer 0", 2, 2, 1, DType::float32, 1, {}, 1, 0);
  const double half = std::log(0.99 / 0.01) / 2;
  for (int64_t t = 0; t < 2; ++t) {
    pair.k.set({0, 0, t, 0}, t ? -1 : 1);
    for (int64_t h = 0; h < 2; ++h) pair.q.set({0, h, t, 0}, t ? -half : half);
  }
  write(folder + "/pair.html",
        view::html_page({.title = "pair", .queries = {"yes", "no"}, .second = 1}, {pair.attend().layer()}));
  const std::vector<std::string> bytes = {"[CLS]",  "␣F",     "ir",     "st",   "<0x0A>", "␣a",
                                          "<0xE6>", "<0x97>", "<0xA5>", "0xC3", "0xBC",   "[SEP]"};
  Text text("layer 0", static_cast<int64_t>(bytes.size()), 2, 1, DType::float32, 2);
  write(folder + "/bytes.html", view::html_page("bytes", bytes, {text.attend().layer()}));
}

void write_long_pages(const std::string& folder) {
  for (int64_t n : {20'000, 100'000}) {
    Text text("layer 0", n, 1, 1, DType::float32, 9, {.causal = true}, 8, 1.6);
    text.attend();
    std::vector<std::string> list = tokens(n);
    list[static_cast<size_t>(n / 3)] = "needle in </script><b>hay</b>";
    const view::PageOptions options{.windows = {{15'000, 64, 3'000, 80}, {19'000, 1}, {0, -1, 12'345, 1}}};
    write_with_numbers(folder + "/long_" + std::to_string(n), text,
                       view::html_page({.title = "long", .queries = list}, {text.layer()}, options));
  }
  Text cross("layer 0", 9, 2, 1, DType::float32, 10);
  RecordedAttention layer = cross.attend().layer();
  layer.q.size[2] = layer.lse.size[2] = 5;
  const view::PageTexts texts{.title = "two texts", .queries = tokens(5), .keys = std::vector<std::string>(9, "<b>")};
  write_with_numbers(folder + "/two_texts", cross, view::html_page(texts, {layer}));
  Text few("layer 0", 6, 2, 1, DType::float32, 12);
  write_with_numbers(folder + "/tokens_6", few, view::html_page("six", tokens(6), {few.attend().layer()}));
  write_small_pages(folder);
  Text served("layer 0", 600, 4, 1, DType::float32, 11, {.causal = true});
  served.attend();
  write_with_numbers(folder + "/served", served, "");
  write(folder + "/served.safetensors", view::saved_attention(tokens(600), {served.layer()}));
}

}  // namespace
}  // namespace attn::test

int main(int argc, char** argv) try {
  if (argc != 2) throw std::invalid_argument("usage: pages FOLDER");
  attn::test::write_pages(argv[1]);
  attn::test::write_long_pages(argv[1]);
  return 0;
} catch (const std::exception& error) {
  std::cerr << "pages: " << error.what() << "\n";
  return 1;
}
