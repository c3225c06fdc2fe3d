// The table of families: defaults, the names of their fields, the names of their tensors.
#include "models/families.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace attn::models {
namespace {

using Json = nlohmann::json;
using Names = std::vector<NameRule>;
using Fields = std::vector<FieldRule>;
using Heads = std::vector<HeadRule>;

template <class T>
std::vector<T> operator+(std::vector<T> a, const std::vector<T>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// ---------------------------------------------------------------------------------------------- LLaMA and its
// relatives

const Fields kCommonFields = {{"vocab_size", "vocab_size"},
                              {"hidden_size", "embed_dim"},
                              {"num_hidden_layers", "layers"},
                              {"num_attention_heads", "heads"},
                              {"intermediate_size", "hidden_dim"},
                              {"max_position_embeddings", "context"},
                              {"tie_word_embeddings", "tie_embeddings"}};
const Fields kLlamaFields = kCommonFields + Fields{{"num_key_value_heads", "kv_heads"},
                                                   {"head_dim", "head_dim"},
                                                   {"rms_norm_eps", "norm_epsilon"},
                                                   {"hidden_act", "activation", Meaning::activation},
                                                   {"attention_bias", "false", Meaning::required},
                                                   {"mlp_bias", "false", Meaning::required}};
constexpr const char* kLlamaDefaults = R"({"norm": "rms", "positions": "rope", "activation": "silu", "gated": true,
    "bias": false, "norm_epsilon": 1e-6, "context": 2048, "tie_embeddings": false})";

const Names kLlamaAttention = {
    {"blocks.#.attention.qkv.*",
     {"layers.#.self_attn.q_proj.*", "layers.#.self_attn.k_proj.*", "layers.#.self_attn.v_proj.*"}},
    {"blocks.#.attention.output.*", {"layers.#.self_attn.o_proj.*"}}};
const Names kLlamaFeedForward = {{"blocks.#.feed_forward.up.*", {"layers.#.mlp.gate_proj.*", "layers.#.mlp.up_proj.*"}},
                                 {"blocks.#.feed_forward.down.*", {"layers.#.mlp.down_proj.*"}}};
const Names kLlamaEnds = {
    {"tokens.weight", {"embed_tokens.weight"}}, {"norm.weight", {"norm.weight"}}, {"head.weight", {"/lm_head.weight"}}};
const Names kLlamaNorms = {{"blocks.#.norm_attention.weight", {"layers.#.input_layernorm.weight"}},
                           {"blocks.#.norm_feed_forward.weight", {"layers.#.post_attention_layernorm.weight"}}};
const Names kHeadNorms = {{"blocks.#.attention.norm_query.weight", {"layers.#.self_attn.q_norm.weight"}},
                          {"blocks.#.attention.norm_key.weight", {"layers.#.self_attn.k_norm.weight"}}};
const Names kLlamaNames = kLlamaEnds + kLlamaNorms + kLlamaAttention + kLlamaFeedForward;

const Heads kCausalHead = {{"ForCausalLM", "{}", {}}, {"LMHeadModel", "{}", {}}, {"Model", R"({"head": false})", {}}};

const Names kPhi3Names = kLlamaEnds + kLlamaNorms +
                         Names{{"blocks.#.attention.qkv.weight", {"layers.#.self_attn.qkv_proj.weight"}},
                               {"blocks.#.attention.output.weight", {"layers.#.self_attn.o_proj.weight"}},
                               {"blocks.#.feed_forward.up.weight", {"layers.#.mlp.gate_up_proj.weight"}},
                               {"blocks.#.feed_forward.down.weight", {"layers.#.mlp.down_proj.weight"}}};
const Names kOlmo2Names = kLlamaEnds + kLlamaAttention + kLlamaFeedForward + kHeadNorms +
                          Names{{"blocks.#.norm_attention.weight", {"layers.#.post_attention_layernorm.weight"}},
                                {"blocks.#.norm_feed_forward.weight", {"layers.#.post_feedforward_layernorm.weight"}}};

