// Folders of the Hugging Face hub from inside: where parameters are, packed texts; and folders that nobody
// should trust. tests/parity compares what the models compute with transformers.
#include <cmath>
#include <filesystem>
#include <fstream>

#include "attn/generate.h"
#include "support/folder.h"
#include "support/hostile.h"
#include "support/hub.h"
#include "support/layers.h"

namespace attn::test {
namespace {

namespace fs = std::filesystem;
using namespace models;
using attn::Array;

Batch some_batch() {
  Batch batch;
  batch.tokens = {3, 5, 12, 0, 7, 1};
  batch.sequences = 2;
  batch.length = 3;
  return batch;
}

Values logits_of(const std::string& folder, const OpenOptions& options = {}) {
  autograd::Tape tape;
  return numbers(open(folder, options).model->forward(tape, some_batch()).data());
}

/// The file that is mapped where `address` is; "" for memory of the process's own.
std::string mapped_at(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    char* rest = nullptr;
    const auto begin = std::strtoull(line.c_str(), &rest, 16), end = std::strtoull(rest + 1, nullptr, 16);
    const auto place = reinterpret_cast<uintptr_t>(address);
    if (place >= begin && place < end) return line.find('/') == std::string::npos ? "" : line.substr(line.find('/'));
  }
  return "";
}

// ---------------------------------------------------------------------------------------------------------- good ones

TEST(Hub, WeightsAreReadInPlaceIfTheyFit) {
  const Folder folder;
  put_llama(folder);
  const Loaded loaded = open(folder.path());
  const auto where = [&](const char* name) {
    return mapped_at(loaded.model->parameters().find(name)->value.data().data());
  };
  for (const char* name : {"tokens.weight", "blocks.1.attention.output.weight", "blocks.0.feed_forward.down.weight"})
    EXPECT_TRUE(where(name).ends_with("/model.safetensors")) << name;
  EXPECT_EQ(where("blocks.0.attention.qkv.weight"), "") << "three tensors of the file make it";
  for (const nn::Parameter& parameter : loaded.model->parameters().all()) {
    EXPECT_FALSE(parameter.value.wants_gradient()) << parameter.name;
    EXPECT_EQ(parameter.master.data(), parameter.value.data().data()) << parameter.name;
  }
  EXPECT_EQ(loaded.eos_token_ids, std::vector<int64_t>{2});
  EXPECT_EQ(loaded.tokenizer, nullptr);
}

TEST(Hub, OnProgressIsCalledWhileLoading) {
  const Folder folder;
  put_llama(folder);
  std::vector<int64_t> heard;
  OpenOptions options;
  options.on_progress = [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, count_parameters(read_config(folder.path())).total());
    heard.push_back(done);
    return true;
  };
  const Loaded loaded = open(folder.path(), options);
  EXPECT_EQ(heard.size(), loaded.model->parameters().all().size());
  EXPECT_TRUE(std::is_sorted(heard.begin(), heard.end()));
  EXPECT_EQ(heard.back(), loaded.model->parameters().count());
  options.on_progress = [&](int64_t done, int64_t) { return done < heard[2]; };
  EXPECT_THROW(open(folder.path(), options), Error);
}

TEST(Hub, WhatIsTrainedLeavesTheFileAsItWas) {
  const Folder folder;
  put_llama(folder);
  const Values before = logits_of(folder.path());
  {
    const Loaded loaded = open(folder.path(), {.purpose = nn::Purpose::training});
    for (const nn::Parameter& parameter : loaded.model->parameters().all()) {
      EXPECT_TRUE(parameter.value.wants_gradient()) << parameter.name;
      ops::scale(parameter.master.flat(), 2, parameter.master.flat());
    }
  }
  EXPECT_EQ(logits_of(folder.path()), before);
}

