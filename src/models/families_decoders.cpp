// Families that continue texts: LLaMA and its relatives, GPT-2, GPT-NeoX.
#include "io/json.h"

#include "models/families.h"

namespace attn::models {
namespace {

using io::Json;

// --------------------------------------------------------------------------------------------- LLaMA and its relatives

const Fields kLlamaFields = common_fields() + Fields{{"rms_norm_eps", "norm_epsilon"}};
const Fields kActivation = {{"hidden_act", "activation", Meaning::activation}};
const Fields kHeadDim = {{"head_dim", "head_dim", Meaning::positive}};
const Fields kPerhapsHeadDim = {{"head_dim", "head_dim", Meaning::positive, "0"}};
const Fields kGroups = {{"num_key_value_heads", "kv_heads", Meaning::positive}};
const Fields kPerhapsGroups = {{"num_key_value_heads", "kv_heads", Meaning::positive, "0"}};
const Fields kWindow = {{"sliding_window", "window", Meaning::positive, "0"}};
const Fields kNoBias = {{"attention_bias", "false", Meaning::required}};
constexpr const char* kLlamaDefaults = R"({"norm": "rms", "positions": "rope", "activation": "silu", "gated": true,
    "bias": false, "norm_epsilon": 1e-6, "context": 2048, "tie_embeddings": false, "embed_dim": 4096, "layers": 32,
    "heads": 32, "hidden_dim": 11008})";
constexpr const char* kQwenDefaults = R"({"context": 32768, "hidden_dim": 22016, "kv_heads": 32, "window": 4096})";

const NameRules kLlamaAttention = {
    {"blocks.#.attention.qkv.*",
     {"layers.#.self_attn.q_proj.*", "layers.#.self_attn.k_proj.*", "layers.#.self_attn.v_proj.*"}},
    {"blocks.#.attention.output.*", {"layers.#.self_attn.o_proj.*"}}};
const NameRules kLlamaFeedForward = {
    {"blocks.#.feed_forward.up.*", {"layers.#.mlp.gate_proj.*", "layers.#.mlp.up_proj.*"}},
    {"blocks.#.feed_forward.down.*", {"layers.#.mlp.down_proj.*"}}};
const NameRules kLlamaEnds = {
    {"tokens.weight", {"embed_tokens.weight"}}, {"norm.weight", {"norm.weight"}}, {"head.weight", {"/lm_head.weight"}}};
const NameRules kLlamaNorms = {{"blocks.#.norm_attention.weight", {"layers.#.input_layernorm.weight"}},
                               {"blocks.#.norm_feed_forward.weight", {"layers.#.post_attention_layernorm.weight"}}};
const NameRules kHeadNorms = {{"blocks.#.attention.norm_query.weight", {"layers.#.self_attn.q_norm.weight"}},
                              {"blocks.#.attention.norm_key.weight", {"layers.#.self_attn.k_norm.weight"}}};
const NameRules kLlamaNames = kLlamaEnds + kLlamaNorms + kLlamaAttention + kLlamaFeedForward;

const HeadRules kCausalHead = {
    {"ForCausalLM", "{}", {}}, {"LMHeadModel", "{}", {}}, {"Model", R"({"head": false})", {}}};

const NameRules kPhi3Names = kLlamaEnds + kLlamaNorms +
                             NameRules{{"blocks.#.attention.qkv.weight", {"layers.#.self_attn.qkv_proj.weight"}},
                                       {"blocks.#.attention.output.weight", {"layers.#.self_attn.o_proj.weight"}},
                                       {"blocks.#.feed_forward.up.weight", {"layers.#.mlp.gate_up_proj.weight"}},
                                       {"blocks.#.feed_forward.down.weight", {"layers.#.mlp.down_proj.weight"}}};
const NameRules kOlmo2Names =
    kLlamaEnds + kLlamaAttention + kLlamaFeedForward + kHeadNorms +
    NameRules{{"blocks.#.norm_attention.weight", {"layers.#.post_attention_layernorm.weight"}},
              {"blocks.#.norm_feed_forward.weight", {"layers.#.post_feedforward_layernorm.weight"}}};

