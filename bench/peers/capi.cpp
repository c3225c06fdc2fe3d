// A C ABI over the public API, for the benchmark against other libraries alone: [B, H, L, D] arrays in, an
// error code and text out. The peaks come from the same code as attn_bench's.
#include <cmath>
#include <cstdint>
#include <exception>
#include <string>

#include "attn/attn.h"

namespace {

using attn::ConstView;
using attn::DType;
using attn::View;

thread_local std::string error_text;

template <class Body>
int guarded(Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    error_text = error.what();
    return 1;
  }
}

}  // namespace

extern "C" {

/// An array of rank 4; without data: not given. Strides count elements.
struct PeersArray {
  void* data;
  int64_t size[4];
  int64_t stride[4];
};

/// Every argument of a call. dtype: 0 = float32, 1 = bfloat16; it holds for all arrays but lse, which is float32.
struct PeersCall {
  int32_t dtype;
  PeersArray q, k, v, out, dout;
  PeersArray dq, dk, dv, dbias;  // not given: not computed
  float* lse;                    // [B, H, Lq]; the forward writes it if given, the backward needs it
  int32_t causal;
  int32_t bottom_right;               // else top-left
  int64_t window_left, window_right;  // -1: no limit
  PeersArray mask;                    // [B|1, H|1, Lq|1, Lk|1] bytes, 1 = attend
  PeersArray bias;
  const int64_t* key_length;    // [B], or null
  const int64_t* cu_seqlens_q;  // [sequences + 1], or null
  const int64_t* cu_seqlens_k;
  int64_t sequences;
  double dropout;
  uint64_t seed;
};

}  // extern "C"

namespace {

attn::Shape<4> shape_of(const int64_t (&extent)[4]) { return {extent[0], extent[1], extent[2], extent[3]}; }

View<4> view_of(const PeersArray& array, DType dtype) {
  return array.data ? View<4>(array.data, dtype, shape_of(array.size), shape_of(array.stride)) : View<4>();
}

/// The same call in the library's terms.
struct Arguments {
  ConstView<4> q, k, v, dout;
  View<4> out;
  View<3> lse;
  attn::AttentionGradients gradients;
  attn::AttentionOptions options;

  explicit Arguments(const PeersCall& call) {
    const DType dtype = call.dtype == 0 ? DType::float32 : DType::bfloat16;
    q = view_of(call.q, dtype);
    k = view_of(call.k, dtype);
    v = view_of(call.v, dtype);
    out = view_of(call.out, dtype);
    dout = view_of(call.dout, dtype);
    if (call.lse) lse = {call.lse, DType::float32, {q.size[0], q.size[1], q.size[2]}};
    gradients.dq = view_of(call.dq, dtype);
    gradients.dk = view_of(call.dk, dtype);
    gradients.dv = view_of(call.dv, dtype);
    gradients.dbias = view_of(call.dbias, dtype);

    options.causal = call.causal != 0;
    options.alignment = call.bottom_right ? attn::Alignment::bottom_right : attn::Alignment::top_left;
    options.window = {call.window_left, call.window_right};
    options.mask = view_of(call.mask, DType::boolean);
    options.bias = view_of(call.bias, dtype);
    if (call.key_length) options.key_length = {call.key_length, static_cast<size_t>(q.size[0])};
    if (call.cu_seqlens_q) {
      const size_t count = static_cast<size_t>(call.sequences) + 1;
      options.cu_seqlens_q = {call.cu_seqlens_q, count};
      options.cu_seqlens_k = {call.cu_seqlens_k, count};
    }
    options.dropout = call.dropout;
    options.seed = call.seed;
  }
};

}  // namespace

extern "C" {

/// What went wrong in the last call of this thread that did not return 0.
const char* peers_error() { return error_text.c_str(); }

int peers_set_threads(int threads) {
  return guarded([&] { attn::set_thread_count(threads); });
}

int peers_forward(const PeersCall* call) {
  return guarded([&] {
    const Arguments a(*call);
    attn::attention(a.q, a.k, a.v, a.out, a.lse, a.options);
  });
}

int peers_backward(const PeersCall* call) {
  return guarded([&] {
    const Arguments a(*call);
    attn::attention_backward(a.q, a.k, a.v, a.out, a.lse, a.dout, a.gradients, a.options);
  });
}

/// Extra memory of the call, all threads together; -1 for an error.
int64_t peers_scratch_bytes(const PeersCall* call, int backward) {
  int64_t bytes = -1;
  guarded([&] {
    const Arguments a(*call);
    bytes = backward ? attn::explain_backward(a.q, a.k, a.v, a.options, call->dbias.data != nullptr).scratch_bytes
                     : attn::explain(a.q, a.k, a.v, a.options).scratch_bytes;
  });
  return bytes;
}

/// The instruction set and path of the forward.
const char* peers_path(const PeersCall* call) {
  static thread_local std::string path;
  path.clear();
  guarded([&] {
    const Arguments a(*call);
    path = attn::explain(a.q, a.k, a.v, a.options).path;
  });
  return path.c_str();
}

/// keep[i, j] = 1 where dropout keeps the weight, for all rows of one head.
void peers_dropout_keeps(uint64_t seed, double probability, int64_t b, int64_t h, int64_t queries, int64_t keys,
                         uint8_t* keep) {
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t j = 0; j < keys; ++j) keep[i * keys + j] = attn::dropout_keeps(seed, probability, b, h, i, j);
  }
}

/// GFLOP/s that this machine allows for products of this type, on all threads; NaN for an error.
double peers_peak_gflops(int32_t dtype) {
  double rate = std::nan("");
  guarded([&] { rate = attn::peaks::measure_products(dtype == 0 ? DType::float32 : DType::bfloat16); });
  return rate;
}

}  // extern "C"
