// Families that continue texts: LLaMA and its relatives, GPT-2, GPT-NeoX, and those with other mixers than attention.
#include <algorithm>
#include <numeric>
#include <optional>

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
    {"ForCausalLM", "{}", {}},
    {"LMHeadModel", "{}", {}},
    {"ForSequenceClassification", R"({"pooling": "last"})", {{"head.weight", {"/score.weight"}}}},
    {"Model", R"({"head": false})", {}}};

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
  config.mixers = std::string(static_cast<size_t>(config.layers), 'f');
  for (int64_t n = below; n < config.layers && config.window; ++n) config.mixers[static_cast<size_t>(n)] = 'w';
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

/// Rows go by head, in each first its query, then its key and its value.
PickedRows neox_rows(const Config& config) {
  const int64_t H = config.heads, D = config.embed_dim / H;
  PickedRows picked{{}, 3 * H * D};
  for (int64_t part = 0; part < 3; ++part)
    for (int64_t h = 0; h < H; ++h) picked.add((3 * h + part) * D, D);
  return picked;
}

const NameRules kNeoxNames = {
    {"tokens.weight", {"embed_in.weight"}},
    {"blocks.#.norm_attention.*", {"layers.#.input_layernorm.*"}},
    {"blocks.#.norm_feed_forward.*", {"layers.#.post_attention_layernorm.*"}},
    {"blocks.#.attention.qkv.*", {"layers.#.attention.query_key_value.*"}, Layout::rows, neox_rows},
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

// ----------------------------------------------------------------------------- linear attention and short convolutions

constexpr const char* kGatedDeltaNet = R"({"linear_heads": 16, "linear_value_heads": 32, "linear_head_dim": 128,
    "linear_value_dim": 128, "query_key_norm": "heads", "head_dim": 256, "attention_gate": true, "context": 32768,
    "mixers": "lllf"})";
const Fields kGatedDeltaFields = {{"hidden_act", "\"silu\"", Meaning::required},
                                  {"linear_conv_kernel_dim", "linear_convolution", Meaning::positive},
                                  {"linear_key_head_dim", "linear_head_dim", Meaning::positive},
                                  {"linear_value_head_dim", "linear_value_dim", Meaning::positive},
                                  {"linear_num_key_heads", "linear_heads", Meaning::positive},
                                  {"linear_num_value_heads", "linear_value_heads", Meaning::positive}};

/// q_proj goes by head, in each first its query, then its gate; then come all keys and values.
PickedRows gated_queries(const Config& config) {
  const int64_t H = config.heads, kv_heads = config.kv_heads ? config.kv_heads : H, D = config.head_dim;
  PickedRows picked{{}, 2 * (H + kv_heads) * D};
  for (int64_t h = 0; h < H; ++h) picked.add(2 * h * D, D);
  picked.add(2 * H * D, 2 * kv_heads * D);
  return picked;
}
PickedRows gates_of_queries(const Config& config) {
  PickedRows picked{{}, 2 * config.heads * config.head_dim};
  for (int64_t h = 0; h < config.heads; ++h) picked.add((2 * h + 1) * config.head_dim, config.head_dim);
  return picked;
}

/// Rows of tensors that go by key head: of the parts of these widths in each, those from `first` to `last`.
PickedRows parts_of_heads(int64_t heads, const std::vector<int64_t>& widths, size_t first, size_t last) {
  const int64_t head = std::accumulate(widths.begin(), widths.end(), int64_t{0});
  PickedRows picked{{}, heads * head};
  int64_t start = std::accumulate(widths.begin(), widths.begin() + static_cast<int64_t>(first), int64_t{0});
  for (size_t part = first; part < last; start += widths[part++])
    for (int64_t h = 0; h < heads; ++h) picked.add(h * head + start, widths[part]);
  return picked;
}
/// in_proj_qkvz: query, key, values and gates of a key head.
PickedRows qkvz(const Config& config, size_t first, size_t last) {
  const nn::LinearMixerOptions& o = config.linear;
  const int64_t values = o.value_heads / o.heads * o.value_dim;
  return parts_of_heads(o.heads, {o.head_dim, o.head_dim, values, values}, first, last);
}
PickedRows qkv_of(const Config& config) { return qkvz(config, 0, 3); }
PickedRows z_of(const Config& config) { return qkvz(config, 3, 4); }
/// in_proj_ba: betas and decays of a key head.
PickedRows ba(const Config& config, size_t first) {
  const int64_t group = config.linear.value_heads / config.linear.heads;
  return parts_of_heads(config.linear.heads, {group, group}, first, first + 1);
}
PickedRows b_of(const Config& config) { return ba(config, 0); }
PickedRows a_of(const Config& config) { return ba(config, 1); }

