// Layouts, with P = 32 / bits codes in an int32, the first in its lowest bits:
//   compressed-tensors  weight_packed [N, K / P], along K; weight_scale [N, groups]; weight_zero_point [N / P, groups],
//   (pack-quantized)    along N; weight_shape. Numbers are stored plus 2^(bits - 1), zero points too.
//   GPTQ                qweight [K / P, N], along K; scales [groups, N]; qzeros [groups, N / P], along N; g_idx [K]
//   AWQ (gemm)          qweight [K, N / P] and qzeros [groups, N / P], along N, where the place in an int32 of column n
//                       is kPlaces[n % 8]; scales [groups, N]
#include "models/stored_weights.h"

#include <array>
#include <cstring>

#include "core/numbers.h"

namespace attn::models {
namespace {

using io::Json;
using Method = StoredFormat::Method;

constexpr std::array<int, 8> kPlaces = {0, 4, 1, 5, 2, 6, 3, 7};

[[noreturn]] void refuse(const std::string& source, const std::string& reason) {
  throw Error("open", {source + ": quantization_config: " + reason +
                       "; take the folder that it was made from, with --precision int8 or int4, or a GGUF file"});
}

/// A field that must have one of these values, or be absent where null is one of them.
void require(const Json& in, const char* name, const std::vector<Json>& allowed, const std::string& source) {
  const auto found = in.find(name);
  const Json value = found == in.end() ? Json() : *found;
  for (const Json& each : allowed)
    if (value == each) return;
  std::string known;
  for (const Json& each : allowed) known += (known.empty() ? "" : " or ") + each.dump();
  refuse(source, std::string(name) + " is " + io::as_shown(value) + ", only " + known + " is supported");
}

int64_t group_of(const Json& in, const char* name, const std::string& source) {
  const Json value = in.value(name, Json());
  if (value == -1) return 0;
  const int64_t group = io::whole_number(value).value_or(0);
  if (group < 16 || group % 16 || group > ops::kMostGroup)
    refuse(source, std::string(name) + " is " + io::as_shown(value) + ", must be -1 or a multiple of 16 up to " +
                       std::to_string(ops::kMostGroup));
  return group;
}

StoredFormat compressed(const Json& config, const std::string& source) {
  require(config, "format", {"pack-quantized"}, source);
  const Json groups = config.value("config_groups", Json());
  if (!groups.is_object() || groups.size() != 1) refuse(source, "config_groups must have one entry");
  const Json& scheme = *groups.begin();
  const Json weights = scheme.is_object() ? scheme.value("weights", Json()) : Json();
  if (!weights.is_object()) refuse(source, "config_groups has no weights");
  require(scheme, "input_activations", {nullptr}, source);
  require(weights, "type", {"int"}, source);
  require(weights, "num_bits", {4, 8}, source);
  require(weights, "strategy", {"group", "channel"}, source);
  require(weights, "actorder", {nullptr, "weight", "static"}, source);
  const bool in_groups = weights["strategy"] == "group";
  return {.method = Method::compressed_tensors,
          .bits = weights["num_bits"].get<int>(),
          .group = in_groups ? group_of(weights, "group_size", source) : 0};
}

}  // namespace

StoredFormat read_stored_format(const Json& config, const std::string& source) {
  const Json method = config.is_object() ? config.value("quant_method", Json()) : Json();
  if (method == "compressed-tensors") return compressed(config, source);
  if (method == "gptq") {
    require(config, "bits", {4, 8}, source);
    require(config, "checkpoint_format", {nullptr, "gptq", "gptq_v2"}, source);
    return {.method = Method::gptq,
            .bits = config["bits"].get<int>(),
            .group = group_of(config, "group_size", source),
            .zeros_less_1 = config.value("checkpoint_format", Json()) != "gptq_v2"};
  }
  if (method == "awq") {
    require(config, "bits", {4}, source);
    require(config, "version", {nullptr, "gemm", "GEMM"}, source);
    return {.method = Method::awq, .bits = 4, .group = group_of(config, "group_size", source)};
  }
  refuse(source, "the weights are quantized" +
                     (method.is_string() ? " by " + io::in_quotes(method.get<std::string>()) : std::string()) +
                     ", which is not read: compressed-tensors, gptq and awq are");
}

namespace {

int32_t word_of(const StoredTensor& tensor, int64_t at) {
  int32_t word;
  std::memcpy(&word, tensor.bytes.data() + at * 4, 4);
  return word;
}

struct Names {
  std::string_view codes, scales, zeros;
};
Names names_of(Method method) {
  if (method == Method::compressed_tensors) return {"weight_packed", "weight_scale", "weight_zero_point"};
  return {"qweight", "scales", "qzeros"};
}

/// A tensor of this type and shape, both in words.
void require_tensor(const std::string& name, const StoredTensor& tensor, bool is_words,
                    const std::vector<int64_t>& shape) {
  const bool right = is_words ? tensor.dtype == DType::int32 : is_floating(tensor.dtype) && size_of(tensor.dtype) <= 4;
  if (right && tensor.shape == shape) return;
  const auto text = [](const std::vector<int64_t>& of) { return to_string(of.data(), static_cast<int>(of.size())); };
  throw Error("open", {name + " is " + std::string(name_of(tensor.dtype)) + " " + text(tensor.shape) + ", must be " +
                       (is_words ? "int32 " : "a floating type ") + text(shape)});
}

/// K from weight_shape, [N, K], of codes [N, K / pack] whose last word of a row may have codes of no terms.
int64_t terms_of(const std::string& name, const StoredMatrix::Tensors& tensors, const std::array<int64_t, 2>& codes,
                 int64_t pack) {
  const std::optional<StoredTensor> shape = tensors(name);
  if (!shape || shape->dtype != DType::int64 || shape->shape != std::vector<int64_t>{2})
    throw Error("open", {name + " must be two numbers of int64"});
  std::array<int64_t, 2> numbers;
  std::memcpy(numbers.data(), shape->bytes.data(), sizeof numbers);
  if (numbers[0] != codes[0] || numbers[1] < 0 || numbers[1] > codes[1] || numbers[1] <= codes[1] - pack)
    throw Error("open", {name + " does not fit " + name.substr(0, name.rfind('_')) + "_packed"});
  return numbers[1];
}

/// The group of each term, where the file has them, must be those of consecutive terms.
void require_order(const std::string& name, const StoredMatrix::Tensors& tensors, int64_t terms, int64_t group) {
  const std::optional<StoredTensor> order = tensors(name);
  if (!order) return;
  require_tensor(name, *order, true, {terms});
  for (int64_t k = 0; k < terms; ++k)
    if (word_of(*order, k) != k / group)
      throw Error("open", {name + ": the terms are in another order than their groups (desc_act), which is not "
                                  "supported"});
}

}  // namespace

std::optional<StoredMatrix> StoredMatrix::find(const StoredFormat& format, const std::string& name,
                                               const Tensors& tensors) {
  const Names names = names_of(format.method);
  const std::string base = name.substr(0, name.size() - std::string_view("weight").size());
  const auto named = [&](std::string_view end) { return base + std::string(end); };
  StoredMatrix matrix;
  matrix.format_ = format;
  const std::optional<StoredTensor> codes = tensors(named(names.codes)), scales = tensors(named(names.scales));
  if (!codes) return {};
  if (!scales) throw Error("open", {"there is " + named(names.codes) + ", but no " + named(names.scales)});
  if (codes->shape.size() != 2) throw Error("open", {named(names.codes) + " must have two axes"});
  const int64_t pack = 32 / format.bits;
  const bool by_rows = format.method == Method::compressed_tensors;
  matrix.rows_ = by_rows ? codes->shape[0] : codes->shape[1] * (format.method == Method::awq ? pack : 1);
  matrix.terms_ = by_rows ? codes->shape[1] * pack : codes->shape[0] * (format.method == Method::gptq ? pack : 1);
  if (by_rows) matrix.terms_ = terms_of(named("weight_shape"), tensors, {matrix.rows_, matrix.terms_}, pack);
  const int64_t N = matrix.rows_, group = format.group ? format.group : matrix.terms_;
  matrix.groups_ = group > 0 ? div_up(matrix.terms_, group) : 0;
  const int64_t G = matrix.groups_;
  require_tensor(named(names.codes), *codes, true, codes->shape);
  require_tensor(named(names.scales), *scales, false, by_rows ? std::vector{N, G} : std::vector{G, N});
  matrix.codes_ = *codes;
  matrix.scales_ = *scales;
  matrix.zeros_ = tensors(named(names.zeros));
  if (!matrix.zeros_ && !by_rows)
    throw Error("open", {"there is " + named(names.codes) + ", but no " + named(names.zeros)});
  if (matrix.zeros_)
    require_tensor(named(names.zeros), *matrix.zeros_, true,
                   by_rows ? std::vector{div_up(N, pack), G} : std::vector{G, div_up(N, pack)});
  require_order(named(by_rows ? "weight_g_idx" : "g_idx"), tensors, matrix.terms_, group);
  return matrix;
}

uint8_t StoredMatrix::code(int64_t row, int64_t term) const {
  const int64_t pack = 32 / format_.bits, mask = (1 << format_.bits) - 1;
  switch (format_.method) {
    case Method::compressed_tensors:
      return static_cast<uint8_t>(word_of(codes_, row * codes_.shape[1] + term / pack) >> format_.bits * (term % pack) &
                                  mask);
    case Method::gptq:
      return static_cast<uint8_t>(word_of(codes_, term / pack * rows_ + row) >> format_.bits * (term % pack) & mask);
    default:
      return static_cast<uint8_t>(
          word_of(codes_, term * codes_.shape[1] + row / pack) >> 4 * kPlaces[static_cast<size_t>(row % pack)] & mask);
  }
}

int StoredMatrix::zero(int64_t row, int64_t group) const {
  if (!zeros_) return 1 << (format_.bits - 1);
  const int64_t pack = 32 / format_.bits, mask = (1 << format_.bits) - 1;
  const bool by_rows = format_.method == Method::compressed_tensors;
  const int64_t at = by_rows ? row / pack * groups_ + group : group * zeros_->shape[1] + row / pack;
  const int64_t place = format_.method == Method::awq ? kPlaces[static_cast<size_t>(row % pack)] : row % pack;
  return static_cast<int>(word_of(*zeros_, at) >> format_.bits * place & mask) + format_.zeros_less_1;
}

ops::QuantizedMatrix StoredMatrix::read() const {
  ops::QuantizedMatrix w{.rows = rows_,
                         .terms = terms_,
                         .bits = format_.bits,
                         .zero = 1 << (format_.bits - 1),
                         .group = format_.group ? format_.group : terms_};
  w.codes.resize(static_cast<size_t>(rows_ * terms_));
  w.scales.resize(static_cast<size_t>(rows_ * groups_));
  const bool by_rows = format_.method == Method::compressed_tensors;
  const std::vector<char> aligned(scales_.bytes.begin(), scales_.bytes.end());
  const int64_t count = rows_ * groups_;
  std::vector<float> scales(w.scales.size()), offsets(w.scales.size());
  ops::convert(ConstView<2>(aligned.data(), scales_.dtype, {1, count}), View<2>(scales.data(), {1, count}));
  parallel_for(rows_, [&](int64_t n) {
    for (int64_t k = 0; k < terms_; ++k) w.codes[static_cast<size_t>(n * terms_ + k)] = code(n, k);
    for (int64_t g = 0; g < groups_; ++g) {
      const auto at = static_cast<size_t>(n * groups_ + g);
      w.scales[at] = scales[static_cast<size_t>(by_rows ? n * groups_ + g : g * rows_ + n)];
      offsets[at] = w.scales[at] * static_cast<float>(w.zero - zero(n, g));
    }
  });
  for (const float offset : offsets)
    if (offset != 0) {
      w.offsets = std::move(offsets);
      break;
    }
  return w;
}

}  // namespace attn::models
