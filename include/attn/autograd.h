// autograd: the tape. Every operation computes its value and, where the tape records, leaves behind the step that will
// compute its gradient; backward() runs the steps in reverse. One forward serves training and inference: recording is a
// mode of the tape, and a value that only infers carries no gradient state.
//
// Arrays are dense and row-major. An operation sees [.., C] as [R, C]: everything before the last axis is rows.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/attention.h"
#include "attn/ops.h"

#pragma GCC visibility push(default)
namespace attn::autograd {

/// A dense array of any rank with shared ownership: copies are handles to the same memory.
class Array {
 public:
  Array() = default;
  /// Zero-filled, unless `zero` is false: then the content is undefined. Throws Error as count_of() does.
  Array(DType dtype, std::vector<int64_t> shape, bool zero = true);
  /// Over memory that `owner` keeps alive.
  Array(DType dtype, std::vector<int64_t> shape, std::shared_ptr<void> owner);

  explicit operator bool() const { return memory_ != nullptr; }
  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t count() const { return count_; }
  int64_t width() const { return shape_.empty() ? 1 : shape_.back(); }  ///< of the last axis
  void* data() const { return memory_.get(); }

  /// [R, C], C = width().
  View<2> rows() const;
  /// All elements in one row.
  View<2> flat() const { return {data(), dtype_, {1, count_}}; }
  View<1> vector() const { return {data(), dtype_, {count_}}; }
  /// The same memory with another shape; throws Error unless that has the same count.
  Array reshaped(std::vector<int64_t> shape) const;
  void fill_zero() const;
  Array clone() const;
  /// "float32 [2, 3]"
  std::string describe() const;
  /// Others hold the same memory.
  bool is_shared() const { return memory_.use_count() > 1; }

 private:
  DType dtype_ = DType::float32;
  std::vector<int64_t> shape_;
  int64_t count_ = 0;
  std::shared_ptr<void> memory_;
};

class Tape;

/// An array and, if it wants one, its gradient. Copies are handles to the same value. A value without an array is
/// empty: it stands for what is not given, and all that asks for its array or gradient throws Error.
class Value {
 public:
  Value() = default;
  /// A leaf. Its gradient, if wanted, is of `gradient_type`.
  explicit Value(Array data, bool wants_gradient = false);
  Value(Array data, bool wants_gradient, DType gradient_type);

  explicit operator bool() const { return state_ != nullptr; }
  const Array& data() const { return state().data; }
  const std::vector<int64_t>& shape() const { return data().shape(); }
  DType dtype() const { return data().dtype(); }
  bool wants_gradient() const { return state_ && state_->wants_gradient; }

  /// Nothing has been added since clear_gradient().
  bool gradient_is_empty() const { return !state().filled; }
  /// The gradient; undefined where it is empty.
  const Array& gradient() const { return state().gradient; }
  /// Forgets the content and keeps the memory.
  void clear_gradient() const { state().filled = false; }
  /// Adds `gradient`, of this shape; takes it over, without a copy, where there is none yet.
  void add_gradient(const Tape& tape, const Array& gradient) const;
  /// Has linear() multiply by this weight packed, see ops::PackedFactor: of a matrix that stays as it is until
  /// unpack().
  void pack() const;
  void unpack() const { state().packed = {}; }
  const ops::PackedFactor& packed() const { return state().packed; }
  /// Memory to add the gradient into. Where it was empty it is zero, or, with `overwrite`, undefined: *overwrite is
  /// set.
  Array gradient_memory(const Tape& tape, bool* overwrite = nullptr) const;

 private:
  struct State {
    Array data, gradient;
    DType gradient_type;
    bool wants_gradient = false;
    bool filled = false;
    ops::PackedFactor packed;  // the transpose, as linear() multiplies by it
  };
  State& state() const {
    if (!state_) refuse_empty();
    return *state_;
  }
  [[noreturn]] static void refuse_empty();
  friend class Tape;
  std::shared_ptr<State> state_;
};

/// Memory of freed arrays that the next ones of the same size take over: a training step allocates like the one before.
class Recycler;

struct TapeOptions {
  bool record = false;        ///< keep what backward() needs
  bool training = false;      ///< dropout is active
  uint64_t seed = 0;          ///< of dropout
  bool check_finite = false;  ///< throw Error that names the first operation whose result is not finite
  /// A row of linear() and attention() has the same bits however many rows the call has, as a token alone and in its
  /// text: see ops::MatmulOptions and AttentionOptions. Many rows take several times as long.
  bool same_bits = false;
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
  /// Where arrays of this tape come from, to hand to the next tape.
  const std::shared_ptr<Recycler>& memory() const { return memory_; }

  /// An array of undefined content.
  Array array(DType dtype, std::vector<int64_t> shape) const;
  /// The result of an operation that reads `inputs`: wants a gradient if one of them does and the tape records.
  Value result(std::string_view operation, Array data, std::initializer_list<Value> inputs);
  /// Leaves the step that passes on the gradient of `result`, if that wants one. Steps run in reverse order, once; one
  /// whose result has received no gradient is left out.
  template <class Run>
  void record(const Value& result, Run&& run) {
    if (result.wants_gradient()) push(result, std::forward<Run>(run));
  }
  /// A number of its own for every dropout, in order of the calls.
  uint64_t next_stream() { return stream_++; }
  uint64_t stream() const { return stream_; }
  void set_stream(uint64_t stream) { stream_ = stream; }

