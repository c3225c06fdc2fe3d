"""torch.nn.attention.flex_attention on the CPU: score_mod and mask_mod as options of the operator.

    >>> from attention_cpp.torch import flex_attention
    >>> out = flex_attention(q, k, v, score_mod=alibi, block_mask=create_block_mask(causal, None, None, n, n, "cpu"))

Three ways, each exact. If the mask is equal to causal, a window, segments, padding or a prefix, and nothing or ALiBi
is added: one call. Otherwise tiles of rows, each a call with the bias and the mask of its rows. What no option
expresses, as a score that is squared: the same tiles in torch's operations. Nothing of size Lq x Lk is stored, in the
backward neither.
"""

from __future__ import annotations

from typing import Any, Callable, Literal, NamedTuple, overload

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as _module
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask
from torch.utils.checkpoint import checkpoint

from . import autograd
from .._core import Error
from .._operator import Plan, explain as _explain, explain_backward as _explain_backward, of_all
from .masks import count_mask
from .operators import FLOATING
from .options import NONE_GIVEN, Options, detached
from .score_mods import Unreadable, captured, mapped, narrowed, read_score
from .state import left_to_torch, observed, report, state
from .structure import described, find_parts, tiles
from .weights import options_of_rows

torchs = _module.flex_attention  # also while ours is in its place
Results = tuple[Tensor, Tensor]  # out [B, H, Lq, Dv] and lse [B, H, Lq]


def _dense_blocks(number: Tensor, indices: Tensor) -> Tensor:
    """[B, H, query blocks, key blocks]: which are listed."""
    columns = indices.shape[-1]
    listed = torch.arange(columns) < number[..., None]
    dense = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool)
    dense = dense.scatter_(-1, torch.where(listed, indices.long(), columns), True)[..., :columns]
    for axis in (0, 1):  # those of all heads are mostly the same
        if bool((dense == dense.narrow(axis, 0, 1)).all()):
            dense = dense.narrow(axis, 0, 1)
    return dense


class _Call:
    """One call: the values of its functions for any rows."""

    def __init__(self, q: Tensor, k: Tensor, score_mod: Callable | None, block_mask: BlockMask | None) -> None:
        self.B, self.H, self.Lq, self.Lk = *q.shape[:3], k.shape[2]
        self.dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.score_mod, self.mask_mod, self.blocks = score_mod, None, None
        self.key = torch.arange(self.Lk)
        self.mask_axes = self.B, self.H
        if block_mask is not None:
            self.mask_mod = mapped(block_mask.mask_mod)
            self.mask_axes = tuple(block_mask.kv_num_blocks.shape[:2])
            self.sizes = block_mask.BLOCK_SIZE
            full = block_mask.full_kv_num_blocks
            self.full = None if full is None else _dense_blocks(full, block_mask.full_kv_indices)
            self.blocks = _dense_blocks(block_mask.kv_num_blocks, block_mask.kv_indices)

    def _in_blocks(self, blocks: Tensor, rows: Tensor) -> Tensor:
        return blocks[:, :, torch.div(rows, self.sizes[0], rounding_mode="floor")].repeat_interleave(
            self.sizes[1], -1)[..., :self.Lk]

    def of_mask(self, rows: Tensor) -> Tensor | None:
        """The mask [B|1, H|1, rows|1, Lk|1] of the block mask: mask_mod in blocks that are listed, all of full ones."""
        if self.blocks is None:
            return None
        batch, heads = (torch.arange(count) for count in self.mask_axes)
        allowed = narrowed(self.mask_mod(batch, heads, rows, self.key).to(torch.bool))
        allowed = allowed & self._in_blocks(self.blocks, rows)
        return allowed if self.full is None else allowed | self._in_blocks(self.full, rows)

    def read(self, rows: Tensor) -> tuple[Any, Tensor | None]:
        """What is done to the scores of those rows, and which of them count."""
        allowed = self.of_mask(rows)
        if self.score_mod is None:
            return None, allowed
        reading = read_score(self.score_mod, self.dtype,
                             (torch.arange(self.B), torch.arange(self.H), rows, self.key))
        own = reading.allowed
        return reading, own if allowed is None else allowed if own is None else allowed & own


# ------------------------------------------------------------------------------------------------------ the three ways

