"""PyTorch in three ways: scaled_dot_product_attention, FlexAttention, eager matmul and softmax. And attention_cpp.torch
in its place, called with the same arguments."""

import contextlib
import itertools
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.profiler import ProfilerActivity, profile

from .peers import Prepared, fastest
from .results import readable_bytes
from .tensors import Tensors, whole_mask
from .workloads import Workload, names

warnings.filterwarnings("ignore", module=".*torch")
logging.getLogger("torch").setLevel(logging.ERROR)  # why a way does not work is in its exception

Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # q, k, v, bias -> out
Layout = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, dict[str, object]]]


def prepare_call(w: Workload, t: Tensors, attention: Attention, inference: bool = True) -> Prepared:
    """Forward, backward or both of an attention function; `inference`: forwards in torch's inference mode."""
    q, k, v, bias = (x if x is None else x.detach() for x in (t.q, t.k, t.v, t.bias))
    compared = w.dropout == 0
    if w.is_forward:

        def forward() -> tuple[Tensor]:
            with torch.inference_mode() if inference else contextlib.nullcontext():
                return attention(q, k, v, bias),

        return Prepared(forward, lambda results: fetched(["out"], results), compared=compared)

    inputs = [x.requires_grad_() for x in (q, k, v, bias) if x is not None]
    out = attention(q, k, v, bias) if w.operation == "backward" else None

    def with_gradients() -> tuple[Tensor, ...]:
        result = attention(q, k, v, bias) if out is None else out
        return result, *torch.autograd.grad(result, inputs, t.dout, retain_graph=out is not None)

    return Prepared(with_gradients, lambda results: fetched(["out", "dq", "dk", "dv", "dbias"], results),
                    compared=compared)


def fetched(results_of: list[str], results: object) -> dict[str, np.ndarray]:
    return {name: x.detach().float().numpy() for name, x in zip(results_of, results)}


class Torch:
    """What every class here shares."""

    def version(self) -> str:
        return torch.__version__

    def set_threads(self, threads: int) -> None:
        torch.set_num_threads(threads)


@dataclass
class Way:
    """One way to call scaled_dot_product_attention."""

    attention: Attention
    mask_bytes: int = 0  # of the Lq x Lk mask that the caller makes before the clock starts