/// A folder that a training wrote is opened for the purpose that is asked for, as those of the hub are.
TEST(Hub, OurOwnFoldersAreOpenedForTrainingToo) {
  const Folder folder;
  Config config = family("gpt");
  config.vocab_size = 256;
  config.embed_dim = 8;
  config.layers = config.heads = 1;
  const Model model(config, nn::Precision::float32, 1);
  Checkpoints checkpoints(folder.path());
  checkpoints.begin({{"config.json", to_json(config)}, {"tokenizer.json", text::bytes()->to_json()}}, {}, false);
  checkpoints.save(0, model.tensors(), "{}", true, false);
  for (const auto purpose : {nn::Purpose::training, nn::Purpose::inference}) {
    const Loaded loaded = open(folder.path(), {.purpose = purpose});
    for (const nn::Parameter& parameter : loaded.model->parameters().all()) {
      EXPECT_EQ(parameter.value.wants_gradient(), purpose == nn::Purpose::training) << parameter.name;
      EXPECT_EQ(numbers(parameter.value.data()), numbers(model.parameters().find(parameter.name)->value.data()));
    }
  }
}

TEST(Hub, SixteenBitFilesInAnyPrecision) {
  const Folder folder;
  put_llama(folder, DType::bfloat16);
  const Loaded narrow = open(folder.path(), {.precision = nn::Precision::bfloat16});
  EXPECT_NE(mapped_at(narrow.model->parameters().find("tokens.weight")->value.data().data()), "");
  const Loaded wide = open(folder.path());
  for (size_t n = 0; n < wide.model->parameters().all().size(); ++n) {
    const nn::Parameter &a = narrow.model->parameters().all()[n], &b = wide.model->parameters().all()[n];
    EXPECT_EQ(b.value.dtype(), DType::float32) << b.name;
    EXPECT_EQ(numbers(a.value.data()), numbers(b.value.data())) << a.name;
  }
}

