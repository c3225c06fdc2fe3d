"""A small causal transformer in plain torch, trained with attention dropout, whose attention attention_cpp computes.

It learns to repeat: the second half of each sequence is its first half. Only attention can look that far back.
"""

import torch
from torch import nn

import attention_cpp.torch

VOCABULARY, HALF, WIDTH = 16, 8, 64

attention_cpp.torch.enable()  # nn.TransformerEncoderLayer calls scaled_dot_product_attention
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(2 * HALF, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        length = ids.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.tokens(ids) + self.places(torch.arange(length))
        return self.head(self.layers(x, mask=causal, is_causal=True))


def batch(count):
    first = torch.randint(VOCABULARY, (count, HALF))
    return torch.cat([first, first], dim=1)


model = Model()
optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(1, 151):
    ids = batch(64)
    logits = model(ids[:, :-1])
    loss = nn.functional.cross_entropy(logits[:, HALF - 1:].flatten(0, 1), ids[:, HALF:].flatten())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step in (1, 50, 100, 150):
        print(f"step {step}: loss {loss.item():.3f}")

model.eval()
with torch.no_grad():
    ids = batch(256)
    right = (model(ids[:, :-1])[:, HALF - 1:].argmax(-1) == ids[:, HALF:]).float().mean()
print(f"{100 * right:.1f} % of the second half is right")
