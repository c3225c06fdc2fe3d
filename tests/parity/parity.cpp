// parity: one model or one layer on given parameters and inputs, forward and backward, for test_parity.py.
//
// usage: parity CONFIG.json IN.safetensors OUT.safetensors
//
// CONFIG is a model's configuration, or has a key "layer"; "precision" (float32, bfloat16, float16, float64) may be
// beside, and "isa" and "float32_precision" (full, high, fast), which are those of the process. The twin of the matrix
// tiles is among the instruction sets.
// A "folder" means a model of transformers that is there: IN holds no parameters then, OUT also has them, as
// "parameter.<name>", and what a cache gives for the same tokens, in two steps, as "cached".
// IN holds all parameters under their own names, and of a model
//     input.tokens [B, L], input.targets [B, L] or [B], input.lengths [B]    int64; lengths may be absent
// of a layer
//     input.x, input.dout, the gradient of its result; and where wanted input.memory, input.bias, input.gates,
//     input.mask (boolean), input.lengths
// or, of the layer "product", input.a [M, K] and input.b [K, N]; of "operator" input.q, input.k and input.v [B, H, L,
// D]. OUT gets logits and loss, or out, and "gradient.<name>" of every parameter, of x, memory, bias and gates.
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "attn/generate_chat.h"
#include "attn/train.h"

#if defined(__x86_64__)
#include "kernels/dispatch.h"

namespace attn::kernels {
extern const Isa isa_amx_emulated;
}
#endif

namespace attn {
namespace {

using attn::Array;
using autograd::Tape;
using autograd::Value;
using Json = nlohmann::json;

// ------------------------------------------------------------------------------------------------ fields, in and out

/// The fields of a layer's description. A wrong name is an error.
class Fields {
 public:
  explicit Fields(Json object) : object_(std::move(object)) {}

  template <class T>
  T operator()(const char* name, T otherwise) {
    asked_.insert(name);
    return object_.value(name, otherwise);
  }
  template <class T>
  T choice(const char* name, const std::map<std::string, T>& choices, const std::string& otherwise) {
    const std::string text = (*this)(name, otherwise);
    const auto found = choices.find(text);
    if (found == choices.end()) throw Error("parity", {std::string(name) + " cannot be '" + text + "'"});
    return found->second;
  }
  void done() const {
    std::vector<std::string> reasons;
    for (const auto& [name, value] : object_.items())
      if (!asked_.contains(name)) reasons.push_back("nobody reads the field '" + name + "'");
    if (!reasons.empty()) throw Error("parity", std::move(reasons));
  }

 private:
  Json object_;
  std::set<std::string> asked_;
};

class Inputs {
 public:
  explicit Inputs(const std::string& path) : file_(io::Safetensors::read(path)) {}

  const io::Safetensors& file() const { return file_; }
  bool has(const std::string& name) const { return file_.has("input." + name); }
  Array array(const std::string& name) const {
    const auto found = file_.tensors().find("input." + name);
    if (found == file_.tensors().end()) throw Error("parity", {"there is no input." + name});
    Array array(found->second.dtype, found->second.shape);
    file_.copy(found->first, array.dtype(), array.shape(), array.data());
    return array;
  }
  std::vector<int64_t> integers(const std::string& name) const {
    const Array all = array(name);
    if (all.dtype() != DType::int64) throw Error("parity", {"input." + name + " must be int64"});
    const int64_t* first = static_cast<const int64_t*>(all.data());
    return {first, first + all.count()};
  }
  /// A leaf that gets its gradient; nothing where the file has none.
  Value leaf(const std::string& name, DType dtype) const {
    if (!has(name)) return {};
    const Array from = array(name), to(dtype, from.shape());
    ops::convert(from.flat(), to.flat());
    return Value(to, true);
  }

 private:
  io::Safetensors file_;
};

class Results {
 public:
  void add(std::string name, const Array& array) {
    arrays_.push_back(array);
    tensors_.push_back({std::move(name), array.dtype(), array.shape(), array.data()});
  }
  void add_gradient(const std::string& name, const Value& value) {
    add("gradient." + name, value.gradient_is_empty() ? Array(value.dtype(), value.shape()) : value.gradient());
  }
  void add_gradients(const nn::Parameters& parameters) {
    for (const nn::Parameter& parameter : parameters.all()) add_gradient(parameter.name, parameter.value);
  }
  void write(const std::string& path) const { io::write_file(path, io::format_safetensors(tensors_, {})); }