TEST(Hub, SeveralFiles) {
  const Folder one, several;
  put_llama(one);
  std::vector<Tensor> first = llama_tensors(DType::float32);
  const std::vector<Tensor> second(first.begin() + 7, first.end());
  first.resize(7);
  std::string map;
  const auto place = [&](const std::vector<Tensor>& tensors, const char* file) {
    for (const Tensor& tensor : tensors) map += (map.empty() ? "\"" : ", \"") + tensor.name + "\": \"" + file + "\"";
  };
  place(first, "a.safetensors");
  place(second, "b.safetensors");
  several.put("config.json", kTwoLayers)
      .put("a.safetensors", file_of(first))
      .put("b.safetensors", file_of(second))
      .put("model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
  EXPECT_EQ(logits_of(several.path()), logits_of(one.path()));
}

TEST(Hub, PackedTextsAreEachAlone) {
  const Folder folder;
  folder.put("config.json", kBert).put("model.safetensors", file_of(bert_tensors()));
  const Loaded loaded = open(folder.path(), {.precision = nn::Precision::float64});
  Batch packed;
  packed.tokens = {3, 5, 12, 0, 7, 1, 9, 9, 2, 4};
  packed.token_type_ids = {0, 0, 1, 0, 1, 1, 0, 1, 0, 0};
  packed.cu_seqlens = {0, 3, 4, 10};
  packed.sequences = 3;
  packed.length = 10;
  autograd::Tape tape;
  const Values together = numbers(loaded.model->hidden(tape, packed).data());
  for (size_t n = 0; n < 3; ++n) {
    const auto begin = packed.cu_seqlens[n], end = packed.cu_seqlens[n + 1];
    Batch alone;
    alone.tokens.assign(packed.tokens.begin() + begin, packed.tokens.begin() + end);
    alone.token_type_ids.assign(packed.token_type_ids.begin() + begin, packed.token_type_ids.begin() + end);
    alone.sequences = 1;
    alone.length = end - begin;
    autograd::Tape own;
    const Values rows = numbers(loaded.model->hidden(own, alone).data());
    for (size_t i = 0; i < rows.size(); ++i)
      EXPECT_NEAR(together[begin * 8 + i], rows[i], reordering_bound(max_abs(rows))) << n << ", " << i;
  }
}

TEST(Hub, GenerationConfigGivesTheOptions) {
  const Folder folder;
  put_llama(folder).put("generation_config.json", R"({"do_sample": true, "temperature": 0.5, "top_k": 3, "top_p": 0.9,
      "min_p": 0.1, "repetition_penalty": 1.5, "max_length": 7, "suppress_tokens": [1, 2], "eos_token_id": 4})");
  const generate::GenerateOptions said = generate::options_of(open(folder.path()));
  EXPECT_EQ(said.sampling.temperature, 0.5);
  EXPECT_EQ(said.sampling.top_k, 3);
  EXPECT_EQ(said.sampling.top_p, 0.9);
  EXPECT_EQ(said.sampling.min_p, 0.1);
  EXPECT_EQ(said.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(said.suppress_tokens, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(said.eos_token_ids, std::vector<int64_t>{4});
  const auto written = [&](const char* config, generate::GenerateOptions otherwise = {}) {
    folder.put("generation_config.json", config);
    const Loaded loaded = open(folder.path());
    otherwise = generate::options_of(loaded, otherwise);
    otherwise.eos_token_ids.clear();
    return generate::generate(*loaded.model, std::vector<int64_t>{3, 5}, otherwise).tokens;
  };
  EXPECT_EQ(written(R"({"max_length": 7})").size(), 5u);
  EXPECT_EQ(written(R"({"max_length": 7, "forced_eos_token_id": 2, "eos_token_id": [2, 99]})").size(), 4u);
  EXPECT_EQ(written(R"({"max_length": 7, "max_new_tokens": 6})").size(), 6u);
  EXPECT_EQ(written("{}", {.max_new_tokens = 3}).size(), 3u);
  const auto greedy = written(R"({"do_sample": false, "temperature": 9, "max_new_tokens": 12})");
  EXPECT_EQ(greedy, written(R"({"temperature": 0, "max_new_tokens": 12})"));
  EXPECT_NE(greedy, written(R"({"do_sample": true, "temperature": 9, "max_new_tokens": 12})"));
  const auto others = written(R"({"suppress_tokens": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12], "max_new_tokens": 4})");
  EXPECT_EQ(others, std::vector<int64_t>(4, 11));
}

// ------------------------------------------------------------------------------------------------------- hostile ones

void open_with(const std::string& config, const std::string& weights) {
  const Folder folder;
  folder.put("config.json", config);
  if (!weights.empty()) folder.put("model.safetensors", weights);
  open(folder.path());
}

/// kTwoLayers with one field more, or another value of one.
std::string changed(const std::string& field) {
  std::string text = kTwoLayers;
  const std::string name = field.substr(0, field.find(':'));
  if (const size_t at = text.find(name); at != std::string::npos) {
    const size_t end = text.find_first_of(",}", at);
    return text.replace(at, end - at, field);
  }
  return text.replace(text.rfind('}'), 1, ", " + field + "}");
}

void open_changed(const char* field) { open_with(changed(field), file_of(llama_tensors(DType::float32))); }

void open_without(const std::string& tensor, std::vector<int64_t> shape = {}) {
  std::vector<Tensor> tensors = llama_tensors(DType::float32);
  std::erase_if(tensors, [&](const Tensor& each) { return each.name == tensor; });
  if (!shape.empty()) tensors.push_back({tensor, random_array(DType::float32, shape, 1)});
  open_with(kTwoLayers, file_of(tensors));
}

TEST(HostileHub, Configurations) {
  expect_refused({
      {"another family",
       [] { open_with(R"({"model_type": "mamba"})", ""); },
       {"[config]", "config.json", "unknown model_type \"mamba\"", "bert", "qwen3"}},
      {"a family that is a number",
       [] { open_with(R"({"model_type": 7})", ""); },
       {"[config]", "unknown model_type 7"}},
      {"no JSON", [] { open_with("{\"model_type\": \"llama\"", ""); }, {"config.json"}},
      {"a list", [] { open_with("[1, 2]", ""); }, {"config.json"}},
      {"no vocabulary", [] { open_with(R"({"model_type": "gpt2"})", ""); }, {"vocab_size must be given"}},
      {"a huge width",
       [] { open_changed("\"hidden_size\": 1e300"); },
       {"hidden_size must be a whole number from 1 to 65536, not 1e+300"}},
      {"a negative number of layers", [] { open_changed("\"num_hidden_layers\": -3"); }, {"num_hidden_layers", "-3"}},
      {"layers beyond all bounds",
       [] { open_changed("\"num_hidden_layers\": 99999999999999999999"); },
       {"num_hidden_layers"}},
      {"no heads", [] { open_changed("\"num_attention_heads\": 0"); }, {"num_attention_heads"}},
      {"heads that do not divide",
       [] { open_changed("\"num_attention_heads\": 3"); },
       {"num_attention_heads 3 must divide hidden_size 8"}},
      {"text for a number", [] { open_changed("\"rms_norm_eps\": \"small\""); }, {"rms_norm_eps", "small"}},
      {"an unknown activation", [] { open_changed("\"hidden_act\": \"sine\""); }, {"hidden_act", "sine", "gelu_tanh"}},
      {"biases that are not supported",
       [] { open_changed("\"attention_bias\": true"); },
       {"attention_bias is true, only false is supported"}},
      {"an unknown scaling",
       [] { open_changed("\"rope_scaling\": {\"type\": \"widerope\"}"); },
       {"rope_scaling.rope_type must be default, linear", "widerope", "yarn"}},
      {"a factor for each pair of columns that is not there",
       [] {
         open_changed("\"rope_scaling\": {\"type\": \"longrope\", \"long_factor\": [1], \"short_factor\": [1, 2]}");
       },
       {"config.json", "longrope needs short_factor and long_factor of 1 numbers each"}},
      {"a scaling without its factor",
       [] { open_changed("\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 2}"); },
       {"a llama3 rope needs rope_scaling.low_freq_factor", "rope_scaling.high_freq_factor"}},
      {"factors that are no numbers",
       [] {
         open_changed("\"rope_scaling\": {\"long_factor\": [0], \"short_factor\": \"1\", \"type\": \"longrope\"}");
       },
       {"config.json: rope_scaling.long_factor must be a list of numbers", "rope_scaling.short_factor must",
        "at most 512"}},
      {"a scaling of zero",
       [] { open_changed("\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}"); },
       {"rope_scaling.factor must be above 0, not 0"}},
      {"rope that is a list",
       [] { open_changed("\"rope_parameters\": {\"full_attention\": [1]}"); },
       {"must be an object"}},
      {"a part of a head",
       [] { open_changed("\"partial_rotary_factor\": 0.5"); },
       {"partial_rotary_factor must be 1: heads rotate as a whole, not 0.5"}},
      {"null for a number", [] { open_changed("\"hidden_size\": null"); }, {"hidden_size must be", "not null"}},
      {"zero, which means something else here",
       [] { open_changed("\"num_key_value_heads\": 0"); },
       {"num_key_value_heads must be above 0, not 0"}},
      {"layers of another kind than the family's",
       [] { open_changed("\"layer_types\": [\"full_attention\", \"sliding_attention\"]"); },
       {"layer_types must be full_attention for every layer of a llama"}},
      {"what a layer says by itself",
       [] { open_changed("\"per_layer_config\": {\"0\": {\"hidden_act\": \"relu\"}}"); },
       {"per_layer_config is an object, only {} is supported"}},
      {"a decoder that sees what comes",
       [] { open_changed("\"is_causal\": false"); },
       {"is_causal is false, only true"}},
      {"a class whose name ends like another",
       [] { open_changed("\"architectures\": [\"LlamaDoubleHeadsModel\"]"); },
       {"LlamaDoubleHeadsModel"}},
      {"unknown layers", [] { open_changed("\"layer_types\": [\"mamba\", \"mamba\"]"); }, {"layer_types", "mamba"}},
      {"too many layers",
       [] { open_changed("\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\"]"); },
       {"3 entries for 2 layers"}},
      {"too few layers", [] { open_changed("\"layer_types\": [\"full_attention\"]"); }, {"1 entries for 2 layers"}},
      {"another head",
       [] { open_changed("\"architectures\": [\"LlamaForQuestions\"]"); },
       {"LlamaForQuestions", "ForCausalLM"}},
      {"sizes that no memory has",
       [] {
         open_with(R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 65536,
                       "num_attention_heads": 64, "vocab_size": 4194304, "num_hidden_layers": 4096})",
                   file_of(llama_tensors(DType::float32)));
       },
       {"model.embed_tokens.weight float32 [13, 8]: must make tokens.weight [4194304, 65536]"}},
      {"quantized",
       [] { open_changed("\"quantization_config\": {\"quant_method\": \"awq\"}"); },
       {"quantization_config: bits is null, only 4 is supported; take the folder that it was made from"}},
      {"all at once",
       [] { open_with(R"({"model_type": "llama", "hidden_size": -1, "num_hidden_layers": "two"})", ""); },
       {"hidden_size", "num_hidden_layers"}},
  });
}