const NameRules kGatedDeltaNames =
    kLlamaFeedForward +
    NameRules{
        {"tokens.weight", {"embed_tokens.weight"}},
        {"norm.weight", {"norm.weight"}, Layout::plus_one},
        {"head.weight", {"/lm_head.weight"}},
        {"blocks.#.norm_attention.weight", {"layers.#.input_layernorm.weight"}, Layout::plus_one},
        {"blocks.#.norm_feed_forward.weight", {"layers.#.post_attention_layernorm.weight"}, Layout::plus_one},
        {"blocks.#.attention.qkv.weight",
         {"layers.#.self_attn.q_proj.weight", "layers.#.self_attn.k_proj.weight", "layers.#.self_attn.v_proj.weight"},
         Layout::rows,
         gated_queries},
        {"blocks.#.attention.gate.weight", {"layers.#.self_attn.q_proj.weight"}, Layout::rows, gates_of_queries},
        {"blocks.#.attention.output.weight", {"layers.#.self_attn.o_proj.weight"}},
        {"blocks.#.attention.norm_query.weight", {"layers.#.self_attn.q_norm.weight"}, Layout::plus_one},
        {"blocks.#.attention.norm_key.weight", {"layers.#.self_attn.k_norm.weight"}, Layout::plus_one},
        {"blocks.#.mixer.convolution.weight", {"layers.#.linear_attn.conv1d.weight"}},
        {"blocks.#.mixer.decay.rate", {"layers.#.linear_attn.A_log"}},
        {"blocks.#.mixer.decay.offset", {"layers.#.linear_attn.dt_bias"}},
        {"blocks.#.mixer.norm.weight", {"layers.#.linear_attn.norm.weight"}},
        {"blocks.#.mixer.output.weight", {"layers.#.linear_attn.out_proj.weight"}}};
const NameRules kQwen3NextNames =
    kGatedDeltaNames +
    NameRules{{"blocks.#.mixer.qkv.weight", {"layers.#.linear_attn.in_proj_qkvz.weight"}, Layout::rows, qkv_of},
              {"blocks.#.mixer.gate.weight", {"layers.#.linear_attn.in_proj_qkvz.weight"}, Layout::rows, z_of},
              {"blocks.#.mixer.beta.weight", {"layers.#.linear_attn.in_proj_ba.weight"}, Layout::rows, b_of},
              {"blocks.#.mixer.decay.weight", {"layers.#.linear_attn.in_proj_ba.weight"}, Layout::rows, a_of}};
const NameRules kQwen35Names =
    kGatedDeltaNames + NameRules{{"blocks.#.mixer.qkv.weight", {"layers.#.linear_attn.in_proj_qkv.weight"}},
                                 {"blocks.#.mixer.gate.weight", {"layers.#.linear_attn.in_proj_z.weight"}},
                                 {"blocks.#.mixer.beta.weight", {"layers.#.linear_attn.in_proj_b.weight"}},
                                 {"blocks.#.mixer.decay.weight", {"layers.#.linear_attn.in_proj_a.weight"}}};

