// Backward: each sequence and key head is a task. It computes the states before all chunks of a segment, then goes
// through the chunks from the last to the first.
#include <algorithm>
#include <vector>

#include "core/numbers.h"
#include "core/plain.h"
#include "core/subnormals.h"
#include "linear/gradients.h"

namespace attn::linear {
namespace {

// Chunks whose states and e a thread holds: 16,384 tokens, which at Dk = Dv = 128 are 28 MB. Longer sequences go
// forward once more, to the state before each segment.
constexpr int64_t kSegmentChunks = 256;

/// Writes the gradients of log_decay. Where several sequences, heads or tokens share an element, it keeps the sums of
/// each sequence and head, and finish() adds them in order.
class DecaySums {
 public:
  explicit DecaySums(const LinearProblem& p, const View<4>& ddecay) : p_(p), target_(ddecay) {
    if (!target_) return;
    const Shape<4>& size = target_.size;
    rows_ = p.decay_per_row ? p.Dk : 1;
    tokens_ = size[2] == p.L ? p.L : 1;
    shared_ = size[0] != p.B || size[1] != p.Hv || tokens_ != p.L;
    batches_ = tokens_ == p.L ? p.B : static_cast<int64_t>(p.sequences.size());
    if (shared_) sums_ = Tensor<double, 4>({batches_, p.Hv, tokens_, rows_});
  }

  /// Adds the gradients of a chunk.
  template <class T>
  void add(int64_t sequence, const Chunk<T>& c, const Matrix<T>& ddecay) {
    if (!target_) return;
    if (!shared_) return void(UserRows(target_, c.batch, c.head, c.token, c.count).store(ddecay));
    const int64_t b = tokens_ == p_.L ? c.batch : sequence;
    for (int64_t i = 0; i < c.count; ++i)
      for (int64_t d = 0; d < rows_; ++d) sums_(b, c.head, along(tokens_, c.token + i), d) += ddecay[i][d];
  }
  void finish() {
    if (!target_ || !shared_) return;
    const Shape<4>& size = target_.size;
    Tensor<double, 4> totals(size);
    for (int64_t b = 0; b < batches_; ++b)
      for (int64_t h = 0; h < p_.Hv; ++h)
        for (int64_t t = 0; t < tokens_; ++t)
          for (int64_t d = 0; d < rows_; ++d)
            totals(along(size[0], tokens_ == p_.L ? b : p_.sequences[b].batch), along(size[1], h), t, d) +=
                sums_(b, h, t, d);
    reference::write(totals, target_);
  }

 private:
  const LinearProblem& p_;
  View<4> target_;
  int64_t rows_ = 0, tokens_ = 0, batches_ = 0;
  bool shared_ = false;
  Tensor<double, 4> sums_;
};

template <class T>
class BackwardWorker {
 public:
  /// Takes its memory for sequences of up to `tokens`.
  BackwardWorker(const LinearProblem& p, const LinearAttentionGradients& gradients, Arena& arena, int64_t tokens)
      : p_(p), gradients_(gradients), chunk_(p, arena), grad_(p, arena, static_cast<bool>(gradients.dlog_decay)) {
    const int64_t chunks = div_up(tokens, kChunkTokens), held = std::min(chunks, kSegmentChunks);
    state_ = take_state<T>(p, arena);
    dstate_ = take_state<T>(p, arena);
    state_bytes_ = p.Dk * state_.row * int64_t{sizeof(T)};
    for (int64_t n = 0; n <= held; ++n) states_.push_back(take_state<T>(p, arena));
    for (int64_t n = 0; n < div_up(chunks, kSegmentChunks); ++n) segments_.push_back(take_state<T>(p, arena));
    const int64_t row = row_stride<T>(p.columns), features = row_stride<T>(p.Dk);
    values_ = {arena.take<T>(held * kChunkTokens * row * int64_t{sizeof(T)}), row};
    if (p.group == 1) return;
    dq_ = {arena.take<T>(tokens * features * int64_t{sizeof(T)}), features};
    dk_ = {arena.take<T>(tokens * features * int64_t{sizeof(T)}), features};
  }