const NameRules kGemma2Names =
    kLlamaAttention + kLlamaFeedForward +
    NameRules{{"tokens.weight", {"embed_tokens.weight"}},
              {"norm.weight", {"norm.weight"}, Layout::plus_one},
              {"head.weight", {"/lm_head.weight"}},
              {"blocks.#.norm_attention.weight", {"layers.#.input_layernorm.weight"}, Layout::plus_one},
              {"blocks.#.after_attention.weight", {"layers.#.post_attention_layernorm.weight"}, Layout::plus_one},
              {"blocks.#.norm_feed_forward.weight", {"layers.#.pre_feedforward_layernorm.weight"}, Layout::plus_one},
              {"blocks.#.after_feed_forward.weight", {"layers.#.post_feedforward_layernorm.weight"}, Layout::plus_one}};

void gemma2(const Json&, Config& config) { scale_by_width(config); }

/// Qwen 2 and 3 name a window even where they do not use it, and the layers below which none has it.
void upper_windows(const Json& theirs, Config& config) {
  if (!flag_field(theirs, "use_sliding_window", false)) config.window = 0;
  const int64_t below = whole_field(theirs, "max_window_layers", 28, 0, 1 << 24);
  config.window_layers = std::string(static_cast<size_t>(config.layers), 'f');
  for (int64_t n = below; n < config.layers && config.window; ++n) config.window_layers[static_cast<size_t>(n)] = 'w';
}

// -------------------------------------------------------------------------------------------------- GPT-2 and GPT-NeoX

const NameRules kGpt2Names = {{"tokens.weight", {"wte.weight"}},
                              {"positions.weight", {"wpe.weight"}},
                              {"blocks.#.norm_attention.*", {"h.#.ln_1.*"}},
                              {"blocks.#.norm_feed_forward.*", {"h.#.ln_2.*"}},
                              {"blocks.#.attention.qkv.*", {"h.#.attn.c_attn.*"}, Layout::transposed},
                              {"blocks.#.attention.output.*", {"h.#.attn.c_proj.*"}, Layout::transposed},
                              {"blocks.#.feed_forward.up.*", {"h.#.mlp.c_fc.*"}, Layout::transposed},
                              {"blocks.#.feed_forward.down.*", {"h.#.mlp.c_proj.*"}, Layout::transposed},
                              {"norm.*", {"ln_f.*"}},
                              {"head.weight", {"/lm_head.weight"}}};

const NameRules kNeoxNames = {
    {"tokens.weight", {"embed_in.weight"}},
    {"blocks.#.norm_attention.*", {"layers.#.input_layernorm.*"}},
    {"blocks.#.norm_feed_forward.*", {"layers.#.post_attention_layernorm.*"}},
    {"blocks.#.attention.qkv.*", {"layers.#.attention.query_key_value.*"}, Layout::interleaved},
    {"blocks.#.attention.output.*", {"layers.#.attention.dense.*"}},
    {"blocks.#.feed_forward.up.*", {"layers.#.mlp.dense_h_to_4h.*"}},
    {"blocks.#.feed_forward.down.*", {"layers.#.mlp.dense_4h_to_h.*"}},
    {"norm.*", {"final_layer_norm.*"}},
    {"head.weight", {"/lm_head.weight"}},
    {"head.weight", {"/embed_out.weight"}}};

const std::vector<std::pair<const char*, const char*>> kGpt2Aliases = {{"hidden_size", "n_embd"},
                                                                       {"max_position_embeddings", "n_positions"},
                                                                       {"num_attention_heads", "n_head"},
                                                                       {"num_hidden_layers", "n_layer"}};

}  // namespace