class _Way(NamedTuple):
    """How a call is computed: by calls over disjoint keys, or, where there are none, in tiles."""

    parts: list[Options] | None  # which keys a query sees, if that is found
    has_bias: bool  # evaluated in tiles
    what: str
    entries: int = 0  # that a row of the bias or the mask has, of those heads for which it is evaluated
    factor: float = 1.0  # of all scores
    options: Options = NONE_GIVEN  # softcap, slopes

    def calls(self, rows: int) -> int:
        """How many there are for so many rows."""
        is_whole = self.parts is not None and not self.has_bias
        return len(self.parts) if is_whole else sum(1 for _ in tiles(rows, self.entries))


def _slopes(call: _Call, structure: Options, entries: int, dtype: torch.dtype) -> Tensor | None:
    """[H] if the bias is -slope |p_i - j| wherever a key is seen, to the rounding of its own computation."""
    offset = torch.zeros(1, dtype=torch.int64) if structure.offset is None else structure.offset
    slopes = None
    for rows in (torch.tensor([call.Lq - 1]), *tiles(call.Lq, entries)):
        reading, allowed = call.read(rows)
        bias = reading.bias
        if bias.shape[0] > 1:
            return None
        distance = ((rows + offset[:, None])[:, None, :, None] - call.key).abs().to(bias.dtype)
        if allowed is not None:
            bias, distance = torch.where(allowed, bias, 0), torch.where(allowed, distance, 0)
        if slopes is None:
            farthest = distance.expand(-1, call.H, -1, -1)[:1].flatten(2).max(-1)
            if not bool((farthest.values > 0).all()):
                return None
            at = bias[:1].expand(-1, call.H, -1, call.Lk).flatten(2).gather(-1, farthest.indices[..., None])[..., 0]
            slopes = (-at / farthest.values).flatten()
        error = (bias + slopes.view(1, -1, 1, 1) * distance).abs()
        if bool((error > 8 * torch.finfo(bias.dtype).eps * bias.abs()).any()):
            return None
    rounded = slopes.float()  # as the operator takes them
    exact = (rounded.double() - slopes.double()).abs() <= torch.finfo(dtype).eps * slopes.double().abs()
    return rounded if bool(exact.all()) else None


def _find(call: _Call, dtype: torch.dtype) -> _Way:
    """Raises Unreadable."""
    with torch.enable_grad():
        reading, allowed = call.read(torch.arange(min(call.Lq, 1)))
    bias = None if reading is None else reading.bias
    entries = max([x.shape[0] * x.shape[1] for x in (bias, allowed) if x is not None], default=0) * call.Lk

    own = reading is not None and reading.allowed is not None

    def of_one_head(rows: Tensor) -> Tensor:
        allowed = call.read(rows)[1] if own else call.of_mask(rows)
        return allowed[:, 0].expand(-1, len(rows), call.Lk)

    parts: list[Options] | None = [NONE_GIVEN]
    if allowed is not None and call.Lq > 0:
        parts = None
        if allowed.shape[1] == 1:
            parts = find_parts(of_one_head, allowed.shape[0], call.Lq, call.Lk)
    what = "mask" if parts is None else " and ".join(described(part) for part in parts)
    if reading is None:
        return _Way(parts, False, what, entries)
    options = Options(softcap=reading.softcap) if reading.softcap else NONE_GIVEN
    if bias is None:
        return _Way(parts, False, what, entries, reading.factor, options)
    may_be_slopes = parts is not None and len(parts) == 1 and call.Lq > 0 and not bias.requires_grad
    slopes = _slopes(call, parts[0], entries, dtype) if may_be_slopes else None
    if slopes is None:
        return _Way(parts, True, what + ", bias", entries, reading.factor, options)
    parts = [Options(alignment="top_left").having(**vars(parts[0]))]
    return _Way(parts, False, what + ", slopes", entries, reading.factor, options.having(alibi_slopes=slopes))


def _expanded(options: Options, batch: int) -> Options:
    return options.mapped(lambda name, value: value.expand(batch) if name in ("key_length", "offset") else value)


def merged(a: Results, b: Results) -> Results:
    """The results over the union of disjoint keys, with gradients."""
    (out_a, lse_a), (out_b, lse_b) = a, b
    highest = torch.maximum(lse_a, lse_b).detach()
    highest = highest.masked_fill(highest == -torch.inf, 0)
    weight_a, weight_b = (lse_a - highest).exp(), (lse_b - highest).exp()
    total = weight_a + weight_b
    sees_none = total == 0
    total = total.masked_fill(sees_none, 1)
    out = (out_a * (weight_a / total).unsqueeze(-1) + out_b * (weight_b / total).unsqueeze(-1)).to(out_a.dtype)
    return out, (highest + total.log()).masked_fill(sees_none, -torch.inf)


