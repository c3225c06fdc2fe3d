#include "timed_call.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace bench {
namespace {

using attn::ConstView;
using attn::DType;
using attn::Shape;
using attn::Tensor;
using attn::View;

/// Calls body(T{}) with the C++ type of a floating dtype.
template <class Body>
void with_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::float64: return body(double{});
    case DType::bfloat16: return body(attn::bfloat16{});
    case DType::float16: return body(attn::float16{});
    default: return body(float{});
  }
}

void fill_uniform(const View<4>& dense, uint64_t seed) {
  constexpr int64_t kChunk = int64_t{1} << 16;
  const int64_t count = dense.count();
  with_type(dense.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* values = static_cast<T*>(dense.data);
    attn::parallel_for((count + kChunk - 1) / kChunk, [&](int64_t chunk) {
      attn::Random random(seed, static_cast<uint64_t>(chunk));
      const float width = std::sqrt(12.0f);  // of a uniform distribution of variance 1
      for (int64_t i = chunk * kChunk; i < std::min(count, (chunk + 1) * kChunk); ++i) {
        values[i] = static_cast<T>((static_cast<float>(random.next()) * 0x1p-32f - 0.5f) * width);
      }
    });
  });
}

Tensor<double, 4> to_double(const ConstView<4>& view) {
  Tensor<double, 4> dense(view.size);
  with_type(view.dtype, [&](auto zero) {
    const auto* data = static_cast<const decltype(zero)*>(view.data);
    Shape<4> index{};
    for (int64_t n = 0; n < dense.count(); ++n) {
      int64_t offset = 0;
      for (int axis = 0; axis < 4; ++axis) offset += index[axis] * view.stride[axis];
      dense[n] = static_cast<double>(data[offset]);
      for (int axis = 3; axis >= 0 && ++index[axis] == view.size[axis]; --axis) index[axis] = 0;
    }
  });
  return dense;
}

/// The part of a view from `first` on, `count` long, on one axis.
View<4> part(View<4> view, int axis, int64_t first, int64_t count) {
  view.data = static_cast<char*>(view.data) + first * view.stride[axis] * attn::size_of(view.dtype);
  view.size[axis] = count;
  return view;
}

void copy(const View<4>& from, const View<4>& to) {
  const int64_t row_bytes = from.size[3] * attn::size_of(from.dtype);
  for (int64_t h = 0; h < from.size[1]; ++h) {
    for (int64_t i = 0; i < from.size[2]; ++i) {
      const View<4> source = part(part(from, 1, h, 1), 2, i, 1);
      std::memcpy(part(part(to, 1, h, 1), 2, i, 1).data, source.data, static_cast<size_t>(row_bytes));
    }
  }
}

void add(Tensor<double, 4>& sum, const Tensor<double, 4>& term) {
  for (int64_t n = 0; n < sum.count(); ++n) sum[n] += term[n];
}

/// The larger of two errors; NaN is the largest.
double worse(double a, double b) { return a > b || std::isnan(a) ? a : b; }

/// The largest difference seen, in units of the largest expected magnitude.
class RelativeError {
 public:
  void compare(const ConstView<4>& result, const Tensor<double, 4>& expected) {
    const Tensor<double, 4> values = to_double(result);
    for (int64_t n = 0; n < expected.count(); ++n) {
      worst_ = worse(std::abs(values[n] - expected[n]), worst_);
      largest_ = std::max(largest_, std::abs(expected[n]));
    }
  }
  double relative() const { return worst_ / largest_; }

 private:
  double worst_ = 0;
  double largest_ = 0;
};

}  // namespace

TimedCall::Array::Array(DType dtype, const Shape<4>& size, TensorLayout layout)
    : memory(View<4>(nullptr, dtype, size).count() * attn::size_of(dtype), true), view(memory.data(), dtype, size) {
  if (layout != TensorLayout::bhld) view.stride = {size[1] * size[2] * size[3], size[3], size[1] * size[3], 1};
}

