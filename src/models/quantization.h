// quantization: which weights of a model become numbers of 8 or 4 bits.
#pragma once

#include <optional>

#include "attn/models.h"
#include "attn/ops_quantized.h"

namespace attn::models {

/// How a parameter is quantized; nothing for one that stays as it is.
std::optional<ops::QuantizeOptions> quantization_of(const nn::Variable& wanted, const Config& config,
                                                    Quantization quantization);
/// The array, quantized if the options want that of this parameter. Throws Error that names it for numbers that are not
/// finite.
nn::ParameterData quantized(const nn::Variable& wanted, const Array& array, const Config& config,
                            const OpenOptions& options);

}  // namespace attn::models
