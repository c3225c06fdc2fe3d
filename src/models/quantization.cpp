// Which weights of a model become numbers of 8 or 4 bits.
#include "models/quantization.h"

namespace attn::models {
namespace {

constexpr int64_t kGroup = 32;          // of 4 bits, and of decoders
constexpr int64_t kEncoderGroup = 128;  // of 8 bits
// The head of a classifier has fewer outputs. It takes little memory, and its outputs are the model's answer.
constexpr int64_t kFewOutputs = 64;

}  // namespace

std::optional<ops::QuantizeOptions> quantization_of(const nn::Variable& wanted, const Config& config,
                                                    Quantization quantization) {
  const bool makes_logits =
      wanted.name == "head.weight" || (wanted.name == "tokens.weight" && config.tie_embeddings && config.head);
  const bool is_weight = wanted.role == nn::ParameterRole::linear || wanted.role == nn::ParameterRole::residual;
  if (!(is_weight || makes_logits) || wanted.shape.size() != 2 || wanted.shape[0] < kFewOutputs) return {};
  const int64_t group = config.causal ? kGroup : kEncoderGroup;
  if (quantization == Quantization::int8 || makes_logits) return ops::QuantizeOptions{.bits = 8, .group = group};
  return ops::QuantizeOptions{.bits = 4, .group = kGroup};
}

nn::ParameterData quantized(const nn::Variable& wanted, const Array& array, const Config& config,
                            const OpenOptions& options) {
  if (!options.quantization) return array;
  const std::optional<ops::QuantizeOptions> how = quantization_of(wanted, config, *options.quantization);
  if (!how) return array;
  try {
    return ops::PackedMatrix(ops::quantize(array.rows(), *how));
  } catch (const Error& error) {
    throw Error("open", {wanted.name + ": " + error.reasons().front()});
  }
}

}  // namespace attn::models
