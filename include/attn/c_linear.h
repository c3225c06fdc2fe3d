/* attn in C11: linear attention and the short convolution in front of it, as attn/linear_attention.h and
 * attn/linear_convolution.h in C++. docs/operators/linear_attention.md has the formulas.
 *
 * ```c
 * #include "attn/c_linear.h"
 * int main(void) {
 *   static float q[10 * 8], k[10 * 8], v[10 * 8], out[10 * 8], memory[8 * 8];
 *   const int64_t size[] = {1, 1, 10, 8}, state_size[] = {1, 1, 8, 8};
 *   const attn_tensor tensors[] = {attn_dense(q, ATTN_FLOAT32, 4, size), attn_dense(k, ATTN_FLOAT32, 4, size),
 *                                  attn_dense(v, ATTN_FLOAT32, 4, size), attn_dense(out, ATTN_FLOAT32, 4, size)};
 *   const attn_tensor state = attn_dense(memory, ATTN_FLOAT32, 4, state_size);
 *   const attn_linear_options options = {.struct_size = sizeof options, .initial_state = &state, .delta = 1};
 *   return attn_linear_attention(&tensors[0], &tensors[1], &tensors[2], &tensors[3], &state, &options);
 * }
 * ``` */
#pragma once

#include "attn/c_core.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------------------------------------- linear attention */

/* Every option of LinearAttentionOptions, with the same name. All of them compose. A field that is zero or null is not
 * given. N is the number of sequences: B, or that of cu_seqlens. */
typedef struct attn_linear_options {
  size_t struct_size;
  const double* scale;              /* of the output; null: 1 / sqrt(Dk) */
  const attn_tensor* log_decay;     /* floating [B|1, Hv|1, L|1, Dk|1], at most 0; null: no decay */
  const attn_tensor* beta;          /* floating [B, Hv, L]; null: 1 */
  const double* l2norm_epsilon;     /* null: 1e-6 */
  const attn_tensor* initial_state; /* [N, Hv, Dk, Dv], or Dv + 1 with normalize; null: 0 */
  attn_int64s cu_seqlens;           /* [N + 1], packed sequences, B = 1: the start of each in L, then its end */
  int32_t delta;                    /* 1: the delta rule */
  int32_t l2norm;                   /* 1: q and k are divided by their lengths first */
  int32_t normalize;                /* 1: the output is divided by the sum of its weights */
  int32_t reserved;                 /* zero */
} attn_linear_options;

/* out = linear_attention(q, k, v): q, k [B, H, L, Dk], v, out [B, Hv, L, Dv], Hv a multiple of H. final_state, of
 * initial_state's shape, float32, or float64 for float64, may be null, or the memory of initial_state: then a call with
 * one token is one step of decoding. Null options are the defaults, here and below. */
attn_status attn_linear_attention(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v,
                                  const attn_tensor* out, const attn_tensor* final_state,
                                  const attn_linear_options* options);

/* The gradients that attn_linear_attention_backward() writes; a null one is not computed. */
typedef struct attn_linear_gradients {
  size_t struct_size;
  const attn_tensor* dq;
  const attn_tensor* dk;
  const attn_tensor* dv;
  const attn_tensor* dlog_decay;     /* log_decay's shape */
  const attn_tensor* dbeta;          /* [B, Hv, L] */
  const attn_tensor* dinitial_state; /* the state's shape, also where no initial state was given */
} attn_linear_gradients;

/* Gradients from dout [B, Hv, L, Dv] and, if it is not null, dfinal_state; options are the forward's. */
attn_status attn_linear_attention_backward(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v,
                                           const attn_tensor* dout, const attn_tensor* dfinal_state,
                                           const attn_linear_gradients* gradients, const attn_linear_options* options);

/* ---------------------------------------------------------------------------------------------- short convolution */

/* Every option of CausalConvolutionOptions, with the same name. A field that is zero or null is not given. */
typedef struct attn_convolution_options {
  size_t struct_size;
  const attn_tensor* bias;          /* floating [C] */
  const attn_tensor* initial_state; /* [N, C, W - 1], of x's type: the tokens before each sequence; null: 0 */
  attn_int64s cu_seqlens;           /* [N + 1], packed sequences, B = 1: the start of each in L, then its end */
  const attn_tensor* segment_ids;   /* int32 or int64 [B, L]; not together with states */
  int32_t silu;                     /* 1: the result is z / (1 + exp(-z)) of the sum z */
  int32_t reserved;                 /* zero */
} attn_convolution_options;

/* out = causal_convolution(x, weight): x, out [B, L, C], weight [C, W], W at most 8. final_state [N, C, W - 1], the
 * last tokens of each sequence, may be null, or the memory of initial_state. */
attn_status attn_causal_convolution(const attn_tensor* x, const attn_tensor* weight, const attn_tensor* out,
                                    const attn_tensor* final_state, const attn_convolution_options* options);

/* The gradients that attn_causal_convolution_backward() writes; a null one is not computed. */
typedef struct attn_convolution_gradients {
  size_t struct_size;
  const attn_tensor* dx;
  const attn_tensor* dweight;
  const attn_tensor* dbias;          /* [C] */
  const attn_tensor* dinitial_state; /* [N, C, W - 1] */
} attn_convolution_gradients;

/* Gradients from dout [B, L, C] and, if it is not null, dfinal_state [N, C, W - 1]; options are the forward's. */
attn_status attn_causal_convolution_backward(const attn_tensor* x, const attn_tensor* weight, const attn_tensor* dout,
                                             const attn_tensor* dfinal_state,
                                             const attn_convolution_gradients* gradients,
                                             const attn_convolution_options* options);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