/// Its tensors of int32 are of a type that has no DType.
std::string as_foreign(std::string bytes) {
  for (size_t at = 0; (at = bytes.find("I32", at)) != std::string::npos;) bytes[at] = 'U';
  return bytes;
}

TEST(Hub, TensorsThatNoLayerNeedsMayBeOfAnyType) {
  const Folder folder, plain;
  std::vector<Tensor> tensors = llama_tensors(DType::float32);
  plain.put("config.json", kTwoLayers).put("model.safetensors", file_of(tensors));
  tensors.push_back({"model.layers.0.self_attn.bias", Array(DType::int32, {3})});
  folder.put("config.json", kTwoLayers).put("model.safetensors", as_foreign(file_of(tensors)));
  EXPECT_EQ(logits_of(folder.path()), logits_of(plain.path()));
}

/// A head that is in the file counts, whatever tie_word_embeddings says; either of two that are one may be in it.
TEST(Hub, HeadsThatAreInTheFile) {
  const Folder folder, tied;
  std::vector<Tensor> tensors = llama_tensors(DType::float32);
  put_llama(folder);
  const Values own = logits_of(folder.path());
  folder.put("config.json", changed("\"tie_word_embeddings\": true"));
  EXPECT_EQ(logits_of(folder.path()), own);
  tensors.pop_back();
  folder.put("model.safetensors", file_of(tensors));
  const Values shared = logits_of(folder.path());
  EXPECT_NE(shared, own);
  tensors.push_back({"lm_head.weight", tensors.front().array});
  folder.put("model.safetensors", file_of(tensors));
  EXPECT_EQ(logits_of(folder.path()), shared) << "the same twice";
  EXPECT_EQ(open(folder.path()).model->parameters().find("head.weight"), nullptr);
  tensors.erase(tensors.begin());
  folder.put("model.safetensors", file_of(tensors));
  EXPECT_EQ(logits_of(folder.path()), shared) << "the head alone";
}

