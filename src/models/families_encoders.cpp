// Families that read texts whole: BERT and its relatives.
#include "io/json.h"

#include "models/families.h"

namespace attn::models {
namespace {

using io::Json;

const Fields kEncoderFields = common_fields() + Fields{{"layer_norm_eps", "norm_epsilon"},
                                                       {"hidden_dropout_prob", "dropout"},
                                                       {"hidden_act", "activation", Meaning::activation}};
const Fields kBertFields =
    kEncoderFields + Fields{{"type_vocab_size", "type_vocab_size", Meaning::positive},
                            {"is_decoder", "false", Meaning::required},
                            {"add_cross_attention", "false", Meaning::required},
                            {"position_embedding_type", "\"absolute\"", Meaning::required, "\"absolute\""}};
constexpr const char* kBertDefaults = R"({"causal": false, "norm_placement": "post", "norm_epsilon": 1e-12,
    "activation": "gelu", "context": 512, "type_vocab_size": 2, "embed_dim": 768, "layers": 12, "heads": 12,
    "hidden_dim": 3072, "dropout": 0.1})";
constexpr const char* kMaskedHead = R"({"head_dense": true, "head_activation": "gelu", "head_norm": true,
    "head_bias": true, "tie_embeddings": true})";
constexpr const char* kFirstTokenHead = R"({"head_dense": true, "head_activation": "tanh", "pooling": "first"})";

