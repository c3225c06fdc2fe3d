/* attn in C11: the operator of attn/attention.h for C and for every language that calls C. Shapes, meanings and options
 * are those of docs/operators/attention.md; examples/03_plain_c.c is a program.
 *
 * Errors. A function that can fail returns an attn_status; nothing has been written then, and attn_last_error() says
 * all that is wrong. No exception leaves the library. Any function may be called from any thread; a cache is read
 * (attend, length, pages_in_use) by many threads at once, or changed by one.
 *
 * Structs that may grow begin with struct_size, the sizeof in the caller's header, and zero is the default of every
 * field. A smaller struct leaves the fields it lacks at zero; of a larger one, what this library does not know must be
 * zero. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef enum attn_status {
  ATTN_OK = 0,
  ATTN_INVALID_ARGUMENT = 1, /* the call cannot be done as it stands; the message has every reason */
  ATTN_OUT_OF_MEMORY = 2,
  ATTN_INTERNAL_ERROR = 3 /* the system refused something, or the library has a bug */
} attn_status;

/* What the last failed call of this thread said, "" if none has failed; valid until the next one fails. */
const char* attn_last_error(void);
/* "0.1.0" */
const char* attn_version(void);

/* ------------------------------------------------------------------------------------------------------- tensors */

enum attn_dtype {
  ATTN_FLOAT32 = 0,
  ATTN_FLOAT64 = 1,
  ATTN_BFLOAT16 = 2, /* the upper 16 bits of a float32 */
  ATTN_FLOAT16 = 3,  /* IEEE 754 binary16 */
  ATTN_BOOLEAN = 4,  /* one byte, 0 or 1 */
  ATTN_INT32 = 5,
  ATTN_INT64 = 6
};

/* Memory that the caller owns, read or written in place. A tensor that is not wanted or not given is a null pointer. */
typedef struct attn_tensor {
  void* data;
  int32_t dtype;     /* of enum attn_dtype */
  int32_t rank;      /* 1 to 4 */
  int64_t size[4];   /* the first `rank` of them, slowest axis first */
  int64_t stride[4]; /* in elements; 0 repeats, a negative one walks backwards */
} attn_tensor;

/* A dense row-major tensor. What cannot be one (rank, size) is refused by the call that gets it. */
attn_tensor attn_dense(void* data, int32_t dtype, int32_t rank, const int64_t* size);

typedef struct attn_int64s {
  const int64_t* data;
  int64_t count; /* 0 = not given */
} attn_int64s;

typedef struct attn_floats {
  const float* data;
  int64_t count; /* 0 = not given */
} attn_floats;

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
} attn_plan;
attn_status attn_explain(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v, const attn_options* options,
                         attn_plan* plan);
attn_status attn_explain_backward(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v,
                                  const attn_options* options, int32_t with_dbias, attn_plan* plan);

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
attn_status attn_cache_length(const attn_cache* cache, int64_t sequence, int64_t* length);
attn_status attn_cache_pages_in_use(const attn_cache* cache, int64_t* pages);
/* Sequence s of `sequences` has the queries cu_query[s] .. cu_query[s + 1] of q [1, H, total, D]; out and lse, which
 * may be null, likewise. Null options: causal, aligned bottom_right. */
attn_status attn_cache_attend(const attn_cache* cache, attn_int64s sequences, attn_int64s cu_query,
                              const attn_tensor* q, const attn_tensor* out, const attn_tensor* lse,
                              const attn_options* options);

/* --------------------------------------------------------------------------------- instruction sets and threads */

/* Those that this CPU can run, best first; null after the last. */
const char* attn_isa_available(int64_t index);
attn_status attn_isa_active(const char** name);
attn_status attn_isa_set(const char* name);

/* Tasks that may run at the same time. */
int32_t attn_thread_count(void);
/* 0 = one a hardware core. */
attn_status attn_set_thread_count(int32_t threads);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
