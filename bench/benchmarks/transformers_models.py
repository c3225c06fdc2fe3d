"""Models of transformers with eager, sdpa and attention_cpp in turn, in one process: time, and the extra memory of each
in a process of its own. Random weights, random tokens; "packed" is ours without padding. The results are compared
before anything is timed.
"""

import argparse
import copy
import functools
import subprocess
import sys
from collections.abc import Iterator

import torch
import transformers

import attention_cpp.transformers

from .results import Row
from .timing import extra_bytes, in_turn

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
    """Sentences of at least a sixteenth of the length, drawn evenly."""
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


def print_extra_bytes(name, implementation, dtype):
    model, run_model = WORKLOADS[name](getattr(torch, dtype))
    model = with_implementation(model, implementation)
    print(extra_bytes(lambda: run_model(model)))


def extra_megabytes(name, implementation, dtype):
    """In a process of its own."""
    program = f"from {__name__} import *\nprint_extra_bytes({name!r}, {implementation!r}, {dtype!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1]) / 1e6


def measure(name: str, dtype: str, rounds: int) -> Row:
    model, run_model = WORKLOADS[name](getattr(torch, dtype))
    packed = with_implementation(model, "packed") if "packed" in implementations_of(name) else None

    def work_with(implementation):
        def work():
            return run_model(packed if implementation == "packed" else with_implementation(model, implementation))
        return work

    works = {implementation: work_with(implementation) for implementation in implementations_of(name)}
    eager, sdpa, *ours = (work().double() for work in works.values())
    size = eager.abs().max()
    for result in ours:
        if not (result - eager).abs().max() <= max(4 * (sdpa - eager).abs().max(), 1e-3 * size):
            raise SystemExit(f"{name}: ours differs from eager by {(result - eager).abs().max():.1e} of {size:.1e}")
    taken = dict(zip(works, in_turn(list(works.values()), rounds)))
    row: Row = {"model": name}
    for implementation in IMPLEMENTATIONS:
        samples = taken.get(implementation)
        row |= {f"{implementation} s": samples and samples.median,
                f"{implementation} +- s": samples and samples.quartiles}
    for implementation in IMPLEMENTATIONS[2:]:
        samples = taken.get(implementation)
        row[f"sdpa / {implementation}"] = samples and taken["sdpa"].median / samples.median
    return row | {f"{one} MB": extra_megabytes(name, one, dtype) for one in IMPLEMENTATIONS[:3]}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    about |= {"torch": torch.__version__, "transformers": transformers.__version__, "dtype": options.dtype}
    torch.set_num_threads(options.threads[-1])
    transformers.logging.set_verbosity_error()
    for name in WORKLOADS:
        if options.filter.search(name):
            yield measure(name, options.dtype, options.repeats or 3)
