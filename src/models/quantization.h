// quantization: which weights of a model become numbers of 8 or 4 bits.
#pragma once

#include <optional>

#include "attn/models.h"
#include "attn/ops_quantized.h"

namespace attn::models {

/// How weights of linear layers are quantized.
ops::QuantizeOptions quantize_options(Quantization quantization, bool causal);
/// How a parameter is quantized; nothing for one that stays as it is.
std::optional<ops::QuantizeOptions> quantization_of(const nn::Variable& wanted, const Config& config,
                                                    Quantization quantization);
/// True for a weight that the model's file has in few bits, which then stay as they are.
bool stays_quantized(const nn::Variable& wanted, const OpenOptions& options);
/// The array, quantized if the options want that of this parameter. Throws Error that names it for numbers that are not
/// finite.
nn::ParameterData quantized(const nn::Variable& wanted, const Array& array, const Config& config,
                            const OpenOptions& options);

/// The part of a matrix that a rank has. Throws Error where a slice of its terms cuts a group.
ops::QuantizedMatrix slice_of(ops::QuantizedMatrix whole, const nn::Slice& slice);
/// Several matrices, one below the other, in a form that holds all of them exactly. They have the same terms.
ops::QuantizedMatrix joined(std::vector<ops::QuantizedMatrix> parts);

}  // namespace attn::models