/// Every full_attention_interval-th layer has attention where layer_types does not say it.
void interval_of_attention(const Json& theirs, Config& config) {
  const int64_t interval = whole_field(theirs, "full_attention_interval", 4, 1, 1 << 12);
  config.mixers = std::string(static_cast<size_t>(interval - 1), 'l') + 'f';
}

/// The layers that a field lists; nothing where it is absent or null.
std::optional<std::vector<int64_t>> listed_layers(const Json& theirs, const char* name) {
  const auto field = theirs.find(name);
  if (field == theirs.end() || field->is_null()) return {};
  const auto is_layer = [](const Json& each) { return io::whole_number(each).has_value(); };
  if (!field->is_array() || !std::all_of(field->begin(), field->end(), is_layer))
    refuse_field(name, *field, "a list of numbers of layers");
  return field->get<std::vector<int64_t>>();
}

bool contains(const std::vector<int64_t>& layers, int64_t layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

/// Experts are not supported: every layer must have the dense feed-forward.
void qwen3_next(const Json& theirs, Config& config) {
  interval_of_attention(theirs, config);
  const int64_t experts = whole_field(theirs, "num_experts", 512, 0, 1 << 24);
  const int64_t step = whole_field(theirs, "decoder_sparse_step", 1, 1, 1 << 24);
  const std::vector<int64_t> dense = listed_layers(theirs, "mlp_only_layers").value_or(std::vector<int64_t>());
  for (int64_t n = 0; n < config.layers && experts > 0; ++n) {
    if (!contains(dense, n) && (n + 1) % step == 0)
      throw Error("config", {"num_experts is " + std::to_string(experts) + " and layer " + std::to_string(n) +
                             " has experts, which are not supported: num_experts must be 0, or mlp_only_layers must "
                             "list every layer"});
  }
}

/// in_proj of Mamba 2: gates, values, keys (B), queries (C), steps.
struct MambaParts {
  explicit MambaParts(const Config& config)
      : values(config.linear.value_heads * config.linear.value_dim),
        features(config.linear.heads * config.linear.head_dim) {}
  int64_t values, features;
  /// Queries, keys and values of rows that begin with the values at `first`.
  PickedRows qkv(int64_t first, int64_t of) const {
    PickedRows picked{{}, of};
    picked.add(first + values + features, features);
    picked.add(first + values, features);
    picked.add(first, values);
    return picked;
  }
  int64_t all(const Config& config) const { return 2 * (values + features) + config.linear.value_heads; }
};
PickedRows mamba_qkv(const Config& config) {
  const MambaParts parts(config);
  return parts.qkv(parts.values, parts.all(config));
}
PickedRows mamba_convolution(const Config& config) {
  const MambaParts parts(config);
  return parts.qkv(0, parts.values + 2 * parts.features);
}
PickedRows mamba_gate(const Config& config) {
  const MambaParts parts(config);
  PickedRows picked{{}, parts.all(config)};
  picked.add(0, parts.values);
  return picked;
}
PickedRows mamba_steps(const Config& config) {
  const MambaParts parts(config);
  PickedRows picked{{}, parts.all(config)};
  picked.add(parts.all(config) - config.linear.value_heads, config.linear.value_heads);
  return picked;
}

constexpr const char* kMamba2Layer = R"({"linear_convolution_bias": true, "linear_delta": false,
    "linear_beta": "step", "linear_l2norm": false, "linear_scale": 1, "linear_skip": true, "linear_norm": "groups",
    "linear_gate_first": true})";
