// models: weights of 8 and 4 bits, made as a model is opened.
#include "attn/ops_quantized.h"
#include "attn/record.h"
#include "support/errors.h"
#include "support/hub.h"
#include "support/tolerance.h"

namespace attn::test {
namespace {

using namespace models;

/// A LLaMA with matrices that are worth it.
Config decoder() {
  Config config = family("llama");
  apply_json(config, R"({"vocab_size": 256, "embed_dim": 64, "hidden_dim": 96, "layers": 2, "heads": 4,
                         "tie_embeddings": true, "context": 16})",
             "test");
  return config;
}

/// A folder with the model of a training at step 1.
void put_model(const Folder& folder, const Config& config) {
  const Model model(config, nn::Precision::float32, 3);
  folder.put("config.json", to_json(config)).put("tokenizer.json", text::bytes()->to_json());
  Checkpoints(folder.path()).save(1, model.tensors(), "{}", true, false);
}

Values logits_of(const Model& model) {
  autograd::Tape tape;
  const Value logits = model.forward(tape, {.tokens = {3, 1, 4, 1, 5, 9, 2, 6}, .sequences = 2, .length = 4});
  Values all;
  for (int64_t n = 0; n < logits.data().count(); ++n)
    all.push_back(static_cast<double>(static_cast<const float*>(logits.data().data())[n]));
  return all;
}

TEST(Quantized, AModelIsNearItself) {
  const Folder folder;
  put_model(folder, decoder());
  const Values exact = logits_of(*open(folder.path()).model);
  for (const Quantization kind : {Quantization::int8, Quantization::int4}) {
    const Loaded loaded = open(folder.path(), {.quantization = kind});
    // Codes of 4 bits err by a sixteenth of the largest of 32 weights; those of 8 bits, and rows, by less than a 254th.
    // An error that is independent in each of several layers adds up by squares.
    const double step = kind == Quantization::int8 ? 1.0 / 254 : 1.0 / 16;
    EXPECT_LT(normalized_error(logits_of(*loaded.model), exact), 8 * step * step);
    EXPECT_GT(normalized_error(logits_of(*loaded.model), exact), 0);
  }
}

TEST(Quantized, MatricesOfProductsAndTiedTablesAre) {
  const Folder folder;
  put_model(folder, decoder());
  const Loaded loaded = open(folder.path(), {.quantization = Quantization::int4});
  int64_t numbers = 0;
  for (const nn::Parameter& parameter : loaded.model->parameters().all()) {
    const bool is_matrix = parameter.value.shape().size() == 2;
    EXPECT_EQ(parameter.value.is_freed() && parameter.value.packed().is_quantized(), is_matrix) << parameter.name;
    if (is_matrix) numbers += parameter.master.count();
  }
  const int64_t table = 256 * 64, rest = numbers - table;
  // With padding to whole panels: 4.5 bits a number, and 8.5 of the table.
  EXPECT_LT(loaded.model->parameters().bytes(), 2 * (rest * 9 / 16 + table * 17 / 16));
  EXPECT_LT(loaded.model->parameters().bytes(), open(folder.path()).model->parameters().bytes() / 2);
}

TEST(Quantized, CachedTokensHaveTheLogitsOfTheWholeText) {
  const Folder folder;
  put_model(folder, decoder());
  const Loaded loaded = open(folder.path(), {.quantization = Quantization::int8});
  autograd::Tape whole({.batch_invariant = true}), step({.batch_invariant = true});
  const Value all = loaded.model->forward(whole, {.tokens = {3, 1, 4, 1}, .sequences = 1, .length = 4});
  ModelCache cache = loaded.model->new_cache();
  for (const int64_t token : {3, 1, 4, 1}) {
    const int64_t at = cache.length();
    const Value one = loaded.model->forward(step, {.tokens = {token}, .sequences = 1, .length = 1}, {.cache = &cache});
    for (int64_t n = 0; n < 256; ++n)
      EXPECT_EQ(static_cast<const float*>(one.data().data())[n],
                static_cast<const float*>(all.data().data())[at * 256 + n]);
  }
}

