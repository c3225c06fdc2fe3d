// nn: attention with memory: a long text in text segments, one a call, each of which also attends to the hidden states
// of those before it. The layer of Transformer-XL, and with a compressed memory that of the Compressive Transformer.
//
// ```cpp
// #include "attn/nn_memory.h"
// using namespace attn;
// int main() {
//   nn::Parameters parameters({.seed = 1});
//   const nn::TransformerXLAttention layer(nn::Scope(parameters) / "attention", 64, {.heads = 4, .memory = 32});
//   nn::TransformerXLState state = layer.new_state(2);
//   for (int segment = 0; segment < 3; ++segment) {  // the third attends to itself and to 32 earlier tokens
//     autograd::Tape tape;
//     layer(tape, nn::Value(Array(DType::float32, {2, 16, 64})), &state);
//   }
// }
// ```
//
// Causal attention with relative positions (Dai et al. 2019, arXiv:1901.02860). The score of query i and key j is
//
//   ((q_i + u) . k_j + (q_i + v) . W_R r_{i-j}) / sqrt(D),   r_t = sin(t w_0), cos(t w_0), sin(t w_1), ..
//
// with w_c = 10000^(-2 c / R), and learned u, v and W_R of each head. As r is sinusoidal, the second product is one of
// a vector of the query and a vector of the key: the operator computes the scores in one pass over D + R columns,
// exactly, and nothing of size L x L exists. Keys and their positions take n H (D + R) numbers for n tokens. Compressed
// memory: Rae et al. 2019, arXiv:1911.05507. docs/low-rank-and-memory.md has the formulas and a picture.
#pragma once

#include "attn/nn_layers.h"

#pragma GCC visibility push(default)
namespace attn::nn {

/// How c hidden states that leave the memory become one of the compressed memory.
enum class MemoryCompression {
  projection,  ///< a learned linear layer over the c states, concatenated: a convolution of stride c
  mean
};
constexpr auto enum_names(MemoryCompression) { return std::to_array<std::string_view>({"projection", "mean"}); }

struct TransformerXLOptions {
  int64_t heads = 1;
  int64_t head_dim = 0;           ///< D; 0 = C / heads, which must be whole
  int64_t memory = 128;           ///< M: hidden states of earlier tokens that a query attends to
  int64_t position_dim = 0;       ///< R: width of r, even, D + R at most 1024; 0 = C
  bool bias = false;              ///< of the projections
  double dropout = 0;             ///< of attention weights
  int64_t compressed_memory = 0;  ///< Mc: compressed states beyond them; 0 = states that leave the memory are dropped
  int64_t compression_rate = 4;   ///< c
  MemoryCompression compression = MemoryCompression::projection;
};

/// What a layer keeps of the tokens so far. It has no gradient.
struct TransformerXLState {
  /// [B, m, C]: the layer's last inputs, oldest first. m grows to M. With a compressed memory, inputs leave in groups
  /// of c, and m is at most M + c - 1.
  Array memory;
  Array leaving;     ///< [B, m, C], m a multiple of c: inputs that have left the memory; the next call compresses them
  Array compressed;  ///< [B, m, C]: m grows to Mc
  int64_t bytes() const;
};

class TransformerXLAttention : public Layer {
 public:
  TransformerXLAttention() : Layer("TransformerXLAttention") {}
  /// Throws Error for options that do not fit, with every reason.
  TransformerXLAttention(const Scope& scope, int64_t width, const TransformerXLOptions& options);
  /// x [B, L, C] -> [B, L, C]. With a state, x follows its tokens: query i attends to the compressed memory, the
  /// memory, and x_0 .. x_i, whose positions are consecutive; then x enters the state. All sequences have L tokens: a
  /// state has no padding and no packed sequences.
  ///
  /// No gradient reaches earlier calls. A learned compression gets its gradient in the call that compresses, through
  /// the attention of that call alone. As the call changes the state, do not make it inside autograd::recompute().
  ///
  /// Throws Error for other shapes and types, and for a state that is not new_state() or one that calls have updated.
  Value operator()(Tape& tape, const Value& x, TransformerXLState* state = nullptr) const;
  /// The state before the first token, for a batch of B.
  TransformerXLState new_state(int64_t B) const;

  Linear query, key, value, output;   ///< [H D, C], [H D, C], [H D, C], [C, H D]
  Linear compression;                 ///< [C, c C]; the oldest hidden state has the first C columns
  Value position;                     ///< [H R, D]: row h R + c is column c of W_R of head h
  Value content_bias, position_bias;  ///< u and v, [H D]
  TransformerXLOptions options;

 private:
  void check_call(const Value& x, const TransformerXLState* state) const;
  Value compressed(Tape& tape, const TransformerXLState& state) const;
  Value attend(Tape& tape, const Value& x, const Value& tokens) const;
  void advance(TransformerXLState& state, const Value& compressed, const Value& x) const;
};

}  // namespace attn::nn
#pragma GCC visibility pop