const NameRules kMamba2Names = {
    {"tokens.weight", {"embeddings.weight"}},
    {"norm.weight", {"norm_f.weight"}},
    {"head.weight", {"/lm_head.weight"}},
    {"blocks.#.norm_attention.weight", {"layers.#.norm.weight"}},
    {"blocks.#.mixer.qkv.weight", {"layers.#.mixer.in_proj.weight"}, Layout::rows, mamba_qkv},
    {"blocks.#.mixer.gate.weight", {"layers.#.mixer.in_proj.weight"}, Layout::rows, mamba_gate},
    {"blocks.#.mixer.decay.weight", {"layers.#.mixer.in_proj.weight"}, Layout::rows, mamba_steps},
    {"blocks.#.mixer.convolution.*", {"layers.#.mixer.conv1d.*"}, Layout::rows, mamba_convolution},
    {"blocks.#.mixer.decay.rate", {"layers.#.mixer.A_log"}},
    {"blocks.#.mixer.decay.offset", {"layers.#.mixer.dt_bias"}},
    {"blocks.#.mixer.skip", {"layers.#.mixer.D"}},
    {"blocks.#.mixer.norm.weight", {"layers.#.mixer.norm.weight"}},
    {"blocks.#.mixer.output.weight", {"layers.#.mixer.out_proj.weight"}}};

/// Values must be `expand` times as wide as the model, and the step must have no limits.
void check_mamba(const Json& theirs, const Config& config, const char* expand_field) {
  const int64_t values = config.linear.value_heads * config.linear.value_dim;
  const int64_t expand = whole_field(theirs, expand_field, 2, 1, 1 << 12);
  const auto limit = theirs.find("time_step_limit");
  const Json no_limit = {0.0, {{"__float__", "Infinity"}}}, of_python = {0.0, "Infinity"};
  if (limit != theirs.end() && *limit != no_limit && *limit != of_python)
    refuse_field("time_step_limit", *limit, "[0.0, Infinity]: limits of the step are not supported");
  if (expand * config.embed_dim != values)
    refuse_field(expand_field, expand,
                 "the heads' width / hidden_size, which is " + std::to_string(values) + " / " +
                     std::to_string(config.embed_dim));
}

void mamba2(const Json& theirs, Config& config) { check_mamba(theirs, config, "expand"); }

const NameRules kBambaNames =
    kLlamaAttention +
    NameRules{{"tokens.weight", {"embed_tokens.weight"}},
              {"norm.weight", {"final_layernorm.weight"}},
              {"head.weight", {"/lm_head.weight"}},
              {"blocks.#.norm_attention.weight", {"layers.#.input_layernorm.weight"}},
              {"blocks.#.norm_feed_forward.weight", {"layers.#.pre_ff_layernorm.weight"}},
              {"blocks.#.feed_forward.up.weight",
               {"layers.#.feed_forward.gate_proj.weight", "layers.#.feed_forward.up_proj.weight"}},
              {"blocks.#.feed_forward.down.weight", {"layers.#.feed_forward.down_proj.weight"}},
              {"blocks.#.mixer.qkv.weight", {"layers.#.mamba.in_proj.weight"}, Layout::rows, mamba_qkv},
              {"blocks.#.mixer.gate.weight", {"layers.#.mamba.in_proj.weight"}, Layout::rows, mamba_gate},
              {"blocks.#.mixer.decay.weight", {"layers.#.mamba.in_proj.weight"}, Layout::rows, mamba_steps},
              {"blocks.#.mixer.convolution.*", {"layers.#.mamba.conv1d.*"}, Layout::rows, mamba_convolution},
              {"blocks.#.mixer.decay.rate", {"layers.#.mamba.A_log"}},
              {"blocks.#.mixer.decay.offset", {"layers.#.mamba.dt_bias"}},
              {"blocks.#.mixer.skip", {"layers.#.mamba.D"}},
              {"blocks.#.mixer.norm.weight", {"layers.#.mamba.norm.weight"}},
              {"blocks.#.mixer.output.weight", {"layers.#.mamba.out_proj.weight"}}};

/// The width of a head of values, and the layers that have attention.
void bamba(const Json& theirs, Config& config) {
  const auto width = theirs.find("mamba_d_head");
  if (width == theirs.end() || *width == "auto") {
    const int64_t values = whole_field(theirs, "mamba_expand", 2, 1, 1 << 12) * config.embed_dim;
    config.linear.value_dim = values / config.linear.value_heads;
  } else {
    config.linear.value_dim = whole_field(theirs, "mamba_d_head", 64, 1, 1024);
  }
  check_mamba(theirs, config, "mamba_expand");
  const std::vector<int64_t> attention = listed_layers(theirs, "attn_layer_indices").value_or(std::vector<int64_t>());
  config.mixers.clear();
  for (int64_t n = 0; n < config.layers; ++n) config.mixers += contains(attention, n) ? 'f' : 'l';
}

