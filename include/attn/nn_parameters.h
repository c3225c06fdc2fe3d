// nn: parameters, by their names in the model. Layers (attn/nn.h) make them through a Scope; optimisers and files walk
// over them.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "attn/autograd.h"

#pragma GCC visibility push(default)
namespace attn::nn {

using autograd::Array;
using autograd::Value;

/// What a variable is for. Products and tables are of the type that layers compute in and decay; biases and gains stay
/// in float32 beside 16 bits, and do not.
enum class Role {
  product,   ///< a weight [out, in]
  table,     ///< rows that are looked up
  residual,  ///< a product that projects into the residual stream
  bias,      ///< begins as zeros
  gain       ///< of a norm, begins as ones
};

/// What a layer asks for: an array of this name in the model ("blocks.0.attention.qkv.weight"), type and shape.
struct Variable {
  std::string name;
  Role role = Role::product;
  DType dtype = DType::float32;
  std::vector<int64_t> shape = {};
};

/// One named array of a model. `value` is what layers compute with; `master` is what the optimiser updates: the same
/// array, or, in a training, the float32 original of a 16-bit copy.
struct Parameter {
  std::string name;
  Value value;
  Array master;
  bool decay = false;    ///< weight decay applies: products and tables
  bool product = false;  ///< a weight [out, in]
};

/// Training: values want gradients, and masters are float32 (float64). Inference: there is nothing but what layers
/// compute with.
enum class Purpose { training, inference };

/// How new weights are drawn.
enum class Scheme {
  xavier,  ///< uniform in +-sqrt(6 / (in + out)) (Glorot & Bengio 2010)
  gpt2     ///< normal, deviation 0.02; projections into the residual stream 0.02 / sqrt(2 N)
};

/// Of activations and products; beside a 16-bit type, master weights and their gradients are float32. float64 is for
/// checking gradients; those of float16 want a scaled loss, see train::LossScaling.
enum class Precision { float32, bfloat16, float64, float16 };

/// Where variables come from: makes each array that a layer asks for, perhaps over memory that is there already, as a
/// file's. `draw` fills an array with random numbers by the scheme.
using Source = std::function<Array(const Variable& wanted, const std::function<void(const Array&)>& draw)>;
/// Random numbers for all.
Array drawn(const Variable& wanted, const std::function<void(const Array&)>& draw);

/// All parameters of a model, in order of creation.
class Parameters {
 public:
  struct Options {
    Scheme scheme = Scheme::gpt2;
    Precision precision = Precision::float32;
    uint64_t seed = 0;
    double residual_factor = 1;  ///< of projections into the residual stream: 1 / sqrt(2 N) in GPT-2's scheme
    Purpose purpose = Purpose::training;
  };
  /// With a null `source` parameters have names and shapes but no memory, for whoever only counts.
  explicit Parameters(const Options& options, Source source = drawn);

  const Options& options() const { return options_; }
  /// Of activations and products.
  DType dtype() const;
  const std::deque<Parameter>& all() const { return all_; }
  const Parameter* find(std::string_view name) const;  ///< nullptr if there is none
  int64_t count() const;                               ///< of numbers, in all of them
  /// Before a new sum of gradients.
  void clear_gradients() const;
  /// After a change of the masters: renews the copies that layers compute with, and undoes pack().
  void refresh() const;
  /// Has layers multiply by their float32 weights packed, which is quicker where there are many rows and takes as much
  /// memory again, on matrix tiles half more: see ops::PackedFactor. For models that are no longer changed.
  void pack() const;

 private:
  friend class Scope;
  Options options_;
  Source source_;
  std::deque<Parameter> all_;
  std::map<std::string, size_t, std::less<>> index_;  // into all_
};

/// Where a layer stands: the parameters and the prefix of its names, as in "blocks.0.attention.".
class Scope {
 public:
  explicit Scope(Parameters& parameters, std::string prefix = "")
      : parameters_(&parameters), prefix_(std::move(prefix)) {}
  Scope operator/(std::string_view name) const { return Scope(*parameters_, prefix_ + std::string(name) + "."); }
  /// The prefix without its last dot, "blocks.0.attention"; empty at the root.
  std::string name() const { return prefix_.substr(0, prefix_.empty() ? 0 : prefix_.size() - 1); }
  DType dtype() const { return parameters_->dtype(); }

  /// Asks for an array of this name here. Throws Error, before anything is made, for a name that is taken or has an
  /// empty part, for a size below 1 and for an array beyond 2^63 bytes.
  Value variable(std::string_view name, std::vector<int64_t> shape, Role role = Role::product) const;

 private:
  Parameters* parameters_;
  std::string prefix_;
};

}  // namespace attn::nn
#pragma GCC visibility pop
