"""transformers models with eager, sdpa and attention_cpp by turns in one process: time, and peak memory of each alone.

Random weights, random tokens; the logits of all three are compared before anything is timed. Memory is by how much the
largest resident set of a call exceeds what is resident before it, in a process of its own.
"""

import argparse
import subprocess
import sys

import torch
import transformers

import attention_cpp.transformers
from beside_torch import by_turns

IMPLEMENTATIONS = ("eager", "sdpa", "attention_cpp")
BERT = transformers.BertConfig()  # base: 12 layers, 12 heads, width 768
LLAMA = transformers.LlamaConfig(  # the shape of SmolLM-135M
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, max_position_embeddings=4096, tie_word_embeddings=True)


def build(config, kind):
    attention_cpp.transformers.register()
    torch.manual_seed(0)
    return kind.from_config(config, attn_implementation="eager").eval()


def encoder(length):
    model = build(BERT, transformers.AutoModel)
    ids = torch.randint(1000, 30000, (4, length))
    kept = torch.arange(length) < torch.tensor([[length], [length * 3 // 4], [length // 2], [length]])

    def run():
        with torch.no_grad():
            return model(ids, attention_mask=kept.long()).last_hidden_state[kept]

    return model, run


def decoder(length):
    return build(LLAMA, transformers.AutoModelForCausalLM), torch.randint(49152, (1, length))


def prefill(length):
    model, ids = decoder(length)

    def run():
        with torch.no_grad():
            return model(ids, logits_to_keep=1).logits

    return model, run


def generation(length):
    model, ids = decoder(length)
    model.generation_config.pad_token_id = 0

    def run():
        with torch.no_grad():
            out = model.generate(ids, max_new_tokens=32, min_new_tokens=32, do_sample=False, output_logits=True,
                                 return_dict_in_generate=True)
        return out.logits[0]  # later ones follow what was chosen

    return model, run


def training(length):
    model, ids = decoder(length)
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.0)  # every step is the same one

    def run():
        optimiser.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimiser.step()
        return loss.detach()

    return model, run


WORKLOADS = {
    "BERT-base encoder, 4 x 512 padded": lambda: encoder(512),
    "135M LLaMA, prompt of 2048": lambda: prefill(2048),
    "135M LLaMA, 32 tokens after 512": lambda: generation(512),
    "135M LLaMA, training step 1 x 1024": lambda: training(1024),
}


def peak_bytes(name, implementation):
    """In a process of its own."""
    arguments = [sys.executable, __file__, "--memory", name, implementation]
    result = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return int(result.stdout.split()[-1])


def print_peak(name, implementation):
    model, run = WORKLOADS[name]()
    model.set_attn_implementation(implementation)
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # the largest resident set starts anew
    before = resident("VmRSS")
    run()
    print(resident("VmHWM") - before)


def resident(name):
    """A line of /proc/self/status, in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


def measure(name, rounds):
    model, run = WORKLOADS[name]()

    def with_implementation(implementation):
        def work():
            model.set_attn_implementation(implementation)
            return run()
        return work

    works = [with_implementation(implementation) for implementation in IMPLEMENTATIONS]
    eager, sdpa, ours = (work() for work in works)
    size = eager.abs().max()
    if not (ours - eager).abs().max() <= max(4 * (sdpa - eager).abs().max(), 1e-3 * size):
        raise SystemExit(f"{name}: ours differs from eager by {(ours - eager).abs().max():.1e} of {size:.1e}")
    times = by_turns(works, rounds)
    memory = [peak_bytes(name, implementation) for implementation in IMPLEMENTATIONS]
    cells = [f"{middle:.3f} ± {spread:.3f}" for middle, spread in times]
    print(f"| {name} | {' | '.join(cells)} | **{times[1][0] / times[2][0]:.2f}** "
          f"| {' | '.join(f'{bytes_ / 1e6:.0f}' for bytes_ in memory)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    if options.memory:
        return print_peak(*options.memory)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, transformers {transformers.__version__}, "
          f"float32; {options.rounds} rounds\n")
    print("| model | eager, s | sdpa, s | ours, s | sdpa / ours | eager, MB | sdpa, MB | ours, MB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in WORKLOADS:
        if options.only in name:
            measure(name, options.rounds)


if __name__ == "__main__":
    main()
