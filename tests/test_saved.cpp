// view: attention in files comes back as it was, and files that are something else are refused.
#include <gtest/gtest.h>

#include "attn/io.h"
#include "checks.h"
#include "folder.h"
#include "pictures.h"

namespace attn::test {
namespace {

using view::Layer;
using view::SavedAttention;
using Labels = std::vector<std::string>;

constexpr int64_t kTokens = 11;

Labels numbered(int64_t count) {
  Labels labels;
  for (int64_t n = 0; n < count; ++n) labels.push_back("t" + std::to_string(n));
  return labels;
}

/// [1, H, Lq, Lk] of a layer.
std::vector<double> weights_of(const Layer& layer) {
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
    const Layer layer = text->layer();
    const bool has_place = layer.options.alibi_slopes.empty() && !layer.options.bias && !layer.options.mask &&
                           !layer.options.query_document && !layer.options.blocks.allowed &&
                           layer.options.cu_query.empty();
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
  for (const Layer& layer : saved.layers) read_names.push_back(layer.name);
  EXPECT_EQ(read_names, names);
}

TEST(Saved, ViewsWithStridesAreWrittenDense) {
  Text text("text", kTokens, 2, 2, DType::float32, 7);
  text.attend();
  Layer layer = text.layer();
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
      {file_of({}), "there is no tensor NAME.q"},
      {file_of({{"a.q", {1, 2, 3}}}), R"(there is no tensor "a.k")"},
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
  };
  for (const auto& [bytes, said] : cases) {
    const std::string message = refusal(bytes);
    EXPECT_NE(message.find("[read_attention]"), std::string::npos) << message;
    EXPECT_NE(message.find(said), std::string::npos) << message << "\ninstead of " << said;
  }
  EXPECT_EQ(refusal(file_of(kGood)), "nothing was thrown");
}

TEST(SavedErrors, OfWhatIsToBeWritten) {
  Text text("text", kTokens, 2, 2, DType::float32, 8);
  text.attend();
  EXPECT_THROW(view::saved_attention({"one"}, {text.layer()}), Error);
  EXPECT_THROW(view::saved_attention({}, {text.layer(), text.layer()}), Error);
  EXPECT_THROW(view::saved_attention({}, {}), Error);
}

}  // namespace
}  // namespace attn::test
