// Parameters: their names, where their content comes from, and their copies in the type that layers compute in.
#include <algorithm>
#include <cmath>
#include <memory>

#include "attn/nn_parameters.h"
#include "core/checker.h"
#include "nn/state.h"

namespace attn::nn {
namespace {

bool is_weight(ParameterRole role) {
  return role == ParameterRole::linear || role == ParameterRole::residual || role == ParameterRole::adapter_in ||
         role == ParameterRole::adapter_out;
}
bool is_table(ParameterRole role) { return role == ParameterRole::embedding; }
/// Of the type that layers compute in, and subject to decay.
bool is_product(ParameterRole role) {
  return role != ParameterRole::bias && role != ParameterRole::gates && role != ParameterRole::scale &&
         role != ParameterRole::decay;
}

/// One number after the other.
std::function<double(Random&)> numbers_of(const Parameters::Options& options, const Variable& wanted) {
  if (wanted.role == ParameterRole::bias || wanted.role == ParameterRole::gates ||
      wanted.role == ParameterRole::adapter_out)
    return [](Random&) { return 0.0; };
  if (wanted.role == ParameterRole::scale) return [](Random&) { return 1.0; };
  if (wanted.role == ParameterRole::decay) return [](Random&) { return -std::log(16.0); };
  const auto extent = [&](size_t axis) { return static_cast<double>(wanted.shape[axis]); };
  const bool by_width = wanted.role == ParameterRole::convolution || wanted.role == ParameterRole::recurrent ||
                        wanted.role == ParameterRole::adapter_in;
  if (by_width || options.initialization == Initialization::xavier) {
    const size_t last = wanted.shape.size() - 1;
    const double limit = std::sqrt(by_width ? 1 / extent(last) : 6 / (extent(0) + extent(last)));
    return [limit](Random& random) { return limit * (2 * random.uniform() - 1); };
  }
  const double deviation = 0.02 * (wanted.role == ParameterRole::residual ? options.residual_factor : 1);
  return [deviation](Random& random) { return deviation * random.normal(); };
}

/// The numbers of a random stream, in order: every one takes as many words of it, so that all threads can draw.
struct Stream {
  std::function<double(Random&)> draw;
  uint64_t seed, number;