TimedCall::TimedCall(const Workload& workload) : workload_(workload) {
  const Workload& w = workload_;
  q_ = random_array(w.heads, w.queries, 1);
  k_ = random_array(w.kv_heads, w.keys, 2);
  v_ = random_array(w.kv_heads, w.keys, 3);
  if (w.layout == TensorLayout::qkv) fuse();
  out_ = Array(w.dtype, q_.view.size, w.layout);
  set_option();
  if (w.operation == Operation::paged) fill_cache();
  if (w.operation != Operation::backward) return;

  dout_ = random_array(w.heads, w.queries, 4);
  dq_ = Array(w.dtype, q_.view.size, w.layout);
  dk_ = Array(w.dtype, k_.view.size, w.layout);
  dv_ = Array(w.dtype, v_.view.size, w.layout);
  lse_ = Array(w.dtype == DType::float64 ? w.dtype : DType::float32, {1, w.heads, w.queries, 1}, TensorLayout::bhld);
  attn::attention(q_.view, k_.view, v_.view, out_.view, log_sums(), options_);
}

TimedCall::Array TimedCall::random_array(int64_t heads, int64_t rows, uint64_t seed) const {
  Array array(workload_.dtype, {1, heads, rows, workload_.depth}, workload_.layout);
  fill_uniform(View<4>(array.view.data, workload_.dtype, array.view.size), seed);
  return array;
}

/// Copies q, k and v into one array of rows [q heads, k heads, v heads], and points the views to it.
void TimedCall::fuse() {
  const Workload& w = workload_;
  fused_ = Array(w.dtype, {1, w.heads + 2 * w.kv_heads, w.keys, w.depth}, TensorLayout::blhd);
  int64_t head = 0;
  for (Array* array : {&q_, &k_, &v_}) {
    const View<4> place = part(fused_.view, 1, head, array->view.size[1]);
    copy(array->view, place);
    array->view = place;
    head += place.size[1];
  }
}

attn::View<3> TimedCall::log_sums() const {
  return {lse_.view.data, lse_.view.dtype, {1, workload_.heads, workload_.queries}};
}

void TimedCall::set_option() {
  const int64_t nq = workload_.queries, nk = workload_.keys;
  switch (workload_.option) {
    case Option::full: break;
    case Option::causal: options_.causal = true; break;
    case Option::window: options_.window = {.left = workload_.window - 1, .right = 0}; break;
    case Option::dropout: options_.dropout = workload_.dropout; break;
    case Option::softcap: options_.softcap = workload_.softcap; break;
    case Option::lengths:
      key_length_ = {workload_.key_count};
      options_.key_length = key_length_;
      break;
    case Option::bias:
      extra_ = Array(DType::float32, {1, 1, nq, nk}, TensorLayout::bhld);
      fill_uniform(extra_.view, 5);
      options_.bias = extra_.view;
      break;
    case Option::alibi:
      for (int64_t h = 0; h < workload_.heads; ++h)
        slopes_.push_back(std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(workload_.heads)));
      options_.alibi_slopes = slopes_;
      break;
    case Option::mask: {
      extra_ = Array(DType::boolean, {1, 1, nq, nk}, TensorLayout::bhld);
      bool* allowed = static_cast<bool*>(extra_.view.data);
      std::fill(allowed, allowed + nq * nk, true);
      for (int64_t i = 0; i < nq; ++i) allowed[i * nk + 7 * i % nk] = false;
      options_.mask = extra_.view;
      break;
    }
  }
}

void TimedCall::fill_cache() {
  cache_.emplace(
      attn::KVCacheConfig{.kv_heads = workload_.kv_heads, .head_dim = workload_.depth, .dtype = workload_.dtype});
  sequence_ = cache_->add();
  cache_->append(sequence_, k_.view, v_.view);
}

void TimedCall::call() {
  switch (workload_.operation) {
    case Operation::forward:
    case Operation::decode: attn::attention(q_.view, k_.view, v_.view, out_.view, options_); break;
    case Operation::backward: backward(dout_.view); break;
    case Operation::paged: {
      const int64_t sequences[] = {sequence_};
      const int64_t cu_seqlens_q[] = {0, 1};
      cache_->attend(sequences, cu_seqlens_q, q_.view, out_.view);
      break;
    }
  }
}

void TimedCall::backward(ConstView<4> dout) {
  attn::AttentionGradients gradients;
  gradients.dq = dq_.view;
  gradients.dk = dk_.view;
  gradients.dv = dv_.view;
  attn::attention_backward(q_.view, k_.view, v_.view, out_.view, log_sums(), dout, gradients, options_);
}

