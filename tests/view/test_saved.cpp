// view: attention in files comes back as it was, and files that are something else are refused.
#include <gtest/gtest.h>

#include "attn/io.h"
#include "attn/view_page.h"
#include "support/checks.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/pictures.h"

namespace attn::test {
namespace {

using view::SavedAttention;
using Labels = std::vector<std::string>;

constexpr int64_t kTokens = 11;

Labels numbered(int64_t count) {
  Labels labels;
  for (int64_t n = 0; n < count; ++n) labels.push_back("t" + std::to_string(n));
  return labels;
}

/// [1, H, Lq, Lk] of a layer.
std::vector<double> weights_of(const RecordedAttention& layer) {
  Array<4> weights(layer.lse.dtype, {1, layer.q.size[1], layer.q.size[2], layer.k.size[2]});
  attention_weights(layer.q, layer.k, layer.lse, weights.view(), 0, 0, layer.options);
  std::vector<double> values;
  for (int64_t n = 0; n < weights.count(); ++n) values.push_back(weights.get(n));
  return values;
}

/// A file of these tensors, all of float32 and of small numbers, and metadata.
std::string file_of(const std::map<std::string, std::vector<int64_t>>& shapes,
                    const std::map<std::string, std::string>& metadata = {}) {
  static const std::vector<float> numbers(4096, 0.25f);
  std::vector<io::NamedTensor> tensors;
  for (const auto& [name, shape] : shapes) tensors.push_back({name, DType::float32, shape, numbers.data()});
  return io::format_safetensors(tensors, metadata);
}

SavedAttention read(const std::string& bytes) {
  const Folder folder;
  const std::string path = folder / "saved.safetensors";
  io::write_file(path, bytes);
  return view::read_attention(path);
}

std::string refusal(const std::string& bytes) {
  try {
    read(bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

const std::map<std::string, std::vector<int64_t>> kGood = {{"a.q", {2, 3, 4}}, {"a.k", {1, 3, 4}}};

TEST(Saved, EveryOptionThatHasAPlaceComesBack) {
  const Texts texts = texts_of_every_option(kTokens);
  int kept = 0;
  for (const auto& text : texts) {
    SCOPED_TRACE(text->name);
    const RecordedAttention layer = text->layer();
    const bool has_place = layer.options.alibi_slopes.empty() && !layer.options.bias && !layer.options.mask &&
                           !layer.options.query_segment_ids && !layer.options.blocks.given() &&
                           layer.options.cu_seqlens_q.empty();
    if (!has_place) {
      EXPECT_THROW(view::saved_attention(numbered(kTokens), {layer}), Error);
      continue;
    }
    ++kept;
    const SavedAttention saved = read(view::saved_attention(numbered(kTokens), {layer}));
    ASSERT_EQ(saved.layers.size(), 1u);
    EXPECT_EQ(saved.layers[0].name, text->name);
    EXPECT_EQ(saved.tokens, numbered(kTokens));
    EXPECT_EQ(weights_of(saved.layers[0]), weights_of(layer));
  }
  EXPECT_GE(kept, 6);
}

TEST(Saved, PairsComeBack) {
  Text text("layer 0", 5, 2, 1, DType::float32, 1);
  const RecordedAttention layer = text.attend().layer();
  EXPECT_EQ(read(view::saved_attention({}, {layer}, {}, 3)).second, 3);
  EXPECT_EQ(read(view::saved_attention({}, {layer})).second, -1);
  EXPECT_THROW(view::saved_attention({}, {layer}, {}, 5), Error);
}

TEST(Saved, OffsetsAndLengthsComeBack) {
  Text text("text", kTokens, 2, 1, DType::float32, 5);
  const std::vector<int64_t> offset = {2}, length = {7};
  text.options.causal = true;
  text.options.alignment = Alignment::offset;
  text.options.offset = offset;
  text.options.key_length = length;
  text.attend();
  EXPECT_EQ(weights_of(read(view::saved_attention({}, {text.layer()})).layers[0]), weights_of(text.layer()));
}

TEST(Saved, LseIsComputedWhereThereIsNone) {
  Text text("text", kTokens, 4, 2, DType::bfloat16, 6, {.causal = true});
  text.attend();
  const io::Safetensors file = io::Safetensors::parse(view::saved_attention({}, {text.layer()}), "file");
  std::vector<io::NamedTensor> tensors;
  for (const auto& [name, info] : file.tensors())
    if (name != "text.lse") tensors.push_back({name, info.dtype, info.shape, file.bytes(name).data()});
  ASSERT_EQ(tensors.size(), 2u);
  const SavedAttention saved = read(io::format_safetensors(tensors, file.metadata()));
  EXPECT_EQ(weights_of(saved.layers[0]), weights_of(text.layer()));
  EXPECT_TRUE(saved.tokens.empty());
}

TEST(Saved, LayersAreInTheOrderOfTheirNumbers) {
  std::map<std::string, std::vector<int64_t>> shapes;
  const Labels names = {"h.0", "h.1", "h.2", "h.9", "h.10", "h.10.a", "h.11", "i"};
  for (const std::string& name : names)
    for (const char* part : {".q", ".k"}) shapes[name + part] = {1, 2, 4};
  const SavedAttention saved = read(file_of(shapes));
  Labels read_names;
  for (const RecordedAttention& layer : saved.layers) read_names.push_back(layer.name);
  EXPECT_EQ(read_names, names);
}

TEST(Saved, ViewsWithStridesAreWrittenDense) {
  Text text("text", kTokens, 2, 2, DType::float32, 7);
  text.attend();
  RecordedAttention layer = text.layer();
  layer.q.size[2] = layer.k.size[2] = layer.lse.size[2] = 5;  // the first rows of each head
  layer.lse.stride[2] = 2;
  const SavedAttention saved = read(view::saved_attention({}, {layer}));
  EXPECT_EQ(saved.layers[0].q.stride[1], 5 * 8);
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t i = 0; i < 5; ++i)
      EXPECT_EQ(static_cast<const float*>(saved.layers[0].lse.data)[h * 5 + i], text.lse.get({0, h, 2 * i}));
}

TEST(SavedErrors, NameTheFileAndWhatIsWrong) {
  const auto with = [](const char* options) { return file_of(kGood, {{"attention", options}}); };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {file_of({}), "the file has no tensor NAME.q"},
      {file_of({{"a.q", {1, 2, 3}}}), R"(the file has no tensor "a.k")"},
      {file_of({{"a.q", {2, 3}}, {"a.k", {1, 2, 3}}}), R"("a.q" must be of a floating type and have 3 axes)"},
      {file_of({{"a.q", {2, 3, 4}}, {"a.k", {1, 3, 5}}}), R"("a": )"},
      {file_of({{"a.q", {2, 3, 4}}, {"a.k", {1, 3, 4}}, {"a.lse", {2, 4}}}), "lse has size [1, 2, 4]"},
      {file_of({{"a.q", {1, 2, 4}}, {"a.k", {1, 2, 4}}, {"b.q", {1, 3, 4}}, {"b.k", {1, 3, 4}}}),
       "layers[1]: must have as many queries and keys as layers[0]"},
      {with("[1]"), "\"attention\" must be an object"},
      {with("{"), "attention"},
      {with(R"({"a": 1})"), R"(the options of "a" must be an object)"},
      {with(R"({"a": {"causal": 1}})"), R"(the options of "a" have "causal": 1)"},
      {with(R"({"a": {"window": [1]}})"), R"(the options of "a" have "window")"},
      {with(R"({"a": {"alignment": "left"}})"), R"(the options of "a" have "alignment")"},
      {with(R"({"a": {"offset": 0.5}})"), R"(the options of "a" have "offset": 0.5)"},
      {with(R"({"a": {"masks": true}})"), R"(the options of "a" have "masks": true)"},
      {with(R"({"a": {"softcap": -1}})"), "softcap"},
      {file_of(kGood, {{"tokens", "[\"a\"]"}}), "there are 1 tokens and 3 keys"},
      {file_of(kGood, {{"tokens", "[1, 2, 3]"}}), "\"tokens\" must be a list of texts"},
      {file_of(kGood, {{"second", "3"}}), "\"second\" must be from 1 to 2, not 3"},
      {file_of(kGood, {{"second", "[1]"}}), "\"second\" must be from 1 to 2, not a list"},
  };
  for (const auto& [bytes, said] : cases) {
    const std::string message = refusal(bytes);
    EXPECT_NE(message.find("[read_attention]"), std::string::npos) << message;
    EXPECT_NE(message.find(said), std::string::npos) << message << "\ninstead of " << said;
  }
  EXPECT_EQ(refusal(file_of(kGood)), "nothing was thrown");
}

/// Queries have the tokens of the keys at their positions: the last ones, or those of an offset.
TEST(Saved, LabelsOfQueriesAndKeys) {
  Text text("text", 5, 2, 2, DType::float32, 8);
  view::SavedAttention saved{.tokens = {"a", "b", "c", "d", "e"}, .second = 3, .layers = {text.attend().layer()}};
  EXPECT_TRUE(saved.is_own_text());
  EXPECT_EQ(saved.query_labels(), saved.tokens);
  EXPECT_EQ(view::page_texts("title", saved).second, 3);
  RecordedAttention& layer = saved.layers[0];
  layer.q.size[2] = layer.lse.size[2] = 2;
  layer.options.alignment = Alignment::bottom_right;
  EXPECT_FALSE(saved.is_own_text());
  EXPECT_EQ(saved.query_labels(), (Labels{"d", "e"}));
  const int64_t offsets[] = {1, 4};
  layer.options.alignment = Alignment::offset;
  layer.options.offset = std::span(offsets).first(1);
  EXPECT_EQ(saved.query_labels(), (Labels{"b", "c"}));
  layer.options.offset = std::span(offsets).last(1);
  EXPECT_EQ(saved.query_labels(), (Labels{"0", "1"})) << "no key is at the position of the second query";
  saved.tokens = {};
  saved.queries = {"x", "y"};
  const view::PageTexts texts = view::page_texts("title", saved);
  EXPECT_EQ(texts.queries, saved.queries);
  EXPECT_EQ(texts.keys, (Labels{"0", "1", "2", "3", "4"}));
  EXPECT_EQ(texts.second, -1);
  saved.tokens = {"a"};
  EXPECT_EQ(error_of([&] { saved.key_labels(); }), "[SavedAttention] there are 1 tokens and 5 keys");
}

TEST(SavedErrors, OfWhatIsToBeWritten) {
  Text text("text", kTokens, 2, 2, DType::float32, 8);
  text.attend();
  EXPECT_THROW(view::saved_attention({"one"}, {text.layer()}), Error);
  EXPECT_THROW(view::saved_attention({}, {text.layer(), text.layer()}), Error);
  EXPECT_THROW(view::saved_attention({}, {}), Error);
}

/// A .npy file of float32 (or as `type` says) as NumPy writes it.
std::string npy(const std::string& shape, const std::string& data, const std::string& type = "<f4",
                const std::string& order = "False") {
  std::string header = "{'descr': '" + type + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  header.resize((header.size() + 10 + 64) / 64 * 64 - 10, ' ');
  header.back() = '\n';
  const std::string length = {static_cast<char>(header.size()), static_cast<char>(header.size() >> 8)};
  return "\x93NUMPY\x01" + std::string(1, '\0') + length + header + data;
}

template <int Rank>
std::string data_of(const Array<Rank>& array) {
  return {reinterpret_cast<const char*>(array.bytes().data()), array.bytes().size()};
}

TEST(SavedArrays, ComeBack) {
  for (DType dtype : {DType::float32, DType::float64, DType::float16}) {
    const std::string type = dtype == DType::float32 ? "<f4" : dtype == DType::float64 ? "<f8" : "<f2";
    const std::string lse_type = dtype == DType::float64 ? "<f8" : "<f4";
    const Folder folder;
    Text text("layer 0", kTokens, 2, 1, dtype, 3, {.causal = true, .alignment = Alignment::bottom_right});
    const RecordedAttention wanted = text.attend().layer();
    io::write_file(folder / "q.npy", npy("(1, 2, 11, 8)", data_of(text.q), type));
    io::write_file(folder / "k.npy", npy("(11, 8)", data_of(text.k), type));
    io::write_file(folder / "lse.npy", npy("(2, 11)", data_of(text.lse), lse_type));
    for (const std::string& lse : {std::string(), std::string(folder / "lse.npy")}) {
      const SavedAttention saved = view::read_arrays(folder / "q.npy", folder / "k.npy", lse, text.options);
      ASSERT_EQ(saved.layers.size(), 1u);
      EXPECT_EQ(weights_of(saved.layers[0]), weights_of(wanted)) << type;
    }
  }
}

/// Everything that is wrong with a file is said, whatever it holds.
TEST(SavedArrays, Refused) {
  const Folder folder;
  const std::string numbers(4 * 24, '\0'), good = npy("(3, 8)", numbers);
  const auto said = [&](const std::string& q, const std::string& k, const std::string& lse = "") {
    io::write_file(folder / "q.npy", q);
    io::write_file(folder / "k.npy", k);
    io::write_file(folder / "lse.npy", lse);
    try {
      view::read_arrays(folder / "q.npy", folder / "k.npy", lse.empty() ? lse : std::string(folder / "lse.npy"));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(said(good, good), "nothing was thrown");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not a .npy file"},
      {"\x93NUMPY", "not a .npy file"},
      {std::string("\x93NUMPY\x09\0\0\0\0\0\0\0", 13), "the version of .npy is 9"},
      {std::string("\x93NUMPY\x01\0\xff\xff{}{}", 14), "cut off"},
      {std::string("\x93NUMPY\x02\0\xff\xff\xff\xff{}{}", 16), "cut off"},
      {npy("(3, 8)", numbers, "|O"), "has the type"},
      {npy("(3, 8)", numbers, ">f4"), "has the type"},
      {npy("(3, 8)", numbers, "<f4", "True"), "C order"},
      {npy("(3, 9)", numbers), "shorter than its shape"},
      {npy("(3, 7)", numbers), "longer than its shape"},
      {npy("(999999999999999, 999999999999999)", numbers), "shorter than its shape"},
      {npy("(9999999999999999, 1)", numbers), "has the shape"},
      {npy("(-3, 8)", numbers), "has the shape"},
      {npy("(3, x)", numbers), "has the shape"},
      {npy("()", numbers.substr(0, 4)), "must have 1 to 4 axes"},
      {npy("(1, 1, 1, 3, 8)", numbers), "must have 1 to 4 axes"},
      {npy("(0, 8)", ""), "must be"},
      {npy("(2, 12)", numbers), ""},
  };
  for (const auto& [file, reason] : cases) {
    const std::string error = said(file, good);
    EXPECT_TRUE(error != "nothing was thrown" && error.find(reason) != std::string::npos) << reason << ": " << error;
  }
  EXPECT_NE(said(npy("(3, 1)", numbers), npy("(3, 1)", numbers)).find("k.npy"), std::string::npos) << "all at once";
  EXPECT_NE(said(good, good, npy("(4)", std::string(16, '\0'))).find("lse has size"), std::string::npos);
}

}  // namespace
}  // namespace attn::test