const Names kGemma2Names =
    kLlamaAttention + kLlamaFeedForward +
    Names{{"tokens.weight", {"embed_tokens.weight"}},
          {"norm.weight", {"norm.weight"}, Layout::plus_one},
          {"head.weight", {"/lm_head.weight"}},
          {"blocks.#.norm_attention.weight", {"layers.#.input_layernorm.weight"}, Layout::plus_one},
          {"blocks.#.after_attention.weight", {"layers.#.post_attention_layernorm.weight"}, Layout::plus_one},
          {"blocks.#.norm_feed_forward.weight", {"layers.#.pre_feedforward_layernorm.weight"}, Layout::plus_one},
          {"blocks.#.after_feed_forward.weight", {"layers.#.post_feedforward_layernorm.weight"}, Layout::plus_one}};

void scale_by_width(const Json&, Config& config) {
  config.embedding_scale = std::sqrt(static_cast<double>(config.embed_dim));
}

/// Qwen 2 and 3 name a window even where they do not use it.
void window_if_used(const Json& theirs, Config& config) {
  if (!theirs.value("use_sliding_window", false)) config.window = 0;
}

// ---------------------------------------------------------------------------------------------------- GPT-2 and
// GPT-NeoX

const Names kGpt2Names = {{"tokens.weight", {"wte.weight"}},
                          {"positions.weight", {"wpe.weight"}},
                          {"blocks.#.norm_attention.*", {"h.#.ln_1.*"}},
                          {"blocks.#.norm_feed_forward.*", {"h.#.ln_2.*"}},
                          {"blocks.#.attention.qkv.*", {"h.#.attn.c_attn.*"}, Layout::transposed},
                          {"blocks.#.attention.output.*", {"h.#.attn.c_proj.*"}, Layout::transposed},
                          {"blocks.#.feed_forward.up.*", {"h.#.mlp.c_fc.*"}, Layout::transposed},
                          {"blocks.#.feed_forward.down.*", {"h.#.mlp.c_proj.*"}, Layout::transposed},
                          {"norm.*", {"ln_f.*"}},
                          {"head.weight", {"/lm_head.weight"}}};

const Names kNeoxNames = {{"tokens.weight", {"embed_in.weight"}},
                          {"blocks.#.norm_attention.*", {"layers.#.input_layernorm.*"}},
                          {"blocks.#.norm_feed_forward.*", {"layers.#.post_attention_layernorm.*"}},
                          {"blocks.#.attention.qkv.*", {"layers.#.attention.query_key_value.*"}, Layout::interleaved},
                          {"blocks.#.attention.output.*", {"layers.#.attention.dense.*"}},
                          {"blocks.#.feed_forward.up.*", {"layers.#.mlp.dense_h_to_4h.*"}},
                          {"blocks.#.feed_forward.down.*", {"layers.#.mlp.dense_4h_to_h.*"}},
                          {"norm.*", {"final_layer_norm.*"}},
                          {"head.weight", {"/lm_head.weight"}},
                          {"head.weight", {"/embed_out.weight"}}};

/// Where config.json does not say which part of a head is rotated.
void quarter_rotated(const Json& theirs, Config& config) {
  if (config.rope_width > 0 || theirs.contains("rotary_pct")) return;
  config.rope_width = config.embed_dim / std::max<int64_t>(config.heads, 1) / 4;
}

// ----------------------------------------------------------------------------------------------------- BERT's
// relatives

const Fields kBertFields = kCommonFields + Fields{{"type_vocab_size", "token_types"},
                                                  {"layer_norm_eps", "norm_epsilon"},
                                                  {"hidden_dropout_prob", "dropout"},
                                                  {"hidden_act", "activation", Meaning::activation},
                                                  {"is_decoder", "false", Meaning::required},
                                                  {"add_cross_attention", "false", Meaning::required},
                                                  {"position_embedding_type", "\"absolute\"", Meaning::required}};