TEST(HostileHub, Weights) {
  expect_refused({
      {"no file", [] { open_with(kTwoLayers, ""); }, {"model.safetensors"}},
      {"a short file",
       [] { open_with(kTwoLayers, file_of(llama_tensors(DType::float32)).substr(0, 3000)); },
       {"[safetensors]"}},
      {"no tensor",
       [] { open_without("model.layers.1.self_attn.k_proj.weight"); },
       {"[open]", "there is no tensor model.layers.1.self_attn.k_proj.weight"}},
      {"two that are missing",
       [] {
         std::vector<Tensor> tensors = llama_tensors(DType::float32);
         tensors.pop_back();
         tensors.erase(tensors.begin());
         open_with(kTwoLayers, file_of(tensors));
       },
       {"model.embed_tokens.weight", "lm_head.weight"}},
      {"another shape",
       [] { open_without("model.norm.weight", {9}); },
       {"model.norm.weight float32 [9]", "norm.weight [8]"}},
      {"the same number in another shape",
       [] {
         open_without("model.layers.0.mlp.down_proj.weight", {12, 8});
       },
       {"must make blocks.0.feed_forward.down.weight [8, 12]"}},
      {"a type that no layer takes",
       [] {
         std::vector<Tensor> tensors = llama_tensors(DType::float32);
         tensors.back().array = Array(DType::int32, {13, 8});
         open_with(kTwoLayers, as_foreign(file_of(tensors)));
       },
       {"there is no tensor lm_head.weight of a floating type, but one of U32"}},
      {"more layers than tensors", [] { open_changed("\"num_hidden_layers\": 3"); }, {"model.layers.2."}},
      {"a pickle",
       [] {
         const Folder folder;
         folder.put("config.json", kTwoLayers).put("pytorch_model.bin", "\x80\x02.");
         open(folder.path());
       },
       {"pytorch_model.bin", "save_pretrained"}},
      {"an index that points outside",
       [] {
         const Folder folder;
         folder.put("config.json", kTwoLayers)
             .put("model.safetensors.index.json", R"({"weight_map": {"lm_head.weight": "../../etc/passwd"}})");
         open(folder.path());
       },
       {"lm_head.weight", "../../etc/passwd", "must be the name of a file in the folder"}},
      {"an index of nothing",
       [] {
         const Folder folder;
         folder.put("config.json", kTwoLayers).put("model.safetensors.index.json", R"({"weight_map": [1]})");
         open(folder.path());
       },
       {"weight_map"}},
      {"an index of files that are not there",
       [] {
         const Folder folder;
         folder.put("config.json", kTwoLayers)
             .put("model.safetensors.index.json", R"({"weight_map": {"lm_head.weight": "gone.safetensors"}})");
         open(folder.path());
       },
       {"gone.safetensors"}},
      {"a tokenizer that is larger",
       [] {
         const Folder folder;
         put_llama(folder).put("tokenizer_config.json", R"({"tokenizer_class": "BertTokenizer"})");
         folder.put("vocab.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\nm\n[UNK]\n[PAD]\n[CLS]\n[SEP]\n");
         open(folder.path());
       },
       {"around a text", "vocab_size of 13"}},
  });
}

