// ops: the dense arithmetic around attention, forward and backward: products, norms, activations, rotary positions,
// embedding, pooling, loss, the optimizer's update.
//
// ```cpp
// #include "attn/ops.h"
// int main() {
//   attn::Tensor<float, 2> x({4, 64}), weight({32, 64}), y({4, 32});
//   attn::Random random(1);
//   attn::fill_normal(x, random), attn::fill_normal(weight, random);
//   const attn::ConstView<2> transposed(weight.data(), attn::DType::float32, {64, 32}, {1, 64});
//   attn::ops::matmul(x, transposed, y);  // y = x weight^T
//   attn::ops::activate(attn::ops::Activation::gelu, y, y);
// }
// ```
//
// Arrays are views [rows, columns] with last stride 1 and any row stride, borrowed until the function returns. Each
// operation takes one floating type (float32, float64, bfloat16 or float16) unless its comment says otherwise; a
// *parameter* is float32 where the others have 16 bits. Sums run in float32, or float64 for float64, in an order that
// depends on the shape only: results are bitwise equal for any number of threads. A function adds the gradient of a
// parameter to its output and overwrites every other output. All functions check their arguments first and throw
// attn::Error with every reason before they write anything.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "attn/core.h"

#pragma GCC visibility push(default)
namespace attn::ops {

// --------------------------------------------------------------------------------------------------------- products

enum class Activation {
  relu,
  gelu,       ///< x Phi(x), with erf
  gelu_tanh,  ///< x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel 2016, arXiv:1606.08415)
  silu,       ///< x sigmoid(x)
  tanh
};
constexpr auto enum_names(Activation) {
  return std::to_array<std::string_view>({"relu", "gelu", "gelu_tanh", "silu", "tanh"});
}

struct MatmulOptions {
  ConstView<1> bias = {};                          ///< [N], a parameter, added to every row of c
  bool accumulate = false;                         ///< c += a b instead of c = a b
  ConstView<2> addend = {};                        ///< [M, N] of c's type, added, such as a residual; may be c
  std::optional<Activation> activation = {};       ///< f, of the result in c's type; absent: none
  std::optional<Float32Precision> precision = {};  ///< of float32 products; absent: matmul_precision()
  /// A row of c has the same bits for any number of rows of a. A product with a b that is not packed then takes eight
  /// rows at a time, which is several times slower for many rows. With a PackedMatrix it costs nothing on vectors, and
  /// nothing in bfloat16 on matrix tiles. Rows of a and columns of b must be dense, as in x weight^T.
  bool batch_invariant = false;
};

/// c = f(a b (+ bias) (+ addend)).  a [M, K], b [K, N], c [M, N]. One stride of a and one of b are 1: a transpose is a
/// view with exchanged strides. a, b and c have one type; where it has 16 bits, c may be float32. Sums run in float32
/// or float64. Like all functions here it runs on parallel_for().
void matmul(ConstView<2> a, ConstView<2> b, View<2> c, const MatmulOptions& options = {});

struct QuantizedMatrix;  // attn/ops_quantized.h

/// A right-hand matrix packed once for repeated matmul() and linear() calls, with any number of rows. Use it for
/// weights that do not change. The copy takes bytes() of memory: as many as b, with a few columns of padding; on matrix
/// tiles 1.5 times as many for float32 and twice as many for float16.
///
/// Products use the kernels of the instruction set that was active at construction. On vectors, results of more than
/// eight rows have the bits of matmul() with b. On matrix tiles, results have these bits if matmul() uses the tiles for
/// a product of this size too. Otherwise the last bits may differ. While reads_matrix() is true, b is borrowed and must
/// not change: on matrix tiles, products of at most eight rows of float32 and float16 read b itself, and so do products
/// in another precision than the one at construction.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  /// Throws Error for a b that matmul() refuses.
  explicit PackedMatrix(ConstView<2> b);
  /// The transpose of W [N, K], in 8 or 4 bits: products quantize the rows of a, which are float32, bfloat16 or
  /// float16. W is copied. A scale or offset is float16 relative to the largest of its row. Throws Error for a matrix
  /// that is not one.
  explicit PackedMatrix(const QuantizedMatrix& w);
  explicit operator bool() const { return form_ != nullptr; }
  Shape<2> size() const;      ///< [K, N] of b
  bool is_quantized() const;  ///< made of a QuantizedMatrix
  int64_t bytes() const;      ///< of the packed copy; 0 if b is empty
  bool reads_matrix() const;  ///< b is borrowed for the lifetime of this object and its copies

