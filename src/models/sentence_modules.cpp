// What the modules of sentence-transformers compute after a model.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "attn/core_names.h"
#include "attn/io.h"
#include "attn/models_finetune.h"
#include "models/sentence.h"

namespace attn::models {
namespace {

using io::Json;

// ------------------------------------------------------------------------------------------------------------- pooling

/// The fields that older files have, true for each pooling that is meant.
constexpr std::pair<const char*, Pooling> kOlderPoolings[] = {{"pooling_mode_cls_token", Pooling::first},
                                                              {"pooling_mode_max_tokens", Pooling::max},
                                                              {"pooling_mode_mean_tokens", Pooling::mean},
                                                              {"pooling_mode_mean_sqrt_len_tokens", Pooling::mean_root},
                                                              {"pooling_mode_weightedmean_tokens", Pooling::weighted},
                                                              {"pooling_mode_lasttoken", Pooling::last}};

constexpr size_t kMostPoolings = 64;  // side by side: there are six

/// A text's rows begin .. length - 1 [.., C] as one row; where the prompt has left none, what padding alone would give.
void pool(Pooling kind, const float* rows, int64_t begin, int64_t length, int64_t width, float* to) {
  const auto row = [&](int64_t i) { return rows + i * width; };
  const bool any = begin < length;
  switch (kind) {
    case Pooling::pooler: return;  // the model has made it
    case Pooling::first: std::copy_n(row(any ? begin : 0), width, to); return;
    case Pooling::last:
      if (any) std::copy_n(row(length - 1), width, to);
      else std::fill_n(to, width, 0.0f);
      return;
    case Pooling::max:
      std::fill_n(to, width, -std::numeric_limits<float>::infinity());
      for (int64_t i = begin; i < length; ++i)
        for (int64_t c = 0; c < width; ++c) to[c] = std::max(to[c], row(i)[c]);
      return;
    case Pooling::mean:
    case Pooling::mean_root:
    case Pooling::weighted: break;
  }
  float weights = 0;
  std::fill_n(to, width, 0.0f);
  for (int64_t i = begin; i < length; ++i) {
    const float weight = kind == Pooling::weighted ? static_cast<float>(i + 1) : 1;
    for (int64_t c = 0; c < width; ++c) to[c] += weight * row(i)[c];
    weights += weight;
  }
  weights = std::max(weights, 1e-9f);
  if (kind == Pooling::mean_root) weights = std::sqrt(weights);
  for (int64_t c = 0; c < width; ++c) to[c] /= weights;
}

std::vector<Pooling> kinds_of(FileFields& fields) {
  const auto known = [&](const Json& name) {
    const auto kind = name.is_string() ? from_name<Pooling>(name.get<std::string>()) : std::nullopt;
    if (kind && kind != Pooling::pooler) return *kind;
    fields.refuse("pooling_mode",
                  "of cls, max, mean, mean_sqrt_len_tokens, weightedmean and lasttoken, one or a list of up to 64");
  };
  std::vector<Pooling> older, kinds;
  for (const auto& [name, kind] : kOlderPoolings)
    if (fields.flag(name, false)) older.push_back(kind);
  const Json* mode = fields.find("pooling_mode");
  if (!mode) return older.empty() ? std::vector{Pooling::mean} : older;
  for (const Json& name : mode->is_array() ? *mode : Json::array({*mode})) kinds.push_back(known(name));
  if (kinds.empty() || kinds.size() > kMostPoolings) known(nullptr);
  return kinds;
}

Stage pooling(FileFields& fields, std::optional<Pooling> instead, FeatureShapes& shapes) {
  std::vector<Pooling> kinds = kinds_of(fields);
  if (instead) kinds = {*instead};
  const bool with_prompt = fields.flag("include_prompt", true);
  fields.pass_over({"embedding_dimension", "word_embedding_dimension"});
  fields.done();
  if (!shapes[kTokenRows].of_tokens) fields.refuse("there are no rows of tokens: a module before has replaced them");
  return pooling_stage(kinds, with_prompt, shapes);
}

// -------------------------------------------------------------------------------------------------------------- arrays

/// The tensors of a module's model.safetensors, as float32.
class Weights {
 public:
  explicit Weights(const std::string& folder) : path_(folder + "/model.safetensors") {
    if (!io::exists(path_) && io::exists(folder + "/pytorch_model.bin"))
      throw Error("embed", {folder + " holds pytorch_model.bin, a pickle, which is code and is not run: save the model "
                                     "once more with safetensors"});
    file_.emplace(io::Safetensors::read(path_));
  }

