// nn: the base of all layers, and the layers without attention. attn/nn.h has the others and the conventions.
//
// ```cpp
// #include "attn/nn_layers.h"
// using namespace attn;
// int main() {
//   nn::Parameters parameters({.purpose = nn::Purpose::inference});
//   const nn::Scope scope(parameters);
//   const nn::FeedForward layer(scope / "mlp", 64, {.hidden_dim = 256, .activation = ops::Activation::gelu});
//   autograd::Tape tape;
//   const nn::Value y = layer(tape, nn::Value(Array(DType::float32, {10, 64})));
// }
// ```
#pragma once

#include <string_view>
#include <vector>

#include "attn/autograd.h"
#include "attn/nn_parameters.h"

#pragma GCC visibility push(default)
namespace attn::nn {

using autograd::Tape;

/// The base of every layer: its name, which errors show, and the type it computes in.
class Layer {
 public:
  /// The name in the model, as "blocks.3.attention". A default-constructed layer and one without a scope name have the
  /// name of their class, as "Linear".
  const std::string& name() const { return name_; }
  /// The last part of it, as "attention", which errors of operations and profiles show inside the scopes around it.
  std::string_view short_name() const { return std::string_view(name_).substr(name_.rfind('.') + 1); }
  /// The type of x and of the result.
  DType dtype() const { return dtype_; }

 protected:
  explicit Layer(std::string_view kind) : name_(kind) {}
  Layer(std::string_view kind, const Scope& scope)
      : name_(scope.name().empty() ? kind : scope.name()), dtype_(scope.dtype()) {}

 private:
  std::string name_;
  DType dtype_ = DType::float32;
};

// ------------------------------------------------------------------------------------------------------ small layers

/// Outputs of a linear layer that have a name of their own, as the queries of `qkv`.
struct LinearPart {
  std::string_view name = {};  ///< of static storage
  int64_t width = 0;           ///< outputs
};
struct LinearOptions {
  bool bias = true;
  bool residual = false;               ///< the layer projects into the residual stream, for its initialisation
  std::vector<LinearPart> parts = {};  ///< all outputs in order, or none; see LoraOptions
  /// Of the weight, for a rank of Scope::tensor_ranks(). Of axis 0: the layer computes these outputs. Of axis 1: it
  /// multiplies these inputs, and the call sums the products over the ranks.
  Slice slice = {};
};
/// y = x W^T + b, and the adapters that the scope's LoraOptions ask for.
struct Linear : Layer {
  Linear() : Layer("Linear") {}
  /// in and out are those of the whole.
  Linear(const Scope& scope, int64_t in, int64_t out, const LinearOptions& options = {});
  /// x [.., in] -> [.., out]. A residual of the result's shape, if given, is added in the same pass.
  Value operator()(Tape& tape, const Value& x, const Value& residual = {}) const;
  Value weight, bias;

  /// LoRA's matrices for the outputs first .. first + b.shape()[0] - 1 of this rank.
  struct Adapter {
    int64_t first = 0;
    Value a = {}, b = {};
  };
  std::vector<Adapter> adapters = {};  ///< by `first`

 private:
  void make_adapters(const Scope& scope, int64_t in, int64_t out, const LinearOptions& options);
  Value low_rank(Tape& tape, const Value& x, const Adapter& adapter) const;
  Value part_of_sum(Tape& tape, const Value& x) const;
  Value update(Tape& tape, const Value& x, const Value& residual) const;
  LoraOptions lora_;
  cluster::Communicator* summed_over_ = nullptr;
};

struct EmbeddingOptions {
  double scale = 1;     ///< factor on the rows
  bool shared = false;  ///< ranks that share layers have a part of the rows each, see share_of()
};
struct Embedding : Layer {
  Embedding() : Layer("Embedding") {}
  Embedding(const Scope& scope, int64_t tokens, int64_t width, const EmbeddingOptions& options = {});
  /// ids [R] in [0, tokens), R the product of `shape` -> [shape .., C]
  Value operator()(Tape& tape, std::vector<int64_t> ids, std::vector<int64_t> shape) const;
  EmbeddingOptions options;
  Value weight;

 private:
  cluster::Communicator* ranks_ = nullptr;  // that have the other rows
  int64_t tokens_ = 0;
};

struct NormOptions {
  bool rms = false;  ///< RMS norm instead of layer norm
  bool bias = true;  ///< of layer norm only
  double epsilon = 1e-5;
};
struct Norm : Layer {
  Norm() : Layer("Norm") {}
  Norm(const Scope& scope, int64_t width, const NormOptions& options = {});
  Value operator()(Tape& tape, const Value& x) const;
  NormOptions options;
  Value weight, bias;
};

struct FeedForwardOptions {
  int64_t hidden_dim = 0;  ///< 0 = 4 C
  ops::Activation activation = ops::Activation::gelu_tanh;
  bool gated = false;  ///< f(gate x) (up x), as in SwiGLU, instead of f(up x)
  bool bias = true;
};
/// down(f(up(x))) (+ residual): x and residual [.., C] -> [.., C].
struct FeedForward : Layer {
  FeedForward() : Layer("FeedForward") {}
  FeedForward(const Scope& scope, int64_t width, const FeedForwardOptions& options = {});
  Value operator()(Tape& tape, const Value& x, const Value& residual = {}) const;
  FeedForwardOptions options;
  Linear up, down;

 private:
  cluster::Communicator* ranks_ = nullptr;  // that have the other hidden features
};

}  // namespace attn::nn
#pragma GCC visibility pop
