"""attention_cpp's operator, with its own options and threads."""

import numpy as np
import torch

import attention_cpp
from attention_cpp import _core

from .peers import Prepared
from .tensors import SEED, Tensors, laid_out
from .workloads import Workload


def peak_gflops(dtype: str) -> float:
    """The multiply-add rate that the arithmetic units reach right now, on all threads of the library."""
    return _core.peak_gflops(dtype)


def options_of(w: Workload, t: Tensors) -> dict[str, object]:
    options: dict[str, object] = {}
    if w.causal:
        options |= {"causal": True, "alignment": "bottom_right"}
    if w.window:
        options["window"] = (w.window - 1, -1)
    if w.lengths:
        options["key_length"] = np.array(w.lengths, np.int64)
    if w.packed:
        options["cu_seqlens_q"] = options["cu_seqlens_k"] = np.cumsum([0, *w.packed], dtype=np.int64)
    if t.bias is not None:
        options["bias"] = t.bias
    if w.dropout:
        options |= {"dropout": w.dropout, "seed": SEED}
    return options


class Operator:
    name = "attention_cpp"

    def set_threads(self, threads: int) -> None:
        attention_cpp.threads(threads)

    def prepare(self, w: Workload, t: Tensors) -> Prepared:
        """The output is allocated once, gradients in each call."""
        options = options_of(w, t)
        inputs = (t.q, t.k, t.v)
        out = laid_out(torch.empty(w.B, w.H, w.Lq, w.Dv, dtype=t.q.dtype), w.layout)
        lse = None
        if not w.is_forward:
            out, lse = attention_cpp.attention(*inputs, out=out, return_lse=True, **options)

        def forward() -> dict[str, torch.Tensor]:
            attention_cpp.attention(*inputs, out=out, **options)
            return {"out": out}

        def backward() -> dict[str, torch.Tensor]:
            found = attention_cpp.attention_backward(*inputs, out, lse, t.dout, **options)
            return {name: x for name, x in found._asdict().items() if x is not None}

        def both() -> dict[str, torch.Tensor]:
            nonlocal lse
            _, lse = attention_cpp.attention(*inputs, out=out, return_lse=True, **options)
            return {"out": out} | backward()

        call = {"backward": backward, "training": both}.get(w.operation, forward)
        plans = [attention_cpp.explain(*inputs, **options)]
        if not w.is_forward:
            plans.append(attention_cpp.explain_backward(*inputs, **options))
        return Prepared(call, lambda results: {name: x.float().numpy() for name, x in results.items()}, plans[0].path,
                        extra_bytes=max(plan.scratch_bytes for plan in plans), kept=t)