const NameRules kLfm2Names = NameRules{
    {"tokens.weight", {"embed_tokens.weight"}},
    {"norm.weight", {"embedding_norm.weight"}},
    {"head.weight", {"/lm_head.weight"}},
    {"blocks.#.norm_attention.weight", {"layers.#.operator_norm.weight"}},
    {"blocks.#.norm_feed_forward.weight", {"layers.#.ffn_norm.weight"}},
    {"blocks.#.attention.qkv.weight",
     {"layers.#.self_attn.q_proj.weight", "layers.#.self_attn.k_proj.weight", "layers.#.self_attn.v_proj.weight"}},
    {"blocks.#.attention.output.weight", {"layers.#.self_attn.out_proj.weight"}},
    {"blocks.#.attention.norm_query.weight", {"layers.#.self_attn.q_layernorm.weight"}},
    {"blocks.#.attention.norm_key.weight", {"layers.#.self_attn.k_layernorm.weight"}},
    {"blocks.#.mixer.input.*", {"layers.#.conv.in_proj.*"}},
    {"blocks.#.mixer.convolution.*", {"layers.#.conv.conv.*"}},
    {"blocks.#.mixer.output.*", {"layers.#.conv.out_proj.*"}},
    {"blocks.#.feed_forward.up.weight", {"layers.#.feed_forward.w1.weight", "layers.#.feed_forward.w3.weight"}},
    {"blocks.#.feed_forward.down.weight", {"layers.#.feed_forward.w2.weight"}}};

