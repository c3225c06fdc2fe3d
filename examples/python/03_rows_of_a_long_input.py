"""Reading the attention of a 32,768-token input: any row, from q, k and the log-sum-exp, without the 4 GB matrix."""

import resource

import numpy as np

import attention_cpp

LENGTH, WIDTH, NEEDLE = 32_768, 64, 12_345

random = np.random.default_rng(0)
q, k, v = (random.standard_normal((1, 1, LENGTH, WIDTH), dtype=np.float32) for _ in range(3))
q[0, 0, -1] = 1.5 * k[0, 0, NEEDLE]  # the last token looks for one far after

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
out, lse = attention_cpp.attention(q, k, v, causal=True, return_lse=True)
row = attention_cpp.attention_weights(q, k, lse, rows=LENGTH - 1, causal=True)[0, 0, 0]

print(f"the last row has {row.size} weights that sum to {row.sum():.5f}")
print(f"the largest, {row.max():.3f}, is on token {row.argmax()}")
megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(f"all this took less than 64 MB: {megabytes < 64}; the matrix would be {LENGTH**2 * 4 / 2**20:.0f} MB")