 private:
  friend void matmul_packed(ConstView<2>, const PackedMatrix&, View<2>, const MatmulOptions&);
  friend void embedding(std::span<const int64_t>, const PackedMatrix&, View<2>);
  struct Form;
  std::shared_ptr<const Form> form_;
};
/// matmul() with that b. Throws Error as matmul() does, and for an empty PackedMatrix.
void matmul_packed(ConstView<2> a, const PackedMatrix& b, View<2> c, const MatmulOptions& options = {});

/// Sets the precision of float32 products of this process, layers, their attention and training included, for calls
/// without a precision of their own. It is full at first. As with torch.set_float32_matmul_precision(), less than full
/// is a permission, which large products use on matrix tiles (instruction set "amx"); other products are full. With s =
/// sum |a| |b|, the error
///   full  is that of float32 arithmetic
///   high  is up to 2^-14 s larger; for random numbers 2^-23 to 2^-18 s
///   fast  is up to 2^-6 s larger; for random numbers 2^-14 to 2^-10 s
/// On tiles a number below 2^-102 is accurate to 2^-126 only where its row of a, or column of b, has numbers from 2^-48
/// up. Rows and columns that are all below 2^-48, or that have a number that is not finite or from 2^60 up, are
/// multiplied without tiles.
void set_matmul_precision(Float32Precision precision);
Float32Precision matmul_precision();

// ------------------------------------------------------------------------------------------------------------ norms

/// y = (x - mean) rstd weight + bias over each row (Ba et al. 2016, arXiv:1607.06450).
///   x, y [R, C]; weight, bias [C] parameters, bias optional; mean, rstd [R] float32 (float64 for float64), optional
///   outputs that the backward takes.
void layer_norm(ConstView<2> x, ConstView<1> weight, ConstView<1> bias, double epsilon, View<2> y, View<1> mean = {},
                View<1> rstd = {});
void layer_norm_backward(ConstView<2> x, ConstView<1> weight, ConstView<1> mean, ConstView<1> rstd, ConstView<2> dy,
                         View<2> dx, View<1> dweight, View<1> dbias = {});

/// y = x rstd weight, rstd = 1 / sqrt(mean(x^2) + epsilon) (Zhang & Sennrich 2019, arXiv:1910.07467).
void rms_norm(ConstView<2> x, ConstView<1> weight, double epsilon, View<2> y, View<1> rstd = {});
void rms_norm_backward(ConstView<2> x, ConstView<1> weight, ConstView<1> rstd, ConstView<2> dy, View<2> dx,
                       View<1> dweight);

// ------------------------------------------------------------------------------------------------------ elementwise

/// y = f(x).  x, y [R, C]; y may be x.
void activate(Activation f, ConstView<2> x, View<2> y);
/// dx = dy f'(x).  dx may be dy.
void activate_backward(Activation f, ConstView<2> x, ConstView<2> dy, View<2> dx);

/// y = f(gate) up, the gated unit of SwiGLU (Shazeer 2020, arXiv:2002.05202).  gate_up [R, 2 C] has gate, then up;
/// y [R, C].
void activate_gated(Activation f, ConstView<2> gate_up, View<2> y);
void activate_gated_backward(Activation f, ConstView<2> gate_up, ConstView<2> dy, View<2> dgate_up);

/// y = a + b; y may be a or b.
void add(ConstView<2> a, ConstView<2> b, View<2> y);
/// y = factor x; y may be x.
void scale(ConstView<2> x, double factor, View<2> y);
/// y = x converted to y's type; both are of any floating type.
void convert(ConstView<2> x, View<2> y);
/// total [C] += the sum of the rows of x, as the gradient of a bias.
void add_rows(ConstView<2> x, View<1> total);

/// y = keep x / (1 - probability); keep, 0 or 1, depends on (seed, stream, r C + c) only, so the backward is the same
/// call on dy. y may be x.
void dropout(ConstView<2> x, double probability, uint64_t seed, uint64_t stream, View<2> y);

