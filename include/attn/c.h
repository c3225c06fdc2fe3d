/* attn in C11: the operator of attn/attention.h for C and for every language that calls C. Shapes, meanings and options
 * are those of docs/operators/attention.md. attn/c_core.h has errors, tensors, threads and random numbers,
 * attn/c_statistics.h the statistics of the attention matrix, attn/c_linear.h linear attention.
 *
 * ```c
 * #include "attn/c.h"
 * int main(void) {
 *   static float q[100 * 64], k[100 * 64], v[100 * 64], out[100 * 64];
 *   const int64_t size[] = {1, 1, 100, 64};
 *   const attn_tensor tensors[] = {attn_dense(q, ATTN_FLOAT32, 4, size), attn_dense(k, ATTN_FLOAT32, 4, size),
 *                                  attn_dense(v, ATTN_FLOAT32, 4, size), attn_dense(out, ATTN_FLOAT32, 4, size)};
 *   const attn_options options = {.struct_size = sizeof options, .causal = 1};
 *   return attn_attention(&tensors[0], &tensors[1], &tensors[2], &tensors[3], NULL, &options);
 * }
 * ```
 *
 * Tensors, lists and options are borrowed until a function returns. Many threads may read a cache (attend, statistics,
 * contains, length, pages_in_use) at once; changing it needs exclusive access. An error message has every reason; where
 * q, k or v is null or has a wrong rank, reasons that need its shape are missing.
 *
 * Only C++ has: the float64 reference, measures of heads (attn/heads.h), rates of the machine (attn/peaks.h), the
 * library's pool as an executor to wrap (own_executor()), and layers, models and training. */
#pragma once

#include "attn/c_core.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------------- options */

/* The position p_i of query i on the key axis, which causal, window and ALiBi use. It must be given where Lq != Lk. */
enum attn_alignment {
  ATTN_ALIGNMENT_UNSPECIFIED = 0,
  ATTN_ALIGNMENT_TOP_LEFT = 1,     /* p_i = i */
  ATTN_ALIGNMENT_BOTTOM_RIGHT = 2, /* the last query is at the last key */
  ATTN_ALIGNMENT_OFFSET = 3        /* p_i = i + offset[b] */
};

/* The precision of float32 products on CPUs with matrix tiles. Other CPUs use full. */
enum attn_float32_precision {
  ATTN_FLOAT32_FULL = 0, /* three bfloat16 parts: the accuracy of float32 arithmetic */
  ATTN_FLOAT32_HIGH = 1, /* two parts: 16 bits */
  ATTN_FLOAT32_FAST = 2  /* one */
};

/* A sliding window: keys from p_i - left to p_i + right, both included; -1 sets no limit on that side. */
typedef struct attn_window {
  int64_t left;
  int64_t right;
} attn_window;

/* A block-sparse layout in one of two forms; the other one is null. Query i may attend to key j if
 *   allowed[b, h, i / query_block, j / key_block]; or
 *   j / key_block is one of indices[offsets[b, h, n]] to indices[offsets[b, h, n + 1] - 1], which rise, with
 *   n = i / query_block. Memory and time grow with the listed blocks only. */
typedef struct attn_blocks {
  const attn_tensor* allowed; /* boolean [B|1, H|1, ceil(Lq / query_block), ceil(Lk / key_block)] */
  int64_t query_block;
  int64_t key_block;
  const attn_tensor* offsets; /* int64 [B|1, H|1, ceil(Lq / query_block) + 1] */
  const attn_tensor* indices; /* int64 [any length]: numbers of key blocks */
} attn_blocks;

/* The place of a call in a larger problem, in which positions, lengths, packed sequences, blocks and dropout count. */
typedef struct attn_shard {
  int64_t first_batch; /* the index in the whole of batch element 0 of the call, */
  int64_t first_head;  /* of head 0, */
  int64_t first_query; /* of query 0, */
  int64_t first_key;   /* and of key 0 */
  int64_t queries;     /* Lq of the whole; 0: it ends with the call's queries */
  int64_t keys;        /* Lk of the whole; 0: it ends with the call's keys */
} attn_shard;