  void run(int64_t sequence, int64_t key_head, const ConstView<4>& dout, const ConstView<4>& dfinal, DecaySums& decay) {
    for (int64_t g = 0; g < p_.group; ++g) {
      const int64_t head = key_head * p_.group + g;
      const int64_t chunks = div_up(p_.sequences[sequence].count, kChunkTokens);
      const int64_t segments = std::max<int64_t>(div_up(chunks, kSegmentChunks), 1);
      load_state(p_, p_.options->initial_state, sequence, head, state_);
      for (int64_t s = 0; s + 1 < segments; ++s) {
        copy_state(state_, segments_[s]);
        go_forward(sequence, head, s * kSegmentChunks, (s + 1) * kSegmentChunks);
      }
      load_state(p_, dfinal, sequence, head, dstate_);
      for (int64_t s = segments; s-- > 0;) {
        if (s + 1 < segments) copy_state(segments_[s], state_);
        const int64_t begin = s * kSegmentChunks, end = std::min(begin + kSegmentChunks, chunks);
        go_forward(sequence, head, begin, end);
        for (int64_t c = end; c-- > begin;) go_back(sequence, head, c, c - begin, dout, decay);
      }
      store_state(p_, gradients_.dinitial_state, sequence, head, dstate_);
    }
  }

 private:
  void copy_state(const Matrix<T>& from, const Matrix<T>& to) const {
    std::copy_n(from.data, state_bytes_ / int64_t{sizeof(T)}, to.data);
  }
  Matrix<T> values(int64_t n) const { return values_.from(n * kChunkTokens); }

  /// From state_ before chunk `begin` to that after it chunk end - 1, keeping the states between, and e.
  void go_forward(int64_t sequence, int64_t head, int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      copy_state(state_, states_[c - begin]);
      chunk_.load(p_.sequences[sequence], head, c * kChunkTokens);
      chunk_.relate(false);
      chunk_.solve(state_);
      std::copy_n(chunk_.e.data, chunk_.count * chunk_.e.row, values(c - begin).data);
      chunk_.advance(state_);
    }
    copy_state(state_, states_[end - begin]);
  }

  void go_back(int64_t sequence, int64_t head, int64_t c, int64_t held, const ConstView<4>& dout, DecaySums& decay) {
    chunk_.load(p_.sequences[sequence], head, c * kChunkTokens);
    chunk_.relate(true);
    std::copy_n(values(held).data, chunk_.count * chunk_.e.row, chunk_.e.data);
    scale_rows(chunk_.e, chunk_.beta, chunk_.u, chunk_.count, p_.columns);
    if (p_.options->normalize) {
      chunk_.outputs(states_[held]);
      chunk_.normalize();
    }
    grad_.load(chunk_, dout);
    grad_.compute(chunk_, states_[held], states_[held + 1], dstate_);
    store_values(decay, sequence);
    store_features(grad_.dq, dq_, chunk_.q, chunk_.q_factor, gradients_.dq, c);
    store_features(grad_.dk, dk_, chunk_.k, chunk_.k_factor, gradients_.dk, c);
  }

  void store_values(DecaySums& decay, int64_t sequence) {
    const Chunk<T>& c = chunk_;
    if (gradients_.dv) UserRows(gradients_.dv, c.batch, c.head, c.token, c.count).store(grad_.r);
    decay.add(sequence, c, grad_.ddecay);
    const View<3>& dbeta = gradients_.dbeta;
    for (int64_t i = 0; dbeta && i < c.count; ++i) {
      const int64_t offset = c.batch * dbeta.stride[0] + c.head * dbeta.stride[1] + (c.token + i) * dbeta.stride[2];
      reference::store(dbeta.data, dbeta.dtype, offset, grad_.dbeta[i]);
    }
  }