class TorchSdpa(Torch):
    """scaled_dot_product_attention, in the quickest of the ways that give the result."""

    name = "torch"

    def supports(self, w: Workload) -> str | None:
        return None

    def prepare(self, w: Workload, t: Tensors) -> Prepared:
        ways = self._packed_ways(w, t) if w.packed else self._ways(w, t)
        prepared = fastest({name: lambda way=way: prepare_call(w, t, way.attention)
                            for name, way in ways.items()})
        chosen = ways[prepared.way]
        if self._is_fused(w, t, chosen):
            prepared.note += "; fused"
        else:
            prepared.note += f"; not fused, materialises n x n: {readable_bytes(w.square_bytes())}"
        if chosen.mask_bytes:
            prepared.note += f"; n x n mask of the caller: {readable_bytes(chosen.mask_bytes)}"
        return prepared

    def _ways(self, w: Workload, t: Tensors) -> dict[str, Way]:
        """Every layout of the heads with every form of the mask."""
        options: dict[str, object] = {"dropout_p": w.dropout}
        masks: dict[str, Tensor | None] = {"": None}
        if w.causal and not w.window and w.Lq == w.Lk:
            options["is_causal"] = True
        elif w.masked and w.Lq > 1:  # the only query, the last one, sees all keys
            boolean = whole_mask(w) if t.padding is None else t.padding
            added = torch.zeros(boolean.shape, dtype=t.q.dtype)
            masks = {"boolean mask": boolean,
                     "float mask": added.masked_fill_(~boolean, float("-inf"))}

        def way_of(layout: Layout, mask: Tensor | None) -> Way:
            def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
                q, k, v, own = layout(q, k, v)
                out = F.scaled_dot_product_attention(
                    q, k, v, attn_mask=mask if bias is None else bias, **options, **own)
                return out.reshape(w.B, w.H, w.Lq, w.Dv)

            square = mask is not None and t.padding is None
            return Way(attention, mask.nbytes if square else 0)

        ways = {}
        for layout_name, layout in self._layouts(w).items():
            for mask_name, mask in masks.items():
                name = ", ".join(filter(None, (layout_name, mask_name))) or "sdpa"
                ways[name] = way_of(layout, mask)
        return ways

    def _layouts(self, w: Workload) -> dict[str, Layout]:
        """How q, k and v are given, and the options that go with it."""
        layouts: dict[str, Layout] = {}
        if w.group == 1:
            layouts[""] = lambda q, k, v: (q, k, v, {})
        else:
            layouts["enable_gqa"] = lambda q, k, v: (q, k, v, {"enable_gqa": True})
            layouts["repeated keys"] = lambda q, k, v: (
                q, k.repeat_interleave(w.group, 1), v.repeat_interleave(w.group, 1), {})
        if w.group > 1 and w.Lq == 1:  # the heads of a group may pose as queries
            layouts["heads as queries"] = lambda q, k, v: (
                q.view(w.B, w.Hk, w.group, w.D), k, v, {})
        if w.D < w.Dv:  # zeros change no score
            layouts["q, k padded to Dv"] = lambda q, k, v: (
                F.pad(q, (0, w.Dv - w.D)), F.pad(k, (0, w.Dv - w.D)), v, {"scale": w.D**-0.5})
        return layouts

    def _packed_ways(self, w: Workload, t: Tensors) -> dict[str, Way]:
        sdpa = F.scaled_dot_product_attention
        lengths = list(w.packed)
        mask = whole_mask(w)
        offsets = torch.tensor([0, *np.cumsum(lengths)])
        tokens_first = [x[0].transpose(0, 1).contiguous() for x in (t.q, t.k, t.v)]

        def masked(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
            return sdpa(q, k, v, attn_mask=mask)

        def one_by_one(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
            pieces = zip(*(x.split(lengths, 2) for x in (q, k, v)))
            return torch.cat([sdpa(*piece, is_causal=w.causal) for piece in pieces], 2)

        def nested(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
            with torch.inference_mode(False), torch.no_grad():  # it knows no inference mode
                jagged = [torch.nested.nested_tensor_from_jagged(x, offsets).transpose(1, 2)
                          for x in tokens_first]
                out = sdpa(*jagged, is_causal=w.causal).transpose(1, 2)
                return out.values().transpose(0, 1)[None]

        return {"block-diagonal mask": Way(masked, mask.nbytes),
                "one call a sequence": Way(one_by_one),
                "nested tensor": Way(nested)}

    def _is_fused(self, w: Workload, t: Tensors, way: Way) -> bool:
        try:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                prepare_call(w, t, way.attention).call()
            return True
        except RuntimeError:
            return False


class TorchEager(Torch):
    """matmul, softmax, matmul, as models write it where the fused path does not go."""

    name = "torch-eager"

    def supports(self, w: Workload) -> str | None:
        return None if w.option in ("dropout", "bias") else ""

    def prepare(self, w: Workload, t: Tensors) -> Prepared:
        def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
            s = (q * w.D**-0.5) @ k.transpose(-1, -2)
            p = torch.softmax(s if bias is None else s + bias, -1)
            return F.dropout(p, w.dropout) @ v

        prepared = prepare_call(w, t, attention)
        prepared.note = f"materialises n x n: {readable_bytes(w.square_bytes())}"
        return prepared


class TorchFlex(Torch):
    """FlexAttention: masks and score changes in Python, compiled to a fused kernel."""

    name = "torch-flex"

    def supports(self, w: Workload) -> str | None:
        if not w.is_forward:
            return "has no backward on the CPU"
        special = w.option not in ("full", "causal") or w.group > 1 or w.D != w.Dv or w.operation == "decode"
        if special or w.name in names("flex"):
            return None
        return "compiled for some shapes only: each takes ten seconds"

    def prepare(self, w: Workload, t: Tensors) -> Prepared:
        torch._dynamo.reset()  # else the shapes of all workloads count against its limit
        block_mask = None
        if w.masked and w.Lq > 1:
            block_mask = create_block_mask(
                self._mask(w), w.B if w.lengths else None, None, w.Lq, w.Lk, device="cpu")
        compiled = torch.compile(flex_attention, dynamic=False)

        def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
            def add_bias(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return score + bias[0, h, i, j]

            return compiled(q, k, v, score_mod=None if bias is None else add_bias,
                            block_mask=block_mask, enable_gqa=w.group > 1)

        prepared = prepare_call(w, t, attention)
        prepared.call()
        prepared.note = "compiled"
        return prepared

    def _mask(self, w: Workload) -> Callable[..., Tensor]:
        lengths = torch.tensor(w.lengths)
        sequences = torch.tensor(np.repeat(np.arange(len(w.packed)), w.packed))
        shift = w.Lk - w.Lq

        def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            allowed = j >= 0
            if w.causal:
                allowed = allowed & (j <= i + shift)
            if w.window:
                allowed = allowed & (j > i + shift - w.window)
            if w.lengths:
                allowed = allowed & (j < lengths[b])
            if w.packed:
                allowed = allowed & (sequences[i] == sequences[j])
            return allowed

        return mask


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory of torch's allocator that a call has at a time, results included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        call()
    sizes = [event.nbytes() for event in trace.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(itertools.accumulate(sizes, initial=0))


class SameArguments(Torch):
    """A function with the signature of scaled_dot_product_attention, with a mask where torch needs one."""

    def __init__(self, name: str, function: Callable[..., Tensor]) -> None:
        self.name, self._function = name, function

    def supports(self, w: Workload) -> str | None:
        return None

    def prepare(self, w: Workload, t: Tensors) -> Prepared:
        is_causal = w.option == "causal" and w.Lq == w.Lk
        mask = None if is_causal else whole_mask(w) if t.padding is None else t.padding.expand(w.B, 1, w.Lq, w.Lk)

        def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
            return self._function(q, k, v, mask if bias is None else bias, dropout_p=w.dropout, is_causal=is_causal,
                                  enable_gqa=w.group > 1)

        prepared = prepare_call(w, t, attention, inference=False)
        prepared.extra_bytes = peak_bytes(prepared.call) + self.scratch_bytes(w, t, mask, is_causal)
        return prepared

    def scratch_bytes(self, w: Workload, t: Tensors, mask: Tensor | None, is_causal: bool) -> int:
        return 0


class DropIn(SameArguments):
    """attention_cpp.torch, whose scratch memory torch's allocator does not see."""

    def __init__(self) -> None:
        import attention_cpp.torch

        self._module = attention_cpp.torch
        super().__init__("attention_cpp.torch", self._module.scaled_dot_product_attention)

    def scratch_bytes(self, w: Workload, t: Tensors, mask: Tensor | None, is_causal: bool) -> int:
        arguments = (t.q, t.k, t.v, mask if t.bias is None else t.bias, w.dropout, is_causal, None, w.group > 1)
        return max(self._module.explain(*arguments, backward=is_backward).scratch_bytes
                   for is_backward in {False, not w.is_forward})