constexpr const char* kBertDefaults = R"({"causal": false, "norm_first": false, "norm_epsilon": 1e-12,
    "activation": "gelu", "context": 512, "token_types": 2})";
constexpr const char* kMaskedHead = R"({"head_dense": true, "head_activation": "gelu", "head_norm": true,
    "head_bias": true, "tie_embeddings": true})";
constexpr const char* kFirstTokenHead = R"({"head_dense": true, "head_activation": "tanh", "pooling": "first"})";

const Names kBertNames = {{"tokens.weight", {"embeddings.word_embeddings.weight"}},
                          {"positions.weight", {"embeddings.position_embeddings.weight"}},
                          {"types.weight", {"embeddings.token_type_embeddings.weight"}},
                          {"norm.*", {"embeddings.LayerNorm.*"}},
                          {"embedding_projection.*", {"embeddings_project.*"}},
                          {"blocks.#.attention.qkv.*",
                           {"encoder.layer.#.attention.self.query.*", "encoder.layer.#.attention.self.key.*",
                            "encoder.layer.#.attention.self.value.*"}},
                          {"blocks.#.attention.output.*", {"encoder.layer.#.attention.output.dense.*"}},
                          {"blocks.#.norm_attention.*", {"encoder.layer.#.attention.output.LayerNorm.*"}},
                          {"blocks.#.feed_forward.up.*", {"encoder.layer.#.intermediate.dense.*"}},
                          {"blocks.#.feed_forward.down.*", {"encoder.layer.#.output.dense.*"}},
                          {"blocks.#.norm_feed_forward.*", {"encoder.layer.#.output.LayerNorm.*"}}};

const HeadRule kEachToken = {"ForTokenClassification", R"({"pooling": "each"})", {{"head.*", {"/classifier.*"}}}};
const HeadRule kNoHead = {"Model", R"({"head": false})", {}};
const HeadRule kPooler = {"Pooler", R"({"head": false, "pooler": true})", {{"pooler.*", {"pooler.dense.*"}}}};
const HeadRule kDenseClassifier = {"ForSequenceClassification",
                                   kFirstTokenHead,
                                   {{"head_dense.*", {"/classifier.dense.*"}}, {"head.*", {"/classifier.out_proj.*"}}}};

const Names kBertMaskedNames = {{"head_dense.*", {"/cls.predictions.transform.dense.*"}},
                                {"head_norm.*", {"/cls.predictions.transform.LayerNorm.*"}},
                                {"head.bias", {"/cls.predictions.bias"}},
                                {"head.bias", {"/cls.predictions.decoder.bias"}}};
const Heads kBertHeads = {{"ForMaskedLM", kMaskedHead, kBertMaskedNames},
                          {"ForPreTraining", kMaskedHead, kBertMaskedNames},
                          {"ForSequenceClassification",
                           kFirstTokenHead,
                           {{"head_dense.*", {"pooler.dense.*"}}, {"head.*", {"/classifier.*"}}}},
                          kEachToken,
                          kPooler,
                          kNoHead};
const Heads kRobertaHeads = {{"ForMaskedLM",
                              kMaskedHead,
                              {{"head_dense.*", {"/lm_head.dense.*"}},
                               {"head_norm.*", {"/lm_head.layer_norm.*"}},
                               {"head.bias", {"/lm_head.bias"}},
                               {"head.bias", {"/lm_head.decoder.bias"}}}},
                             kDenseClassifier,
                             kEachToken,
                             kPooler,
                             kNoHead};
const Heads kElectraHeads = {
    {"ForMaskedLM",
     kMaskedHead,
     {{"head_dense.*", {"/generator_predictions.dense.*"}},
      {"head_norm.*", {"/generator_predictions.LayerNorm.*"}},
      {"head.bias", {"/generator_lm_head.bias"}}}},
    {"ForSequenceClassification", R"({"head_dense": true, "head_activation": "gelu", "pooling": "first"})",
     kDenseClassifier.names},
    kEachToken,
    kNoHead};

