// Texts as vectors: packing, stopping, lengths; and the folders of sentence encoders that are refused.
// tests/parity/test_sentence_fields.py compares the vectors with sentence-transformers.
#include "attn/models_embed.h"
#include "support/errors.h"
#include "support/hostile.h"
#include "support/hub.h"

namespace attn::test {
namespace {

using namespace models;

TEST(Embed, AnEmbedderPacksItsWeightsUnlessToldOtherwise) {
  const Folder folder;
  folder.put("config.json", kBert).put("model.safetensors", file_of(bert_tensors()));
  folder.put("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\ne\nf\ng\nh\n");
  const auto packed = [](const Loaded& loaded) {
    int64_t count = 0;
    for (const nn::Parameter& parameter : loaded.model->parameters().all()) count += bool(parameter.value.packed());
    return count;
  };
  const Embedder embedder(folder.path()), unpacked(folder.path(), {.packed = false});
  const Loaded by_default = open(folder.path()), asked = open(folder.path(), {.packed = true});
  EXPECT_EQ(packed(embedder.loaded()), 4 * embedder.loaded().model->config().layers);
  EXPECT_GE(packed(asked), packed(embedder.loaded()));
  EXPECT_EQ(packed(unpacked.loaded()) + packed(by_default), 0);
  const std::vector<std::string> texts = {"a b c d e", "f g h", "a a a a a"};
  const Values with = numbers(embedder(texts)), without = numbers(unpacked(texts));
  for (size_t n = 0; n < with.size(); ++n)
    EXPECT_NEAR(with[n], without[n], weight_bound(max_abs(without), DType::float32));
}

TEST(Embed, EmbeddingThatIsStoppedSaysWhatIsMissing) {
  const Folder folder;
  folder.put("config.json", kBert).put("model.safetensors", file_of(bert_tensors()));
  folder.put("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\ne\nf\ng\nh\n");
  Embedder embedder(folder.path());
  embedder.options.tokens_a_step = 1;  // a text a step, the longest first
  const std::vector<std::string> texts = {"a", "b c d", "a a a a a", "b c", "h g f e"};
  std::vector<int64_t> missing = {7};
  const Values whole = numbers(embedder(
      texts, [](int64_t) { return true; }, &missing));
  EXPECT_TRUE(missing.empty());
  const Values some = numbers(embedder(
      texts, [](int64_t done) { return done < 2; }, &missing));
  EXPECT_EQ(missing, (std::vector<int64_t>{0, 1, 3}));
  for (size_t n = 0; n < some.size(); ++n) EXPECT_EQ(some[n], n / 8 == 2 || n / 8 == 4 ? whole[n] : 0) << n;
  embedder(
      texts, [](int64_t) { return false; }, &missing);
  EXPECT_EQ(missing, (std::vector<int64_t>{0, 1, 2, 3, 4})) << "before the first";
}

/// A small BERT with these modules after it.
const Folder& put_encoder(const Folder& folder, const std::string& modules) {
  folder.put("config.json", kBert).put("model.safetensors", file_of(bert_tensors()));
  folder.put("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\ne\nf\ng\nh\n");
  const std::string transformer = R"({"name": "0", "path": "", "type": "sentence_transformers.models.Transformer"})";
  return folder.put("modules.json", "[" + transformer + modules + "]");
}

/// Opens it with one file more.
void open_encoder(const std::string& modules, const std::string& name = "", const std::string& content = "") {
  const Folder folder;
  put_encoder(folder, modules);
  if (!name.empty()) folder.put(name, content);
  Embedder(folder.path());
}

std::string module(const std::string& kind, const std::string& path) {
  return R"(, {"name": ")" + path + R"(", "path": ")" + path + R"(", "type": "sentence_transformers.models.)" + kind +
         "\"}";
}

const std::string kPooling = module("Pooling", "1"), kSettings = "sentence_bert_config.json";

TEST(HostileEmbed, Folders) {
  expect_refused({
      {"no tokenizer",
       [] {
         const Folder folder;
         folder.put("config.json", kBert).put("model.safetensors", file_of(bert_tensors()));
         Embedder(folder.path());
       },
       {"[embed]", "has no tokenizer"}},
      {"no folder of a model",
       [] { Embedder(Folder().path()); },
       {"is not a folder of a model: it has no config.json"}},
      {"an unknown module",
       [] { open_encoder(module("WordWeights", "1")); },
       {"modules.json, module 1: type is", "WordWeights"}},
      {"a module of code",
       [] {
         const Folder folder;
         folder.put("modules.json", R"([{"name": "0", "path": "", "type": "custom.Transformer"}])");
         Embedder(folder.path());
       },
       {"type is \"custom.Transformer\", must be sentence_transformers' Transformer"}},
      {"no module",
       [] {
         const Folder folder;
         folder.put("modules.json", "[]");
         Embedder(folder.path());
       },
       {"there is no module"}},
      {"a module outside",
       [] { open_encoder(module("Pooling", "a/../../1")); },
       {"path is \"a/../../1\", must be a folder of this"}},
      {"a module at the root",
       [] { open_encoder(module("Pooling", "/tmp")); },
       {"path is \"/tmp\", must be a folder of this"}},
      {"a module without files", [] { open_encoder(kPooling); }, {"1/config.json"}},
      {"two modules of one name",
       [] { open_encoder(kPooling + kPooling); },
       {"name is \"1\", must be a text of its own"}},
      {"two Transformers",
       [] { open_encoder(module("Transformer", "1")); },
       {"type is", "must be no second Transformer"}},
      {"no pooling", [] { open_encoder(module("Normalize", "1")); }, {"no module makes a sentence_embedding"}},
      {"a pooling of another kind",
       [] { open_encoder(kPooling, "1/config.json", R"({"pooling_mode": ["mean", "best"]})"); },
       {"1/config.json: pooling_mode is a list, must be of cls, max, mean"}},
      {"a pooling of none",
       [] { open_encoder(kPooling, "1/config.json", R"({"pooling_mode": []})"); },
       {"pooling_mode is a list"}},
      {"a flag that is a text",
       [] { open_encoder(kPooling, "1/config.json", R"({"include_prompt": "no"})"); },
       {"include_prompt is \"no\", must be true or false"}},
      {"an unknown field",
       [] { open_encoder(kPooling, "1/config.json", R"({"pooling": "mean"})"); },
       {"the field \"pooling\" is not"}},
      {"a product of another width",
       [] { open_encoder(kPooling + module("Dense", "2"), "1/config.json", "{}"); },
       {"2/config.json"}},
      {"settings that are a list",
       [] { open_encoder(kPooling, kSettings, "[256]"); },
       {"sentence_bert_config.json: must be an object, is a list"}},
      {"a length of nothing",
       [] { open_encoder(kPooling, kSettings, R"({"max_seq_length": 0})"); },
       {"max_seq_length is 0, must be a whole number from 1"}},
      {"a length without room",
       [] {
         const Folder folder;
         put_encoder(folder, module("Pooling", "1")).put("1/config.json", "{}");
         folder.put("sentence_bert_config.json", R"({"max_seq_length": 1})");
         Embedder(folder.path());
       },
       {"sentence_bert_config.json: max_seq_length is 1, must be at least 2, as many tokens are around a text"}},
      {"another task",
       [] { open_encoder(kPooling, kSettings, R"({"transformer_task": "fill-mask"})"); },
       {"transformer_task is \"fill-mask\", must be \"feature-extraction\""}},
      {"another type of its weights",
       [] { open_encoder(kPooling, kSettings, R"({"model_args": {"torch_dtype": "float16"}})"); },
       {"model_args: the field \"torch_dtype\" is not supported"}},
      {"a prompt that is a number",
       [] { open_encoder(kPooling, "config_sentence_transformers.json", R"({"prompts": {"q": 1}})"); },
       {"prompts: \"q\" is 1, must be a text or null"}},
      {"a prompt that there is not",
       [] { open_encoder(kPooling, "config_sentence_transformers.json", R"({"default_prompt_name": "q"})"); },
       {"default_prompt_name is \"q\", must be null or a name among prompts"}},
      {"a length in words",
       [] {
         Folder folder;
         put_encoder(folder, module("Pooling", "1")).put("1/config.json", "{}");
         folder.put("tokenizer_config.json", R"({"model_max_length": "long"})");
         Embedder(folder.path());
       },
       {"tokenizer_config.json: model_max_length is \"long\", must be a whole number from 1"}},
  });
}

TEST(Embed, AnEmbedderSaysWhichTextIsTooLong) {
  Folder folder;
  put_encoder(folder, module("Pooling", "1")).put("1/config.json", R"({"pooling_mode": ["max", "cls"]})");
  folder.put("sentence_bert_config.json", R"({"max_seq_length": 500})");
  Embedder embedder(folder.path());
  EXPECT_EQ(embedder.options.max_length, 500);
  EXPECT_EQ(embedder.width(), 16);
  const int64_t context = embedder.loaded().model->config().context;
  std::string text;
  for (int64_t n = 2; n < context; ++n) text += "a ";
  EXPECT_EQ(numbers(embedder(std::vector<std::string>{"b", text})).size(), 32u);
  const std::vector<std::string> texts = {"b", text + "a"};
  EXPECT_EQ(error_of([&] { embedder(texts); }), "[embed] text 1: its " + std::to_string(context + 1) +
                                                    " tokens are more than the " + std::to_string(context) +
                                                    " positions that the model has learned; longest is 500");
  embedder.options.name = [](int64_t n) { return "line " + std::to_string(n + 1); };
  EXPECT_TRUE(error_of([&] { embedder(texts); }).starts_with("[embed] line 2: its "));
  embedder.options.max_length = 0;
  EXPECT_EQ(numbers(embedder(texts)).size(), 32u);
  embedder.options.truncate_dim = -1;
  EXPECT_EQ(error_of([&] { embedder(texts); }), "[embed] truncate_dim is -1, must be at least 0");
}

}  // namespace
}  // namespace attn::test
