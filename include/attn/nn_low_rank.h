// nn: self-attention of encoders in linear time: Linformer projects the keys and values of n tokens to k rows.
//
// ```cpp
// #include "attn/autograd_operations.h"
// #include "attn/nn_low_rank.h"
// using namespace attn;
// int main() {
//   nn::Parameters parameters({.seed = 1});
//   const nn::LinformerAttention layer(nn::Scope(parameters) / "attention", 64, {.heads = 4, .max_length = 128});
//   autograd::Tape tape({.record = true});
//   const nn::Value x(Array(DType::float32, {2, 100, 64}));
//   tape.backward(autograd::sum(tape, layer(tape, x)));
// }
// ```
//
// softmax(Q (E K)^T / sqrt(D)) (F V) for each head, with learned E and F [k, n] (Wang et al. 2020, arXiv:2006.04768).
// Row r of E K is a weighted sum of the keys of all tokens, so a token reads later ones too: the layer is for encoders.
// Time and memory grow as n k. docs/low-rank-and-memory.md has the formulas and a picture.
#pragma once

#include <span>

#include "attn/nn_layers.h"

#pragma GCC visibility push(default)
namespace attn::nn {

/// What shares the projections along the sequence, from none to all.
enum class LinformerSharing {
  none,       ///< each head has an E and an F of its own
  heads,      ///< the heads of a layer share E, and F
  key_value,  ///< E = F too
  layers      ///< E = F is another layer's, whose sharing is key_value: share_projection() gives it
};
constexpr auto enum_names(LinformerSharing) {
  return std::to_array<std::string_view>({"none", "heads", "key_value", "layers"});
}

struct LinformerOptions {
  int64_t heads = 1;
  int64_t head_dim = 0;      ///< D, at most 1024; 0 = C / heads, which must be whole
  int64_t max_length = 512;  ///< n: the most tokens of a sequence
  int64_t rows = 64;         ///< k: rows of the projected keys and values
  LinformerSharing sharing = LinformerSharing::heads;
  bool bias = true;    ///< of qkv and output
  double dropout = 0;  ///< of attention weights
};

class LinformerAttention : public Layer {
 public:
  LinformerAttention() : Layer("LinformerAttention") {}
  /// Throws Error for options that do not fit, with every reason.
  LinformerAttention(const Scope& scope, int64_t width, const LinformerOptions& options);
  /// x [B, L, C] -> [B, L, C], L at most max_length. key_length [B] counts the tokens of each sequence before its
  /// padding, which enters no sum; rows of padding have a result, but of no use. Throws Error for other shapes and
  /// types, and if the layer has no projection yet.
  Value operator()(Tape& tape, const Value& x, std::span<const int64_t> key_length = {}) const;
  /// Uses the projection of another layer. Throws Error unless this one is made for it by LinformerSharing::layers and
  /// the other has one E = F of as many rows and tokens.
  void share_projection(const LinformerAttention& other);

  Linear qkv, output;  ///< [3 H D, C], [C, H D]
  /// E and F, [k, n], or [H k, n] where each head has its own. value_projection is empty where E = F.
  Value key_projection, value_projection;
  LinformerOptions options;

 private:
  void check_call(const Value& x, std::span<const int64_t> key_length) const;
};

}  // namespace attn::nn
#pragma GCC visibility pop
