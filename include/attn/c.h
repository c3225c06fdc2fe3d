/* attn in C11: the operator of attn/attention.h for C and for every language that calls C. Shapes, meanings and options
 * are those of docs/operators/attention.md; examples/03_plain_c.c is a program. attn/c_core.h has what all calls stand
 * on: errors, tensors, threads, random numbers; attn/c_statistics.h the statistics of the attention matrix.
 *
 * A cache is read (attend, statistics, contains, length, pages_in_use) by many threads at once, or changed by one. A
 * message has all that is wrong with a call; where q, k or v is null or of a wrong rank, what needs its shape is left
 * out.
 *
 * In C++ alone: the float64 reference, measures of heads (attn/heads.h), rates of the machine (attn/peaks.h), the
 * library's pool as an executor to wrap (own_executor()), and layers, models and training. */
#pragma once

#include "attn/c_core.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------------- options */

/* Where query i stands on the key axis (p_i); must be named when Lq != Lk and it matters. */
enum attn_alignment {
  ATTN_ALIGNMENT_UNSPECIFIED = 0,
  ATTN_ALIGNMENT_TOP_LEFT = 1,     /* p_i = i */
  ATTN_ALIGNMENT_BOTTOM_RIGHT = 2, /* the last query sees the last key */
  ATTN_ALIGNMENT_OFFSET = 3        /* p_i = i + offset[b] */
};

/* How float32 numbers enter products on CPUs with matrix tiles; elsewhere all are full. */
enum attn_float32_precision {
  ATTN_FLOAT32_FULL = 0, /* three bfloat16 parts: the accuracy of float32 arithmetic */
  ATTN_FLOAT32_HIGH = 1, /* two parts: 16 bits */
  ATTN_FLOAT32_FAST = 2  /* one */
};

/* All compose. attn_options options = {.struct_size = sizeof options, .causal = 1}; */
typedef struct attn_options {
  size_t struct_size;
  int32_t causal;     /* 1: no key after p_i */
  int32_t alignment;  /* of enum attn_alignment */
  int32_t has_scale;  /* 1: `scale` is the factor on <q, k>, else 1 / sqrt(D) */
  int32_t has_window; /* 1: keys from p_i - window_left to p_i + window_right; -1 = no limit on that side */
  double scale;
  int64_t window_left;
  int64_t window_right;
  double softcap;                    /* c > 0: s = c tanh(s / c) */
  attn_int64s key_length;            /* [B] */
  attn_int64s query_length;          /* [B] */
  attn_int64s offset;                /* [B] */
  const attn_tensor* mask;           /* boolean [B|1, H|1, Lq|1, Lk|1], 1 = attend */
  const attn_tensor* bias;           /* floating [B|1, H|1, Lq|1, Lk|1] */
  attn_floats alibi_slopes;          /* [H] */
  const attn_tensor* query_document; /* int32 or int64 [B|1, Lq] */
  const attn_tensor* key_document;   /* int32 or int64 [B|1, Lk] */
  attn_int64s cu_query;              /* packed sequences, B = 1: starts of each in Lq, then the end */
  attn_int64s cu_key;
  const attn_tensor* blocks; /* boolean [B|1, H|1, ceil(Lq / query_block), ceil(Lk / key_block)] */
  int64_t query_block;
  int64_t key_block;
  attn_floats sink; /* [H] */
  double dropout;   /* in [0, 1) */
  uint64_t seed;
  int32_t float32_precision; /* of enum attn_float32_precision */
  int32_t same_bits;         /* 1: a row's bits are the same however many rows the call has */
} attn_options;

/* ------------------------------------------------------------------------------------------------------ operator */

/* out = attention(q, k, v): q [B, H, Lq, D], k [B, Hk, Lk, D], v [B, Hk, Lk, Dv], out [B, H, Lq, Dv]. lse [B, H, Lq]
 * may be null; it is float32, or float64 for float64. Null options are the defaults, here and below. */
attn_status attn_attention(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v, const attn_tensor* out,
                           const attn_tensor* lse, const attn_options* options);

/* Where the gradients go; a null one is not computed. */
typedef struct attn_gradients {
  size_t struct_size;
  const attn_tensor* dq;
  const attn_tensor* dk;
  const attn_tensor* dv;
  const attn_tensor* dbias; /* the bias's shape */
  const attn_tensor* dsink; /* [H] */
} attn_gradients;