/* Every option of attn/attention_options.h, with the same name. All of them compose. A field that is zero or null is
 * not given. What pointers point to is borrowed until the call returns.
 *
 *   const double scale = 0.5;
 *   const attn_options options = {.struct_size = sizeof options, .scale = &scale, .causal = 1}; */
typedef struct attn_options {
  size_t struct_size;
  const double* scale;                  /* factor on <q, k>; null: 1 / sqrt(D) */
  double softcap;                       /* c > 0: s = c tanh(s / c) */
  int32_t causal;                       /* 1: no key after p_i */
  int32_t alignment;                    /* of enum attn_alignment */
  const attn_window* window;            /* null: no limit */
  attn_int64s key_length;               /* [B] */
  attn_int64s query_length;             /* [B] */
  attn_int64s offset;                   /* [B] */
  const attn_tensor* mask;              /* boolean [B|1, H|1, Lq|1, Lk|1], 1 = attend */
  const attn_tensor* bias;              /* floating [B|1, H|1, Lq|1, Lk|1] */
  attn_floats alibi_slopes;             /* [H] */
  const attn_tensor* query_segment_ids; /* int32 or int64 [B|1, Lq] */
  const attn_tensor* key_segment_ids;   /* int32 or int64 [B|1, Lk] */
  attn_int64s cu_seqlens_q;             /* packed sequences, B = 1: the start of each in Lq, then Lq */
  attn_int64s cu_seqlens_k;
  const attn_blocks* blocks; /* null: every block is allowed */
  attn_floats sink;          /* [H] */
  double dropout;            /* in [0, 1) */
  uint64_t seed;
  int32_t float32_precision; /* of enum attn_float32_precision */
  int32_t batch_invariant;   /* 1: a row has the same bits for any number of rows */
  const attn_shard* shard;   /* null: the call is the whole problem */
} attn_options;

/* ------------------------------------------------------------------------------------------------------ operator */

/* out = attention(q, k, v): q [B, H, Lq, D], k [B, Hk, Lk, D], v [B, Hk, Lk, Dv], out [B, H, Lq, Dv]. lse [B, H, Lq],
 * float32, or float64 for float64, may be null. Null options are the defaults, here and below. */
attn_status attn_attention(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v, const attn_tensor* out,
                           const attn_tensor* lse, const attn_options* options);

/* The gradients that attn_attention_backward() writes; a null one is not computed. */
typedef struct attn_gradients {
  size_t struct_size;
  const attn_tensor* dq;
  const attn_tensor* dk;
  const attn_tensor* dv;
  const attn_tensor* dbias; /* the bias's shape */
  const attn_tensor* dsink; /* [H] */
} attn_gradients;

/* Gradients from dout [B, H, Lq, Dv] and, if it is not null, dlse [B, H, Lq]; out, lse and options are the forward's.
 */
attn_status attn_attention_backward(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v,
                                    const attn_tensor* out, const attn_tensor* lse, const attn_tensor* dout,
                                    const attn_tensor* dlse, const attn_gradients* gradients,
                                    const attn_options* options);

/* Writes the rectangle of the attention matrix that begins at (first_query, first_key) to weights [B, H, rows,
 * columns], float32, or float64 for float64. */
attn_status attn_attention_weights(const attn_tensor* q, const attn_tensor* k, const attn_tensor* lse,
                                   const attn_tensor* weights, int64_t first_query, int64_t first_key,
                                   const attn_options* options);

/* Merges attention over two disjoint sets of keys: (out, lse) becomes the result over their union. */
attn_status attn_merge(const attn_tensor* out, const attn_tensor* lse, const attn_tensor* out_b,
                       const attn_tensor* lse_b);

/* What a call will do. The strings are valid until the next attn_explain*() of this thread. */
typedef struct attn_plan {
  size_t struct_size;
  const char* path;
  const char* isa;
  int64_t tasks;
  int64_t scratch_bytes;
  double flops;
  int32_t unit_type; /* of enum attn_dtype: operands of the multiply-add unit */
  int32_t reserved;
  double unit_flops; /* of that unit */
} attn_plan;
attn_status attn_explain(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v, const attn_options* options,
                         attn_plan* plan);
attn_status attn_explain_backward(const attn_tensor* q, const attn_tensor* k, const attn_tensor* v,
                                  const attn_options* options, int32_t with_dbias, attn_plan* plan);

