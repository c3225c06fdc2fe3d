/* attn in C11: what all calls stand on, as attn/core.h for C++: errors, tensors, threads, random numbers. attn/c.h has
 * the operator.
 *
 * Errors. A function that can fail returns an attn_status; nothing has been written then, and attn_last_error() says
 * all that is wrong. No exception leaves the library. Any function may be called from any thread.
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

/* ------------------------------------------------------------------------------------------------------- threads */

/* Tasks that may run at the same time, 1 to 1024. */
int32_t attn_thread_count(void);
/* Sizes the library's own pool: 1 = the calling thread alone, at most 1024; 0, the default = one thread a processor
 * that this process may use by its affinity and the quota of its container. */
attn_status attn_set_thread_count(int32_t threads);

/* A task of a job: to be called as body(job, task). */
typedef void (*attn_task)(void* job, int64_t task);

/* Threads of the host, in place of the library's own. */
typedef struct attn_executor {
  size_t struct_size;
  void* context; /* handed to both functions */
  /* Runs body(job, 0) ... body(job, tasks - 1), each once, in any order, on any threads; returns when all are done.
   * Must be callable from many threads at once and from inside a task. */
  void (*run)(void* context, int64_t tasks, attn_task body, void* job);
  /* How many tasks may run at the same time; below 1 counts as 1. */
  int32_t (*threads)(void* context);
} attn_executor;

/* The struct is copied; its context must outlive its use. Null brings the library's pool back. */
attn_status attn_set_executor(const attn_executor* executor);
/* Runs body(job, 0) ... body(job, tasks - 1) on the current executor. */
attn_status attn_parallel_for(int64_t tasks, attn_task body, void* job);

/* ------------------------------------------------------------------------------------------------ random numbers */

/* Philox4x32-10: words[4] of a key and counter[4]. */
attn_status attn_philox(uint64_t key, const uint32_t* counter, uint32_t* words);

/* A stream of numbers, the same on every machine: attn_random random = {.seed = 1}; It is all there is: a copy goes on
 * from where the original stood. */
typedef struct attn_random {
  uint64_t seed;
  uint64_t stream;
  uint64_t drawn; /* words of 32 bits so far; the functions count it */
} attn_random;

attn_status attn_random_next(attn_random* random, uint32_t* word);
attn_status attn_random_uniform(attn_random* random, double* value);               /* in [0, 1) */
attn_status attn_random_normal(attn_random* random, double* value);                /* mean 0, variance 1 */
attn_status attn_random_below(attn_random* random, int64_t bound, int64_t* value); /* in [0, bound) */
/* Normal numbers of mean 0 into a tensor of a floating type, in the order of its indices. */
attn_status attn_fill_normal(attn_random* random, double deviation, const attn_tensor* x);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