/* Gradients from dout and, where it is not null, dlse, given the forward's out, lse and options. */
attn_status attn_attention_backward(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v,
                                    const attn_tensor* out, const attn_tensor* lse, const attn_tensor* dout,
                                    const attn_tensor* dlse, const attn_gradients* gradients,
                                    const attn_options* options);

/* weights [B, H, rows, columns]: the rectangle of the attention matrix that begins at (first_query, first_key). */
attn_status attn_attention_weights(const attn_tensor* q, const attn_tensor* k, const attn_tensor* lse,
                                   const attn_tensor* weights, int64_t first_query, int64_t first_key,
                                   const attn_options* options);

/* (out, lse) <- the state of attention over the union of two disjoint key sets. */
attn_status attn_merge(const attn_tensor* out, const attn_tensor* lse, const attn_tensor* out_b,
                       const attn_tensor* lse_b);

/* What a call will do. The texts are valid until this thread asks again. */
typedef struct attn_plan {
  size_t struct_size;
  const char* path;
  const char* isa;
  int64_t tasks;
  int64_t scratch_bytes;
  double flops;
  int32_t unit_type; /* of enum attn_dtype: what the multiply-add unit takes */
  int32_t reserved;
  double unit_flops; /* of that unit */
} attn_plan;
attn_status attn_explain(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v, const attn_options* options,
                         attn_plan* plan);
attn_status attn_explain_backward(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v,
                                  const attn_options* options, int32_t with_dbias, attn_plan* plan);

/* *keeps = 1 if dropout keeps the weight at (b, h, i, j), else 0. */
attn_status attn_dropout_keeps(uint64_t seed, double probability, int64_t b, int64_t h, int64_t i, int64_t j,
                               int32_t* keeps);

/* ---------------------------------------------------------------------------------------- paged key/value cache */

typedef struct attn_cache attn_cache;

typedef struct attn_cache_config {
  size_t struct_size;
  int64_t kv_heads;  /* Hk */
  int64_t head_dim;  /* D */
  int64_t value_dim; /* Dv; 0 = head_dim */
  int64_t page_size; /* tokens a page; 0 = 64 */
  int64_t max_pages; /* upper bound on memory; 0 = none */
  int32_t dtype;
  int32_t reserved; /* zero */
} attn_cache_config;

attn_status attn_cache_create(const attn_cache_config* config, attn_cache** cache);
void attn_cache_destroy(attn_cache* cache); /* null is allowed */

/* A new, empty sequence. */
attn_status attn_cache_add(attn_cache* cache, int64_t* sequence);
/* A new sequence that shares the first `length` tokens of `sequence`. */
attn_status attn_cache_fork(attn_cache* cache, int64_t sequence, int64_t length, int64_t* fork);
/* k [1, Hk, n, D], v [1, Hk, n, Dv]: n tokens more, all or none. */
attn_status attn_cache_append(attn_cache* cache, int64_t sequence, const attn_tensor* k, const attn_tensor* v);
/* Forgets the tokens from `length` on. */
attn_status attn_cache_truncate(attn_cache* cache, int64_t sequence, int64_t length);
attn_status attn_cache_remove(attn_cache* cache, int64_t sequence);
/* *contains = 1 if there is such a sequence, else 0. */
attn_status attn_cache_contains(const attn_cache* cache, int64_t sequence, int32_t* contains);
attn_status attn_cache_length(const attn_cache* cache, int64_t sequence, int64_t* length);
attn_status attn_cache_pages_in_use(const attn_cache* cache, int64_t* pages);
/* Sequence s of `sequences` has the queries cu_query[s] .. cu_query[s + 1] of q [1, H, total, D]; out and lse, which
 * may be null, likewise. Null options: causal, aligned bottom_right. */
attn_status attn_cache_attend(const attn_cache* cache, attn_int64s sequences, attn_int64s cu_query,
                              const attn_tensor* q, const attn_tensor* out, const attn_tensor* lse,
                              const attn_options* options);

/* ---------------------------------------------------------------------------------------------- instruction sets */

/* Those that this CPU can run, best first; null after the last. */
const char* attn_isa_available(int64_t index);
attn_status attn_isa_active(const char** name);
attn_status attn_isa_set(const char* name);
/* Why one that this CPU has is not among them, "" if all are; valid until this thread asks again. */
attn_status attn_isa_missing(const char** reason);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