/// The rows of learned positions before the first are those of padding: pad_token_id + 1.
void positions_behind_padding(const Json& theirs, Config& config) {
  const Json pad = theirs.value("pad_token_id", Json());
  config.position_offset = pad.is_number_integer() && pad >= 0 && pad < 4096 ? pad.get<int64_t>() + 1 : 2;
  config.context -= config.position_offset;
}

const Names kMpnetNames = {{"tokens.weight", {"embeddings.word_embeddings.weight"}},
                           {"positions.weight", {"embeddings.position_embeddings.weight"}},
                           {"norm.*", {"embeddings.LayerNorm.*"}},
                           {"blocks.#.attention.qkv.*",
                            {"encoder.layer.#.attention.attn.q.*", "encoder.layer.#.attention.attn.k.*",
                             "encoder.layer.#.attention.attn.v.*"}},
                           {"blocks.#.attention.output.*", {"encoder.layer.#.attention.attn.o.*"}},
                           {"blocks.#.attention.distance_bias", {"encoder.relative_attention_bias.weight"}},
                           {"blocks.#.norm_attention.*", {"encoder.layer.#.attention.LayerNorm.*"}},
                           {"blocks.#.feed_forward.up.*", {"encoder.layer.#.intermediate.dense.*"}},
                           {"blocks.#.feed_forward.down.*", {"encoder.layer.#.output.dense.*"}},
                           {"blocks.#.norm_feed_forward.*", {"encoder.layer.#.output.LayerNorm.*"}}};

/// Two rows stand before the first position, whatever pad_token_id is.
void mpnet(const Json&, Config& config) { config.context -= config.position_offset; }

const Names kDistilBertNames = {{"tokens.weight", {"embeddings.word_embeddings.weight"}},
                                {"positions.weight", {"embeddings.position_embeddings.weight"}},
                                {"norm.*", {"embeddings.LayerNorm.*"}},
                                {"blocks.#.attention.qkv.*",
                                 {"transformer.layer.#.attention.q_lin.*", "transformer.layer.#.attention.k_lin.*",
                                  "transformer.layer.#.attention.v_lin.*"}},
                                {"blocks.#.attention.output.*", {"transformer.layer.#.attention.out_lin.*"}},
                                {"blocks.#.norm_attention.*", {"transformer.layer.#.sa_layer_norm.*"}},
                                {"blocks.#.feed_forward.up.*", {"transformer.layer.#.ffn.lin1.*"}},
                                {"blocks.#.feed_forward.down.*", {"transformer.layer.#.ffn.lin2.*"}},
                                {"blocks.#.norm_feed_forward.*", {"transformer.layer.#.output_layer_norm.*"}}};
const Heads kDistilBertHeads = {{"ForMaskedLM",
                                 kMaskedHead,
                                 {{"head_dense.*", {"/vocab_transform.*"}},
                                  {"head_norm.*", {"/vocab_layer_norm.*"}},
                                  {"head.bias", {"/vocab_projector.bias"}}}},
                                {"ForSequenceClassification",
                                 R"({"head_dense": true, "head_activation": "relu", "pooling": "first"})",
                                 {{"head_dense.*", {"/pre_classifier.*"}}, {"head.*", {"/classifier.*"}}}},
                                kEachToken,
                                kNoHead};

const Names kModernBertNames = {{"tokens.weight", {"embeddings.tok_embeddings.weight"}},
                                {"embedding_norm.*", {"embeddings.norm.*"}},
                                {"blocks.#.norm_attention.*", {"layers.#.attn_norm.*"}},
                                {"blocks.#.norm_feed_forward.*", {"layers.#.mlp_norm.*"}},
                                {"blocks.#.attention.qkv.*", {"layers.#.attn.Wqkv.*"}},
                                {"blocks.#.attention.output.*", {"layers.#.attn.Wo.*"}},
                                {"blocks.#.feed_forward.up.*", {"layers.#.mlp.Wi.*"}},
                                {"blocks.#.feed_forward.down.*", {"layers.#.mlp.Wo.*"}},
                                {"norm.*", {"final_norm.*"}}};