  uint64_t words() const {
    Random random(seed, number);
    draw(random);
    return random.drawn();
  }
};

template <class T>
void fill(const Array& array, const Stream& stream) {
  constexpr int64_t kNumbers = int64_t{1} << 14;  // of a task: half a millisecond
  T* element = static_cast<T*>(array.data());
  const uint64_t words = stream.words();
  parallel_for((array.count() + kNumbers - 1) / kNumbers, [&](int64_t task) {
    const int64_t first = task * kNumbers, end = std::min(first + kNumbers, array.count());
    Random random(stream.seed, stream.number, words * static_cast<uint64_t>(first));
    for (int64_t n = first; n < end; ++n) element[n] = static_cast<T>(stream.draw(random));
  });
}

void fill(const Array& array, const Stream& stream) {
  if (array.dtype() == DType::float64) return fill<double>(array, stream);
  if (array.dtype() == DType::float32) return fill<float>(array, stream);
  const Array wide(DType::float32, array.shape(), false);
  fill<float>(wide, stream);
  ops::convert(wide.flat(), array.flat());
}

/// Ones in the second quarter: forget gates that are open at first.
void open_forget_gates(const Array& bias) {
  const int64_t H = bias.count() / 4;
  if (bias.dtype() == DType::float64) std::fill_n(static_cast<double*>(bias.data()) + H, H, 1.0);
  else std::fill_n(static_cast<float*>(bias.data()) + H, H, 1.0F);
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

void check_packed(const Variable& wanted, const ops::PackedMatrix& packed, bool trains) {
  const std::vector<int64_t> shape = {packed.size()[1], packed.size()[0]},
                             must_be = wanted.slice.shape_of(wanted.shape);
  Checker checker("parameters");
  checker.require(!trains, [&] { return wanted.name + " is packed, and cannot be trained"; });
  checker.require(packed.is_quantized() && shape == must_be && (is_weight(wanted.role) || is_table(wanted.role)), [&] {
    return "the source gave a packed matrix " + to_string(shape.data(), 2) + " for " + wanted.name +
           ", which must be a quantized weight " + to_string(must_be.data(), static_cast<int>(must_be.size()));
  });
  checker.done();
}

/// Rows `first` and later, in the same memory.
Array rows_from(const Array& whole, int64_t first) {
  std::vector<int64_t> shape = whole.shape();
  const int64_t bytes = whole.count() / shape[0] * first * size_of(whole.dtype());
  shape[0] -= first;
  return {whole.dtype(), std::move(shape),
          std::shared_ptr<void>(std::make_shared<Array>(whole), static_cast<char*>(whole.data()) + bytes)};
}

/// Of arrays that have a shape alone: nobody reads them.
std::shared_ptr<void> no_memory() {
  static char nothing;
  return {std::shared_ptr<void>(), &nothing};
}

}  // namespace

Value Parameters::add(Parameter parameter) {
  index_.emplace(parameter.name, all_.size());
  all_.push_back(std::move(parameter));
  return all_.back().value;
}

double LoraOptions::scale() const {
  return alpha / (rank_stabilized ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
}

Parameters::Parameters(const Options& options, ParameterSource source)
    : options_(options), source_(std::move(source)) {}

cluster::Communicator* Parameters::tensor_ranks() const {
  cluster::Communicator* ranks = options_.tensor_ranks;
  return ranks && ranks->size() > 1 ? ranks : nullptr;
}

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

int64_t Parameters::trained_count() const {
  int64_t total = 0;
  for (const Parameter& parameter : all_)
    if (parameter.value.wants_gradient()) total += parameter.master.count();
  return total;
}

int64_t Parameters::bytes() const {
  int64_t total = 0;
  for (const Parameter& parameter : all_)
    total += parameter.value.is_freed() ? parameter.value.packed().bytes()
                                        : parameter.value.data().count() * size_of(parameter.value.dtype());
  return total;
}

void Parameters::clear_gradients() {
  for (Parameter& parameter : all_) parameter.value.clear_gradient();
}

void Parameters::add_up_gradients() {
  for (Parameter& parameter : all_) {
    const Slice& slice = parameter.slice;
    if (!slice.repeated_from || parameter.value.gradient_is_empty()) continue;
    // Each rank adds its rows at their places in the whole, among zeros.
    const Array& gradient = parameter.value.gradient();
    const Array whole(gradient.dtype(), parameter.whole_shape);
    put_slice(gradient, slice, whole);
    cluster::all_reduce(*options_.tensor_ranks, rows_from(whole, *slice.repeated_from).flat());
    ops::convert(slice_of(whole, slice).flat(), gradient.flat());
  }
}

void Parameters::unpack() {
  for (Parameter& parameter : all_) parameter.value.unpack();
}

void Parameters::refresh() {
  unpack();
  for (Parameter& parameter : all_) {
    if (parameter.value.dtype() != parameter.master.dtype())
      ops::convert(parameter.master.flat(), parameter.value.data().flat());
  }
}

void Parameters::pack() {
  for (Parameter& parameter : all_) {
    if (!parameter.is_linear) continue;
    if (options_.purpose == Purpose::training) {
      parameter.value.pack();
    } else {
      parameter.master = {};
      parameter.value.pack_and_free();
      parameter.master = parameter.value.data();
    }
  }
}

NamedArrays Parameters::masters(const std::string& prefix) const {
  NamedArrays all;
  for (const Parameter& parameter : all_)
    if (parameter.value.is_freed())
      throw Error("parameters",
                  {prefix + parameter.name + " is packed, and its matrix was freed: open the model unpacked"});
  for (const Parameter& parameter : all_) all.emplace_back(prefix + parameter.name, parameter.master);
  return all;
}

std::vector<io::NamedTensor> Parameters::tensors(const std::string& prefix) const {
  return tensors_of(masters(prefix));
}

void Parameters::load(const io::Safetensors& file, const std::string& prefix) {
  load_into(masters(prefix), file, &all_);
  refresh();
}

Array random_parameter(const Variable& wanted, const std::function<void(const Array&)>& draw) {
  Array array(wanted.dtype, wanted.shape, false);
  draw(array);
  return array;
}

namespace {

/// The part of a source's array that is wanted: the array may be that already.
Array wanted_part(const Array& given, const Variable& wanted) {
  const std::vector<int64_t> part = wanted.slice.shape_of(wanted.shape);
  if (given.dtype() != wanted.dtype || (given.shape() != wanted.shape && given.shape() != part))
    throw Error("parameters", {"the source gave " + given.describe() + " for " + wanted.name + ", must be " +
                               std::string(name_of(wanted.dtype)) + " " +
                               to_string(wanted.shape.data(), static_cast<int>(wanted.shape.size()))});
  return given.shape() == part ? given : slice_of(given, wanted.slice);
}

}  // namespace

Value Scope::variable(std::string_view name, std::vector<int64_t> shape, ParameterRole role, const Slice& slice) const {
  Parameters& all = *parameters_;
  const std::string full = prefix_ + std::string(name);
  const bool trains = all.options_.purpose == Purpose::training && (!all.options_.trains || all.options_.trains(full));
  const DType wide = all.dtype() == DType::float64 ? DType::float64 : DType::float32;
  const DType compute = is_product(role) ? all.dtype() : wide;
  const Variable wanted{full, role, trains ? wide : compute, std::move(shape), slice};
  check_new(all, *this, wanted.name, wanted.shape);

  const std::vector<int64_t> shape_here = slice.shape_of(wanted.shape);
  Parameter parameter{wanted.name, {}, {}, is_product(role), is_weight(role), wanted.shape, slice};
  Array data;
  if (all.source_) {
    const auto draw = [&](const Array& array) {
      // A stream of its own: order of use does not matter.
      fill(array, {numbers_of(all.options_, wanted), all.options_.seed, all.all_.size() + 1});
      if (wanted.role == ParameterRole::gates) open_forget_gates(array);
    };
    const ParameterData content = all.source_(wanted, draw);
    if (content.packed) {
      check_packed(wanted, content.packed, trains);
      parameter.value = Value(content.packed, compute);
      parameter.master = parameter.value.data();
      return all.add(std::move(parameter));
    }
    data = parameter.master = wanted_part(content.array, wanted);
    if (compute != wanted.dtype) {
      data = Array(compute, shape_here, false);
      ops::convert(parameter.master.flat(), data.flat());
    }
  } else {
    parameter.master = Array(wanted.dtype, shape_here, no_memory());
    data = Array(compute, shape_here, no_memory());
  }
  parameter.value = Value(data, trains, wide);
  return all.add(std::move(parameter));
}

}  // namespace attn::nn
