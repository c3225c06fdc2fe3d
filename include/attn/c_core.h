/* attn in C11: errors, tensors, threads and random numbers, as attn/core.h in C++. attn/c.h has the operator.
 *
 * ```c
 * #include <stdio.h>
 * #include "attn/c_core.h"
 * int main(void) {
 *   float x[12];
 *   const int64_t size[] = {3, 4};
 *   const attn_tensor tensor = attn_dense(x, ATTN_FLOAT32, 2, size);
 *   attn_random random = {.seed = 1};
 *   if (attn_fill_normal(&random, 1.0, &tensor) != ATTN_OK) puts(attn_last_error());
 *   return 0;
 * }
 * ```
 *
 * A function that can fail returns an attn_status. It has written nothing then, and attn_last_error() has every reason.
 * No exception leaves the library. Any thread may call any function.
 *
 * Structs that may grow begin with struct_size, the sizeof in the caller's header; zero is the default of every field.
 * Fields that a smaller struct lacks are zero. Fields of a larger struct that this library does not know must be zero.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef enum attn_status {
  ATTN_OK = 0,
  ATTN_INVALID_ARGUMENT = 1, /* the message has every reason */
  ATTN_OUT_OF_MEMORY = 2,
  ATTN_INTERNAL_ERROR = 3 /* the system refused a request, or the library has a bug */
} attn_status;

/* The message of the last failed call of this thread, "" if none failed; valid until the next failure. */
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

/* A view of memory that the caller owns. A null pointer to a tensor means "not given" or "not wanted". */
typedef struct attn_tensor {
  void* data;
  int32_t dtype;     /* of enum attn_dtype */
  int32_t rank;      /* 1 to 4 */
  int64_t size[4];   /* the first `rank` of them, slowest axis first */
  int64_t stride[4]; /* in elements; may be 0 or negative */
} attn_tensor;

/* A dense row-major tensor. Functions that take it check rank and sizes. */
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

/* The number of tasks that can run at the same time, 1 to 1024. */
int32_t attn_thread_count(void);
/* Sets the size of the library's own pool, at most 1024. 1 is the calling thread only. 0, the default, is one thread
 * per processor that the affinity of the process and the quota of its container allow. */
attn_status attn_set_thread_count(int32_t threads);

/* The function of a job: an executor calls body(job, task). */
typedef void (*attn_task)(void* job, int64_t task);

/* Runs tasks on threads of the host instead of the library's pool. */
typedef struct attn_executor {
  size_t struct_size;
  void* context; /* first argument of both functions */
  /* Runs body(job, 0) to body(job, tasks - 1), each once, in any order, on any threads, and returns when all are done.
   * Several threads may call it at once, and a task may call it. */
  void (*run)(void* context, int64_t tasks, attn_task body, void* job);
  /* The number of tasks that can run at the same time; below 1 counts as 1. */
  int32_t (*threads)(void* context);
} attn_executor;

/* Copies the struct and borrows its context until the next call. Null restores the library's pool. */
attn_status attn_set_executor(const attn_executor* executor);
/* Runs body(job, 0) to body(job, tasks - 1) on the current executor. */
attn_status attn_parallel_for(int64_t tasks, attn_task body, void* job);

/* ------------------------------------------------------------------------------------------------ random numbers */

/* Philox4x32-10: four random words from a key and counter[4]. */
attn_status attn_philox(uint64_t key, const uint32_t* counter, uint32_t* words);

/* A stream of random numbers, the same on every machine: attn_random random = {.seed = 1}; A copy continues from the
 * same place. */
typedef struct attn_random {
  uint64_t seed;
  uint64_t stream;
  uint64_t drawn; /* 32-bit words given so far; the functions count them */
} attn_random;

attn_status attn_random_next(attn_random* random, uint32_t* word);
attn_status attn_random_uniform(attn_random* random, double* value);               /* in [0, 1) */
attn_status attn_random_normal(attn_random* random, double* value);                /* mean 0, variance 1 */
attn_status attn_random_below(attn_random* random, int64_t bound, int64_t* value); /* in [0, bound) */
/* Fills a tensor of a floating type with normal numbers of mean 0 and this standard deviation, in index order. */
attn_status attn_fill_normal(attn_random* random, double deviation, const attn_tensor* x);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