void open_generating(const char* config) {
  const Folder folder;
  put_llama(folder).put("generation_config.json", config);
  open(folder.path());
}

std::vector<int64_t> generate_with(const char* config) {
  const Folder folder;
  put_llama(folder).put("generation_config.json", config);
  const Loaded loaded = open(folder.path());
  return generate::generate(*loaded.model, std::vector<int64_t>{1, 2}, generate::options_of(loaded)).tokens;
}

/// Refused are only fields that count for the texts that are made; a caller may decide otherwise.
TEST(Hub, UnsupportedGenerationFieldsThatCountAreRefused) {
  const auto plain = generate_with(R"({"do_sample": false, "max_new_tokens": 4})");
  EXPECT_EQ(generate_with(R"({"do_sample": false, "max_new_tokens": 4, "typical_p": 0.5, "num_beam_groups": 3,
      "guidance_scale": 1, "encoder_repetition_penalty": 1.0, "watermarking_config": null})"),
            plain);
  const std::string other = R"({"do_sample": false, "max_new_tokens": 4, "bad_words_ids": [[)";
  EXPECT_NE(generate_with((other + std::to_string(plain[0]) + "]]}").c_str()), plain);
}

TEST(HostileHub, GenerationConfigs) {
  expect_refused({
      {"no JSON", [] { open_generating("{\"top_k\": "); }, {"generation_config.json"}},
      {"a list", [] { open_generating("[1]"); }, {"[open]", "generation_config.json is not a JSON object"}},
      {"all that can be wrong",
       [] {
         open_generating(R"({"do_sample": 1, "temperature": -1, "top_k": 1.5, "top_p": 0, "min_p": 2,
             "repetition_penalty": "much", "max_new_tokens": 0, "max_length": 99999999999999999999,
             "suppress_tokens": [1, 13]})");
       },
       {"generation_config.json: do_sample is 1, must be true or false", "temperature is -1, must be a number from 0",
        "top_k is 1.5, must be a whole number from 0", "top_p is 0, must be a number above 0, at most 1",
        "min_p is 2, must be", "repetition_penalty is \"much\"", "max_new_tokens is 0, must be a whole number from 1",
        "max_length is", "suppress_tokens is a list, must be a list of tokens below 13"}},
      {"tokens that are none", [] { open_generating(R"({"suppress_tokens": 7})"); }, {"suppress_tokens is 7"}},
      {"a huge temperature", [] { open_generating(R"({"temperature": 1e300})"); }, {"temperature is", "to 1000000.0"}},
      {"runs that are none",
       [] { open_generating(R"({"bad_words_ids": [[1], []], "sequence_bias": [[[1], 2.0], [[13], 1.0]]})"); },
       {"bad_words_ids is a list, must be a list of lists of tokens, the tokens below 13",
        "sequence_bias is a list, must be a list of pairs"}},
      {"an end that is a text", [] { open_generating(R"({"eos_token_id": "</s>"})"); }, {"eos_token_id is \"</s>\""}},
      {"what would make another text",
       [] {
         generate_with(R"({"guidance_scale": 2.5, "typical_p": 0.5, "diversity_penalty": 1, "stop_strings": ["a"]})");
       },
       {"generation_config.json: guidance_scale is 2.5, which is not supported", "typical_p is 0.5",
        "stop_strings is a list"}},
      {"every token suppressed",
       [] {
         const Folder folder;
         put_llama(folder).put("generation_config.json",
                               R"({"suppress_tokens": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]})");
         const Loaded loaded = open(folder.path());
         generate::generate(*loaded.model, std::vector<int64_t>{1}, generate::options_of(loaded));
       },
       {"all tokens are suppressed"}},
  });
}

}  // namespace
}  // namespace attn::test