const Names kModernBertHead = {{"head_dense.*", {"/head.dense.*"}}, {"head_norm.*", {"/head.norm.*"}}};
const Heads kModernBertHeads = {
    {"ForMaskedLM", kMaskedHead, kModernBertHead + Names{{"head.bias", {"/decoder.bias"}}}},
    {"ForSequenceClassification", R"({"head_dense": true, "head_norm": true, "pooling": "first"})",
     kModernBertHead + Names{{"head.*", {"/classifier.*"}}}},
    {"ForTokenClassification", R"({"head_dense": true, "head_norm": true, "pooling": "each"})",
     kModernBertHead + Names{{"head.*", {"/classifier.*"}}}},
    kNoHead};

/// Older files say which layers see all by a period, and both bases of rope by fields of their own.
void modern_bert(const Json& theirs, Config& config) {
  if (const Json period = theirs.value("global_attn_every_n_layers", Json()); period.is_number_integer())
    if (period > 0 && period <= 4096) config.window_layers = "f" + std::string(period.get<size_t>() - 1, 'w');
  if (const Json theta = theirs.value("global_rope_theta", Json()); theta.is_number()) config.rope_theta = theta;
  if (const Json theta = theirs.value("local_rope_theta", Json()); theta.is_number()) config.window_theta = theta;
  config.first_norm = false;
  config.head_dense_bias = theirs.value("classifier_bias", false);
  if (config.pooling == Pooling::first && theirs.value("classifier_pooling", "cls") == "mean")
    config.pooling = Pooling::mean;
}

// ---------------------------------------------------------------------------------------------------- encoder-decoders