const NameRules kBertNames = {{"tokens.weight", {"embeddings.word_embeddings.weight"}},
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

const HeadRule kNoHead = row_heads().back();
const HeadRule kEachToken = {"ForTokenClassification", R"({"pooling": "each"})", {{"head.*", {"/classifier.*"}}}};
const HeadRule kDenseClassifier = {"ForSequenceClassification",
                                   kFirstTokenHead,
                                   {{"head_dense.*", {"/classifier.dense.*"}}, {"head.*", {"/classifier.out_proj.*"}}}};

const NameRules kBertMaskedNames = {{"head_dense.*", {"/cls.predictions.transform.dense.*"}},
                                    {"head_norm.*", {"/cls.predictions.transform.LayerNorm.*"}},
                                    {"head.weight", {"/cls.predictions.decoder.weight"}},
                                    {"head.bias", {"/cls.predictions.decoder.bias"}},
                                    {"head.bias", {"/cls.predictions.bias"}}};
const Fields kHeadLikeLayers = {{"hidden_act", "head_activation", Meaning::activation}};
const HeadRules kBertHeads = HeadRules{{"ForMaskedLM", kMaskedHead, kBertMaskedNames, kHeadLikeLayers},
                                       {"ForPreTraining", kMaskedHead, kBertMaskedNames, kHeadLikeLayers},
                                       {"ForSequenceClassification",
                                        kFirstTokenHead,
                                        {{"head_dense.*", {"pooler.dense.*"}}, {"head.*", {"/classifier.*"}}}},
                                       kEachToken} +
                             row_heads();
const HeadRules kRobertaHeads = HeadRules{{"ForMaskedLM",
                                           kMaskedHead,
                                           {{"head_dense.*", {"/lm_head.dense.*"}},
                                            {"head_norm.*", {"/lm_head.layer_norm.*"}},
                                            {"head.weight", {"/lm_head.decoder.weight"}},
                                            {"head.bias", {"/lm_head.decoder.bias"}},
                                            {"head.bias", {"/lm_head.bias"}}}},
                                          kDenseClassifier,
                                          kEachToken} +
                                row_heads();
const HeadRules kElectraHeads = {
    {"ForMaskedLM",
     kMaskedHead,
     {{"head_dense.*", {"/generator_predictions.dense.*"}},
      {"head_norm.*", {"/generator_predictions.LayerNorm.*"}},
      {"head.weight", {"/generator_lm_head.weight"}},
      {"head.bias", {"/generator_lm_head.bias"}}}},
    {"ForSequenceClassification", R"({"head_dense": true, "head_activation": "gelu", "pooling": "first"})",
     kDenseClassifier.names},
    kEachToken,
    kNoHead};

/// The rows of learned positions before the first are those of padding: pad_token_id + 1.
void positions_behind_padding(const Json& theirs, Config& config) {
  config.position_offset = whole_field(theirs, "pad_token_id", 1, 0, 4094) + 1;
  config.context -= config.position_offset;
}

const NameRules kMpnetNames = {{"tokens.weight", {"embeddings.word_embeddings.weight"}},
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

/// Two rows are before the first position, whatever pad_token_id is.
void mpnet(const Json&, Config& config) { config.context -= config.position_offset; }

const NameRules kDistilBertNames = {{"tokens.weight", {"embeddings.word_embeddings.weight"}},
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
const HeadRules kDistilBertHeads = {{"ForMaskedLM",
                                     kMaskedHead,
                                     {{"head_dense.*", {"/vocab_transform.*"}},
                                      {"head_norm.*", {"/vocab_layer_norm.*"}},
                                      {"head.weight", {"/vocab_projector.weight"}},
                                      {"head.bias", {"/vocab_projector.bias"}}},
                                     {{"activation", "head_activation", Meaning::activation}}},
                                    {"ForSequenceClassification",
                                     R"({"head_dense": true, "head_activation": "relu", "pooling": "first"})",
                                     {{"head_dense.*", {"/pre_classifier.*"}}, {"head.*", {"/classifier.*"}}}},
                                    kEachToken,
                                    kNoHead};

const NameRules kModernBertNames = {{"tokens.weight", {"embeddings.tok_embeddings.weight"}},
                                    {"embedding_norm.*", {"embeddings.norm.*"}},
                                    {"blocks.#.norm_attention.*", {"layers.#.attn_norm.*"}},
                                    {"blocks.#.norm_feed_forward.*", {"layers.#.mlp_norm.*"}},
                                    {"blocks.#.attention.qkv.*", {"layers.#.attn.Wqkv.*"}},
                                    {"blocks.#.attention.output.*", {"layers.#.attn.Wo.*"}},
                                    {"blocks.#.feed_forward.up.*", {"layers.#.mlp.Wi.*"}},
                                    {"blocks.#.feed_forward.down.*", {"layers.#.mlp.Wo.*"}},
                                    {"norm.*", {"final_norm.*"}}};
const NameRules kModernBertHead = {{"head_dense.*", {"/head.dense.*"}}, {"head_norm.*", {"/head.norm.*"}}};
const HeadRules kModernBertHeads = {
    {"ForMaskedLM", kMaskedHead,
     kModernBertHead + NameRules{{"head.weight", {"/decoder.weight"}}, {"head.bias", {"/decoder.bias"}}}},
    {"ForSequenceClassification", R"({"head_dense": true, "head_norm": true, "pooling": "first"})",
     kModernBertHead + NameRules{{"head.*", {"/classifier.*"}}}},
    {"ForTokenClassification", R"({"head_dense": true, "head_norm": true, "pooling": "each"})",
     kModernBertHead + NameRules{{"head.*", {"/classifier.*"}}}},
    kNoHead};

/// Older files say which layers see all by a period.
void modern_bert(const Json& theirs, Config& config) {
  const int64_t period = whole_field(theirs, "global_attn_every_n_layers", 3, 1, 4096);
  config.mixers = "f" + std::string(static_cast<size_t>(period - 1), 'w');
  config.norm_placement = NormPlacement::pre_except_first;
  config.head_dense_bias = flag_field(theirs, "classifier_bias", false);
  const std::string pooling = text_field(theirs, "classifier_pooling", "cls");
  if (pooling != "cls" && pooling != "mean") refuse_field("classifier_pooling", pooling, "\"cls\" or \"mean\"");
  if (config.pooling == ClassifierPooling::first && pooling == "mean") config.pooling = ClassifierPooling::mean;
}

}  // namespace

std::vector<Family> encoder_families() {
  return {
      {"bert", "bert.", {kBertDefaults}, kBertFields, kBertNames, kBertHeads},
      {"roberta", "roberta.", {kBertDefaults}, kBertFields, kBertNames, kRobertaHeads, positions_behind_padding},
      {"xlm-roberta", "roberta.", {kBertDefaults}, kBertFields, kBertNames, kRobertaHeads, positions_behind_padding},
      {"camembert", "roberta.", {kBertDefaults}, kBertFields, kBertNames, kRobertaHeads, positions_behind_padding},
      {"electra",
       "electra.",
       {kBertDefaults, R"({"token_dim": 128, "embed_dim": 256, "heads": 4, "hidden_dim": 1024})"},
       kBertFields + Fields{{"embedding_size", "token_dim", Meaning::positive}},
       kBertNames,
       kElectraHeads},
      {"mpnet",
       "mpnet.",
       {kBertDefaults, R"({"type_vocab_size": 0, "positions": "learned_relative", "shared_relative_bias": true,
        "position_offset": 2})"},
       kEncoderFields + Fields{{"relative_attention_num_buckets", "32", Meaning::required}},
       kMpnetNames,
       kRobertaHeads,
       mpnet},
      {"distilbert",
       "distilbert.",
       {kBertDefaults, R"({"type_vocab_size": 0, "layers": 6})"},
       {{"vocab_size", "vocab_size", Meaning::positive},
        {"dim", "embed_dim", Meaning::positive},
        {"n_layers", "layers", Meaning::positive},
        {"n_heads", "heads", Meaning::positive},
        {"hidden_dim", "hidden_dim", Meaning::positive},
        {"max_position_embeddings", "context", Meaning::positive},
        {"dropout", "dropout"},
        {"activation", "activation", Meaning::activation},
        {"tie_word_embeddings", "tie_embeddings"}},
       kDistilBertNames,
       kDistilBertHeads,
       nullptr,
       {},
       "",
       {{"hidden_size", "dim"}, {"num_attention_heads", "n_heads"}, {"num_hidden_layers", "n_layers"}}},
      {"modernbert",
       "model.",
       {R"({"causal": false, "norm_placement": "pre", "embedding_norm": true, "positions": "rope",
        "activation": "gelu", "gated": true, "bias": false, "mixers": "fww", "window": 65, "context": 8192,
        "rope_theta": 160000, "window_theta": 10000, "norm_epsilon": 1e-5, "head_activation": "gelu",
        "embed_dim": 768, "layers": 22, "heads": 12, "hidden_dim": 1152})"},
       common_fields() + Fields{{"norm_eps", "norm_epsilon"},
                                {"hidden_activation", "activation", Meaning::activation},
                                {"classifier_activation", "head_activation", Meaning::activation},
                                {"local_attention", "window", Meaning::pair_reach},
                                {"sliding_window", "null", Meaning::required, "null"},
                                {"attention_bias", "false", Meaning::required},
                                {"mlp_bias", "false", Meaning::required},
                                {"norm_bias", "false", Meaning::required},
                                {"decoder_bias", "true", Meaning::required}},
       kModernBertNames,
       kModernBertHeads,
       modern_bert,
       {.theta = "global_rope_theta", .window = "local_rope_theta"},
       "wf"},
  };
}

}  // namespace attn::models
