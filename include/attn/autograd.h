// autograd: the tape. Each operation computes its value and, if the tape records, adds a step that will compute its
// gradient; backward() runs the steps in reverse. Training and inference run the same forward: recording is a mode of
// the tape.
//
// An operation of your own, y = 2 x, is a function of the tape:
//
// ```cpp
// #include "attn/autograd.h"
// using namespace attn::autograd;
// Value twice(Tape& tape, const Value& x) {
//   const Value y = tape.result("twice", tape.array(x.dtype(), x.shape()), {x});
//   attn::ops::scale(x.data().flat(), 2, y.data().flat());
//   tape.record(y, [=, &tape] {  // backward() runs this: dx += 2 dy
//     const attn::Array dx = tape.array(x.dtype(), x.shape());
//     attn::ops::scale(y.gradient().flat(), 2, dx.flat());
//     tape.add_gradient(x, dx);
//   });
//   return y;
// }
// int main() {
//   Tape tape({.record = true});
//   const Value x(attn::Array(attn::DType::float32, {1}), true);
//   tape.backward(twice(tape, x));
// }
// ```
//
// Arrays are dense and row-major. An operation takes [.., C] as [R, C]: all axes before the last one are rows.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/attention.h"
#include "attn/ops.h"
#include "attn/profile.h"

#pragma GCC visibility push(default)
namespace attn::autograd {

class Tape;
class SharedSequence;

/// An array and, if wanted, its gradient. A Value is a handle: copies refer to the same value, and a const Value keeps
/// its array. Only the tape adds to a gradient. A default-constructed value is empty and means "not given"; data(),
/// gradient() and the like then throw Error.
class Value {
 public:
  Value() = default;
  /// A leaf of the tape. Its gradient, if wanted, has `gradient_type`, or the type of data.
  explicit Value(Array data, bool wants_gradient = false);
  Value(Array data, bool wants_gradient, DType gradient_type);
  /// A weight [N, K] for linear() and embedding() that exists packed alone, as after pack_and_free(): `weight` is its
  /// transpose, and `dtype` the type of the rows that it multiplies.
  Value(ops::PackedMatrix weight, DType dtype);

  explicit operator bool() const { return state_ != nullptr; }
  const Array& data() const { return state().data; }
  const std::vector<int64_t>& shape() const { return data().shape(); }
  DType dtype() const { return data().dtype(); }
  bool wants_gradient() const { return state_ && state_->wants_gradient; }
  /// data().item<T>(): the number of a loss.
  template <class T>
  T item() const {
    return data().item<T>();
  }

  /// True if nothing was added since construction or clear_gradient().
  bool gradient_is_empty() const { return !state().filled; }
  /// The gradient; its content is undefined where gradient_is_empty().
  const Array& gradient() const { return state().gradient; }
  /// Empties the gradient and keeps its memory.
  void clear_gradient() { state().filled = false; }
  /// How often something was added to the gradient.
  int64_t additions() const { return state().additions; }
  /// How many handles this value has. A step that will add to its gradient has one.
  int64_t handles() const { return state_.use_count(); }
  /// Packs this weight matrix for linear(), see ops::PackedMatrix. The matrix must not change until unpack().
  void pack();
  /// Packs it and, where products then do not read the matrix, frees that: data() keeps its shape and type only. Of
  /// this weight, which wants no gradient, linear() takes no gradient of x either, and unpack() throws Error.
  void pack_and_free();
  void unpack();
  bool is_freed() const { return state().freed; }
  const ops::PackedMatrix& packed() const { return state().packed; }