/* *keeps = 1 if dropout keeps the attention weight at (b, h, i, j), else 0. */
attn_status attn_dropout_keeps(uint64_t seed, double probability, int64_t b, int64_t h, int64_t i, int64_t j,
                               int32_t* keeps);

/* ---------------------------------------------------------------------------------------- paged key/value cache */

typedef struct attn_kv_cache attn_kv_cache;

enum attn_kv_storage {
  ATTN_KV_EXACT = 0, /* keys and values as they are given */
  ATTN_KV_INT8 = 1   /* each key and value as 8-bit integers with one float32 scale, max |x| / 127 */
};

typedef struct attn_kv_cache_config {
  size_t struct_size;
  int64_t kv_heads;  /* Hk */
  int64_t head_dim;  /* D */
  int64_t value_dim; /* Dv; 0 = head_dim */
  int64_t page_size; /* tokens per KV page; 0 = 64 */
  int64_t max_pages; /* limit on the KV pages in use; 0 = none */
  int32_t dtype;
  int32_t storage;     /* of enum attn_kv_storage */
  int64_t sink_tokens; /* with a window: the first tokens of a sequence, which a streaming cache keeps */
  int64_t window;      /* the last tokens that it keeps; 0 = the cache keeps all tokens */
} attn_kv_cache_config;

attn_status attn_kv_cache_create(const attn_kv_cache_config* config, attn_kv_cache** cache);
void attn_kv_cache_destroy(attn_kv_cache* cache); /* null is allowed */

/* Makes an empty sequence. */
attn_status attn_kv_cache_add(attn_kv_cache* cache, int64_t* sequence);
/* Makes a sequence that shares the first `length` tokens of `sequence`. */
attn_status attn_kv_cache_fork(attn_kv_cache* cache, int64_t sequence, int64_t length, int64_t* fork);
/* Copies n tokens to the end: k [1, Hk, n, D], v [1, Hk, n, Dv]. On an error nothing changes. */
attn_status attn_kv_cache_append(attn_kv_cache* cache, int64_t sequence, const attn_tensor* k, const attn_tensor* v);
/* Removes the tokens from `length` on. */
attn_status attn_kv_cache_truncate(attn_kv_cache* cache, int64_t sequence, int64_t length);
attn_status attn_kv_cache_remove(attn_kv_cache* cache, int64_t sequence);
/* *contains = 1 if the sequence exists, else 0. */
attn_status attn_kv_cache_contains(const attn_kv_cache* cache, int64_t sequence, int32_t* contains);
attn_status attn_kv_cache_length(const attn_kv_cache* cache, int64_t sequence, int64_t* length);
attn_status attn_kv_cache_pages_in_use(const attn_kv_cache* cache, int64_t* pages);
/* Sequence s of `sequences` has the queries cu_seqlens_q[s] to cu_seqlens_q[s + 1] - 1 of q [1, H, total, D]; out and
 * lse, which may be null, have these rows too. Null options: causal with bottom_right alignment. */
attn_status attn_kv_cache_attend(const attn_kv_cache* cache, attn_int64s sequences, attn_int64s cu_seqlens_q,
                                 const attn_tensor* q, const attn_tensor* out, const attn_tensor* lse,
                                 const attn_options* options);
/* The same for a streaming cache of rotary keys, which are rotated by positions in the text, as q is. sink_queries,
 * shaped as q, are the queries rotated by cache positions: min(position, sink_tokens + window - 1). */
attn_status attn_kv_cache_attend_streaming(const attn_kv_cache* cache, attn_int64s sequences, attn_int64s cu_seqlens_q,
                                           const attn_tensor* q, const attn_tensor* sink_queries,
                                           const attn_tensor* out, const attn_tensor* lse, const attn_options* options);

/* ---------------------------------------------------------------------------------------------- instruction sets */

/* The instruction sets that this CPU can run, best first; null after the last. */
const char* attn_isa_available(int64_t index);
attn_status attn_isa_active(const char** name);
attn_status attn_isa_set(const char* name);
/* Why an instruction set of this CPU is missing, "" if none is; valid until the next call of this thread. */
attn_status attn_isa_missing(const char** reason);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