/// Multiplies head h of sequence b by gates[b, h].  x, y [B L, n D], D columns per head; gates, parameters, [B, n] or
/// [1, n] for all sequences alike; y may be x. The backward for x is the same call on dy.
void scale_heads(ConstView<2> x, ConstView<2> gates, View<2> y);
/// dgates[b, h] += the sum of x dy over the head and the sequence.
void scale_heads_backward(ConstView<2> x, ConstView<2> dy, View<2> dgates);

// -------------------------------------------------------------------------------------------------- rotary positions

/// Rotates pairs of features by position angles p theta^(-2 i / n) (Su et al. 2021, arXiv:2104.09864).
struct RopeOptions {
  double theta = 10000;
  bool interleaved = false;  ///< pairs (2 i, 2 i + 1) as in the paper; otherwise (i, i + n / 2) as in LLaMA checkpoints
  bool inverse = false;      ///< rotates by the negative angle: the backward
  int64_t rotary_dim = 0;    ///< n: the first n features of a head rotate; 0 = all, else even
  std::span<const double> frequencies = {};  ///< [n / 2] angles per position; empty: theta^(-2 i / n)
  double magnitude = 1;                      ///< factor on the rotated features, as in YaRN
};
/// x, y [R, heads D], head h in columns h D to (h + 1) D - 1; positions [R]; y may be x.
void rope(ConstView<2> x, int64_t heads, std::span<const int64_t> positions, View<2> y,
          const RopeOptions& options = {});

// ------------------------------------------------------------------------------------------- embedding, pooling, loss

/// out[r] = table[ids[r]].  ids [R] in [0, V); table [V, C], out [R, C] of one type.
void embedding(std::span<const int64_t> ids, ConstView<2> table, View<2> out);
/// dtable[ids[r]] += dout[r], in the order of r; dtable is the gradient of a parameter or has the type of dout.
void embedding_backward(std::span<const int64_t> ids, ConstView<2> dout, View<2> dtable);

/// out[b] = mean of the first lengths[b] rows of sequence b.  x [R, C], out [B, C]; sequence b begins at row starts[b],
/// or without `starts` at b R / B, and has lengths[b] >= 1 rows before the next one begins.
void mean_pool(ConstView<2> x, std::span<const int64_t> lengths, View<2> out, std::span<const int64_t> starts = {});
void mean_pool_backward(ConstView<2> dout, std::span<const int64_t> lengths, View<2> dx,
                        std::span<const int64_t> starts = {});

/// Targets of this value are ignored, as with ignore_index in PyTorch.
constexpr int64_t kIgnoreIndex = -1;

/// loss[r] = lse[r] - logits[r, targets[r]], 0 where the target is kIgnoreIndex.  logits [R, V]; targets [R];
/// loss, lse [R] float32 (float64 for float64). Returns the mean over the other targets, 0 if there are none.
double cross_entropy(ConstView<2> logits, std::span<const int64_t> targets, View<1> loss, View<1> lse);
/// dlogits = factor weights[r] (softmax(logits) - onehot(targets)), 0 in ignored rows; weights [R], or empty = 1;
/// dlogits may be logits.
void cross_entropy_backward(ConstView<2> logits, std::span<const int64_t> targets, ConstView<1> lse, double factor,
                            View<2> dlogits, std::span<const double> weights = {});

// -------------------------------------------------------------------------------------------------------- optimiser

/// AdamW (Loshchilov & Hutter 2017, arXiv:1711.05101), in PyTorch's order. With g = gradient_factor x gradient,
///   p = p (1 - learning_rate weight_decay);  m = m + (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2;
///   p = p - learning_rate / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + epsilon)
struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double gradient_factor = 1;  ///< of clipping and accumulation
  int64_t step = 1;            ///< counts from 1: bias correction
};
/// Updates parameter and both moments in place. All are [R, C], of float32 or float64. `copy`, if given, becomes the
/// new parameter rounded to bfloat16 or float16, for a training that computes in that type from a float32 original.
void adamw(View<2> parameter, ConstView<2> gradient, View<2> first_moment, View<2> second_moment,
           const AdamWOptions& options, View<2> copy = {});

/// The sum of squares in float64, in a fixed order. It is infinite or NaN where x has such numbers. That of a dense x
/// is the sum, in order, of those of its pieces of kSumPiece elements.
double sum_of_squares(ConstView<2> x);
constexpr int64_t kSumPiece = int64_t{1} << 18;

}  // namespace attn::ops
#pragma GCC visibility pop