  Array take(const std::string& name, std::vector<int64_t> shape) {
    taken_.push_back(name);
    if (!file_->has(name)) throw Error("embed", {path_ + ": there is no tensor " + io::in_quotes(name)});
    const DType dtype = file_->tensors().at(name).dtype;
    if (!is_floating(dtype)) throw Error("embed", {path_ + ": " + name + " is of " + std::string(name_of(dtype))});
    const Array stored(dtype, shape, false), wide(DType::float32, shape, false);
    file_->copy(name, dtype, shape, stored.data());
    ops::convert(stored.flat(), wide.flat());
    return wide;
  }

  void done() const {
    for (const auto& [name, info] : file_->tensors())
      if (std::find(taken_.begin(), taken_.end(), name) == taken_.end())
        throw Error("embed", {path_ + ": the tensor " + io::in_quotes(name) + " belongs to no field of config.json"});
  }

 private:
  std::string path_;
  std::optional<io::Safetensors> file_;
  std::vector<std::string> taken_;
};

ConstView<2> transposed(const Array& weight) {  // [N, K] as [K, N]
  const int64_t rows = weight.shape()[0], columns = weight.shape()[1];
  return {weight.data(), weight.dtype(), {columns, rows}, {1, columns}};
}

// --------------------------------------------------------------------------------------------------------------- dense

using Function = std::function<void(const Array&)>;

/// torch's class of an activation, by its whole name.
Function activation_of(FileFields& fields) {
  const std::string name = fields.text("activation_function").value_or("torch.nn.modules.activation.Tanh");
  const std::string kind = name.starts_with("torch.nn.") ? name.substr(name.rfind('.') + 1) : "";
  const auto in_place = [](ops::Activation f) { return [f](const Array& x) { ops::activate(f, x.rows(), x.rows()); }; };
  if (kind == "Identity") return [](const Array&) {};
  if (kind == "Tanh") return in_place(ops::Activation::tanh);
  if (kind == "ReLU") return in_place(ops::Activation::relu);
  if (kind == "GELU") return in_place(ops::Activation::gelu);
  if (kind == "SiLU") return in_place(ops::Activation::silu);
  if (kind != "Sigmoid") fields.refuse("activation_function", "torch.nn's Identity, Tanh, ReLU, GELU, SiLU or Sigmoid");
  return [](const Array& x) {
    auto* const values = static_cast<float*>(x.data());
    std::transform(values, values + x.count(), values, [](float value) { return 1 / (1 + std::exp(-value)); });
  };
}

/// Where a module reads and writes.
struct Ends {
  std::string from, to;
};
Ends ends_of(FileFields& fields, const FeatureShapes& shapes) {
  const std::string from = fields.text("module_input_name").value_or(kTextRows);
  const Json* said = fields.find("module_output_name");
  const std::string to = said && !said->is_null() ? *fields.text("module_output_name") : from;
  if (const auto rows = shapes.find(from); rows != shapes.end() && rows->second.of_tokens && to == kTextRows)
    fields.refuse("module_output_name is " + to + " where module_input_name is " + from +
                  ", must be another: a text has one row, not one a token");
  return {from, to};
}

Stage dense(FileFields& fields, const std::string& folder, FeatureShapes& shapes) {
  const auto [from, to] = ends_of(fields, shapes);
  const int64_t in = fields.needed("in_features"), out = fields.needed("out_features");
  const bool has_bias = fields.flag("bias", true), residual = fields.flag("use_residual", false);
  const Function activation = activation_of(fields);
  fields.done();
  if (!shapes.contains(from)) fields.refuse("module_input_name", "what a module before it makes");
  if (in != shapes[from].width)
    fields.refuse("in_features", std::to_string(shapes[from].width) + ", the width of " + from);
  Weights weights(folder);
  const Array weight = weights.take("linear.weight", {out, in});
  const Array bias = has_bias ? weights.take("linear.bias", {out}) : Array();
  const Array shortcut = residual && in != out ? weights.take("residual.weight", {out, in}) : Array();
  weights.done();
  shapes[to] = {out, shapes[from].of_tokens};
  return [=, from = from, to = to](Features& features) {
    const Array x = features.arrays.at(from), y(DType::float32, {x.rows().size[0], out}, false);
    ops::matmul(x.rows(), transposed(weight), y.rows(), {.bias = bias ? ConstView<1>(bias.vector()) : ConstView<1>()});
    activation(y);
    if (shortcut) ops::matmul(x.rows(), transposed(shortcut), y.rows(), {.accumulate = true});
    else if (residual) ops::add(x.rows(), y.rows(), y.rows());
    features.arrays[to] = y;
  };
}

Stage layer_norm(FileFields& fields, const std::string& folder, FeatureShapes& shapes) {
  constexpr double kEpsilon = 1e-5;  // torch's
  const int64_t width = fields.needed("dimension");
  fields.done();
  if (!shapes.contains(kTextRows)) fields.refuse("there is no sentence_embedding yet: a Pooling must be before");
  if (width != shapes[kTextRows].width) fields.refuse("dimension", std::to_string(shapes[kTextRows].width));
  Weights weights(folder);
  const Array weight = weights.take("norm.weight", {width}), bias = weights.take("norm.bias", {width});
  weights.done();
  return [=](Features& features) {
    const Array x = features.arrays.at(kTextRows), y(DType::float32, x.shape(), false);
    ops::layer_norm(x.rows(), weight.vector(), bias.vector(), kEpsilon, y.rows());
    features.arrays[kTextRows] = y;
  };
}

/// A name that nothing has made is passed over, as there.
Stage normalise(FileFields& fields, FeatureShapes& shapes) {
  const auto [from, to] = ends_of(fields, shapes);
  fields.done();
  if (!shapes.contains(from)) return {};
  shapes[to] = shapes[from];
  return [from = from, to = to](Features& features) {
    const Array rows = features.arrays.at(from).clone();
    normalise_rows(rows);
    features.arrays[to] = rows;
  };
}

}  // namespace

void normalise_rows(const Array& rows) {
  const int64_t width = rows.width();
  parallel_for(rows.count() / width, [&](int64_t n) {
    float* const row = static_cast<float*>(rows.data()) + n * width;
    const double squares = std::inner_product(row, row + width, row, 0.0);
    const auto factor = static_cast<float>(1 / std::max(std::sqrt(squares), 1e-12));
    for (int64_t c = 0; c < width; ++c) row[c] *= factor;
  });
}

Stage pooling_stage(std::vector<Pooling> kinds, bool with_prompt, FeatureShapes& shapes) {
  const int64_t width = shapes[kTokenRows].width, count = std::ssize(kinds);
  shapes[kTextRows] = {count * width, false};
  if (kinds.front() == Pooling::pooler) return {};
  return [=](Features& features) {
    const int64_t texts = std::ssize(features.starts) - 1;
    const Array rows = features.arrays.at(kTokenRows), pooled(DType::float32, {texts, count * width}, false);
    parallel_for(texts, [&](int64_t n) {
      const int64_t start = features.starts[n], length = features.starts[n + 1] - start;
      for (int64_t k = 0; k < count; ++k)
        pool(kinds[k], static_cast<const float*>(rows.data()) + start * width, with_prompt ? 0 : features.prompt,
             length, width, static_cast<float*>(pooled.data()) + (n * count + k) * width);
    });
    features.arrays[kTextRows] = pooled;
  };
}

bool is_supported_module(const std::string& kind) {
  constexpr std::array kServed = {"Pooling", "Dense", "Normalize", "LayerNorm", "Dropout", "WeightedLayerPooling"};
  return std::find(kServed.begin(), kServed.end(), kind) != kServed.end();
}

Stage module_stage(const std::string& kind, const std::string& folder, std::optional<Pooling> instead,
                   FeatureShapes& shapes) {
  const std::string path = folder + "/config.json";
  const bool optional = kind == "Normalize" || kind == "Dropout";
  FileFields fields(optional && !io::exists(path) ? Json::object() : io::read_json("embed", path), path);
  if (kind == "Pooling") return pooling(fields, instead, shapes);
  if (kind == "Dense") return dense(fields, folder, shapes);
  if (kind == "LayerNorm") return layer_norm(fields, folder, shapes);
  if (kind == "Normalize") return normalise(fields, shapes);
  if (kind == "Dropout") fields.pass_over({"dropout"});  // of training alone
  // Of the layers' outputs, which a model hands out with output_hidden_states alone: the embedder refuses that.
  else fields.pass_over({"embedding_dimension", "word_embedding_dimension", "layer_start", "num_hidden_layers"});
  fields.done();
  return {};
}

Pooling sentence_pooling(const std::string& folder) {
  const SentenceFiles files = read_sentence_files(folder, {});
  Pooling pooling = files.pooling;
  for (const auto& [kind, where] : files.modules) {
    if (kind == "Normalize") continue;
    const std::string path = where + "/config.json";
    if (kind != "Pooling")
      throw Error("train", {where + ": a module " + kind + " cannot be trained, only Pooling and Normalize"});
    FileFields fields(io::read_json("train", path), path);
    const std::vector<Pooling> kinds = kinds_of(fields);
    if (kinds.size() != 1 || (kinds[0] != Pooling::mean && kinds[0] != Pooling::first))
      fields.refuse("only the poolings mean and cls can be trained");
    pooling = kinds[0];
  }
  return pooling;
}

}  // namespace attn::models