std::vector<Family> decoder_families() {
  return {
      {"llama",
       "model.",
       {kLlamaDefaults},
       kLlamaFields + kActivation + kPerhapsGroups + kPerhapsHeadDim + kNoBias +
           Fields{{"mlp_bias", "false", Meaning::required}},
       kLlamaNames,
       kCausalHead},
      {"mistral",
       "model.",
       {kLlamaDefaults, R"({"context": 131072, "hidden_dim": 14336, "kv_heads": 8, "window": 4096})"},
       kLlamaFields + kActivation + kGroups + kPerhapsHeadDim + kWindow,
       kLlamaNames,
       kCausalHead},
      {"qwen2",
       "model.",
       {kLlamaDefaults, kQwenDefaults, R"({"qkv_bias": true})"},
       kLlamaFields + kActivation + kPerhapsGroups + kHeadDim + kWindow,
       kLlamaNames,
       kCausalHead,
       upper_windows,
       {},
       true},
      {"qwen3",
       "model.",
       {kLlamaDefaults, kQwenDefaults, R"({"query_key_norm": "heads", "head_dim": 128})"},
       kLlamaFields + kActivation + kPerhapsGroups + kHeadDim + kWindow + kNoBias,
       kLlamaNames + kHeadNorms,
       kCausalHead,
       upper_windows,
       {},
       true},
      {"gemma2",
       "model.",
       {kLlamaDefaults,
        R"({"activation": "gelu_tanh", "norm_placement": "sandwich", "window_layers": "wf", "window": 4096,
        "context": 8192, "head_dim": 256, "softcap": 50, "logit_softcap": 30, "tie_embeddings": true,
        "attention_scale": 0.0625, "embed_dim": 2304, "layers": 26, "heads": 8, "kv_heads": 4, "hidden_dim": 9216})"},
       kLlamaFields + kGroups + kHeadDim + kWindow + kNoBias +
           Fields{{"hidden_activation", "activation", Meaning::activation},
                  {"query_pre_attn_scalar", "attention_scale", Meaning::inverse_root},
                  {"attn_logit_softcapping", "softcap", Meaning::positive, "0"},
                  {"final_logit_softcapping", "logit_softcap", Meaning::positive, "0"},
                  {"use_bidirectional_attention", "false", Meaning::required, "false"}},
       kGemma2Names,
       kCausalHead,
       gemma2,
       {},
       true},
      {"phi3",
       "model.",
       {kLlamaDefaults, R"({"context": 4096, "rope_context": 4096, "norm_epsilon": 1e-5, "embed_dim": 3072,
        "hidden_dim": 8192})"},
       kLlamaFields + kActivation + kPerhapsGroups + kHeadDim + kWindow,
       kPhi3Names,
       kCausalHead,
       nullptr,
       {.part = "partial_rotary_factor", .long_only = true}},
      {"olmo2",
       "model.",
       {kLlamaDefaults, R"({"norm_placement": "branch", "query_key_norm": "rows",
        "norm_epsilon": 1e-5})"},
       kLlamaFields + kActivation + kPerhapsGroups + kHeadDim + kNoBias,
       kOlmo2Names,
       kCausalHead},
      {"gpt2",
       "transformer.",
       {R"({"context": 1024, "activation": "gelu_tanh", "embed_dim": 768, "layers": 12, "heads": 12, "dropout": 0.1})"},
       {{"vocab_size", "vocab_size", Meaning::positive},
        {"n_embd", "embed_dim", Meaning::positive},
        {"n_layer", "layers", Meaning::positive},
        {"n_head", "heads", Meaning::positive},
        {"n_inner", "hidden_dim", Meaning::positive, "0"},
        {"n_positions", "context", Meaning::positive},
        {"layer_norm_epsilon", "norm_epsilon"},
        {"resid_pdrop", "dropout"},
        {"tie_word_embeddings", "tie_embeddings"},
        {"activation_function", "activation", Meaning::activation},
        {"scale_attn_weights", "true", Meaning::required},
        {"scale_attn_by_inverse_layer_idx", "false", Meaning::required},
        {"add_cross_attention", "false", Meaning::required}},
       kGpt2Names,
       kCausalHead,
       nullptr,
       {},
       false,
       kGpt2Aliases},
      {"gpt_neox",
       "gpt_neox.",
       {R"({"positions": "rope", "parallel": true, "activation": "gelu", "context": 2048, "tie_embeddings": false,
        "embed_dim": 6144, "layers": 44, "heads": 64, "hidden_dim": 24576})"},
       common_fields() + kActivation +
           Fields{{"layer_norm_eps", "norm_epsilon"},
                  {"use_parallel_residual", "parallel"},
                  {"attention_bias", "true", Meaning::required}},
       kNeoxNames,
       kCausalHead,
       nullptr,
       {.theta = "rotary_emb_base", .part = "rotary_pct", .rotated = 0.25}},
  };
}

}  // namespace attn::models
