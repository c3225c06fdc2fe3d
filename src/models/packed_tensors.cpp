#include "models/packed_tensors.h"

#include <cmath>
#include <cstring>

#include "models/quantization.h"

namespace attn::models {
namespace {

using io::Json;

constexpr std::string_view kWeight = ".weight";

/// float16, or float32 where float16 would round small scales more than others, or has not the large ones.
DType type_of(const std::vector<float>& scales) {
  constexpr float kLeast = 0x1p-14f, kMost = 65504;
  for (const float scale : scales)
    if (scale != 0 && (scale < kLeast || scale > kMost)) return DType::float32;
  return DType::float16;
}

}  // namespace

std::vector<io::NamedTensor> PackedTensors::quantize(const std::vector<io::NamedTensor>& tensors,
                                                     const std::function<bool(const std::string& name)>& is_linear,
                                                     Quantization quantization, bool causal) {
  const ops::QuantizeOptions how = quantize_options(quantization, causal);
  bits_ = how.bits;
  group_ = how.group;
  std::vector<io::NamedTensor> all;
  for (const io::NamedTensor& tensor : tensors) {
    const bool fits = is_linear(tensor.name) && tensor.name.ends_with(kWeight) && tensor.shape[1] % group_ == 0;
    if (fits) {
      put(tensor, all);
      continue;
    }
    all.push_back(tensor);
    if (tensor.shape.size() == 2 && tensor.name.ends_with(kWeight))
      others_.push_back(tensor.name.substr(0, tensor.name.size() - kWeight.size()));
  }
  if (arrays_.empty())
    throw Error("export",
                {"no weight is that of a torch.nn.Linear with rows of whole groups of " + std::to_string(group_) +
                 ", as GPT-2 has none: nothing can be quantized in this format; --precision int8 or int4 "
                 "quantizes such a model as it is opened"});
  return all;
}

void PackedTensors::put(const io::NamedTensor& tensor, std::vector<io::NamedTensor>& all) {
  const int64_t N = tensor.shape[0], K = tensor.shape[1];
  ops::QuantizedMatrix w;
  try {
    w = ops::quantize(ConstView<2>(tensor.data, tensor.dtype, {N, K}), {.bits = bits_, .group = group_});
  } catch (const Error& error) {
    throw Error("export", {tensor.name + ": " + error.reasons().front()});
  }
  const Array& codes = arrays_.emplace_back(DType::int32, std::vector{N, K * bits_ / 32});
  auto* bytes = static_cast<uint8_t*>(codes.data());
  if (bits_ == 8) std::memcpy(bytes, w.codes.data(), w.codes.size());
  else
    for (size_t n = 0; n < w.codes.size(); n += 2)
      bytes[n / 2] = static_cast<uint8_t>(w.codes[n] | w.codes[n + 1] << 4);
  const Array& scales = arrays_.emplace_back(type_of(w.scales), std::vector{N, w.groups()});
  ops::convert(View<2>(w.scales.data(), {N, w.groups()}), scales.rows());
  const Array& shape = arrays_.emplace_back(DType::int64, std::vector<int64_t>{2});
  const int64_t numbers[2] = {N, K};
  std::memcpy(shape.data(), numbers, sizeof numbers);
  for (const auto& [end, array] : {std::pair{"_packed", &codes}, {"_scale", &scales}, {"_shape", &shape}})
    all.push_back({tensor.name + end, array->dtype(), array->shape(), array->data(), {}});
}

Json PackedTensors::config() const {
  const Json weights = {{"num_bits", bits_},    {"type", "int"},
                        {"symmetric", true},    {"strategy", "group"},
                        {"group_size", group_}, {"dynamic", false},
                        {"actorder", nullptr},  {"block_structure", nullptr},
                        {"observer", "minmax"}, {"observer_kwargs", Json::object()}};
  const Json scheme = {
      {"targets", {"Linear"}}, {"weights", weights}, {"input_activations", nullptr}, {"output_activations", nullptr}};
  return {{"quant_method", "compressed-tensors"},   {"format", "pack-quantized"}, {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", scheme}}}, {"ignore", others_},          {"kv_cache_scheme", nullptr},
          {"global_compression_ratio", nullptr}};
}

}  // namespace attn::models