/// The width of the feed-forward, and the layers that have attention where layer_types does not say it.
void lfm2(const Json& theirs, Config& config) {
  if (flag_field(theirs, "block_auto_adjust_ff_dim", true)) {
    const auto given = theirs.find("block_ffn_dim_multiplier");
    const Json factor_given = given == theirs.end() ? Json(1) : *given;
    constexpr double kMost = 1 << 16;
    if (!factor_given.is_number() || factor_given <= 0 || factor_given > kMost)
      refuse_field("block_ffn_dim_multiplier", factor_given, "a number above 0, at most 65536");
    const auto factor = factor_given.get<double>();
    const int64_t multiple = whole_field(theirs, "block_multiple_of", 256, 1, 1 << 20);
    const auto width = static_cast<int64_t>(factor * static_cast<double>(2 * config.hidden_dim / 3));
    config.hidden_dim = (width + multiple - 1) / multiple * multiple;
  }
  const std::optional<std::vector<int64_t>> attention = listed_layers(theirs, "full_attn_idxs");
  if (!attention) return;
  config.mixers.clear();
  for (int64_t n = 0; n < config.layers; ++n) config.mixers += contains(*attention, n) ? 'f' : 'c';
}

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
       "wf"},
      {"qwen3",
       "model.",
       {kLlamaDefaults, kQwenDefaults, R"({"query_key_norm": "heads", "head_dim": 128})"},
       kLlamaFields + kActivation + kPerhapsGroups + kHeadDim + kWindow + kNoBias,
       kLlamaNames + kHeadNorms,
       kCausalHead,
       upper_windows,
       {},
       "wf"},
      {"gemma2",
       "model.",
       {kLlamaDefaults,
        R"({"activation": "gelu_tanh", "norm_placement": "sandwich", "mixers": "wf", "window": 4096,
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
       "wf"},
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
       "",
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
      {"qwen3_next",
       "model.",
       {kLlamaDefaults, kGatedDeltaNet,
        R"({"embed_dim": 2048, "layers": 48, "heads": 16, "kv_heads": 2, "hidden_dim": 5632})"},
       kLlamaFields + kGatedDeltaFields + kGroups + kHeadDim + kNoBias,
       kQwen3NextNames,
       kCausalHead,
       qwen3_next,
       {.part = "partial_rotary_factor", .rotated = 0.25},
       "lf"},
      {"qwen3_5_text",
       "model.",
       {kLlamaDefaults, kGatedDeltaNet, R"({"heads": 16, "kv_heads": 4, "hidden_dim": 12288})"},
       kLlamaFields + kGatedDeltaFields + kGroups + kHeadDim + kNoBias,
       kQwen35Names,
       kCausalHead,
       interval_of_attention,
       {.part = "partial_rotary_factor", .rotated = 0.25},
       "lf"},
      {"mamba2",
       "backbone.",
       {kMamba2Layer, R"({"norm": "rms", "positions": "none", "bias": false, "tie_embeddings": false, "mixers": "l",
        "feed_forward": false, "context": 8192, "embed_dim": 4096, "layers": 64, "linear_heads": 8,
        "linear_value_heads": 128, "linear_head_dim": 128, "linear_value_dim": 64})"},
       {{"vocab_size", "vocab_size", Meaning::positive},
        {"hidden_size", "embed_dim", Meaning::positive},
        {"num_hidden_layers", "layers", Meaning::positive},
        {"num_heads", "linear_value_heads", Meaning::positive},
        {"head_dim", "linear_value_dim", Meaning::positive},
        {"state_size", "linear_head_dim", Meaning::positive},
        {"n_groups", "linear_heads", Meaning::positive},
        {"conv_kernel", "linear_convolution", Meaning::positive},
        {"use_conv_bias", "linear_convolution_bias"},
        {"use_bias", "false", Meaning::required},
        {"rescale_prenorm_residual", "false", Meaning::required},
        {"hidden_act", "\"silu\"", Meaning::required},
        {"layer_norm_epsilon", "norm_epsilon"},
        {"tie_word_embeddings", "tie_embeddings"}},
       kMamba2Names,
       kCausalHead,
       mamba2},
      {"bamba",
       "model.",
       {kLlamaDefaults, kMamba2Layer, R"({"norm_epsilon": 1e-5, "context": 262144, "kv_heads": 8, "hidden_dim": 14336,
        "linear_heads": 1, "linear_head_dim": 256, "linear_value_heads": 128})"},
       kLlamaFields + kPerhapsGroups + kNoBias +
           Fields{{"mamba_n_heads", "linear_value_heads", Meaning::positive},
                  {"mamba_d_state", "linear_head_dim", Meaning::positive},
                  {"mamba_n_groups", "linear_heads", Meaning::positive},
                  {"mamba_d_conv", "linear_convolution", Meaning::positive},
                  {"mamba_conv_bias", "linear_convolution_bias"},
                  {"mamba_proj_bias", "false", Meaning::required},
                  {"hidden_act", "\"silu\"", Meaning::required},
                  {"mlp_bias", "false", Meaning::required}},
       kBambaNames,
       kCausalHead,
       bamba,
       {.part = "", .rotated = 0.5},  // transformers reads no such field of this family but in rope_parameters
       "lf"},
      {"lfm2",
       "model.",
       {kLlamaDefaults, R"({"norm_epsilon": 1e-5, "query_key_norm": "heads", "tie_embeddings": true, "mixers": "f",
        "context": 128000, "rope_theta": 1000000, "embed_dim": 2560, "kv_heads": 8, "hidden_dim": 12288})"},
       common_fields() + kGroups +
           Fields{{"norm_eps", "norm_epsilon"},
                  {"conv_bias", "short_convolution_bias"},
                  {"conv_L_cache", "short_convolution", Meaning::positive}},
       kLfm2Names,
       kCausalHead,
       lfm2,
       {},
       "cf",
       {{"block_ff_dim", "intermediate_size"}, {"tie_embedding", "tie_word_embeddings"}}},
  };
}

}  // namespace attn::models
