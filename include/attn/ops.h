// ops: the dense arithmetic around attention, forward and backward: products, norms, activations, rotary positions,
// embedding, pooling, loss, the optimiser's update.
//
// Arrays are views [rows, columns] whose last stride is 1; the row stride is free. One floating type an operation
// (float32, float64, bfloat16 or float16) unless said otherwise; what is called a *parameter* is float32 beside a
// 16-bit type. Sums run in float32, or float64 for float64, and in an order that depends on the shape alone: results
// are bitwise equal for any number of threads. A gradient of a parameter is added to what is there; every other output
// is overwritten. All functions throw attn::Error with every reason before anything is written.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "attn/core.h"

#pragma GCC visibility push(default)
namespace attn::ops {

// --------------------------------------------------------------------------------------------------------- products

struct MatmulOptions {
  ConstView<1> bias = {};                          ///< [N], a parameter, added to every row
  bool accumulate = false;                         ///< c += a b instead of c = a b
  std::optional<Float32Precision> precision = {};  ///< of float32 factors; absent: matmul_precision()
  /// A row of c has the same bits however many rows a has: many are then multiplied eight at a time, several times
  /// slower. Rows of a and columns of b must be dense, as in x weight^T.
  bool same_bits = false;
};

/// c = a b (+ bias).  a [M, K], b [K, N], c [M, N]. One stride of each of a and b is 1: a transpose is a view with
/// exchanged strides. a and b of one type, c of the same; beside a 16-bit type c may be float32. Sums in float32 or
/// float64. Runs on parallel_for(), as everything here.
void matmul(ConstView<2> a, ConstView<2> b, View<2> c, const MatmulOptions& options = {});

/// The right factor of products as they take it: what each would do to b, which lies column by column in linear(), is
/// done once. For factors that do not change, at the cost of bytes() beside b's own.
///
/// It serves large products of float32; all others read b, as do those on tiles of another instruction set or precision
/// than it was made for. So b must stay where and as it is. On matrix tiles results have the bits of those of b.
/// Elsewhere the last bits of a sum may differ, as blocks of another width may add its terms in another order. They
/// depend on the shapes alone in either case.
class PackedFactor {
 public:
  PackedFactor() = default;
  /// Throws Error for a b that matmul() would refuse.
  explicit PackedFactor(ConstView<2> b);
  explicit operator bool() const { return form_ != nullptr; }
  int64_t bytes() const;  ///< 0 where nothing is gained

