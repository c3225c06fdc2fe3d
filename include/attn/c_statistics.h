/* attn in C11: statistics of the attention matrix P in one pass that never stores it, as attn/attention_statistics.h in
 * C++. docs/operators/attention_statistics.md has the formulas. A null tensor is not computed.
 *
 * ```c
 * #include "attn/c_statistics.h"
 * int main(void) {
 *   static float x[10 * 8], out[10 * 8], lse[10], entropy[10];
 *   const int64_t size[] = {1, 1, 10, 8};
 *   const attn_tensor q = attn_dense(x, ATTN_FLOAT32, 4, size), o = attn_dense(out, ATTN_FLOAT32, 4, size);
 *   const attn_tensor l = attn_dense(lse, ATTN_FLOAT32, 3, size), e = attn_dense(entropy, ATTN_FLOAT32, 3, size);
 *   const attn_row_statistics rows = {.struct_size = sizeof rows, .entropy = &e};
 *   const attn_statistics wanted = {.struct_size = sizeof wanted, .rows = &rows};
 *   if (attn_attention(&q, &q, &q, &o, &l, NULL) != ATTN_OK) return 1;
 *   return attn_attention_statistics(&q, &q, &l, &wanted, NULL);
 * }
 * ``` */
#pragma once

#include "attn/c.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* Consecutive keys, both ends included: p_i + low to p_i + high, around the query's position, or low to high, from the
 * first key. */
typedef struct attn_key_band {
  int64_t low;
  int64_t high;
  int32_t from_start; /* 1: counted from the first key */
  int32_t reserved;   /* zero */
} attn_key_band;

/* Statistics of rows, [B, H, Lq], or their means over a head, [B, H]; of lse's type, float32 or float64. */
typedef struct attn_row_statistics {
  size_t struct_size;
  const attn_tensor* sum;           /* sum_j P_ij */
  const attn_tensor* entropy;       /* in nats */
  const attn_tensor* participation; /* 1 / sum_j P_ij^2 */
  const attn_tensor* maximum;
  const attn_tensor* distance;   /* sum_j P_ij |p_i - j| */
  const attn_tensor* same_token; /* mass of the keys with the query's id */
  const attn_tensor* bands;      /* [.., bands] */
  const attn_tensor* labels;     /* [.., sets] */
} attn_row_statistics;

/* A pooled picture of P, cells [B, H, R, C]: the mean, or the maximum, of a rectangle of P. */
typedef struct attn_picture {
  size_t struct_size;
  const attn_tensor* cells;
  int32_t maximum;  /* 1: the maximum */
  int32_t reserved; /* zero */
  int64_t first_query;
  int64_t queries; /* 0: to the end */
  int64_t first_key;
  int64_t keys; /* 0: to the end */
} attn_picture;

typedef struct attn_statistics {
  size_t struct_size;
  const attn_row_statistics* rows;
  const attn_row_statistics* means;
  const attn_tensor* argmax_key;      /* int64 [B, H, Lq]: the key of the maximum */
  const attn_tensor* top_weight;      /* [B, H, Lq, n]: the n largest weights */
  const attn_tensor* top_key;         /* int64 [B, H, Lq, n] */
  const attn_tensor* column_mass;     /* [B, H, Lk] */
  const attn_tensor* column_position; /* [B, H, Lk] */
  const attn_picture* picture;
  const attn_key_band* bands; /* at most 64 */
  int64_t band_count;
  const attn_tensor* labels;          /* int32 or int64 [B|1, Lk]: the set of each key; negative: in no set */
  const attn_tensor* query_token_ids; /* int32 or int64 [B|1, Lq] */
  const attn_tensor* key_token_ids;   /* int32 or int64 [B|1, Lk] */
  const attn_tensor* key_factor;      /* [B|1, H|Hk|1, Lk]: factors on P in column_mass and in the picture */
} attn_statistics;

/* Computes every statistic that has a tensor in `wanted`; lse and options are those of attn_attention(). An lse that
 * does not belong to them is an error, which is found after the pass: the results are then undefined. */
attn_status attn_attention_statistics(const attn_tensor* q, const attn_tensor* k, const attn_tensor* lse,
                                      const attn_statistics* wanted, const attn_options* options);

/* Gradients dq, dk, dbias and dsink of a loss that depends on row statistics: `drows` has its gradients with respect to
 * the tensors of statistics->rows, which attn_attention_statistics() has filled. */
attn_status attn_attention_statistics_backward(const attn_tensor* q, const attn_tensor* k, const attn_tensor* lse,
                                               const attn_statistics* statistics, const attn_row_statistics* drows,
                                               const attn_gradients* gradients, const attn_options* options);

/* Statistics of an attn_kv_cache_attend() call, given its lse. The axis Lk has the keys of all sequences, one after the
 * other. */
attn_status attn_kv_cache_statistics(const attn_kv_cache* cache, attn_int64s sequences, attn_int64s cu_seqlens_q,
                                     const attn_tensor* q, const attn_tensor* lse, const attn_statistics* wanted,
                                     const attn_options* options);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
