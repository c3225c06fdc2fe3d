/* The C interface: a causal layer over a prompt, then one token more with a paged cache, and what an error looks like.
 */
#include <stdio.h>

#include "attn/c.h"

enum { heads = 2, tokens = 5, width = 4 };

int main(void) {
  float q[heads * tokens * width], k[heads * tokens * width], v[heads * tokens * width], out[heads * tokens * width];
  for (int n = 0; n < heads * tokens * width; ++n) {
    q[n] = (float)(n % 7) - 3;
    k[n] = (float)(n % 5) - 2;
    v[n] = (float)(n / width);
  }
  const int64_t size[] = {1, heads, tokens, width};
  const attn_tensor tq = attn_dense(q, ATTN_FLOAT32, 4, size), tk = attn_dense(k, ATTN_FLOAT32, 4, size);
  const attn_tensor tv = attn_dense(v, ATTN_FLOAT32, 4, size), tout = attn_dense(out, ATTN_FLOAT32, 4, size);
  const attn_options options = {.struct_size = sizeof options, .causal = 1};
  if (attn_attention(&tq, &tk, &tv, &tout, NULL, &options) != ATTN_OK) return 1;
  printf("prompt: the last token of head 0 sees %.4f\n", (double)out[(tokens - 1) * width]);

  const attn_kv_cache_config config = {.struct_size = sizeof config, .kv_heads = heads, .head_dim = width};
  attn_kv_cache* cache = NULL;
  int64_t id = 0;
  if (attn_kv_cache_create(&config, &cache) != ATTN_OK || attn_kv_cache_add(cache, &id) != ATTN_OK) return 1;
  if (attn_kv_cache_append(cache, id, &tk, &tv) != ATTN_OK) return 1;

  attn_tensor last = tq, state = tout; /* the last query alone, in place: a view needs no copy */
  last.data = q + (tokens - 1) * width;
  last.size[2] = state.size[2] = 1;
  const int64_t starts[] = {0, 1};
  const attn_int64s ids = {&id, 1}, cu_seqlens_q = {starts, 2};
  if (attn_kv_cache_attend(cache, ids, cu_seqlens_q, &last, &state, NULL, NULL) != ATTN_OK) return 1;
  printf("cache:  the same token sees           %.4f\n", (double)out[0]);
  attn_kv_cache_destroy(cache);

  attn_tensor narrow = tk;
  narrow.size[3] = 3;
  if (attn_attention(&tq, &narrow, &tv, &tout, NULL, NULL) != ATTN_INVALID_ARGUMENT) return 1;
  printf("%s\n", attn_last_error());
  return 0;
}
