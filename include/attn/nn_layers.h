// nn: what every layer has, and the layers without attention (attn/nn.h has the others, and says what all share).
#pragma once

#include <string_view>
#include <vector>

#include "attn/autograd.h"
#include "attn/nn_parameters.h"

#pragma GCC visibility push(default)
namespace attn::nn {

using autograd::Tape;

/// What every layer has: its name, for errors, and the type it computes in.
class Layer {
 public:
  /// "blocks.3.attention"; at the root of the names, and of what has not been made, the kind of layer: "Linear".
  const std::string& name() const { return name_; }
  /// Of x and of the result.
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

struct LinearOptions {
  bool bias = true;
  bool residual = false;  ///< projects into the residual stream
};
struct Linear : Layer {
  Linear() : Layer("Linear") {}
  Linear(const Scope& scope, int64_t in, int64_t out, const LinearOptions& options = {});
  /// x [.., in] -> [.., out]
  Value operator()(Tape& tape, const Value& x) const;
  Value weight, bias;
};

struct EmbeddingOptions {
  double scale = 1;  ///< factor on the rows that are looked up
};
struct Embedding : Layer {
  Embedding() : Layer("Embedding") {}
  Embedding(const Scope& scope, int64_t tokens, int64_t width, const EmbeddingOptions& options = {});
  /// ids [R] in [0, V), R the product of `shape` -> [shape .., C]
  Value operator()(Tape& tape, std::vector<int64_t> ids, std::vector<int64_t> shape) const;
  EmbeddingOptions options;
  Value table;
};

struct NormOptions {
  bool rms = false;  ///< RmsNorm instead of LayerNorm
  bool bias = true;  ///< LayerNorm only
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
  int64_t hidden = 0;  ///< 0 = 4 C
  ops::Activation activation = ops::Activation::gelu_tanh;
  bool gated = false;  ///< f(gate x) (up x), as in SwiGLU, instead of f(W x)
  bool bias = true;
};
/// down(f(up(x))).
struct FeedForward : Layer {
  FeedForward() : Layer("FeedForward") {}
  FeedForward(const Scope& scope, int64_t width, const FeedForwardOptions& options = {});
  Value operator()(Tape& tape, const Value& x) const;
  FeedForwardOptions options;
  Linear up, down;
};

}  // namespace attn::nn
#pragma GCC visibility pop