def _in_tiles(call: _Call, entries: int, q: Tensor, attend: Callable[[Tensor, Tensor], tuple]) -> tuple:
    """attend(q of some rows, rows) for all rows; the backward evaluates the functions once more, and stores nothing."""
    results = []
    steps = list(tiles(call.Lq, entries)) or [torch.arange(0)]
    for rows in steps:
        of_rows = q.narrow(2, int(rows[0]) if len(rows) else 0, len(rows))
        if torch.is_grad_enabled() and len(steps) > 1:
            results.append(checkpoint(attend, of_rows, rows, use_reentrant=False, preserve_rng_state=False))
        else:
            results.append(attend(of_rows, rows))
    return results[0] if len(results) == 1 else tuple(torch.cat(parts, 2) for parts in zip(*results))


def _fused(call: _Call, way: _Way, q: Tensor, k: Tensor, v: Tensor, scale: float,
           run: Callable[[Tensor, Tensor, Tensor, Options], Results] = autograd.attention) -> Results:
    common = way.options.having(scale=scale * way.factor)
    parts = None if way.parts is None else [_expanded(part, call.B) for part in way.parts]
    if parts is not None and not way.has_bias:
        results = [run(q, k, v, common.having(**vars(part))) for part in parts]
        return results[0] if len(results) == 1 else merged(*results)

    def attend(of_rows: Tensor, rows: Tensor) -> Results:
        reading, allowed = call.read(rows)
        options = common
        if reading is not None and reading.bias is not None:
            options = options.having(bias=reading.bias)
        if parts is not None and len(parts) == 1:
            first = int(rows[0]) if len(rows) else 0
            options = options.having(**vars(options_of_rows(parts[0], q, k, first, len(rows))))
        elif allowed is not None:
            options = options.having(mask=allowed)
        return run(of_rows, k, v, options)

    return _in_tiles(call, way.entries, q, attend)


