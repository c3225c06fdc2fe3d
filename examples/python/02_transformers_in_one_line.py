"""A transformers model on attention_cpp: one line before it is built. Random weights; from_pretrained is the same."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import attention_cpp.transformers

attention_cpp.transformers.register()  # the one line

torch.manual_seed(0)
config = LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2)
model = AutoModelForCausalLM.from_config(config, attn_implementation="attention_cpp").eval()

prompts = torch.tensor([[1, 2, 3, 4, 5], [0, 0, 6, 7, 8]])  # the second one is padded on the left
attended = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
ours = model.generate(prompts, attention_mask=attended, max_new_tokens=8, do_sample=False, pad_token_id=0)
print("attention_cpp:", ours[:, 5:].tolist())

model.set_attn_implementation("eager")
theirs = model.generate(prompts, attention_mask=attended, max_new_tokens=8, do_sample=False, pad_token_id=0)
print("the same as eager:", torch.equal(ours, theirs))

model.set_attn_implementation("attention_cpp")
weights = model(prompts[:1], output_attentions=True).attentions
print("weights of the last token, layer 0, head 0:", [round(w, 3) for w in weights[0][0, 0, -1].tolist()])
