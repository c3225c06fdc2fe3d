"""Linear attention beside the functions that models of transformers call on a CPU: Qwen3-Next's gated delta rule, Kimi
Linear's delta attention and Mamba 2's scan. Each result and gradient is checked before it is timed.

The arrays are [B, L, H, D], as the projections of a model write them. `training` is a forward and a backward, `step`
one token after a state.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterator

import torch

from .results import Row
from .timing import in_turn, ratio

LENGTHS = (512, 1024, 2048, 4096)
BOUND = 1e-3  # of the largest element: the peers round their chunks in another order, in float32


@dataclasses.dataclass
class Variant:
    """A layer's mixer: heads of q and k, and of v; features of a key and of a value."""

    name: str
    heads: tuple[int, int]
    widths: tuple[int, int]
    peer: Callable
    ours: Callable


def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape) * scale).requires_grad_()


def arguments(variant: Variant, length: int) -> list[torch.Tensor]:
    """q, k, v, the logarithm of the decay and beta, with gradients."""
    (H, Hv), (Dk, Dv) = variant.heads, variant.widths
    per_row = (Dk,) if variant.name.startswith("Kimi") else ()
    decay = (-0.1 * torch.rand((1, length, Hv, *per_row))).requires_grad_()
    return [draw(1, length, H, Dk), draw(1, length, H, Dk), draw(1, length, Hv, Dv), decay,
            torch.rand((1, length, Hv)).requires_grad_()]


def ours(delta: bool, l2norm: bool) -> Callable:
    from attention_cpp.torch import linear_attention

    def call(q, k, v, g, beta, state=None):
        decay = g.transpose(1, 2) if g.dim() == 4 else g.transpose(1, 2)[..., None]
        out, after = linear_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), log_decay=decay,
                                      beta=beta.transpose(1, 2), delta=delta, l2norm=l2norm, scale=None if delta else 1,
                                      initial_state=state, return_state=True)
        return out.transpose(1, 2), after

    return call


def delta_rule(chunked: Callable, recurrent: Callable) -> Callable:
    def call(q, k, v, g, beta, state=None):
        rule = recurrent if q.shape[1] == 1 else chunked
        return rule(q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True)

    return call


def scan(q, k, v, g, beta, state=None):
    """Mamba 2: C is q, B is k. The function multiplies x and A by dt: with dt = 1 they are beta v and the decay."""
    from transformers.models.mamba2 import modeling_mamba2 as mamba2

    out = mamba2.mamba2_chunk_scan(v * beta[..., None], torch.ones_like(beta), g, k, q, 256,
                                   initial_states=None if state is None else state.transpose(2, 3),
                                   return_final_states=True)
    return out[0], out[1].transpose(2, 3)


def variants() -> list[Variant]:
    from transformers.models.kimi_linear import modeling_kimi_linear as kimi
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    return [
        Variant("gated delta rule", (16, 32), (128, 128), ours=ours(True, True),
                peer=delta_rule(qwen.torch_chunk_gated_delta_rule, qwen.torch_recurrent_gated_delta_rule)),
        Variant("Kimi delta attention", (16, 16), (128, 128), ours=ours(True, True),
                peer=delta_rule(kimi.chunk_kimi_delta_attention, kimi.recurrent_kimi_delta_attention)),
        Variant("Mamba 2", (1, 24), (128, 64), ours=ours(False, False), peer=scan),
    ]


def error(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).abs().max() / b.abs().max()).item()


def trained(call: Callable, given: list[torch.Tensor]) -> list[torch.Tensor]:
    out, _ = call(*given)
    return [out.detach(), *torch.autograd.grad(out, given, torch.ones_like(out))]


def row(variant: Variant, what: str, length: int, calls: list[Callable], worst: float, rounds: int) -> Row:
    found: Row = {"variant": variant.name, "what": what, "tokens": length, "error": worst}
    if not worst <= BOUND:
        return found | {"ours ms": None, "peer ms": None, "spread %": None, "ratio": None, "verdict": "WRONG"}
    mine, theirs = in_turn(calls, rounds, most_seconds=20)
    return found | {"ours ms": 1e3 * mine.median, "peer ms": 1e3 * theirs.median, "spread %": 100 * mine.spread,
                    "ratio": ratio(mine, theirs), "verdict": "ok"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--compile", action="store_true", help="the peers compiled by torch.compile")


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    import transformers

    about |= {"torch": torch.__version__, "transformers": transformers.__version__, "threads": options.threads[-1],
              "peers": "compiled" if options.compile else "as they are"}
    torch.set_num_threads(options.threads[-1])
    torch.manual_seed(1)
    rounds = options.repeats or 7
    for variant in (v for v in variants() if options.filter.search(v.name)):
        peer = torch.compile(variant.peer) if options.compile else variant.peer
        for length in LENGTHS:
            given = arguments(variant, length)
            with torch.no_grad():
                calls = [lambda: variant.ours(*given), lambda: peer(*given)]
                worst = max(map(error, calls[0](), calls[1]()))
                yield row(variant, "forward", length, calls, worst, rounds)
            calls = [lambda: trained(variant.ours, given), lambda: trained(peer, given)]
            yield row(variant, "training", length, calls, max(map(error, calls[0](), calls[1]())), rounds)
        with torch.no_grad():
            _, state = variant.ours(*given)
            token = arguments(variant, 1)
            calls = [lambda: variant.ours(*token, state), lambda: peer(*token, state)]
            yield row(variant, "step", 1, calls, max(map(error, calls[0](), calls[1]())), 100)