 private:
  std::vector<Array> arrays_;  // keeps the memory
  std::vector<io::NamedTensor> tensors_;
};

// ------------------------------------------------------------------------------------------------------------ models

models::Batch batch_of(const Inputs& inputs) {
  const std::vector<int64_t> shape = inputs.array(inputs.has("tokens") ? "tokens" : "rows").shape();
  if (shape.size() < 2) throw Error("parity", {"input.tokens must be [B, L]"});
  const auto numbers = [&](const char* name) {
    return inputs.has(name) ? inputs.integers(name) : std::vector<int64_t>();
  };
  models::Batch batch;
  batch.tokens = numbers("tokens");
  batch.targets = numbers("targets");
  batch.lengths = numbers("lengths");
  batch.token_type_ids = numbers("types");
  batch.sequences = shape[0];
  batch.length = shape[1];
  batch.source = numbers("source");
  batch.source_lengths = numbers("source_lengths");
  if (!batch.source.empty()) batch.source_length = inputs.array("source").shape()[1];
  if (inputs.has("rows")) batch.inputs_embeds = inputs.array("rows");
  if (batch.inputs_embeds && inputs.has("tokens")) batch.source_length = batch.inputs_embeds.shape()[1];
  return batch;
}

void run_batch(const models::Model& model, const models::Batch& batch, Results& results) {
  Tape inference;  // logits as they come without a tape that records
  results.add("logits", model.forward(inference, batch).data());
  if (batch.targets.empty()) return;
  Tape tape({.record = true});
  const Value loss = model.loss(tape, batch);
  tape.backward(loss);
  results.add("loss", loss.data());
  results.add_gradients(model.parameters());
}

void run_model(const Json& fields, nn::Precision precision, const Inputs& inputs, Results& results) {
  models::Config config = models::family(fields.value("model", "gpt"));
  models::apply_json(config, fields.dump(), "the configuration");
  models::Model model(config, precision);
  model.load(inputs.file());
  run_batch(model, batch_of(inputs), results);
}

/// The tokens in two steps, the second of one token, through a cache.
void run_cached(const models::Model& model, const models::Batch& batch, Results& results) {
  models::ModelCache cache = model.new_cache(batch.sequences);
  const int64_t B = batch.sequences, L = batch.length;
  models::Batch part = batch;
  for (const auto& [first, end] : {std::pair(int64_t{0}, L - 1), {L - 1, L}}) {
    if (first == end) continue;
    part.tokens.clear();
    for (int64_t b = 0; b < B; ++b)
      part.tokens.insert(part.tokens.end(), batch.tokens.begin() + b * L + first, batch.tokens.begin() + b * L + end);
    part.length = end - first;
    Tape tape;
    const Array logits = model.forward(tape, part, {.cache = &cache}).data();
    if (end == L) results.add("cached", logits);
    part.source.clear();
    part.inputs_embeds = {};
  }
}

void run_folder(Fields& field, nn::Precision precision, const Inputs& inputs, Results& results) {
  const std::string folder = field("folder", std::string()), task = field("task", std::string()),
                    adapter = field("adapter", std::string());
  const bool quantized = field("quantized", false);
  field.done();
  const models::Loaded loaded =
      models::open(folder, {.precision = precision,
                            .purpose = quantized ? nn::Purpose::inference : nn::Purpose::training,
                            .task = task,
                            .adapter = adapter});
  if (quantized) {
    Tape tape;
    return results.add("logits", loaded.model->forward(tape, batch_of(inputs)).data());
  }
  for (const nn::Parameter& parameter : loaded.model->parameters().all())
    results.add("parameter." + parameter.name, parameter.master);
  const models::Batch batch = batch_of(inputs);
  run_batch(*loaded.model, batch, results);
  const models::Config& config = loaded.model->config();
  if (config.causal && !config.classes && batch.lengths.empty()) run_cached(*loaded.model, batch, results);
}

// ------------------------------------------------------------------------------------------------------------ layers

using Layer = std::function<Value(Tape&, const Value&, const nn::AttentionInputs&)>;

nn::MultiHeadAttentionOptions attention_options(Fields& field) {
  nn::MultiHeadAttentionOptions options;
  options.heads = field("heads", options.heads);
  options.kv_heads = field("kv_heads", options.kv_heads);
  options.head_dim = field("head_dim", options.head_dim);
  options.encoder_dim = field("encoder_dim", options.encoder_dim);
  options.bias = field("bias", options.bias);
  options.output_bias = field("output_bias", options.output_bias);
  options.causal = field("causal", options.causal);
  options.sinks = field("sinks", options.sinks);
  options.window = field("window", options.window);
  options.position = field.choice<nn::AttentionPositions>("position",
                                                          {{"none", nn::AttentionPositions::none},
                                                           {"rope", nn::AttentionPositions::rope},
                                                           {"relative", nn::AttentionPositions::relative},
                                                           {"alibi", nn::AttentionPositions::alibi}},
                                                          "none");
  options.rope.theta = field("rope_theta", options.rope.theta);
  options.rope.interleaved = field("rope_interleaved", options.rope.interleaved);
  options.rope.rotary_dim = field("rotary_dim", options.rope.rotary_dim);
  options.buckets = field("buckets", options.buckets);
  options.max_distance = field("max_distance", options.max_distance);
  return options;
}

nn::BlockOptions block_options(Fields& field) {
  nn::BlockOptions options;
  options.attention = attention_options(field);
  options.feed_forward.hidden_dim = field("hidden", options.feed_forward.hidden_dim);
  options.feed_forward.activation = field.choice<ops::Activation>("activation",
                                                                  {{"relu", ops::Activation::relu},
                                                                   {"gelu", ops::Activation::gelu},
                                                                   {"gelu_tanh", ops::Activation::gelu_tanh},
                                                                   {"silu", ops::Activation::silu},
                                                                   {"tanh", ops::Activation::tanh}},
                                                                  "gelu_tanh");
  options.feed_forward.gated = field("gated", options.feed_forward.gated);
  options.feed_forward.bias = options.norm.bias = options.attention.bias;
  options.norm.rms = field("rms", options.norm.rms);
  options.norm.epsilon = field("norm_epsilon", options.norm.epsilon);
  options.norm_placement = field.choice<nn::NormPlacement>(
      "norm_placement", {{"pre", nn::NormPlacement::pre}, {"post", nn::NormPlacement::post}}, "pre");
  return options;
}

Layer make_layer(const std::string& kind, const nn::Scope& scope, Fields& field) {
  const int64_t width = field("width", int64_t{0});
  if (width < 1) throw Error("parity", {"a layer needs its width"});
  if (kind == "attention") return nn::MultiHeadAttention(scope, width, attention_options(field));
  if (kind == "block") return nn::Block(scope, width, block_options(field));
  if (kind == "self_attention") {
    nn::SelfAttentionOptions options;
    options.key_width = field("key_width", options.key_width);
    options.value_width = field("value_width", options.value_width);
    options.output_width = field("output_width", options.output_width);
    options.bias = field("bias", options.bias);
    options.causal = field("causal", options.causal);
    return nn::SelfAttention(scope, width, options);
  }
  if (kind == "lstm")
    return [lstm = nn::Lstm(scope / "lstm", width, {.hidden_dim = field("hidden_dim", int64_t{0})})](
               Tape& tape, const Value& x, const nn::AttentionInputs&) { return lstm(tape, x); };
  throw Error("parity",
              {"there is no layer '" + kind +
               "'; choices: attention, block, self_attention, lstm, product, operator, buckets, loss_scaler"});
}

void run_layer(Fields& field, const std::string& kind, nn::Precision precision, const Inputs& inputs,
               Results& results) {
  nn::Parameters parameters({.precision = precision});
  const Layer layer = make_layer(kind, nn::Scope(parameters), field);
  field.done();
  for (const nn::Parameter& parameter : parameters.all())
    inputs.file().copy(parameter.name, parameter.master.dtype(), parameter.master.shape(), parameter.master.data());
  parameters.refresh();

  const DType type = parameters.dtype();
  const Value x = inputs.leaf("x", type), memory = inputs.leaf("memory", type), bias = inputs.leaf("bias", type),
              gates = inputs.leaf("gates", type == DType::float64 ? type : DType::float32);
  const Value dout = inputs.leaf("dout", type);
  if (!x || !dout) throw Error("parity", {"a layer needs input.x and input.dout"});
  nn::AttentionInputs given;
  if (memory) given.encoder_states = &memory;
  given.bias = bias;
  given.gates = gates;
  const std::vector<int64_t> lengths = inputs.has("lengths") ? inputs.integers("lengths") : std::vector<int64_t>();
  given.key_length = lengths;
  const Array mask = inputs.has("mask") ? inputs.array("mask") : Array();
  if (mask) {
    const std::vector<int64_t>& shape = mask.shape();
    if (shape.size() != 4) throw Error("parity", {"input.mask must have four axes"});
    given.mask = {mask.data(), mask.dtype(), {shape[0], shape[1], shape[2], shape[3]}};
  }

  Tape tape({.record = true});
  const Value out = layer(tape, x, given);
  if (out.shape() != dout.shape()) throw Error("parity", {"input.dout must have the shape of the layer's result"});
  results.add("out", out.data());
  tape.add_gradient(out, dout.data());
  tape.backward();
  results.add_gradient("x", x);
  if (memory) results.add_gradient("memory", memory);
  if (bias) results.add_gradient("bias", bias);
  if (gates) results.add_gradient("gates", gates);
  results.add_gradients(parameters);
}

/// a b, as layers multiply.
void run_product(Fields& field, const Inputs& inputs, Results& results) {
  field.done();
  const Array a = inputs.array("a"), b = inputs.array("b"), out(a.dtype(), {a.rows().size[0], b.width()});
  ops::matmul(a.rows(), b.rows(), out.rows());
  results.add("out", out);
}

/// Attention without a layer around it, in the precision of products.
void run_operator(Fields& field, const Inputs& inputs, Results& results) {
  AttentionOptions options;
  options.causal = field("causal", false);
  options.float32_precision = ops::matmul_precision();
  field.done();
  const auto view = [](const Array& x) {
    const std::vector<int64_t>& shape = x.shape();
    if (shape.size() != 4) throw Error("parity", {"q, k and v must have four axes"});
    return View<4>(x.data(), x.dtype(), {shape[0], shape[1], shape[2], shape[3]});
  };
  const Array q = inputs.array("q"), k = inputs.array("k"), v = inputs.array("v"), out(q.dtype(), q.shape());
  attention(view(q), view(k), view(v), view(out), options);
  results.add("out", out);
}

/// The buckets of relative positions, of the differences in input.differences.
void run_buckets(Fields& field, const Inputs& inputs, Results& results) {
  const bool bidirectional = field("bidirectional", true);
  const int64_t buckets = field("buckets", int64_t{32}), max_distance = field("max_distance", int64_t{128});
  field.done();
  const std::vector<int64_t> differences = inputs.integers("differences");
  const Array found(DType::int64, {static_cast<int64_t>(differences.size())});
  int64_t* bucket = static_cast<int64_t*>(found.data());
  for (size_t n = 0; n < differences.size(); ++n)
    bucket[n] = nn::relative_bucket(differences[n], bidirectional, buckets, max_distance);
  results.add("buckets", found);
}

/// The bytes of the text of a conversation: "messages" are pairs of role and content.
void run_chat(const Json& object, Results& results) {
  std::vector<generate::ChatMessage> messages;
  for (const Json& message : object.at("messages")) messages.push_back({message.at(0), message.at(1)});
  const std::string text = generate::ChatTemplate(object.at("chat").get<std::string>()).format(messages);
  const Array bytes(DType::int64, {static_cast<int64_t>(text.size())});
  for (size_t n = 0; n < text.size(); ++n) static_cast<int64_t*>(bytes.data())[n] = static_cast<unsigned char>(text[n]);
  results.add("text", bytes);
}

/// The loss scale that each update has, of which input.finite says whether its gradients were.
void run_loss_scaler(Fields& field, const Inputs& inputs, Results& results) {
  train::LossScaling options;
  options.initial = field("initial", options.initial);
  options.growth = field("growth", options.growth);
  options.backoff = field("backoff", options.backoff);
  options.interval = field("interval", options.interval);
  field.done();
  train::LossScaler scaler(options);
  const std::vector<int64_t> finite = inputs.integers("finite");
  const Array scales(DType::float64, {static_cast<int64_t>(finite.size())});
  for (size_t n = 0; n < finite.size(); ++n) {
    static_cast<double*>(scales.data())[n] = scaler.scale();
    scaler.update(finite[n] != 0);
  }
  results.add("scales", scales);
}

void run(const std::string& config_path, const std::string& in_path, const std::string& out_path) {
  Json object = Json::parse(io::read_file(config_path));
  Fields field(object);
  const nn::Precision precision = field.choice<nn::Precision>("precision",
                                                              {{"float32", nn::Precision::float32},
                                                               {"bfloat16", nn::Precision::bfloat16},
                                                               {"float16", nn::Precision::float16},
                                                               {"float64", nn::Precision::float64}},
                                                              "float32");
  const std::string layer = field("layer", std::string()), isa = field("isa", std::string());
  if (!isa.empty()) set_isa(isa);
  ops::set_matmul_precision(field.choice<Float32Precision>(
      "float32_precision",
      {{"full", Float32Precision::full}, {"high", Float32Precision::high}, {"fast", Float32Precision::fast}}, "full"));
  for (const char* ours : {"precision", "isa", "float32_precision"}) object.erase(ours);
  const Inputs inputs(in_path);
  Results results;
  if (object.contains("chat")) run_chat(object, results);
  else if (field("folder", std::string()) != "") run_folder(field, precision, inputs, results);
  else if (layer.empty()) run_model(object, precision, inputs, results);
  else if (layer == "product") run_product(field, inputs, results);
  else if (layer == "operator") run_operator(field, inputs, results);
  else if (layer == "buckets") run_buckets(field, inputs, results);
  else if (layer == "loss_scaler") run_loss_scaler(field, inputs, results);
  else run_layer(field, layer, precision, inputs, results);
  results.write(out_path);
}

}  // namespace
}  // namespace attn

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: parity CONFIG.json IN.safetensors OUT.safetensors\n");
    return 2;
  }
  try {
#if defined(__x86_64__)
    attn::kernels::offer(attn::kernels::isa_amx_emulated);
#endif
    attn::run(argv[1], argv[2], argv[3]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "parity: %s\n", error.what());
    return 1;
  }
}