/// The logits of a text through a cache are near those without one, do not depend on how the text comes, and the cache
/// takes the memory that cache_bytes_per_token() says.
TEST(Int8Caches, OfAModel) {
  Config config = decoder();
  config.context = 200;
  for (const nn::Precision precision : {nn::Precision::float32, nn::Precision::bfloat16}) {
    const Model model(config, precision, 3);
    std::vector<int64_t> tokens(128);
    for (size_t n = 0; n < tokens.size(); ++n) tokens[n] = static_cast<int64_t>(n * n % 256);
    const auto logits = [&](KVStorage storage, int64_t at_once) {
      ModelCache cache = model.new_cache(1, {}, storage);
      EXPECT_EQ(cache.storage(), storage);
      Values all;
      for (size_t n = 0; n < tokens.size(); n += static_cast<size_t>(at_once)) {
        autograd::Tape tape({.batch_invariant = true});
        const auto first = tokens.begin() + static_cast<int64_t>(n);
        const Value some = model.forward(tape, {.tokens = {first, first + at_once}, .sequences = 1, .length = at_once},
                                         {.cache = &cache});
        for (const double x : numbers(some.data())) all.push_back(x);
      }
      EXPECT_EQ(cache.bytes(), 128 * cache_bytes_per_token(config, model.parameters().dtype(), storage));
      return all;
    };
    const Values exact = logits(KVStorage::exact, 128), rounded = logits(KVStorage::int8, 128);
    EXPECT_EQ(rounded, logits(KVStorage::int8, 1));
    EXPECT_GT(max_abs_error(rounded, exact), 0);
    const double roundings = kRoundings * unit_of(model.parameters().dtype());
    EXPECT_LT(normalized_error(rounded, exact), kInt8RowsNmse + roundings * roundings);
  }
}

TEST(Int8Caches, AreNotRecorded) {
  const Model model(decoder(), nn::Precision::float32, 3);
  ModelCache cache = model.new_cache(1, {}, KVStorage::int8);
  TextRecorder recorder;
  autograd::Tape tape;
  EXPECT_NE(
      error_of([&] {
        model.forward(tape, {.tokens = {1, 2}, .sequences = 1, .length = 2}, {.cache = &cache, .recorder = &recorder});
      }).find("need a cache whose storage is exact, not int8"),
      std::string::npos);
}

TEST(Quantized, AreForInferenceAndHaveNoTensors) {
  const Folder folder;
  put_model(folder, decoder());
  EXPECT_NE(error_of([&] {
              open(folder.path(), {.quantization = Quantization::int8, .purpose = nn::Purpose::training});
            }).find("[open] weights of int8 are for inference alone"),
            std::string::npos);
  const Loaded loaded = open(folder.path(), {.quantization = Quantization::int8});
  EXPECT_NE(error_of([&] { loaded.model->tensors(); }).find("is packed, and its matrix was freed"), std::string::npos);
}

TEST(Quantized, WeightsThatAreNotFiniteAreNamed) {
  Model model(decoder(), nn::Precision::float32, 3);
  const nn::Parameter& weight = *model.parameters().find("blocks.1.feed_forward.up.weight");
  static_cast<float*>(weight.master.data())[7] = std::numeric_limits<float>::infinity();
  const Folder folder;
  folder.put("config.json", to_json(decoder())).put("tokenizer.json", text::bytes()->to_json());
  Checkpoints(folder.path()).save(1, model.tensors(), "{}", true, false);
  const std::string said = error_of([&] { open(folder.path(), {.quantization = Quantization::int8}); });
  EXPECT_NE(said.find("blocks.1.feed_forward.up.weight: w has numbers that are not finite"), std::string::npos) << said;
}

TEST(Quantized, ASourceGivesPackedWeightsThatFit) {
  const auto give = [](const ops::PackedMatrix& packed, const std::string& name, nn::Purpose purpose) {
    return error_of([&] {
      nn::Parameters parameters({.purpose = purpose},
                                [&](const nn::Variable&, const auto&) { return nn::ParameterData(packed); });
      nn::Scope(parameters)
          .variable(name, {16, 32}, name == "bias" ? nn::ParameterRole::bias : nn::ParameterRole::linear);
    });
  };
  const ops::PackedMatrix fits(ops::quantize(random_array(DType::float32, {16, 32}, 1, 1).rows())),
      other(ops::quantize(random_array(DType::float32, {32, 16}, 1, 1).rows()));
  EXPECT_EQ(give(fits, "w", nn::Purpose::inference), "");
  EXPECT_NE(give(other, "w", nn::Purpose::inference).find("gave a packed matrix [32, 16] for w"), std::string::npos);
  EXPECT_NE(give(fits, "bias", nn::Purpose::inference).find("must be a quantized weight"), std::string::npos);
  EXPECT_NE(give(fits, "w", nn::Purpose::training).find("w is packed, and cannot be trained"), std::string::npos);
}

}  // namespace
}  // namespace attn::test
