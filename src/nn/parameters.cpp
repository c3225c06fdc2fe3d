// Parameters: their names, where their content comes from, and their copies in the type that layers compute in.
#include <cmath>
#include <memory>

#include "attn/nn_parameters.h"
#include "core/checker.h"
#include "nn/state.h"

namespace attn::nn {
namespace {

bool is_weight(ParameterRole role) { return role == ParameterRole::linear || role == ParameterRole::residual; }
/// Of the type that layers compute in, and subject to decay.
bool is_product(ParameterRole role) {
  return is_weight(role) || role == ParameterRole::embedding || role == ParameterRole::convolution;
}

/// One number after the other.
std::function<double(Random&)> numbers_of(const Parameters::Options& options, const Variable& wanted) {
  if (wanted.role == ParameterRole::bias) return [](Random&) { return 0.0; };
  if (wanted.role == ParameterRole::scale) return [](Random&) { return 1.0; };
  if (wanted.role == ParameterRole::decay) return [](Random&) { return -std::log(16.0); };
  const auto extent = [&](size_t axis) { return static_cast<double>(wanted.shape[axis]); };
  const bool convolution = wanted.role == ParameterRole::convolution;
  if (convolution || options.initialization == Initialization::xavier) {
    const size_t last = wanted.shape.size() - 1;
    const double limit = std::sqrt(convolution ? 1 / extent(last) : 6 / (extent(0) + extent(last)));
    return [limit](Random& random) { return limit * (2 * random.uniform() - 1); };
  }
  const double deviation = 0.02 * (wanted.role == ParameterRole::residual ? options.residual_factor : 1);
  return [deviation](Random& random) { return deviation * random.normal(); };
}

template <class T>
void fill(const Array& array, const std::function<double(Random&)>& draw, Random& random) {
  T* element = static_cast<T*>(array.data());
  for (int64_t n = 0; n < array.count(); ++n) element[n] = static_cast<T>(draw(random));
}

void fill(const Array& array, const std::function<double(Random&)>& draw, Random& random) {
  if (array.dtype() == DType::float64) return fill<double>(array, draw, random);
  if (array.dtype() == DType::float32) return fill<float>(array, draw, random);
  const Array wide(DType::float32, array.shape(), false);
  fill<float>(wide, draw, random);
  ops::convert(wide.flat(), array.flat());
}

void check_new(const Parameters& all, const Scope& scope, const std::string& name, const std::vector<int64_t>& shape) {
  const std::string where = scope.name().empty() ? "parameters" : scope.name();
  Checker checker(where);
  checker.require(!all.find(name), [&] { return "the name " + name + " is already that of another parameter"; });
  checker.require(("." + name + ".").find("..") == std::string::npos,
                  [&] { return "the name '" + name + "' has an empty part"; });
  int64_t bytes = 8;
  bool fits = !shape.empty();
  for (const int64_t extent : shape) fits = fits && extent > 0 && !__builtin_mul_overflow(bytes, extent, &bytes);
  checker.require(fits, [&] {
    return name + " cannot be " + to_string(shape.data(), static_cast<int>(shape.size())) +
           ": sizes must be positive, together below 2^63 bytes";
  });
  checker.done();
}

/// Of arrays that have a shape alone: nobody reads them.
std::shared_ptr<void> no_memory() {
  static char nothing;
  return {std::shared_ptr<void>(), &nothing};
}

}  // namespace

Parameters::Parameters(const Options& options, ParameterSource source)
    : options_(options), source_(std::move(source)) {}

DType Parameters::dtype() const {
  switch (options_.precision) {
    case Precision::bfloat16: return DType::bfloat16;
    case Precision::float16: return DType::float16;
    case Precision::float64: return DType::float64;
    default: return DType::float32;
  }
}

const Parameter* Parameters::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &all_[found->second];
}

int64_t Parameters::count() const {
  int64_t total = 0;
  for (const Parameter& parameter : all_) total += parameter.master.count();
  return total;
}

void Parameters::clear_gradients() {
  for (Parameter& parameter : all_) parameter.value.clear_gradient();
}

void Parameters::refresh() {
  for (Parameter& parameter : all_) {
    parameter.value.unpack();
    if (parameter.value.dtype() != parameter.master.dtype())
      ops::convert(parameter.master.flat(), parameter.value.data().flat());
  }
}

void Parameters::pack() {
  for (Parameter& parameter : all_)
    if (parameter.is_linear) parameter.value.pack();
}

NamedArrays Parameters::masters(const std::string& prefix) const {
  NamedArrays all;
  for (const Parameter& parameter : all_) all.emplace_back(prefix + parameter.name, parameter.master);
  return all;
}

std::vector<io::NamedTensor> Parameters::tensors(const std::string& prefix) const {
  return tensors_of(masters(prefix));
}

void Parameters::load(const io::Safetensors& file, const std::string& prefix) {
  load_into(masters(prefix), file);
  refresh();
}

Array random_parameter(const Variable& wanted, const std::function<void(const Array&)>& draw) {
  Array array(wanted.dtype, wanted.shape, false);
  draw(array);
  return array;
}

Value Scope::variable(std::string_view name, std::vector<int64_t> shape, ParameterRole role) const {
  Parameters& all = *parameters_;
  const bool trains = all.options_.purpose == Purpose::training;
  const DType wide = all.dtype() == DType::float64 ? DType::float64 : DType::float32;
  const DType compute = is_product(role) ? all.dtype() : wide;
  const Variable wanted{prefix_ + std::string(name), role, trains ? wide : compute, std::move(shape)};
  check_new(all, *this, wanted.name, wanted.shape);

  Parameter parameter{wanted.name, {}, {}, is_product(role), is_weight(role)};
  Array data;
  if (all.source_) {
    const auto draw = [&](const Array& array) {
      Random random(all.options_.seed, all.all_.size() + 1);  // a stream of its own: order of use does not matter
      fill(array, numbers_of(all.options_, wanted), random);
    };
    data = parameter.master = all.source_(wanted, draw);
    if (data.dtype() != wanted.dtype || data.shape() != wanted.shape)
      throw Error("parameters", {"the source gave " + data.describe() + " for " + wanted.name + ", must be " +
                                 std::string(name_of(wanted.dtype)) + " " +
                                 to_string(wanted.shape.data(), static_cast<int>(wanted.shape.size()))});
    if (compute != wanted.dtype) {
      data = Array(compute, wanted.shape, false);
      ops::convert(parameter.master.flat(), data.flat());
    }
  } else {
    parameter.master = Array(wanted.dtype, wanted.shape, no_memory());
    data = Array(compute, wanted.shape, no_memory());
  }
  parameter.value = Value(data, trains, wide);
  all.index_.emplace(parameter.name, all.all_.size());
  all.all_.push_back(parameter);
  return parameter.value;
}

}  // namespace attn::nn