 private:
  struct State {
    Array data, gradient;
    DType gradient_type;
    bool wants_gradient = false;
    bool filled = false;
    int64_t additions = 0;
    bool freed = false;        // of `data`, only shape and type are left
    ops::PackedMatrix packed;  // the transpose, as linear() multiplies by it
  };
  State& state() const {
    if (!state_) refuse_empty();
    return *state_;
  }
  [[noreturn]] static void refuse_empty();
  friend class Tape;
  std::shared_ptr<State> state_;
};

/// Reuses the memory of freed arrays for the next ones of the same size. Hand it from one step's tape to the next.
class Recycler;

struct TapeOptions {
  bool record = false;        ///< record the steps that backward() runs
  bool training = false;      ///< dropout is active
  uint64_t seed = 0;          ///< of dropout
  bool check_finite = false;  ///< throw Error at the first operation with a result that is not finite
  /// Rows of linear() and attention() have the same bits for any number of rows in the call, as for one token and for
  /// its whole text: see ops::MatmulOptions and AttentionOptions. Calls with many rows take several times as long.
  bool batch_invariant = false;
  /// Called by backward() after each step, whose handles of values are gone by then.
  std::function<void()> after_step = {};
};

class Tape {
 public:
  explicit Tape(const TapeOptions& options = {}, std::shared_ptr<Recycler> memory = nullptr);
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  bool recording() const { return options_.record; }
  bool training() const { return options_.training; }
  const TapeOptions& options() const { return options_; }
  /// The memory that this tape's arrays come from, to hand to the next tape.
  const std::shared_ptr<Recycler>& memory() const { return memory_; }

  /// A new array of undefined content.
  Array array(DType dtype, std::vector<int64_t> shape) const;
  /// Makes the result of an operation that reads `inputs`. It wants a gradient if one of them does and the tape
  /// records.
  Value result(std::string_view operation, Array data, std::initializer_list<Value> inputs);
  /// Adds the step that passes the gradient of `result` on to the inputs, if `result` wants a gradient. backward() runs
  /// the steps once, in reverse order, and skips those whose result has received no gradient.
  template <class Run>
  void record(const Value& result, Run&& run) {
    if (result.wants_gradient()) push(result, std::forward<Run>(run));
  }
  /// Adds `gradient`, which has the shape of x, to the gradient of x. An empty gradient becomes `gradient` without a
  /// copy.
  void add_gradient(const Value& x, const Array& gradient);
  /// The memory to add a gradient of x to. If the gradient was empty, the memory is zero; with `overwrite`, *overwrite
  /// is then true and the content undefined.
  Array gradient_memory(const Value& x, bool* overwrite = nullptr);
  /// A new stream number for each dropout, in the order of calls.
  uint64_t next_stream() { return stream_++; }
  uint64_t stream() const { return stream_; }
  void set_stream(uint64_t stream) { stream_ = stream; }

  /// Computes the gradients of factor x root with respect to every value that wants one. Throws Error unless root has
  /// one element, float32 or float64, and is the result of a recorded step that has not run.
  void backward(const Value& root, double factor = 1);
  /// Runs the steps from gradients that the caller has added to results.
  void backward();

  /// While the object lives, errors and profiles show this name before the operation's; profiles also in backward().
  class NameScope {
   public:
    NameScope(Tape& tape, std::string_view name);
    ~NameScope();
    NameScope(const NameScope&) = delete;
    NameScope& operator=(const NameScope&) = delete;

   private:
    Tape& tape_;
    ProfileSpan span_;
  };