  /// Adds dx to the sum over the value heads that share the key head; the last of them stores it.
  void store_features(const Matrix<T>& dx, const Matrix<T>& sums, const Matrix<T>& x, const T* factor,
                      const View<4>& target, int64_t chunk) {
    if (!target) return;
    const Chunk<T>& c = chunk_;
    if (p_.group > 1) {
      const Matrix<T> sum = sums.from(chunk * kChunkTokens);
      const bool first = c.head % p_.group == 0;
      for (int64_t i = 0; i < c.count; ++i)
        for (int64_t d = 0; d < p_.Dk; ++d) dx[i][d] = sum[i][d] = first ? dx[i][d] : sum[i][d] + dx[i][d];
      if ((c.head + 1) % p_.group != 0) return;
    }
    if (p_.options->l2norm) through_norm(dx, x, factor);
    else scale_rows(dx, factor, dx, c.count, p_.Dk);
    UserRows(target, c.batch, c.head / p_.group, c.token, c.count).store(dx);
  }

  /// x = factor y with factor = scale / sqrt(sum of y^2 + epsilon): dy = factor (dx - x <x, dx> / scale^2).
  void through_norm(const Matrix<T>& dx, const Matrix<T>& x, const T* factor) {
    const Chunk<T>& c = chunk_;
    T dots[kChunkTokens];
    linear_kernels<T>().row_dots({x, dx, dots, c.count, p_.Dk});
    const bool scaled = &x == &chunk_.q && !p_.options->normalize;
    const T inverse = scaled && p_.scale != 0 ? static_cast<T>(1 / (p_.scale * p_.scale)) : T{1};
    for (int64_t i = 0; i < c.count; ++i)
      for (int64_t d = 0; d < p_.Dk; ++d) dx[i][d] = factor[i] * (dx[i][d] - x[i][d] * dots[i] * inverse);
  }

  const LinearProblem& p_;
  const LinearAttentionGradients& gradients_;
  Chunk<T> chunk_;
  ChunkGradients<T> grad_;
  Matrix<T> state_, dstate_, values_, dq_, dk_;
  int64_t state_bytes_ = 0;
  std::vector<Matrix<T>> states_, segments_;
};

template <class T>
void run_backward(const LinearProblem& p, const ConstView<4>& dout, const LinearAttentionGradients& gradients,
                  const ConstView<4>& dfinal_state) {
  int64_t tokens = 0;
  for (const TokenRange& s : p.sequences) tokens = std::max(tokens, s.count);
  DecaySums decay(p, gradients.dlog_decay);
  Arena counted(nullptr);
  BackwardWorker<T>(p, gradients, counted, tokens);
  parallel_for_flushed(static_cast<int64_t>(p.sequences.size()) * p.H, [&](int64_t task) {
    Arena arena(thread_scratch(counted.used()));
    BackwardWorker<T>(p, gradients, arena, tokens).run(task / p.H, task % p.H, dout, dfinal_state, decay);
  });
  decay.finish();
}

/// Gradients of tokens that are in no sequence.
void clear_gradients(const LinearProblem& p, const LinearAttentionGradients& gradients) {
  if (p.options->cu_seqlens.empty()) return;
  for (const View<4>* x : {&gradients.dq, &gradients.dk, &gradients.dv, &gradients.dlog_decay})
    if (*x) reference::write(Tensor<double, 4>(x->size), *x);
  if (gradients.dbeta) reference::write(Tensor<double, 3>(gradients.dbeta.size), gradients.dbeta);
}

}  // namespace
}  // namespace attn::linear

namespace attn {

void linear_attention_backward(ConstView<4> q, ConstView<4> k, ConstView<4> v, ConstView<4> dout,
                               const LinearAttentionGradients& gradients, const LinearAttentionOptions& options,
                               ConstView<4> dfinal_state) {
  Checker checker("linear_attention_backward");
  const linear::LinearProblem p = linear::make_problem(checker, q, k, v, options);
  linear::check_backward(checker, p, dout, gradients, dfinal_state);
  checker.done();
  const ProfileSpan span("linear_attention_backward", [&] {
    return linear::work_of(p, 3,
                           bytes_of(dout) + bytes_of(gradients.dq) + bytes_of(gradients.dk) + bytes_of(gradients.dv));
  });
  linear::clear_gradients(p, gradients);
  if (q.dtype == DType::float64) linear::run_backward<double>(p, dout, gradients, dfinal_state);
  else linear::run_backward<float>(p, dout, gradients, dfinal_state);
}

}  // namespace attn
