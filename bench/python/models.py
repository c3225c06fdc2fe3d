"""transformers models with eager, sdpa and attention_cpp by turns in one process: time, and peak memory of each alone.

Random weights, random tokens; "packed" is ours without padding. The results are compared before anything is timed.
Memory is by how much the largest resident set of a call exceeds what is resident before it, in a process of its own.
"""

import argparse
import copy
import functools
import subprocess
import sys

import torch
import transformers

import attention_cpp.transformers
from beside_torch import by_turns

IMPLEMENTATIONS = ("eager", "sdpa", "attention_cpp", "packed")
BERT = transformers.BertConfig()  # base: 12 layers, 12 heads, width 768
MINILM = transformers.BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536)
LLAMA = transformers.LlamaConfig(  # the shape of SmolLM-135M
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, max_position_embeddings=4096, tie_word_embeddings=True)
WIDE_LLAMA = transformers.LlamaConfig(
    vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
    num_key_value_heads=4, max_position_embeddings=4096)
GPT2 = transformers.GPT2Config()  # small: 12 layers, 12 heads, width 768
VIT = transformers.ViTConfig()  # base: 12 layers, 12 heads, width 768, 197 tokens
WHISPER = transformers.WhisperConfig()  # tiny: 4 + 4 layers, 6 heads, width 384, 1500 frames


def build(config, kind, dtype):
    attention_cpp.transformers.register()
    torch.manual_seed(0)
    return kind.from_config(config, attn_implementation="eager").to(dtype).eval()


def without_gradient(function):
    def run(model):
        with torch.no_grad():
            return function(model)
    return run


def encoder(config, sentences, length, dtype):
    """Sentences of a sixteenth of the length and more, drawn evenly."""
    model = build(config, transformers.AutoModel, dtype)
    ids = torch.randint(1000, 30000, (sentences, length))
    lengths = torch.randint(length // 16, length + 1, (sentences, 1))
    kept = torch.arange(length) < lengths
    return model, without_gradient(lambda model: model(ids, attention_mask=kept.long()).last_hidden_state[kept])


def images(dtype):
    pixels = torch.randn(8, 3, 224, 224).to(dtype)
    return build(VIT, transformers.AutoModel, dtype), without_gradient(lambda model: model(pixels).last_hidden_state)


def speech(dtype):
    model = build(WHISPER, transformers.AutoModel, dtype)
    features, ids = torch.randn(1, 80, 3000).to(dtype), torch.randint(50000, (1, 64))
    return model, without_gradient(lambda model: model(features, decoder_input_ids=ids).last_hidden_state)


def prefill(config, length, dtype):
    model = build(config, transformers.AutoModelForCausalLM, dtype)
    ids = torch.randint(config.vocab_size, (1, length))
    return model, without_gradient(lambda model: model(ids, logits_to_keep=1).logits)


def generation(config, length, tokens, dtype):
    model = build(config, transformers.AutoModelForCausalLM, dtype)
    model.generation_config.pad_token_id = 0
    ids = torch.randint(config.vocab_size, (1, length))

    def run(model):
        out = model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, output_logits=True,
                             return_dict_in_generate=True)
        return out.logits[0]  # later ones follow what was chosen

    return model, without_gradient(run)


def step_of(loss_of, optimiser):
    optimiser.zero_grad()
    loss = loss_of()
    loss.backward()
    optimiser.step()
    return loss.detach()


def training(config, length, dtype):
    model = build(config, transformers.AutoModelForCausalLM, dtype).train()
    ids = torch.randint(config.vocab_size, (1, length))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.0)  # every step is the same one
    return model, lambda model: step_of(lambda: model(ids, labels=ids).loss, optimiser)


WORKLOADS = {
    "BERT-base, 8 x 128 padded": functools.partial(encoder, BERT, 8, 128),
    "BERT-base, 8 x 512 padded": functools.partial(encoder, BERT, 8, 512),
    "MiniLM, 32 x 32 padded": functools.partial(encoder, MINILM, 32, 32),
    "MiniLM, 32 x 128 padded": functools.partial(encoder, MINILM, 32, 128),
    "GPT-2, training step 1 x 1024": functools.partial(training, GPT2, 1024),
    "GPT-2, 64 tokens after 1024": functools.partial(generation, GPT2, 960, 64),
    "135M LLaMA, prompt of 2048": functools.partial(prefill, LLAMA, 2048),
    "LLaMA of 8 x 1024, 64 tokens after 2048": functools.partial(generation, WIDE_LLAMA, 2048, 64),
    "ViT-B, 8 images": images,
    "Whisper-tiny, 30 s and 64 tokens": speech,
}


def implementations_of(name):
    """Padding is removed from encoders of text."""
    return IMPLEMENTATIONS if "padded" in name else IMPLEMENTATIONS[:3]


def with_implementation(model, implementation):
    """The model itself, or a packed one over the same weights."""
    if implementation != "packed":
        model.set_attn_implementation(implementation)
        return model
    copy_ = copy.deepcopy(model)
    copy_.load_state_dict(model.state_dict(), assign=True)
    return attention_cpp.transformers.packed_encoder(copy_)


def peak_bytes(name, implementation, dtype):
    """In a process of its own."""
    arguments = [sys.executable, __file__, "--dtype", dtype, "--memory", name, implementation]
    result = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return int(result.stdout.split()[-1])


def print_peak(name, implementation, dtype):
    model, run = WORKLOADS[name](getattr(torch, dtype))
    model = with_implementation(model, implementation)
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # the largest resident set starts anew
    before = resident("VmRSS")
    run(model)
    print(resident("VmHWM") - before)


def resident(name):
    """A line of /proc/self/status, in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


def measure(name, dtype, rounds):
    model, run = WORKLOADS[name](getattr(torch, dtype))
    packed = with_implementation(model, "packed") if "packed" in implementations_of(name) else None

    def work_with(implementation):
        def work():
            return run(packed if implementation == "packed" else with_implementation(model, implementation))
        return work

    works = [work_with(implementation) for implementation in implementations_of(name)]
    eager, sdpa, *ours = (work().double() for work in works)
    size = eager.abs().max()
    for result in ours:
        if not (result - eager).abs().max() <= max(4 * (sdpa - eager).abs().max(), 1e-3 * size):
            raise SystemExit(f"{name}: ours differs from eager by {(result - eager).abs().max():.1e} of {size:.1e}")
    times = by_turns(works, rounds)
    memory = [peak_bytes(name, implementation, dtype) for implementation in implementations_of(name)[:3]]
    cells = [f"{middle:.3g} ± {spread:.2g}" for middle, spread in times] + ["-"] * (len(IMPLEMENTATIONS) - len(times))
    ratios = [f"**{times[1][0] / middle:.2f}**" for middle, _ in times[2:]] + ["-"] * (4 - len(times))
    print(f"| {name} | {' | '.join(cells)} | {' | '.join(ratios)} "
          f"| {' | '.join(f'{bytes_ / 1e6:.0f}' for bytes_ in memory)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    if options.memory:
        return print_peak(*options.memory, options.dtype)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, transformers {transformers.__version__}, "
          f"{options.dtype}; {options.rounds} rounds\n")
    print("| model | eager, s | sdpa, s | ours, s | packed, s | sdpa / ours | sdpa / packed | eager, MB | sdpa, MB "
          "| ours, MB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name in WORKLOADS:
        if options.only in name:
            measure(name, options.dtype, options.rounds)


if __name__ == "__main__":
    main()