 private:
  void push(const Value& result, std::function<void()> run);
  TapeOptions options_;
  std::shared_ptr<Recycler> memory_;
  struct Step {
    Value result;
    std::function<void()> run;
    std::vector<std::string> scope;  // the names of that time, while a Profiler collects
  };
  std::vector<Step> steps_;
  bool has_run_ = false;
  std::vector<Value>* used_ = nullptr;  // if given, gets the inputs of operations that want gradients
  friend Value recompute(Tape& tape, const Value& x, std::function<Value(Tape&, const Value&)> function);
  std::vector<std::string> scope_;
  uint64_t stream_ = 0;
};

// ------------------------------------------------------------------------------------------------------- operations

/// y = x weight^T + bias.  x [.., K], weight [N, K], bias [N] or empty; y [.., N] of x's type, or of `output`.
Value linear(Tape& tape, const Value& x, const Value& weight, const Value& bias, DType output);
Value linear(Tape& tape, const Value& x, const Value& weight, const Value& bias = {});
/// activate(tape, f, linear(tape, x, weight, bias)). On a tape that does not record, one pass computes both.
Value linear_activated(Tape& tape, ops::Activation f, const Value& x, const Value& weight, const Value& bias = {});
/// residual + linear(tape, x, weight, bias) in one pass, which rounds once. residual has the shape of the result.
Value add_linear(Tape& tape, const Value& residual, const Value& x, const Value& weight, const Value& bias = {});

Value layer_norm(Tape& tape, const Value& x, const Value& weight, const Value& bias, double epsilon);
Value rms_norm(Tape& tape, const Value& x, const Value& weight, double epsilon);
Value activate(Tape& tape, ops::Activation f, const Value& x);
/// gate_up [.., 2 C] -> [.., C]
Value activate_gated(Tape& tape, ops::Activation f, const Value& gate_up);
Value add(Tape& tape, const Value& a, const Value& b);  ///< with broadcasting, see attn/autograd_operations.h
/// factor x. Returns x itself where the factor is 1.
Value scale(Tape& tape, const Value& x, double factor);
/// Multiplies the n heads in the columns of x [B, L, C] by gates [B|1, n], which get a gradient.
Value scale_heads(Tape& tape, const Value& x, const Value& gates);
/// Dropout while the tape trains; otherwise returns x.
Value dropout(Tape& tape, const Value& x, double probability);
/// Rotates the first `heads` heads of `width` columns of x [.., C] and copies the other columns; positions [R]. The
/// tape keeps `frequencies`, which replace options.frequencies if given, until backward() has run.
Value rope(Tape& tape, const Value& x, int64_t heads, int64_t width, std::vector<int64_t> positions,
           const ops::RopeOptions& options, std::vector<double> frequencies = {});
/// `count` consecutive runs of columns, each as wide as the weight.
struct ColumnRuns {
  int64_t first = 0, count = 1;
  Value weight = {};
};
/// Applies the RMS norm to each run of columns of x [.., C] and copies the other columns.
Value rms_norm_columns(Tape& tape, const Value& x, std::vector<ColumnRuns> runs, double epsilon);
/// Rows of table [V, C]: ids [R] -> [shape .., C], R the product of `shape`.
Value embedding(Tape& tape, std::vector<int64_t> ids, const Value& table, std::vector<int64_t> shape);
/// The mean of the first lengths[b] rows of each sequence: x [B, L, C] -> [B, C]. With `starts` [B], which rise,
/// sequence b begins at row starts[b] of all rows of x.
Value mean_pool(Tape& tape, const Value& x, std::vector<int64_t> lengths, std::vector<int64_t> starts = {});
/// Transposes x [Lq, Lk, H] to the layout of a bias, [1, H, Lq, Lk].
Value heads_first(Tape& tape, const Value& x);
/// The mean cross entropy [1], in float32 or float64, of logits [R, V] and targets [R]; targets of ops::kIgnoreIndex
/// are ignored. With weights [R] >= 0 it is the weighted mean, as with class weights in PyTorch.
Value cross_entropy(Tape& tape, const Value& logits, std::vector<int64_t> targets, std::vector<double> weights = {});

/// Heads in the last axis of an array [B, L, C]: head h is the columns first + h width to first + (h + 1) width - 1.
/// view() throws Error where these columns do not exist.
struct Heads {
  Value array = {};
  int64_t first = 0;
  int64_t heads = 1;
  int64_t width = 0;

  /// The heads as [B, heads, L, width], without a copy.
  View<4> view() const;
  View<4> view_of(const Array& of) const;
};

/// out [B, Lq, H Dv] = attention(q, k, v). Views and spans of `options` must live until backward() has run. Dropout
/// applies while the tape trains, with a stream of its own. `bias` [B|1, H|1, Lq|1, Lk|1] and `sink` [H] replace those
/// of the options and get gradients; sink is float32, or float64, rounded to float32, where q is float64. If `lse` is
/// not null, it receives [B, H, Lq]. With a `sequence` (attn/autograd_ranks.h), which must live as long, the arrays
/// have the tokens of this rank, and the options are those of the whole; there is no bias then.
Value attention(Tape& tape, const Heads& q, const Heads& k, const Heads& v, AttentionOptions options,
                const Value& bias = {}, Array* lse = nullptr, const Value& sink = {},
                const SharedSequence* sequence = nullptr);

/// Activation checkpointing (Chen et al. 2016, arXiv:1604.06174): computes function(x) without keeping its inner
/// values; the backward computes them again. Gradients have the same bits, dropout included.
Value recompute(Tape& tape, const Value& x, std::function<Value(Tape&, const Value&)> function);

}  // namespace attn::autograd
#pragma GCC visibility pop
