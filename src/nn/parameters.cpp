// Parameters: their names, where their content comes from, and their copies in the type that layers compute in.
#include <cmath>
#include <memory>

#include "attn/nn_parameters.h"
#include "core/checker.h"

namespace attn::nn {
namespace {

template <class T>
void fill(const Array& array, const std::function<double(Random&)>& draw, Random& random) {
  T* element = static_cast<T*>(array.data());
  for (int64_t n = 0; n < array.count(); ++n) element[n] = static_cast<T>(draw(random));
}

void check_new(const Parameters& all, const Scope& scope, const std::string& name, const std::vector<int64_t>& shape) {
  const std::string where = scope.name().empty() ? "parameters" : scope.name();
  Checker checker(where);
  checker.require(!all.find(name), [&] { return "there is a parameter " + name + " already"; });
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

Parameters::Parameters(const Options& options, Source source) : options_(options), source_(std::move(source)) {}

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

void Parameters::clear_gradients() const {
  for (const Parameter& parameter : all_) parameter.value.clear_gradient();
}

void Parameters::refresh() const {
  for (const Parameter& parameter : all_)
    if (parameter.value.dtype() != parameter.master.dtype())
      ops::convert(parameter.master.flat(), parameter.value.data().flat());
}

Value Scope::create(std::string_view name, std::vector<int64_t> shape, bool decay,
                    const std::function<double(Random&)>& draw) const {
  const Parameters& own = *parameters_;
  const DType master_type = own.dtype() == DType::float64 ? DType::float64 : DType::float32;
  const DType compute = decay ? own.dtype() : master_type;
  const auto array = [&](DType dtype) {
    return own.source_ ? Array(dtype, shape, false) : Array(dtype, shape, no_memory());
  };
  Parameter parameter;
  parameter.name = prefix_ + std::string(name);
  check_new(*parameters_, *this, parameter.name, shape);
  parameter.decay = decay;
  parameter.master = array(master_type);
  Array data = compute == master_type ? parameter.master : array(compute);
  if (own.source_) {
    own.source_(parameter, [&] {
      Random random(own.options_.seed, own.all_.size() + 1);  // a stream of its own: order of use does not matter
      if (master_type == DType::float64) fill<double>(parameter.master, draw, random);
      else fill<float>(parameter.master, draw, random);
    });
    if (compute != master_type) ops::convert(parameter.master.flat(), data.flat());
  }
  parameter.value = Value(data, true, master_type);
  parameters_->index_.emplace(parameter.name, own.all_.size());
  parameters_->all_.push_back(parameter);
  return parameter.value;
}

Value Scope::weight(std::string_view name, std::vector<int64_t> shape, bool residual) const {
  const Parameters::Options& options = parameters_->options();
  const double fans = shape.empty() ? 0 : static_cast<double>(shape.front()) + static_cast<double>(shape.back());
  std::function<double(Random&)> draw;
  if (options.scheme == Scheme::xavier) {
    const double limit = std::sqrt(6 / fans);
    draw = [limit](Random& random) { return limit * (2 * random.uniform() - 1); };
  } else {
    const double deviation = 0.02 * (residual ? options.residual_factor : 1);
    draw = [deviation](Random& random) { return deviation * random.normal(); };
  }
  return create(name, std::move(shape), true, draw);
}

Value Scope::constant(std::string_view name, int64_t count, double value) const {
  return create(name, {count}, false, [value](Random&) { return value; });
}

}  // namespace attn::nn