const Names kT5Names = {
    {"tokens.weight", {"shared.weight"}},
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

/// "relu", "gated-gelu": the gelu of T5 is that of tanh. The first T5 scales what its tied head reads.
void t5(const Json& theirs, Config& config) {
  const std::string kind = theirs.value("feed_forward_proj", "relu");
  config.gated = kind.starts_with("gated-");
  const std::string activation = config.gated ? kind.substr(6) : kind;
  if (activation == "relu") config.activation = Activation::relu;
  else if (activation == "silu") config.activation = Activation::silu;
  else if (activation == "gelu") config.activation = config.gated ? Activation::gelu_tanh : Activation::gelu;
  else
    throw Error("config", {"feed_forward_proj is '" + kind + "', known are relu, gelu, silu, gated-gelu, gated-silu"});
  if (config.encoder_layers == 0) config.encoder_layers = config.layers;
  if (!theirs.contains("num_decoder_layers") || theirs["num_decoder_layers"].is_null())
    config.layers = config.encoder_layers;
  if (theirs.value("scale_decoder_outputs", config.tie_embeddings))
    config.logit_scale = 1 / std::sqrt(static_cast<double>(config.embed_dim));
}

const Names kBartEncoder = {{"encoder.#.attention.qkv.*",
                             {"encoder.layers.#.self_attn.q_proj.*", "encoder.layers.#.self_attn.k_proj.*",
                              "encoder.layers.#.self_attn.v_proj.*"}},
                            {"encoder.#.attention.output.*", {"encoder.layers.#.self_attn.out_proj.*"}},
                            {"encoder.#.norm_attention.*", {"encoder.layers.#.self_attn_layer_norm.*"}},
                            {"encoder.#.feed_forward.up.*", {"encoder.layers.#.fc1.*"}},
                            {"encoder.#.feed_forward.down.*", {"encoder.layers.#.fc2.*"}},
                            {"encoder.#.norm_feed_forward.*", {"encoder.layers.#.final_layer_norm.*"}}};
const Names kBartDecoder = {{"blocks.#.attention.qkv.*",
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
const Names kBartNames = Names{{"tokens.weight", {"shared.weight"}},
                               {"positions.weight", {"decoder.embed_positions.weight"}},
                               {"encoder_positions.weight", {"encoder.embed_positions.weight"}},
                               {"norm.*", {"decoder.layernorm_embedding.*"}},
                               {"encoder_norm.*", {"encoder.layernorm_embedding.*"}},
                               {"head.weight", {"/lm_head.weight"}},
                               {"head.bias", {"/final_logits_bias"}}} +
                         kBartEncoder + kBartDecoder;

void bart(const Json& theirs, Config& config) {
  if (theirs.value("scale_embedding", false)) scale_by_width(theirs, config);
  for (const auto& [encoder, decoder] :
       {std::pair("encoder_attention_heads", "decoder_attention_heads"), {"encoder_ffn_dim", "decoder_ffn_dim"}})
    if (theirs.value(encoder, Json()) != theirs.value(decoder, Json()))
      throw Error("config", {std::string(encoder) + " and " + decoder + " differ, which is not served"});
}

// --------------------------------------------------------------------------------------------------- pictures and
// sound

const Names kVitNames = {{"positions.weight", {"embeddings.position_embeddings"}},
                         {"blocks.#.attention.qkv.*",
                          {"encoder.layer.#.attention.attention.query.*", "encoder.layer.#.attention.attention.key.*",
                           "encoder.layer.#.attention.attention.value.*"}},
                         {"blocks.#.attention.output.*", {"encoder.layer.#.attention.output.dense.*"}},
                         {"blocks.#.norm_attention.*", {"encoder.layer.#.layernorm_before.*"}},
                         {"blocks.#.feed_forward.up.*", {"encoder.layer.#.intermediate.dense.*"}},
                         {"blocks.#.feed_forward.down.*", {"encoder.layer.#.output.dense.*"}},
                         {"blocks.#.norm_feed_forward.*", {"encoder.layer.#.layernorm_after.*"}},
                         {"norm.*", {"layernorm.*"}}};
const Heads kVitHeads = {
    {"ForImageClassification", R"({"pooling": "first"})", {{"head.*", {"/classifier.*"}}}}, kPooler, kNoHead};

/// The class token and the square patches of a square picture.
void vit(const Json& theirs, Config& config) {
  const int64_t size = theirs.value("image_size", int64_t{224}), patch = theirs.value("patch_size", int64_t{16});
  if (patch < 1 || size < patch || size / patch > 1024)
    throw Error("config", {"image_size is " + std::to_string(size) + " and patch_size " + std::to_string(patch) +
                           ", must be 1 to 1024 patches in a row"});
  config.context = 1 + (size / patch) * (size / patch);
}

const Names kWhisperNames =
    Names{{"tokens.weight", {"decoder.embed_tokens.weight"}},
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

// ----------------------------------------------------------------------------------------------------------- the table

const std::vector<Family>& table() {
  static const Fields window = {{"sliding_window", "window"}};
  static const std::vector<Family> all = {
      {"llama", "model.", {kLlamaDefaults}, kLlamaFields, kLlamaNames, kCausalHead},
      {"mistral", "model.", {kLlamaDefaults}, kLlamaFields + window, kLlamaNames, kCausalHead},
      {"qwen2",
       "model.",
       {kLlamaDefaults, R"({"qkv_bias": true, "context": 32768})"},
       kLlamaFields + window,
       kLlamaNames,
       kCausalHead,
       window_if_used},
      {"qwen3",
       "model.",
       {kLlamaDefaults, R"({"query_key_norm": "heads", "context": 32768, "head_dim": 128})"},
       kLlamaFields + window,
       kLlamaNames + kHeadNorms,
       kCausalHead,
       window_if_used},
      {"gemma2",
       "model.",
       {kLlamaDefaults, R"({"activation": "gelu_tanh", "norm_branch": true, "window_layers": "wf", "window": 4096,
        "context": 8192, "head_dim": 256, "softcap": 50, "logit_softcap": 30, "tie_embeddings": true})"},
       kLlamaFields + window +
           Fields{{"hidden_activation", "activation", Meaning::activation},
                  {"query_pre_attn_scalar", "attention_scale", Meaning::inverse_root},
                  {"attn_logit_softcapping", "softcap"},
                  {"final_logit_softcapping", "logit_softcap"},
                  {"use_bidirectional_attention", "false", Meaning::required}},
       kGemma2Names,
       kCausalHead,
       scale_by_width},
      {"phi3",
       "model.",
       {kLlamaDefaults, R"({"context": 4096, "rope_context": 4096, "norm_epsilon": 1e-5})"},
       kLlamaFields + window,
       kPhi3Names,
       kCausalHead},
      {"olmo2",
       "model.",
       {kLlamaDefaults, R"({"norm_first": false, "norm_branch": true, "query_key_norm": "rows",
        "norm_epsilon": 1e-5})"},
       kLlamaFields,
       kOlmo2Names,
       kCausalHead},
      {"gpt2",
       "transformer.",
       {R"({"context": 1024, "activation": "gelu_tanh"})"},
       {{"vocab_size", "vocab_size"},
        {"n_embd", "embed_dim"},
        {"n_layer", "layers"},
        {"n_head", "heads"},
        {"n_inner", "hidden_dim"},
        {"n_positions", "context"},
        {"layer_norm_epsilon", "norm_epsilon"},
        {"resid_pdrop", "dropout"},
        {"tie_word_embeddings", "tie_embeddings"},
        {"activation_function", "activation", Meaning::activation},
        {"scale_attn_weights", "true", Meaning::required},
        {"scale_attn_by_inverse_layer_idx", "false", Meaning::required},
        {"add_cross_attention", "false", Meaning::required}},
       kGpt2Names,
       kCausalHead},
      {"gpt_neox",
       "gpt_neox.",
       {R"({"positions": "rope", "parallel": true, "activation": "gelu", "context": 2048, "tie_embeddings": false})"},
       kCommonFields + Fields{{"layer_norm_eps", "norm_epsilon"},
                              {"hidden_act", "activation", Meaning::activation},
                              {"use_parallel_residual", "parallel"},
                              {"attention_bias", "true", Meaning::required}},
       kNeoxNames,
       kCausalHead,
       quarter_rotated},
      {"bert", "bert.", {kBertDefaults}, kBertFields, kBertNames, kBertHeads},
      {"roberta", "roberta.", {kBertDefaults}, kBertFields, kBertNames, kRobertaHeads, positions_behind_padding},
      {"xlm-roberta", "roberta.", {kBertDefaults}, kBertFields, kBertNames, kRobertaHeads, positions_behind_padding},
      {"camembert", "roberta.", {kBertDefaults}, kBertFields, kBertNames, kRobertaHeads, positions_behind_padding},
      {"electra",
       "electra.",
       {kBertDefaults},
       kBertFields + Fields{{"embedding_size", "token_width"}},
       kBertNames,
       kElectraHeads},
      {"mpnet",
       "mpnet.",
       {kBertDefaults, R"({"token_types": 0, "positions": "learned_relative", "shared_distances": true,
        "position_offset": 2})"},
       kBertFields + Fields{{"relative_attention_num_buckets", "32", Meaning::required}},
       kMpnetNames,
       kRobertaHeads,
       mpnet},
      {"distilbert",
       "distilbert.",
       {R"({"causal": false, "norm_first": false, "norm_epsilon": 1e-12,
        "activation": "gelu", "context": 512})"},
       {{"vocab_size", "vocab_size"},
        {"dim", "embed_dim"},
        {"n_layers", "layers"},
        {"n_heads", "heads"},
        {"hidden_dim", "hidden_dim"},
        {"max_position_embeddings", "context"},
        {"dropout", "dropout"},
        {"activation", "activation", Meaning::activation},
        {"sinusoidal_pos_embds", "false", Meaning::required}},
       kDistilBertNames,
       kDistilBertHeads},
      {"modernbert",
       "model.",
       {R"({"causal": false, "norm_first": true, "embedding_norm": true, "positions": "rope",
        "activation": "gelu", "gated": true, "bias": false, "window_layers": "fww", "window": 65, "context": 8192,
        "rope_theta": 160000, "window_theta": 10000, "norm_epsilon": 1e-5, "head_activation": "gelu"})"},
       kCommonFields + Fields{{"norm_eps", "norm_epsilon"},
                              {"hidden_activation", "activation", Meaning::activation},
                              {"classifier_activation", "head_activation", Meaning::activation},
                              {"local_attention", "window", Meaning::pair_reach},
                              {"attention_bias", "false", Meaning::required},
                              {"mlp_bias", "false", Meaning::required},
                              {"norm_bias", "false", Meaning::required},
                              {"decoder_bias", "true", Meaning::required}},
       kModernBertNames,
       kModernBertHeads,
       modern_bert},
      {"t5",
       "",
       {R"({"norm": "rms", "positions": "relative", "shared_distances": true, "attention_scale": 1,
        "bias": false, "norm_epsilon": 1e-6, "context": 512, "head_dim": 64, "encoder_layers": 6})"},
       {{"vocab_size", "vocab_size"},
        {"d_model", "embed_dim"},
        {"d_kv", "head_dim"},
        {"d_ff", "hidden_dim"},
        {"num_layers", "encoder_layers"},
        {"num_decoder_layers", "layers"},
        {"num_heads", "heads"},
        {"relative_attention_num_buckets", "buckets"},
        {"relative_attention_max_distance", "max_distance"},
        {"layer_norm_epsilon", "norm_epsilon"},
        {"dropout_rate", "dropout"},
        {"tie_word_embeddings", "tie_embeddings"}},
       kT5Names,
       {{"ForConditionalGeneration", "{}", {}}},
       t5},
      {"bart",
       "model.",
       {R"({"norm_first": false, "activation": "gelu", "position_offset": 2, "head_bias": true,
        "context": 1024, "encoder_layers": 12})"},
       {{"vocab_size", "vocab_size"},
        {"d_model", "embed_dim"},
        {"encoder_layers", "encoder_layers"},
        {"decoder_layers", "layers"},
        {"decoder_attention_heads", "heads"},
        {"decoder_ffn_dim", "hidden_dim"},
        {"max_position_embeddings", "context"},
        {"activation_function", "activation", Meaning::activation},
        {"dropout", "dropout"},
        {"tie_word_embeddings", "tie_embeddings"}},
       kBartNames,
       {{"ForConditionalGeneration", "{}", {}}},
       bart},
      {"vit",
       "vit.",
       {R"({"causal": false, "reads_rows": true, "activation": "gelu", "norm_epsilon": 1e-12, "heads": 12,
        "tie_embeddings": false})"},
       {{"hidden_size", "embed_dim"},
        {"num_hidden_layers", "layers"},
        {"num_attention_heads", "heads"},
        {"intermediate_size", "hidden_dim"},
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
       {R"({"reads_rows": true, "activation": "gelu", "context": 448, "source_context": 1500, "encoder_layers": 4})"},
       {{"vocab_size", "vocab_size"},
        {"d_model", "embed_dim"},
        {"encoder_layers", "encoder_layers"},
        {"decoder_layers", "layers"},
        {"decoder_attention_heads", "heads"},
        {"decoder_ffn_dim", "hidden_dim"},
        {"max_target_positions", "context"},
        {"max_source_positions", "source_context"},
        {"activation_function", "activation", Meaning::activation},
        {"dropout", "dropout"},
        {"tie_word_embeddings", "tie_embeddings"}},
       kWhisperNames,
       {{"ForConditionalGeneration", "{}", {}}},
       bart},
  };
  return all;
}

}  // namespace

const Family* find_family(const std::string& name) {
  for (const Family& family : table())
    if (family.name == name) return &family;
  return nullptr;
}

std::vector<std::string> hub_families() {
  std::vector<std::string> names;
  for (const Family& family : table()) names.emplace_back(family.name);
  return names;
}

}  // namespace attn::models
