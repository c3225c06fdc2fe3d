// Forward and decode: each sequence and value head is a task, which goes through its tokens chunk by chunk, or token by
// token where there are few.
#include <algorithm>

#include "core/numbers.h"
#include "core/plain.h"
#include "core/subnormals.h"
#include "linear/chunk.h"

namespace attn::linear {
namespace {

// Sequences of so many tokens go token by token. A chunk loads and stores the state, which a step does on the way.
constexpr int64_t kStepTokens = 4;

/// Rows of one token at a time, as steps take them.
template <class T>
class Steps {
 public:
  Steps(const LinearProblem& p, Arena& arena) : p_(p), chunk_(p, arena), state_(take_state<T>(p, arena)) {}

  void run(int64_t sequence, int64_t head, const View<4>& out, const View<4>& final_state) {
    const TokenRange& s = p_.sequences[sequence];
    const View<4> target = in_rows(final_state) ? final_state : View<4>();
    const ConstView<4>& initial = p_.options->initial_state;
    kernels::StepArgs args{};
    args.depth = p_.Dk;
    args.columns = p_.columns;
    args.delta = p_.options->delta;
    args.state_out = target ? address(target, sequence, head) : state_.data;
    args.out_row = target ? target.stride[2] : state_.row;
    if (in_rows(initial)) {
      args.state_in = address(initial, sequence, head);
      args.in_row = initial.stride[2];
    } else if (initial) {
      load_state(p_, initial, sequence, head, state_);
      args.state_in = state_.data;
      args.in_row = state_.row;
    }
    chunk_.load(s, head, 0);
    for (int64_t t = 0; t < s.count; ++t) {
      step(args, t);
      args.state_in = args.state_out;
      args.in_row = args.out_row;
    }
    if (p_.options->normalize) chunk_.normalize();
    UserRows(out, s.batch, head, s.first, s.count).store(chunk_.out);
    if (!target) store_state(p_, final_state, sequence, head, state_);
  }

 private:
  /// True if a state can be read and written as it is.
  template <class Pointer>
  bool in_rows(const BasicView<Pointer, 4>& states) const {
    return states && states.stride[3] == 1;
  }
  template <class Pointer>
  static Pointer address(const BasicView<Pointer, 4>& states, int64_t sequence, int64_t head) {
    return states.select(0, sequence).select(0, head).data;
  }
  void step(kernels::StepArgs& args, int64_t t) {
    args.q = chunk_.q[t];
    args.k = chunk_.k[t];
    args.u = chunk_.e[t];
    args.out = chunk_.out[t];
    args.beta = chunk_.beta[t];
    args.decay = nullptr;
    if (p_.decay_per_row) {
      args.decay = chunk_.w[t];
    } else if (chunk_.has_decay) {
      std::fill_n(chunk_.total, p_.Dk, chunk_.decay[t]);
      args.decay = chunk_.total;
    }
    linear_kernels<T>().step(args);
  }

  const LinearProblem& p_;
  Chunk<T> chunk_;
  Matrix<T> state_;
};

template <class T>
class Chunks {
 public:
  Chunks(const LinearProblem& p, Arena& arena) : p_(p), chunk_(p, arena), state_(take_state<T>(p, arena)) {}

  void run(int64_t sequence, int64_t head, const View<4>& out, const View<4>& final_state) {
    const TokenRange& s = p_.sequences[sequence];
    load_state(p_, p_.options->initial_state, sequence, head, state_);
    for (int64_t t = 0; t < s.count; t += kChunkTokens) {
      chunk_.load(s, head, t);
      chunk_.relate(true);
      chunk_.solve(state_);
      chunk_.outputs(state_);
      if (p_.options->normalize) chunk_.normalize();
      UserRows(out, s.batch, head, s.first + t, chunk_.count).store(chunk_.out);
      if (final_state || t + kChunkTokens < s.count) chunk_.advance(state_);
    }
    store_state(p_, final_state, sequence, head, state_);
  }

 private:
  const LinearProblem& p_;
  Chunk<T> chunk_;
  Matrix<T> state_;
};

template <class Worker>
void run_in_scratch(const LinearProblem& p, int64_t sequence, int64_t head, const View<4>& out,
                    const View<4>& final_state) {
  Arena counted(nullptr);
  Worker(p, counted);
  Arena arena(thread_scratch(counted.used()));
  Worker(p, arena).run(sequence, head, out, final_state);
}

template <class T>
void run_forward(const LinearProblem& p, const View<4>& out, const View<4>& final_state) {
  parallel_for_flushed(static_cast<int64_t>(p.sequences.size()) * p.Hv, [&](int64_t task) {
    const int64_t sequence = task / p.Hv, head = task % p.Hv;
    const int64_t count = p.sequences[sequence].count;
    if (count > 0 && count <= kStepTokens) run_in_scratch<Steps<T>>(p, sequence, head, out, final_state);
    else run_in_scratch<Chunks<T>>(p, sequence, head, out, final_state);
  });
}

/// Tokens before, between and after the sequences get 0.
void clear_other_tokens(const LinearProblem& p, const View<4>& out) {
  if (p.options->cu_seqlens.empty()) return;
  const int64_t begin = p.options->cu_seqlens.front(), end = p.options->cu_seqlens.back();
  for (int64_t t = 0; t < p.L; ++t) {
    if (t == begin) t = end;
    if (t >= p.L) break;
    for (int64_t h = 0; h < p.Hv; ++h)
      for (int64_t c = 0; c < p.Dv; ++c)
        reference::store(out.data, out.dtype, h * out.stride[1] + t * out.stride[2] + c * out.stride[3], 0);
  }
}

}  // namespace
}  // namespace attn::linear

namespace attn {

void linear_attention(ConstView<4> q, ConstView<4> k, ConstView<4> v, View<4> out,
                      const LinearAttentionOptions& options, View<4> final_state) {
  Checker checker("linear_attention");
  const linear::LinearProblem p = linear::make_problem(checker, q, k, v, options);
  linear::check_forward(checker, p, out, final_state, false);
  checker.done();
  const ProfileSpan span("linear_attention", [&] { return linear::work_of(p, 1, bytes_of(out)); });
  linear::clear_other_tokens(p, out);
  if (q.dtype == DType::float64) linear::run_forward<double>(p, out, final_state);
  else linear::run_forward<float>(p, out, final_state);
}

}  // namespace attn
