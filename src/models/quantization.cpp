// Which weights of a model become numbers of 8 or 4 bits.
#include "models/quantization.h"

#include <algorithm>

namespace attn::models {
namespace {

constexpr int64_t kGroup = 32;          // of 4 bits, and of decoders
constexpr int64_t kEncoderGroup = 128;  // of 8 bits
// The head of a classifier has fewer outputs. It takes little memory, and its outputs are the model's answer.
constexpr int64_t kFewOutputs = 64;

/// The same numbers in another form: of 8 bits, another zero, shorter groups, offsets.
ops::QuantizedMatrix in_form(const ops::QuantizedMatrix& w, const ops::QuantizedMatrix& form) {
  ops::QuantizedMatrix to = w;
  to.bits = form.bits, to.zero = form.zero, to.group = form.group;
  for (uint8_t& code : to.codes) code = static_cast<uint8_t>(code + form.zero - w.zero);
  const auto spread = [&](const std::vector<float>& numbers) {
    std::vector<float> finer;
    for (int64_t n = 0; n < w.rows; ++n)
      for (int64_t g = 0; g < to.groups(); ++g)
        finer.push_back(numbers.empty() ? 0 : numbers[static_cast<size_t>(n * w.groups() + g * to.group / w.group)]);
    return finer;
  };
  to.scales = spread(w.scales);
  to.offsets = form.offsets.empty() ? std::vector<float>() : spread(w.offsets);
  return to;
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace

ops::QuantizeOptions quantize_options(Quantization quantization, bool causal) {
  if (quantization == Quantization::int4) return {.bits = 4, .group = kGroup};
  return {.bits = 8, .group = causal ? kGroup : kEncoderGroup};
}

std::optional<ops::QuantizeOptions> quantization_of(const nn::Variable& wanted, const Config& config,
                                                    Quantization quantization) {
  const bool makes_logits =
      wanted.name == "head.weight" || (wanted.name == "tokens.weight" && config.tie_embeddings && config.head);
  const bool is_weight = wanted.role == nn::ParameterRole::linear || wanted.role == nn::ParameterRole::residual;
  if (!(is_weight || makes_logits) || wanted.shape.size() != 2 || wanted.shape[0] < kFewOutputs) return {};
  return quantize_options(makes_logits ? Quantization::int8 : quantization, config.causal);
}

bool stays_quantized(const nn::Variable& wanted, const OpenOptions& options) {
  return !options.quantization && !options.dequantize && options.purpose == nn::Purpose::inference &&
         options.precision != nn::Precision::float64 &&
         (wanted.role == nn::ParameterRole::linear || wanted.role == nn::ParameterRole::residual ||
          wanted.role == nn::ParameterRole::embedding);
}

nn::ParameterData quantized(const nn::Variable& wanted, const Array& array, const Config& config,
                            const OpenOptions& options) {
  if (!options.quantization) return array;
  const std::optional<ops::QuantizeOptions> how = quantization_of(wanted, config, *options.quantization);
  if (!how) return array;
  const Array part = array.shape() == wanted.shape ? nn::slice_of(array, wanted.slice) : array;
  try {
    return ops::PackedMatrix(ops::quantize(part.rows(), *how));
  } catch (const Error& error) {
    throw Error("open", {wanted.name + ": " + error.reasons().front()});
  }
}

ops::QuantizedMatrix slice_of(ops::QuantizedMatrix whole, const nn::Slice& slice) {
  if (slice.ranges.empty()) return whole;
  ops::QuantizedMatrix part = {.bits = whole.bits, .zero = whole.zero, .group = whole.group};
  const auto add_row = [&](int64_t row, nn::IndexRange terms, nn::IndexRange groups) {
    const auto take = [row](const auto& from, auto& to, int64_t width, nn::IndexRange range) {
      if (from.empty()) return;
      const auto begin = from.begin() + row * width;
      to.insert(to.end(), begin + range.begin, begin + range.end);
    };
    take(whole.codes, part.codes, whole.terms, terms);
    take(whole.scales, part.scales, whole.groups(), groups);
    take(whole.offsets, part.offsets, whole.groups(), groups);
  };
  if (slice.axis == 0) {
    part.terms = whole.terms;
    for (const nn::IndexRange& range : slice.ranges) {
      part.rows += range.count();
      for (int64_t row = range.begin; row < range.end; ++row) add_row(row, {0, whole.terms}, {0, whole.groups()});
    }
    return part;
  }
  const nn::IndexRange range = slice.ranges.front();
  const auto cuts = [&](int64_t at) { return at != whole.terms && at % whole.group != 0; };
  if (slice.ranges.size() > 1 || (whole.groups() > 1 && (cuts(range.begin) || cuts(range.end))))
    throw Error("open",
                {"ranks have the terms " + std::to_string(range.begin) + " to " + std::to_string(range.end - 1) +
                 ", which cut a group of " + std::to_string(whole.group) + " that has one scale: use fewer ranks"});
  part.rows = whole.rows;
  part.terms = range.count();
  if (whole.groups() == 1) part.group = part.terms;
  const nn::IndexRange groups = {range.begin / whole.group, (range.end + whole.group - 1) / whole.group};
  for (int64_t row = 0; row < whole.rows; ++row) add_row(row, range, groups);
  return part;
}

ops::QuantizedMatrix joined(std::vector<ops::QuantizedMatrix> parts) {
  ops::QuantizedMatrix form = {.bits = parts[0].bits, .zero = parts[0].zero, .group = parts[0].group};
  for (const ops::QuantizedMatrix& part : parts) {
    const bool same = part.bits == form.bits && part.zero == form.zero;
    form.bits = same ? form.bits : 8;
    form.zero = std::max(form.zero, part.zero);
    form.group = std::min(form.group, part.group);
    if (!part.offsets.empty()) form.offsets = {0};
  }
  ops::QuantizedMatrix all = form;
  all.terms = parts[0].terms;
  all.offsets = {};
  for (const ops::QuantizedMatrix& part : parts) {
    const ops::QuantizedMatrix next = in_form(part, form);
    all.rows += next.rows;
    append(all.codes, next.codes), append(all.scales, next.scales), append(all.offsets, next.offsets);
  }
  return all;
}

}  // namespace attn::models