attn::AttentionPlan TimedCall::plan() const {
  if (workload_.operation == Operation::backward) {
    return attn::explain_backward(q_.view, k_.view, v_.view, options_);
  }
  return attn::explain(q_.view, k_.view, v_.view, options_);
}

double TimedCall::check() {
  if (workload_.operation == Operation::backward) return backward_error();
  call();
  return forward_error();
}

double TimedCall::forward_error() const {
  RelativeError error;
  for (int64_t kv_head : sampled_heads()) {
    for (const Sample& sample : samples_of(kv_head)) {
      Tensor<double, 4> expected(rows_of(out_, sample).size);
      attn::reference::attention(rows_of(q_, sample), head_of(k_, kv_head), head_of(v_, kv_head), expected, {},
                                 options_of(sample));
      error.compare(rows_of(out_, sample), expected);
    }
  }
  return error.relative();
}

// The gradients are linear in dout: where it is zero outside the sampled rows, these rows give all of dk and dv.
double TimedCall::backward_error() {
  Array sparse_dout(dout_.view.dtype, dout_.view.size, workload_.layout);
  for (int64_t kv_head : sampled_heads()) {
    for (const Sample& sample : samples_of(kv_head)) copy(rows_of(dout_, sample), rows_of(sparse_dout, sample));
  }
  backward(sparse_dout.view);

  RelativeError dq_error, dk_error, dv_error;
  for (int64_t kv_head : sampled_heads()) {
    const View<4> k = head_of(k_, kv_head), v = head_of(v_, kv_head);
    Tensor<double, 4> dk_sum(k.size), dv_sum(v.size);
    for (const Sample& sample : samples_of(kv_head)) {
      const View<4> q = rows_of(q_, sample);
      Tensor<double, 4> dq(q.size), dk(k.size), dv(v.size);
      attn::AttentionGradients gradients;
      gradients.dq = dq;
      gradients.dk = dk;
      gradients.dv = dv;
      attn::reference::attention_backward(q, k, v, rows_of(out_, sample), {}, rows_of(dout_, sample), gradients,
                                          options_of(sample));
      dq_error.compare(rows_of(dq_, sample), dq);
      add(dk_sum, dk);
      add(dv_sum, dv);
    }
    dk_error.compare(head_of(dk_, kv_head), dk_sum);
    dv_error.compare(head_of(dv_, kv_head), dv_sum);
  }
  return worse(dq_error.relative(), worse(dk_error.relative(), dv_error.relative()));
}

// ---------------------------------------------------------------------------------------------------------- the sample

std::vector<int64_t> TimedCall::sampled_heads() const {
  // Dropout depends on the indices, so that only a sample that starts at 0 has the same ones.
  if (workload_.kv_heads == 1 || options_.dropout > 0) return {0};
  return {0, workload_.kv_heads - 1};
}

std::vector<TimedCall::Sample> TimedCall::samples_of(int64_t kv_head) const {
  const int64_t count = std::min<int64_t>(4, workload_.queries);
  const int64_t last = workload_.queries - count;
  if (last == 0 || options_.dropout > 0) return {{kv_head, 0, count}};
  return {{kv_head, 0, count}, {kv_head, last / 2, count}, {kv_head, last, count}};
}

attn::View<4> TimedCall::rows_of(const Array& array, const Sample& sample) const {
  const int64_t group = workload_.heads / workload_.kv_heads;
  return part(part(array.view, 1, sample.kv_head * group, group), 2, sample.first_query, sample.queries);
}

attn::View<4> TimedCall::head_of(const Array& array, int64_t kv_head) const { return part(array.view, 1, kv_head, 1); }

/// The same rows see the same keys: row i of the sample is at first_query + i.
attn::AttentionOptions TimedCall::options_of(const Sample& sample) const {
  attn::AttentionOptions options = options_;
  options.alignment = attn::Alignment::offset;
  options.offset = {&sample.first_query, 1};
  if (options.mask) options.mask = part(extra_.view, 2, sample.first_query, sample.queries);
  if (options.bias) options.bias = part(extra_.view, 2, sample.first_query, sample.queries);
  if (!slopes_.empty()) {
    const int64_t group = workload_.heads / workload_.kv_heads;
    options.alibi_slopes = options.alibi_slopes.subspan(sample.kv_head * group, group);
  }
  return options;
}

}  // namespace bench