  /// Gradients of root, times `factor`, with respect to everything that wants one. root has one element, float32 or
  /// float64, and is the result of a step that has not run: throws Error otherwise.
  void backward(const Value& root, double factor = 1);
  /// The same from a gradient that is already there.
  void backward();

  /// A name that errors put before the operation, while the object lives.
  class Scope {
   public:
    Scope(Tape& tape, std::string_view name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Tape& tape_;
    size_t length_;
  };

 private:
  void push(const Value& result, std::function<void()> run);
  TapeOptions options_;
  std::shared_ptr<Recycler> memory_;
  struct Step {
    Value result;
    std::function<void()> run;
  };
  std::vector<Step> steps_;
  bool has_run_ = false;
  std::string scope_;
  uint64_t stream_ = 0;
};

// ------------------------------------------------------------------------------------------------------- operations

/// y = x weight^T + bias.  x [.., K], weight [N, K], bias [N] or absent; y [.., N] of x's type, or of `output`.
Value linear(Tape& tape, const Value& x, const Value& weight, const Value& bias, DType output);
Value linear(Tape& tape, const Value& x, const Value& weight, const Value& bias = {});

Value layer_norm(Tape& tape, const Value& x, const Value& weight, const Value& bias, double epsilon);
Value rms_norm(Tape& tape, const Value& x, const Value& weight, double epsilon);
Value activate(Tape& tape, ops::Activation f, const Value& x);
/// gate_up [.., 2 C] -> [.., C]
Value activate_gated(Tape& tape, ops::Activation f, const Value& gate_up);
Value add(Tape& tape, const Value& a, const Value& b);  ///< broadcast, as attn/autograd_operations.h says
/// factor x; x itself where the factor is 1.
Value scale(Tape& tape, const Value& x, double factor);
/// x [B, L, C] with the n heads in its columns times gates [B|1, n], which get their gradient: of [B, n] each
/// sequence's own.
Value scale_heads(Tape& tape, const Value& x, const Value& gates);
/// x unchanged where the tape does not train.
Value dropout(Tape& tape, const Value& x, double probability);
/// Rotates the first `heads` heads of width D of x [.., C] and copies the columns after them; positions [R]. The
/// frequencies, if given, take the place of what `options` borrows, and are kept until backward() has run.
Value rope(Tape& tape, const Value& x, int64_t heads, int64_t width, std::vector<int64_t> positions,
           const ops::RopeOptions& options, std::vector<double> frequencies = {});
/// `count` runs of columns, one after the other, each as wide as the weight.
struct ColumnRuns {
  int64_t first = 0, count = 1;
  Value weight = {};
};
/// x [.., C] with the RMS norm of each run of columns, by its weight; the other columns as they are.
Value rms_norm_columns(Tape& tape, const Value& x, std::vector<ColumnRuns> runs, double epsilon);
/// ids [R] -> [shape .., C]
Value embedding(Tape& tape, std::vector<int64_t> ids, const Value& table, std::vector<int64_t> shape);
/// x [B, L, C] -> [B, C]
Value mean_pool(Tape& tape, const Value& x, std::vector<int64_t> lengths);
/// x [B, L, C] -> [B, C]: row `index[b]` of each sequence.
Value select_rows(Tape& tape, const Value& x, std::vector<int64_t> index);
/// x [Lq, Lk, H] -> [1, H, Lq, Lk]: the layout of a bias.
Value heads_first(Tape& tape, const Value& x);
/// The mean loss of one element, in float32 or float64; targets [R], ops::kIgnored takes no part.
Value cross_entropy(Tape& tape, const Value& logits, std::vector<int64_t> targets);

/// Heads inside the last axis of an array [B, L, C]: head h lies in columns first + h width .. + width. view() throws
/// Error unless they do.
struct Heads {
  Value array;
  int64_t first = 0;
  int64_t heads = 1;
  int64_t width = 0;

  /// [B, heads, L, width], in place.
  View<4> view() const;
  View<4> view_of(const Array& of) const;
};

/// out [B, Lq, H Dv] = attention(q, k, v). What `options` borrows must live until backward() has run; options.dropout
/// is applied where the tape trains, under a stream of its own; `bias` [B|1, H|1, Lq|1, Lk|1] takes the place of
/// options.bias and gets its gradient, and so does `sink` [H], float32 or, beside float64, float64 that is rounded to
/// float32. `lse` receives [B, H, Lq] if it is not null.
Value attention(Tape& tape, const Heads& q, const Heads& k, const Heads& v, AttentionOptions options,
                const Value& bias = {}, Array* lse = nullptr, const Value& sink = {});

/// block(x), whose inner values are not kept: the backward computes them once more (Chen et al. 2016,
/// arXiv:1604.06174). Gradients are the same bits, dropout included.
using Block = std::function<Value(Tape&, const Value&)>;
Value recompute(Tape& tape, const Value& x, Block block);

}  // namespace attn::autograd
#pragma GCC visibility pop
