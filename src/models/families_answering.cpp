// Families whose encoder reads a text, a picture or sound: T5, BART, ViT, Whisper.
#include <algorithm>
#include <cmath>
#include "io/json.h"

#include "io/json.h"
#include "models/families.h"

namespace attn::models {
namespace {

using io::Json;

// ---------------------------------------------------------------------------------------------------- encoder-decoders

const NameRules kT5Names = {
    {"tokens.weight", {"shared.weight"}},
    {"tokens.weight", {"encoder.embed_tokens.weight"}},
    {"tokens.weight", {"decoder.embed_tokens.weight"}},
    {"encoder.#.norm_attention.weight", {"encoder.block.#.layer.0.layer_norm.weight"}},
    {"encoder.#.attention.qkv.weight",
     {"encoder.block.#.layer.0.SelfAttention.q.weight", "encoder.block.#.layer.0.SelfAttention.k.weight",
      "encoder.block.#.layer.0.SelfAttention.v.weight"}},
    {"encoder.#.attention.output.weight", {"encoder.block.#.layer.0.SelfAttention.o.weight"}},
    {"encoder.#.attention.distance_bias", {"encoder.block.#.layer.0.SelfAttention.relative_attention_bias.weight"}},
    {"encoder.#.norm_feed_forward.weight", {"encoder.block.#.layer.1.layer_norm.weight"}},
    {"encoder.#.feed_forward.up.weight",
     {"encoder.block.#.layer.1.DenseReluDense.wi_0.weight", "encoder.block.#.layer.1.DenseReluDense.wi_1.weight"}},
    {"encoder.#.feed_forward.up.weight", {"encoder.block.#.layer.1.DenseReluDense.wi.weight"}},
    {"encoder.#.feed_forward.down.weight", {"encoder.block.#.layer.1.DenseReluDense.wo.weight"}},
    {"encoder_norm.weight", {"encoder.final_layer_norm.weight"}},
    {"blocks.#.norm_attention.weight", {"decoder.block.#.layer.0.layer_norm.weight"}},
    {"blocks.#.attention.qkv.weight",
     {"decoder.block.#.layer.0.SelfAttention.q.weight", "decoder.block.#.layer.0.SelfAttention.k.weight",
      "decoder.block.#.layer.0.SelfAttention.v.weight"}},
    {"blocks.#.attention.output.weight", {"decoder.block.#.layer.0.SelfAttention.o.weight"}},
    {"blocks.#.attention.distance_bias", {"decoder.block.#.layer.0.SelfAttention.relative_attention_bias.weight"}},
    {"blocks.#.norm_cross.weight", {"decoder.block.#.layer.1.layer_norm.weight"}},
    {"blocks.#.cross.query.weight", {"decoder.block.#.layer.1.EncDecAttention.q.weight"}},
    {"blocks.#.cross.key_value.weight",
     {"decoder.block.#.layer.1.EncDecAttention.k.weight", "decoder.block.#.layer.1.EncDecAttention.v.weight"}},
    {"blocks.#.cross.output.weight", {"decoder.block.#.layer.1.EncDecAttention.o.weight"}},
    {"blocks.#.norm_feed_forward.weight", {"decoder.block.#.layer.2.layer_norm.weight"}},
    {"blocks.#.feed_forward.up.weight",
     {"decoder.block.#.layer.2.DenseReluDense.wi_0.weight", "decoder.block.#.layer.2.DenseReluDense.wi_1.weight"}},
    {"blocks.#.feed_forward.up.weight", {"decoder.block.#.layer.2.DenseReluDense.wi.weight"}},
    {"blocks.#.feed_forward.down.weight", {"decoder.block.#.layer.2.DenseReluDense.wo.weight"}},
    {"norm.weight", {"decoder.final_layer_norm.weight"}},
    {"head.weight", {"/lm_head.weight"}}};

/// The gelu of a gated T5 is that of tanh, where it goes by its short name.
void t5_activation(const Json& theirs, Config& config) {
  const char* source = "feed_forward_proj";
  std::string name = text_field(theirs, source, "relu");
  config.gated = name.starts_with("gated-");
  if (config.gated) name = name == "gated-gelu" ? "gelu_new" : name.substr(6);
  config.gated = flag_field(theirs, "is_gated_act", config.gated);  // what newer files say of the same
  if (theirs.contains("dense_act_fn")) name = text_field(theirs, source = "dense_act_fn", name);
  try {
    set_field(config, "activation", activation_named(name));
  } catch (const Error&) {
    refuse_field(source, name, "relu, gelu, gelu_new, silu or tanh, perhaps gated");
  }
}

/// The decoder is as deep as the encoder unless it is said. The first T5 scales what its tied head reads.
void t5(const Json& theirs, Config& config) {
  constexpr int64_t kMost = 1 << 12;
  t5_activation(theirs, config);
  const int64_t layers = whole_field(theirs, "num_layers", 6, 1, kMost);
  config.encoder_layers = whole_field(theirs, "num_hidden_layers", layers, 1, kMost);
  const bool given = theirs.contains("num_decoder_layers") && !theirs["num_decoder_layers"].is_null();
  config.layers = given ? whole_field(theirs, "num_decoder_layers", layers, 1, kMost) : layers;
  if (flag_field(theirs, "scale_decoder_outputs", config.tie_embeddings))
    config.logit_scale = 1 / std::sqrt(static_cast<double>(config.embed_dim));
  config.tie_embeddings = true;  // unless the file has a head of its own
}

const NameRules kBartEncoder = {{"encoder.#.attention.qkv.*",
                                 {"encoder.layers.#.self_attn.q_proj.*", "encoder.layers.#.self_attn.k_proj.*",
                                  "encoder.layers.#.self_attn.v_proj.*"}},
                                {"encoder.#.attention.output.*", {"encoder.layers.#.self_attn.out_proj.*"}},
                                {"encoder.#.norm_attention.*", {"encoder.layers.#.self_attn_layer_norm.*"}},
                                {"encoder.#.feed_forward.up.*", {"encoder.layers.#.fc1.*"}},
                                {"encoder.#.feed_forward.down.*", {"encoder.layers.#.fc2.*"}},
                                {"encoder.#.norm_feed_forward.*", {"encoder.layers.#.final_layer_norm.*"}}};
const NameRules kBartDecoder = {{"blocks.#.attention.qkv.*",
                                 {"decoder.layers.#.self_attn.q_proj.*", "decoder.layers.#.self_attn.k_proj.*",
                                  "decoder.layers.#.self_attn.v_proj.*"}},
                                {"blocks.#.attention.output.*", {"decoder.layers.#.self_attn.out_proj.*"}},
                                {"blocks.#.norm_attention.*", {"decoder.layers.#.self_attn_layer_norm.*"}},
                                {"blocks.#.cross.query.*", {"decoder.layers.#.encoder_attn.q_proj.*"}},
                                {"blocks.#.cross.key_value.*",
                                 {"decoder.layers.#.encoder_attn.k_proj.*", "decoder.layers.#.encoder_attn.v_proj.*"}},
                                {"blocks.#.cross.output.*", {"decoder.layers.#.encoder_attn.out_proj.*"}},
                                {"blocks.#.norm_cross.*", {"decoder.layers.#.encoder_attn_layer_norm.*"}},
                                {"blocks.#.feed_forward.up.*", {"decoder.layers.#.fc1.*"}},
                                {"blocks.#.feed_forward.down.*", {"decoder.layers.#.fc2.*"}},
                                {"blocks.#.norm_feed_forward.*", {"decoder.layers.#.final_layer_norm.*"}}};
const NameRules kBartNames = NameRules{{"tokens.weight", {"shared.weight"}},
                                       {"tokens.weight", {"encoder.embed_tokens.weight"}},
                                       {"tokens.weight", {"decoder.embed_tokens.weight"}},
                                       {"positions.weight", {"decoder.embed_positions.weight"}},
                                       {"encoder_positions.weight", {"encoder.embed_positions.weight"}},
                                       {"norm.*", {"decoder.layernorm_embedding.*"}},
                                       {"encoder_norm.*", {"encoder.layernorm_embedding.*"}},
                                       {"head.weight", {"/lm_head.weight"}},
                                       {"head.bias", {"/final_logits_bias"}},
                                       {"head.bias", {kZeros}}} +
                             kBartEncoder + kBartDecoder;

/// Encoder and decoder are of one width and have as many heads.
void require_twins(const Json& theirs, const Config& config, int64_t heads, int64_t hidden) {
  constexpr int64_t kMost = 1 << 20;
  std::vector<std::string> reasons;
  const auto twin = [&](const char* encoder, const char* decoder, int64_t otherwise, int64_t wanted) {
    const int64_t value = whole_field(theirs, encoder, otherwise, 1, kMost);
    if (value != wanted)
      reasons.push_back(std::string(encoder) + " is " + std::to_string(value) + " and " + decoder + " " +
                        std::to_string(wanted) + ": only equal ones are supported");
  };
  twin("encoder_attention_heads", "decoder_attention_heads", heads, config.heads);
  twin("encoder_ffn_dim", "decoder_ffn_dim", hidden, config.hidden_dim);
  if (!reasons.empty()) throw Error("config", reasons);
}

void bart(const Json& theirs, Config& config) {
  require_twins(theirs, config, 16, 4096);
  if (!theirs.value("scale_embedding", Json()).is_null() && flag_field(theirs, "scale_embedding", false))
    scale_by_width(config);
}

const Fields kTwinFields = {{"vocab_size", "vocab_size", Meaning::positive},
                            {"d_model", "embed_dim", Meaning::positive},
                            {"encoder_layers", "encoder_layers", Meaning::positive},
                            {"decoder_layers", "layers", Meaning::positive},
                            {"decoder_attention_heads", "heads", Meaning::positive},
                            {"decoder_ffn_dim", "hidden_dim", Meaning::positive},
                            {"activation_function", "activation", Meaning::activation},
                            {"dropout", "dropout"},
                            {"tie_word_embeddings", "tie_embeddings"}};
const std::vector<std::pair<const char*, const char*>> kTwinAliases = {
    {"num_attention_heads", "encoder_attention_heads"},
    {"hidden_size", "d_model"},
    {"num_hidden_layers", "encoder_layers"}};

// -------------------------------------------------------------------------------------------------- pictures and sound

const NameRules kVitNames = {
    {"positions.weight", {"embeddings.position_embeddings"}},
    {"blocks.#.attention.qkv.*",
     {"encoder.layer.#.attention.attention.query.*", "encoder.layer.#.attention.attention.key.*",
      "encoder.layer.#.attention.attention.value.*"}},
    {"blocks.#.attention.output.*", {"encoder.layer.#.attention.output.dense.*"}},
    {"blocks.#.norm_attention.*", {"encoder.layer.#.layernorm_before.*"}},
    {"blocks.#.feed_forward.up.*", {"encoder.layer.#.intermediate.dense.*"}},
    {"blocks.#.feed_forward.down.*", {"encoder.layer.#.output.dense.*"}},
    {"blocks.#.norm_feed_forward.*", {"encoder.layer.#.layernorm_after.*"}},
    {"norm.*", {"layernorm.*"}}};
const HeadRules kVitHeads =
    HeadRules{{"ForImageClassification", R"({"pooling": "first"})", {{"head.*", {"/classifier.*"}}}}} + row_heads();

/// A side, or a list of both, of a picture or a patch.
std::pair<int64_t, int64_t> sides_of(const Json& theirs, const char* name, int64_t otherwise) {
  constexpr int64_t kMost = 1 << 16;
  const auto found = theirs.find(name);
  if (found == theirs.end() || !found->is_array()) {
    const int64_t side = whole_field(theirs, name, otherwise, 1, kMost);
    return {side, side};
  }
  if (found->size() != 2) refuse_field(name, *found, "a number or a list of two");
  const auto side = [&](size_t n) { return whole_field(Json({{name, (*found)[n]}}), name, 0, 1, kMost); };
  return {side(0), side(1)};
}

/// The class token and the patches of a picture.
void vit(const Json& theirs, Config& config) {
  const auto [high, wide] = sides_of(theirs, "image_size", 224);
  const auto [patch_high, patch_wide] = sides_of(theirs, "patch_size", 16);
  const int64_t rows = high / patch_high, columns = wide / patch_wide;
  if (rows < 1 || columns < 1 || rows > 1024 || columns > 1024)
    throw Error("config", {"image_size and patch_size make " + std::to_string(rows) + " x " + std::to_string(columns) +
                           " patches, must be 1 to 1024 in a row"});
  config.context = 1 + rows * columns;
  const Json pooled = theirs.value("pooler_output_size", Json());
  if (!pooled.is_null() && pooled != 0 && !(pooled.is_number_integer() && pooled == config.embed_dim))
    refuse_field("pooler_output_size", pooled, "hidden_size, " + std::to_string(config.embed_dim));
}

const NameRules kWhisperNames =
    NameRules{{"tokens.weight", {"decoder.embed_tokens.weight"}},
              {"positions.weight", {"decoder.embed_positions.weight"}},
              {"encoder_positions.weight", {"encoder.embed_positions.weight"}},
              {"norm.*", {"decoder.layer_norm.*"}},
              {"encoder_norm.*", {"encoder.layer_norm.*"}},
              {"encoder.#.attention.qkv.bias",
               {"encoder.layers.#.self_attn.q_proj.bias", kZeros, "encoder.layers.#.self_attn.v_proj.bias"}},
              {"blocks.#.attention.qkv.bias",
               {"decoder.layers.#.self_attn.q_proj.bias", kZeros, "decoder.layers.#.self_attn.v_proj.bias"}},
              {"blocks.#.cross.key_value.bias", {kZeros, "decoder.layers.#.encoder_attn.v_proj.bias"}},
              {"head.weight", {"/proj_out.weight"}}} +
    kBartEncoder + kBartDecoder;

void whisper(const Json& theirs, Config& config) { require_twins(theirs, config, 6, 1536); }

}  // namespace

std::vector<Family> answering_families() {
  return {
      {"t5",
       "",
       {R"({"norm": "rms", "positions": "relative", "shared_relative_bias": true, "attention_scale": 1,
        "bias": false, "norm_epsilon": 1e-6, "context": 512, "head_dim": 64, "encoder_layers": 6, "embed_dim": 512,
        "layers": 6, "heads": 8, "hidden_dim": 2048, "dropout": 0.1})"},
       {{"vocab_size", "vocab_size", Meaning::positive},
        {"d_model", "embed_dim", Meaning::positive},
        {"d_kv", "head_dim", Meaning::positive},
        {"d_ff", "hidden_dim", Meaning::positive},
        {"num_heads", "heads", Meaning::positive},
        {"relative_attention_num_buckets", "buckets", Meaning::positive},
        {"relative_attention_max_distance", "max_distance", Meaning::positive},
        {"layer_norm_epsilon", "norm_epsilon"},
        {"dropout_rate", "dropout"},
        {"tie_word_embeddings", "tie_embeddings"}},
       kT5Names,
       {{"ForConditionalGeneration", "{}", {}}},
       t5,
       {},
       "",
       {{"hidden_size", "d_model"}, {"num_attention_heads", "num_heads"}, {"head_dim", "d_kv"}}},
      {"bart",
       "model.",
       {R"({"norm_placement": "post", "activation": "gelu", "position_offset": 2, "head_bias": true, "context": 1024,
        "encoder_layers": 12, "layers": 12, "embed_dim": 1024, "heads": 16, "hidden_dim": 4096, "dropout": 0.1})"},
       kTwinFields + Fields{{"max_position_embeddings", "context", Meaning::positive}},
       kBartNames,
       {{"ForConditionalGeneration", "{}", {}}},
       bart,
       {},
       "",
       kTwinAliases},
      {"vit",
       "vit.",
       {R"({"causal": false, "takes_embeddings": true, "activation": "gelu", "norm_epsilon": 1e-12, "embed_dim": 768,
        "layers": 12, "heads": 12, "hidden_dim": 3072, "tie_embeddings": false})"},
       {{"hidden_size", "embed_dim", Meaning::positive},
        {"num_hidden_layers", "layers", Meaning::positive},
        {"num_attention_heads", "heads", Meaning::positive},
        {"intermediate_size", "hidden_dim", Meaning::positive},
        {"layer_norm_eps", "norm_epsilon"},
        {"hidden_dropout_prob", "dropout"},
        {"hidden_act", "activation", Meaning::activation},
        {"qkv_bias", "true", Meaning::required},
        {"pooler_act", "\"tanh\"", Meaning::required}},
       kVitNames,
       kVitHeads,
       vit},
      {"whisper",
       "model.",
       {R"({"takes_embeddings": true, "activation": "gelu", "context": 448, "source_context": 1500, "encoder_layers": 4,
        "layers": 4, "embed_dim": 384, "heads": 6, "hidden_dim": 1536})"},
       kTwinFields + Fields{{"max_target_positions", "context", Meaning::positive},
                            {"max_source_positions", "source_context", Meaning::positive}},
       kWhisperNames,
       {{"ForConditionalGeneration", "{}", {}}},
       whisper,
       {},
       "",
       kTwinAliases +
           std::vector<std::pair<const char*, const char*>>{{"num_key_value_heads", "encoder_attention_heads"}}},
  };
}

}  // namespace attn::models