def _plain(call: _Call, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """(out, lse, the greatest score) in torch's operations, as torch's own flex_attention."""
    group = call.H // max(k.shape[1], 1)
    keys, values = (x.to(call.dtype).repeat_interleave(group, 1) for x in (k, v))
    batch, heads = torch.arange(call.B), torch.arange(call.H)
    change = None if call.score_mod is None else mapped(call.score_mod, (0,))

    def attend(of_rows: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = of_rows.to(call.dtype) @ keys.transpose(-1, -2) * scale
        if change is not None:
            scores = change(scores, batch, heads, rows, call.key).to(call.dtype)
        allowed = call.of_mask(rows)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        lse = scores.logsumexp(-1).masked_fill((scores == -torch.inf).all(-1), -torch.inf)
        return (torch._safe_softmax(scores, -1) @ values).to(q.dtype), lse, scores.amax(-1)

    return _in_tiles(call, call.B * call.H * call.Lk, q, attend)


# ------------------------------------------------------------------------------------------------------------ the entry

_KEPT = 32  # ways in state.flex_ways, the last one found at the end


def _way(call: _Call, q: Tensor, score_mod: Callable | None, block_mask: BlockMask | None) -> _Way:
    """Found once for a block mask and what its mask_mod and the score_mod capture, as long as nothing of it changes."""
    if score_mod is None and block_mask is None:
        return _Way([NONE_GIVEN], False, "all")
    of_mask = [] if block_mask is None else [
        block_mask.mask_mod, block_mask.BLOCK_SIZE, block_mask.kv_num_blocks, block_mask.kv_indices,
        block_mask.full_kv_num_blocks, block_mask.full_kv_indices]
    held = captured([score_mod, q.dtype, q.shape, call.Lk, *of_mask])
    for made_of, way in reversed(state.flex_ways) if held is not None else ():
        if made_of == held:
            return way
    with torch.no_grad(), torch.inference_mode(False):
        way = _find(call, q.dtype)
    if held is not None:
        state.flex_ways.append((held, way))
        del state.flex_ways[:-_KEPT]
    return way


def _why_not(query: Any, key: Any, value: Any, block_mask: Any, enable_gqa: bool, kernel_options: Any) -> str:
    """Why the call is torch's, which also says what is wrong with it; empty if it is ours."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if type(tensor) not in autograd.PLAIN or tensor is None:
            return f"{name} is a {type(tensor).__name__}"
        if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.dim() != 4:
            return f"{name} is not a dense tensor of 4 axes on the CPU"
        if tensor.dtype != query.dtype or tensor.dtype not in FLOATING:
            return f"{name} is {tensor.dtype}"
    (B, H, Lq, D), (Bk, Hk, Lk, Dk) = query.shape, key.shape
    if Dk != D or value.shape[:3] != key.shape[:3] or Bk not in (1, B) or D > 1024 or value.shape[3] > 1024:
        return "shapes do not fit"
    if Bk != B and block_mask is None or (H % max(Hk, 1) if enable_gqa else H != Hk):
        return "shapes do not fit"
    if block_mask is not None:
        axes = block_mask.kv_num_blocks.shape
        if len(axes) != 3 or axes[0] not in (1, B) or axes[1] not in (1, H) or (
                tuple(block_mask.seq_lengths) != (Lq, Lk)):
            return "the block mask is of another size"
        if block_mask.mask_mod is _module._sliced_mask_mod_error:
            return "the block mask is a slice of another"
    if torch._C._len_torch_dispatch_stack() > 0 or autograd.is_transformed():
        return "a mode or a transform is active"
    return "kernel options are given" if kernel_options else ""


def _prepared(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> tuple[Tensor, Tensor, Tensor, float]:
    """q, k, v of one batch size and dtype, and the scale of their scores."""
    q, k, v = autograd.autocast(query, *(
        x if x.shape[0] == query.shape[0] else x.expand(query.shape[0], -1, -1, -1) for x in (key, value)))
    return q, k, v, q.shape[-1] ** -0.5 if scale is None else scale


def _attend(query: Tensor, key: Tensor, value: Tensor, score_mod: Callable | None, block_mask: BlockMask | None,
            scale: float | None, enable_gqa: bool, return_lse: bool, kernel_options: dict[str, Any] | None,
            return_aux: AuxRequest | None, strict: bool) -> Any:
    reason = _why_not(query, key, value, block_mask, enable_gqa, kernel_options)
    if return_lse and return_aux is not None:
        reason = "return_lse and return_aux are both given"
    if reason:
        left_to_torch(reason, strict, "flex_attention", 3)
        return torchs(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options,
                      return_aux=return_aux)
    q, k, v, scale = _prepared(query, key, value, scale)
    call = _Call(q, k, score_mod, block_mask)
    highest = None
    try:
        if return_aux is not None and return_aux.max_scores:
            raise Unreadable("the greatest scores are wanted")
        way = _way(call, q, score_mod, block_mask)
        if strict and way.parts is None:
            raise Error("[flex_attention] the mask is none of causal, window, segments, padding and prefix")
        if state.observers and way.calls(call.Lq) != 1:
            report(f"flex_attention with a mask ({way.what}) of several calls")
            with observed(None):
                out, lse = _fused(call, way, q, k, v, scale)
        else:
            out, lse = _fused(call, way, q, k, v, scale)
        count_mask("flex: " + way.what)
    except Unreadable as error:
        left_to_torch(f"not an option of the operator: {error}", strict, "flex_attention", 3)
        count_mask("flex: torch's operations")
        out, lse, highest = _plain(call, q, k, v, scale)
    if return_aux is not None:
        return out, AuxOutput(lse if return_aux.lse else None, highest)
    return (out, lse) if return_lse else out


@overload
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Tensor] | None = None,
    block_mask: BlockMask | None = None, scale: float | None = None, enable_gqa: bool = False,
    return_lse: Literal[False] = False, kernel_options: dict[str, Any] | None = None, *, return_aux: None = None,
    strict: bool = False,
) -> Tensor: ...


@overload
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Tensor] | None = None,
    block_mask: BlockMask | None = None, scale: float | None = None, enable_gqa: bool = False,
    *, return_lse: Literal[True], kernel_options: dict[str, Any] | None = None, return_aux: None = None,
    strict: bool = False,
) -> Results: ...


@overload
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Tensor] | None = None,
    block_mask: BlockMask | None = None, scale: float | None = None, enable_gqa: bool = False,
    return_lse: Literal[False] = False, kernel_options: dict[str, Any] | None = None, *, return_aux: AuxRequest,
    strict: bool = False,
) -> tuple[Tensor, AuxOutput]: ...


@overload
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Tensor] | None = None,
    block_mask: BlockMask | None = None, scale: float | None = None, enable_gqa: bool = False,
    return_lse: bool = False, kernel_options: dict[str, Any] | None = None, *,
    return_aux: AuxRequest | None = None, strict: bool = False,
) -> Tensor | Results | tuple[Tensor, AuxOutput]: ...


def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Tensor] | None = None,
    block_mask: BlockMask | None = None, scale: float | None = None, enable_gqa: bool = False,
    return_lse: bool = False, kernel_options: dict[str, Any] | None = None, *,
    return_aux: AuxRequest | None = None, strict: bool = False,
) -> Any:
    """torch.nn.attention.flex_attention.flex_attention, fused without a compiler, in O(n) memory.

    Arguments
        query       [B, H, L, E]; key [B|1, Hk, S, E]; value [B|1, Hk, S, Ev]
        score_mod   (score, b, h, q_idx, kv_idx) -> score. Products with numbers, tanh of the score, sums and
                    where(..., score, -inf) are the operator's scale, softcap, bias and mask; ALiBi is found in a bias
        block_mask  of create_block_mask or BlockMask.from_kv_blocks: mask_mod where a block is listed, all of a full
                    one. Causal, windows, segments, padding, prefixes, and segments with the first two are found
                    however the function is written: its values are compared entry by entry, once for each block mask
        enable_gqa  query head h reads key head h / (H / Hk)
        return_lse, return_aux   as torch's: lse [B, H, L] is a natural logarithm
        strict      raise Error for what is left to torch's operations, and for masks that are equal to no options

    Gradients of query, key, value and of what score_mod captures, as tables of biases.

    Where no such options are found the rows are computed in tiles, whose biases and masks are evaluated when they are
    needed, in the backward again. mask_counts() counts what was found; explain_flex_attention() gives it before a call.
    What cannot be computed here (other devices, subclasses, wrong arguments) is left to torch, and so is a call that
    torch.compile sees. Torch refuses gradients on the CPU there: the compiler then leaves the call between two graphs,
    where it is ours.
    """
    arguments = (query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options)
    if torch.compiler.is_compiling() and not strict:
        return torchs(*arguments, return_aux=return_aux)
    return _attend(*arguments, return_aux, strict)


def explain_flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod: Callable | None = None,
                           block_mask: BlockMask | None = None, scale: float | None = None, enable_gqa: bool = False,
                           kernel_options: dict[str, Any] | None = None) -> Plan | str:
    """What flex_attention() will do with these arguments: a Plan of all its calls together, or why torch computes.

    The path names the options that the functions are equal to, "causal, slopes", and the number of calls: one, two over
    disjoint keys (a prefix), or tiles of rows, whose masks and biases are evaluated here too.
    """
    return _explained(_explain, query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options)


def explain_flex_attention_backward(query: Tensor, key: Tensor, value: Tensor, score_mod: Callable | None = None,
                                    block_mask: BlockMask | None = None, scale: float | None = None,
                                    enable_gqa: bool = False, kernel_options: dict[str, Any] | None = None
                                    ) -> Plan | str:
    """What the backward of flex_attention() will do. As explain_flex_attention()."""
    return _explained(_explain_backward, query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options)


def _explained(explained: Callable[..., Plan], query: Tensor, key: Tensor, value: Tensor, score_mod: Callable | None,
               block_mask: BlockMask | None, scale: float | None, enable_gqa: bool,
               kernel_options: dict[str, Any] | None) -> Plan | str:
    reason = _why_not(query, key, value, block_mask, enable_gqa, kernel_options)
    if reason:
        return f"left to torch: {reason}"
    q, k, v, scale = _prepared(*(x.detach() for x in (query, key, value)), scale)
    call = _Call(q, k, score_mod, block_mask)
    plans: list[Plan] = []

    def run(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Results:
        plans.append(explained(q, k, v, **vars(detached(options))))
        return q.new_zeros(*q.shape[:3], v.shape[3]), q.new_zeros(q.shape[:3])

    try:
        with torch.no_grad():
            way = _way(call, q, score_mod, block_mask)
            _fused(call, way, q, k, v, scale, run)
    except Unreadable as error:
        return f"left to torch: not an option of the operator: {error}"
    number = "one call" if len(plans) == 1 else f"{len(plans)} calls"
    return of_all(plans)._replace(path=f"{plans[0].path}; read as: {way.what}; {number}")