 private:
  friend void matmul_packed(ConstView<2>, const PackedFactor&, View<2>, const MatmulOptions&);
  struct Form;
  std::shared_ptr<const Form> form_;
};
/// matmul() by that b. Throws Error as it does, and for an empty PackedFactor.
void matmul_packed(ConstView<2> a, const PackedFactor& b, View<2> c, const MatmulOptions& options = {});

/// How float32 factors enter the products of this process, layers and training included, where no option says it; full
/// at first. The attention of layers follows it. As torch.set_float32_matmul_precision(): less than full is a
/// permission, which large products take where there are matrix tiles (instruction set "amx"); elsewhere all are full.
/// Next to s = sum |a| |b|,
///   full  errs as float32 arithmetic does
///   high  by up to 2^-14 s more; random numbers by 2^-23 to 2^-18 s at the worst
///   fast  by up to 2^-6 s more; random numbers by 2^-14 to 2^-10 s
/// On tiles a number below 2^-102 in a row of a, or column of b, with others from 2^-48 up is good to 2^-126 only. Rows
/// and columns all below 2^-48, or with a number that is not finite or from 2^60 up, are multiplied without tiles.
void set_matmul_precision(Float32Precision precision);
Float32Precision matmul_precision();

// ------------------------------------------------------------------------------------------------------------ norms

/// y = (x - mean) rstd weight + bias over each row (Ba et al. 2016, arXiv:1607.06450).
///   x, y [R, C]; weight, bias [C] parameters, bias may be absent; mean, rstd [R] float32 (float64 for float64),
///   written for the backward, may be absent.
void layer_norm(ConstView<2> x, ConstView<1> weight, ConstView<1> bias, double epsilon, View<2> y, View<1> mean = {},
                View<1> rstd = {});
void layer_norm_backward(ConstView<2> x, ConstView<1> weight, ConstView<1> mean, ConstView<1> rstd, ConstView<2> dy,
                         View<2> dx, View<1> dweight, View<1> dbias = {});

/// y = x rstd weight, rstd = 1 / sqrt(mean(x^2) + epsilon) (Zhang & Sennrich 2019, arXiv:1910.07467).
void rms_norm(ConstView<2> x, ConstView<1> weight, double epsilon, View<2> y, View<1> rstd = {});
void rms_norm_backward(ConstView<2> x, ConstView<1> weight, ConstView<1> rstd, ConstView<2> dy, View<2> dx,
                       View<1> dweight);

// ------------------------------------------------------------------------------------------------------ elementwise

enum class Activation {
  relu,
  gelu,       ///< x Phi(x), with erf
  gelu_tanh,  ///< x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel 2016, arXiv:1606.08415)
  silu,       ///< x sigmoid(x)
  tanh
};

/// y = f(x).  x, y [R, C]; y may be x.
void activate(Activation f, ConstView<2> x, View<2> y);
/// dx = dy f'(x).  dx may be dy.
void activate_backward(Activation f, ConstView<2> x, ConstView<2> dy, View<2> dx);

/// y = f(gate) up, the gated unit of SwiGLU (Shazeer 2020, arXiv:2002.05202).  gate_up [R, 2 C]: gate, then up; y [R,
/// C].
void activate_gated(Activation f, ConstView<2> gate_up, View<2> y);
void activate_gated_backward(Activation f, ConstView<2> gate_up, ConstView<2> dy, View<2> dgate_up);

/// y = a + b; y may be a or b.
void add(ConstView<2> a, ConstView<2> b, View<2> y);
/// y = factor x; y may be x.
void scale(ConstView<2> x, double factor, View<2> y);
/// y = x converted to y's type, any two floating types.
void convert(ConstView<2> x, View<2> y);
/// total [C] += the sum of x's rows: the gradient of a bias.
void add_rows(ConstView<2> x, View<1> total);

/// y = keep x / (1 - probability), where keep is a function of (seed, stream, r C + c) alone: the backward is the same
/// call on dy. y may be x.
void dropout(ConstView<2> x, double probability, uint64_t seed, uint64_t stream, View<2> y);

/// y = x with head h of sequence b times gates[b, h].  x, y [B L, n D], a head D columns wide; gates [B, n],
/// parameters, or [1, n] for all sequences alike; y may be x. The backward for x is the same call on dy.
void scale_heads(ConstView<2> x, ConstView<2> gates, View<2> y);
/// dgates[b, h] += the sum of x dy over the head and the sequence.
void scale_heads_backward(ConstView<2> x, ConstView<2> dy, View<2> dgates);

// -------------------------------------------------------------------------------------------------- rotary positions

/// Rotates pairs of features by position angles p theta^(-2 i / n) (Su et al. 2021, arXiv:2104.09864).
struct RopeOptions {
  double theta = 10000;
  bool interleaved = false;  ///< pairs (2 i, 2 i + 1) as in the paper; otherwise (i, i + n / 2) as in LLaMA checkpoints
  bool inverse = false;      ///< by the negative angle: the backward
  int64_t rotated_width = 0;                 ///< n: the first n features of a head are rotated; 0 = all, else even
  std::span<const double> frequencies = {};  ///< [n / 2] angles of one step, borrowed; empty = theta^(-2 i / n)
  double magnitude = 1;                      ///< factor on what is rotated, as YaRN has it
};
/// x, y [R, heads * D], head h in columns h D .. ; y may be x; positions [R].
void rope(ConstView<2> x, int64_t heads, std::span<const int64_t> positions, View<2> y,
          const RopeOptions& options = {});

// ------------------------------------------------------------------------------------------- embedding, pooling, loss

/// out[r] = table[ids[r]].  ids [R] in [0, V); table [V, C], out [R, C] of one type.
void embedding(std::span<const int64_t> ids, ConstView<2> table, View<2> out);
/// dtable[ids[r]] += dout[r], in order of r; dtable is a parameter's gradient.
void embedding_backward(std::span<const int64_t> ids, ConstView<2> dout, View<2> dtable);

/// out[b] = mean of the first lengths[b] rows of sequence b.  x [B L, C], out [B, C]; 1 <= lengths[b] <= L.
void mean_pool(ConstView<2> x, std::span<const int64_t> lengths, View<2> out);
void mean_pool_backward(ConstView<2> dout, std::span<const int64_t> lengths, View<2> dx);

/// A target that takes no part.
constexpr int64_t kIgnored = -1;

/// loss[r] = lse[r] - logits[r, targets[r]], 0 where the target is kIgnored.  logits [R, V]; targets [R];
/// loss, lse [R] float32 (float64 for float64). Returns the mean over the targets that count, 0 if there are none.
double cross_entropy(ConstView<2> logits, std::span<const int64_t> targets, View<1> loss, View<1> lse);
/// dlogits = factor (softmax(logits) - onehot(targets)), 0 in ignored rows; dlogits may be logits.
void cross_entropy_backward(ConstView<2> logits, std::span<const int64_t> targets, ConstView<1> lse, double factor,
                            View<2> dlogits);

// -------------------------------------------------------------------------------------------------------- optimiser

/// AdamW (Loshchilov & Hutter 2017, arXiv:1711.05101), in the order of PyTorch's: with g the gradient times its factor,
///   p = p (1 - learning_rate decay);  m = m + (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2;
///   p = p - learning_rate / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + epsilon)
struct AdamW {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double decay = 0;
  double gradient_factor = 1;  ///< multiplies the gradient first: clipping, accumulation
  int64_t step = 1;            ///< counts from 1: bias correction
};
/// All [R, C], of float32 or float64.
void adamw(View<2> parameter, ConstView<2> gradient, View<2> first_moment, View<2> second_moment, const AdamW& options);

/// Sum of squares in float64, in a fixed order. Infinite or NaN where x is.
double sum_of_squares(ConstView<2> x);

}  // namespace attn::ops
#pragma GCC visibility pop
