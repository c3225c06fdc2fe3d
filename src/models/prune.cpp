// Models with fewer heads: rows of the projections and columns of W_O that heads leave, and what else follows a head.
#include <algorithm>
#include <cstring>

#include "attn/models_prune.h"
#include "core/checker.h"
#include "models/shape.h"

namespace attn::models {
namespace {

std::string shown(const std::vector<int64_t>& heads) { return to_string(heads.data(), static_cast<int>(heads.size())); }

/// The heads of each layer that stay, counted as `removed` counts.
HeadLists staying(const Config& config, const HeadLists& removed) {
  Checker checker("remove_heads");
  checker.require(!is_selfhead(config), "selfhead has one head, which cannot be removed");
  checker.require(config.query_key_norm != QueryKeyNorm::rows,
                  "query_key_norm rows mixes all heads of a token: without one of them the others would change");
  checker.require(config.lora_rank == 0, "the model has adapters (LoRA), whose rows belong to heads: merge them first");
  const std::vector<AttentionLayer> layers = attention_layers(config);
  checker.require(removed.size() == layers.size(), [&] {
    return std::to_string(removed.size()) + " lists of heads are given, must be one for each of " +
           std::to_string(layers.size()) + " attention layers";
  });
  HeadLists stay(layers.size());
  for (size_t n = 0; n < std::min(removed.size(), layers.size()); ++n) {
    std::vector<int64_t> gone = removed[n];
    std::sort(gone.begin(), gone.end());
    const bool once = std::adjacent_find(gone.begin(), gone.end()) == gone.end();
    const bool inside = gone.empty() || (gone.front() >= 0 && gone.back() < layers[n].kv_heads);
    checker.require(once && inside, [&] {
      return layers[n].name + ": the heads are " + shown(removed[n]) + ", must be different ones in [0, " +
             std::to_string(layers[n].kv_heads) + ")";
    });
    for (int64_t h = 0; h < layers[n].kv_heads; ++h)
      if (!std::binary_search(gone.begin(), gone.end(), h)) stay[n].push_back(h);
    checker.require(!stay[n].empty(), [&] { return layers[n].name + " would keep no head"; });
  }
  checker.done();
  return stay;
}

/// Runs of `width` along an axis, which are copied one after the other.
struct Runs {
  std::vector<int64_t> from;
  int64_t width;
};

/// The runs that stay of heads H, then Hk, then Hk again: queries, keys and values. `parts` says which of them.
Runs runs_of(const AttentionLayer& layer, const std::vector<int64_t>& stay, int64_t width, const std::string& parts) {
  const int64_t group = layer.heads / layer.kv_heads;
  Runs runs{{}, width};
  int64_t first = 0;
  for (const char part : parts) {
    const int64_t each = part == 'q' ? group : 1;
    for (const int64_t head : stay)
      for (int64_t n = 0; n < each; ++n) runs.from.push_back(first + (head * each + n));
    first += layer.kv_heads * each;
  }
  return runs;
}

/// `to` [R, n width] from the runs of columns of `from`.
void copy_columns(const View<2>& from, const Runs& runs, const View<2>& to) {
  const int64_t bytes = runs.width * size_of(from.dtype);
  for (int64_t r = 0; r < to.size[0]; ++r)
    for (size_t n = 0; n < runs.from.size(); ++n)
      std::memcpy(static_cast<char*>(to.data) + r * to.stride[0] * size_of(to.dtype) + static_cast<int64_t>(n) * bytes,
                  static_cast<const char*>(from.data) + r * from.stride[0] * size_of(from.dtype) + runs.from[n] * bytes,
                  static_cast<size_t>(bytes));
}

/// The rows of a matrix are the columns of the one whose only row has all its elements.
void copy_rows(const Array& from, Runs runs, const Array& to) {
  if (from.shape().size() > 1) runs.width *= from.width();
  copy_columns(from.flat(), runs, to.flat());
}

/// An attention layer's parameter without the heads that go. `name` is what follows the layer's own.
Array without(const std::string& name, const Array& whole, const AttentionLayer& layer,
              const std::vector<int64_t>& stay, int64_t width, std::vector<int64_t> shape) {
  const Array part(whole.dtype(), std::move(shape), false);
  const auto rows = [&](const char* parts) { copy_rows(whole, runs_of(layer, stay, width, parts), part); };
  if (name.starts_with("qkv.")) rows("qkk");
  else if (name.starts_with("query.") || name.starts_with("gate.")) rows("q");
  else if (name.starts_with("key_value.")) rows("kk");
  else if (name == "sink") copy_rows(whole, runs_of(layer, stay, 1, "q"), part);
  else if (name == "distance_bias") copy_columns(whole.rows(), runs_of(layer, stay, 1, "q"), part.rows());
  else if (name == "output.weight") copy_columns(whole.rows(), runs_of(layer, stay, width, "q"), part.rows());
  else return whole;  // the output's bias, and norms that all heads share
  return part;
}

/// Where layers share the distances of the first one, that one's.
std::string name_in_whole(const Config& config, const std::string& name) {
  const size_t stack = name.find('.'), layer = stack == std::string::npos ? stack : name.find('.', stack + 1);
  if (!config.shared_relative_bias || layer == std::string::npos || !name.ends_with(".distance_bias")) return name;
  return name.substr(0, stack + 1) + "0" + name.substr(layer);
}

}  // namespace

Config without_heads(const Config& config, const HeadLists& removed) {
  const HeadLists stay = staying(config, removed);
  const std::vector<AttentionLayer> layers = attention_layers(config);
  Config smaller = config;
  smaller.shared_relative_bias = false;
  smaller.kept_heads.assign(stay.size(), {});
  for (size_t n = 0; n < stay.size(); ++n)
    for (const int64_t head : stay[n]) smaller.kept_heads[n].push_back(layers[n].kept[static_cast<size_t>(head)]);
  return smaller;
}

Model remove_heads(const Model& model, const HeadLists& removed, nn::Purpose purpose) {
  const Config& config = model.config();
  const HeadLists stay = staying(config, removed);
  const std::vector<AttentionLayer> layers = attention_layers(config);
  const int64_t width = attention_shape(config).key_width;
  const auto take = [&](const nn::Variable& wanted, const auto&) {
    const nn::Parameter& parameter = *model.parameters().find(name_in_whole(config, wanted.name));
    if (parameter.value.is_freed())
      throw Error("remove_heads", {parameter.name + " is packed, and its matrix was freed: open the model unpacked"});
    const Array whole = parameter.master;
    Array part = whole;
    for (size_t n = 0; n < layers.size(); ++n)
      if (wanted.name.starts_with(layers[n].name + "."))
        part = without(wanted.name.substr(layers[n].name.size() + 1), whole, layers[n], stay[n], width, wanted.shape);
    const Array own(wanted.dtype, wanted.shape, false);
    ops::convert(part.flat(), own.flat());
    return own;
  };
  return Model(without_heads(config, removed), model.parameters().options().precision, take, purpose);
}

std::vector<Value> gates_without(const Config& config, const HeadLists& removed, DType type) {
  const std::vector<AttentionLayer> layers = attention_layers(config);
  Checker checker("gates");
  checker.require(removed.size() == layers.size(), "one list of heads for each attention layer must be given");
  checker.done();
  std::vector<Value> gates;
  for (size_t n = 0; n < layers.size(); ++n) {
    std::vector<double> open(static_cast<size_t>(layers[n].kv_heads), 1);
    for (const int64_t head : removed[n]) {
      checker.require(head >= 0 && head < layers[n].kv_heads, [&] {
        return layers[n].name + ": the head is " + std::to_string(head) + ", must be in [0, " +
               std::to_string(layers[n].kv_heads) + ")";
      });
      checker.done();
      open[static_cast<size_t>(head)] = 0;
    }
    const Array factors(type == DType::float64 ? type : DType::float32, {1, layers[n].kv_heads}, false);
    ops::convert(View<2>(open.data(), {1, layers[n].kv_heads}), factors.flat());
    gates.emplace_back(factors);
  }
  return gates;
}

}  // namespace attn::models
