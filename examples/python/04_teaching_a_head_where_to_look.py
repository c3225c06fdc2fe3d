"""A loss on attention itself: one head of four learns to look at the token before, from 16 rows of a large matrix.

The other heads and rows are never computed as weights: a step takes the memory of the 16 rows, not of 4 x 2,048^2.
"""

import torch

from attention_cpp.torch import attention, attention_weights

LENGTH, HEADS, WIDTH, TAUGHT = 2048, 4, 32, 2

torch.manual_seed(0)
places = torch.arange(LENGTH)[:, None] / 10_000 ** (torch.arange(0, 64, 2) / 64)
x = torch.cat([places.sin(), places.cos()], -1)[None]  # [1, LENGTH, 64]: where a token is
project = torch.nn.Linear(64, 3 * HEADS * WIDTH)
optimizer = torch.optim.Adam(project.parameters(), 0.02)

for step in range(60):
    q, k, v = project(x).unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)  # [1, HEADS, LENGTH, WIDTH] each
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    first = int(torch.randint(1, LENGTH - 16, ()))
    rows = range(first, first + 16)
    weights = attention_weights(q, k, lse, rows, heads=TAUGHT, causal=True)  # [1, 1, 16, LENGTH]
    before = weights[0, 0, torch.arange(16), torch.arange(16) + first - 1]
    loss = -before.clamp_min(1e-30).log().mean() + 1e-3 * out.square().mean()  # both go through one backward
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"step {step + 1}: the token before has {before.mean():.2f} of the weight, loss {loss.item():.2f}")
