/* attn in C11: statistics of the attention matrix P in one pass that never stores it, as attn/attention_statistics.h
 * for C++; docs/operators/attention_statistics.md has the formulas. A null tensor is not computed. */
#pragma once

#include "attn/c.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* Consecutive keys, both ends included: p_i + low to p_i + high around where the query stands, or low to high, counted
 * from the first key. */
typedef struct attn_key_band {
  int64_t low;
  int64_t high;
  int32_t from_start; /* 1: counted from the first key */
  int32_t reserved;   /* zero */
} attn_key_band;

/* Of rows, [B, H, Lq], or their means over a head, [B, H]; of lse's type, float32 or float64. */
typedef struct attn_row_statistics {
  size_t struct_size;
  const attn_tensor* sum;           /* sum_j P_ij */
  const attn_tensor* entropy;       /* in nats */
  const attn_tensor* participation; /* 1 / sum_j P_ij^2 */
  const attn_tensor* maximum;
  const attn_tensor* distance;   /* sum_j P_ij |p_i - j| */
  const attn_tensor* same_token; /* the mass on the keys with the query's id */
  const attn_tensor* bands;      /* [.., bands] */
  const attn_tensor* labels;     /* [.., sets] */
} attn_row_statistics;

/* P pooled into cells [B, H, R, C]: the mean, or the largest, of a rectangle of P. */
typedef struct attn_picture {
  size_t struct_size;
  const attn_tensor* cells;
  int32_t maximum;  /* 1: the largest */
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
  const attn_tensor* position;        /* int64 [B, H, Lq]: the key of the maximum */
  const attn_tensor* top_weight;      /* [B, H, Lq, n]: the n largest weights */
  const attn_tensor* top_key;         /* int64 [B, H, Lq, n] */
  const attn_tensor* column_mass;     /* [B, H, Lk] */
  const attn_tensor* column_position; /* [B, H, Lk] */
  const attn_picture* picture;
  const attn_key_band* bands; /* at most 64 */
  int64_t band_count;
  const attn_tensor* labels;      /* int32 or int64 [B|1, Lk]: the set of each key; negative: in none */
  const attn_tensor* query_token; /* int32 or int64 [B|1, Lq] */
  const attn_tensor* key_token;   /* int32 or int64 [B|1, Lk] */
  const attn_tensor* key_factor;  /* [B|1, H|Hk|1, Lk]: multiplies P in column_mass and in the picture */
} attn_statistics;

/* Computes what `wanted` has tensors for, given the lse and the options of an attn_attention(). An lse that does not
 * belong to them is an error that is found after the pass: the results are then of no use. */
attn_status attn_attention_statistics(const attn_tensor* q, const attn_tensor* k, const attn_tensor* lse,
                                      const attn_statistics* wanted, const attn_options* options);

/* Gradients dq, dk, dbias and dsink of a loss by statistics of rows: `drows` has its gradients by the tensors of
 * statistics->rows, which attn_attention_statistics() has filled. */
attn_status attn_attention_statistics_backward(const attn_tensor* q, const attn_tensor* k, const attn_tensor* lse,
                                               const attn_statistics* statistics, const attn_row_statistics* drows,
                                               const attn_gradients* gradients, const attn_options* options);

/* The same of an attn_cache_attend(), given its lse: the keys of all sequences, one after the other, are the axis Lk.
 */
attn_status attn_cache_statistics(const attn_cache* cache, attn_int64s sequences, attn_int64s cu_query,
                                  const attn_tensor* q, const attn_tensor* lse, const attn_statistics* wanted,
                                  const attn_options* options);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
