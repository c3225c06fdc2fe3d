"""torch.nn.attention.flex_attention on the CPU: the module expresses score_mod and mask_mod as options of the operator.

    >>> from attention_cpp.torch import flex_attention
    >>> out = flex_attention(q, k, v, score_mod=alibi, block_mask=create_block_mask(causal, None, None, n, n, "cpu"))

It computes a call in one of three ways, each exact:

- If the mask is equal to causal, a window, segments or padding, and score_mod adds nothing or ALiBi: in one call of the
  operator. If the mask is a prefix: in two calls over disjoint keys.
- Otherwise in tiles of rows. Each tile is a call with the bias and the mask of its rows.
- If no option expresses score_mod, for example a score that is squared: in the same tiles with torch's operations.

Neither the forward nor the backward stores anything of size Lq x Lk.
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

torchs = _module.flex_attention  # torch's own function, also after enable()
Results = tuple[Tensor, Tensor]  # out [B, H, Lq, Dv] and lse [B, H, Lq]


def _dense_blocks(number: Tensor, indices: Tensor) -> Tensor:
    """Returns [B|1, H|1, query blocks, key blocks]: whether `indices` lists the key block for the query block."""
    columns = indices.shape[-1]
    listed = torch.arange(columns) < number[..., None]
    dense = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool)
    dense = dense.scatter_(-1, torch.where(listed, indices.long(), columns), True)[..., :columns]
    for axis in (0, 1):  # batch elements and heads mostly have the same blocks: one copy is enough
        if bool((dense == dense.narrow(axis, 0, 1)).all()):
            dense = dense.narrow(axis, 0, 1)
    return dense


class _Call:
    """One call of flex_attention: evaluates its mask_mod and its score_mod for any rows."""

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
        """Returns the mask [B|1, H|1, rows|1, Lk|1] of the block mask: mask_mod decides in the listed blocks, and full
        blocks are allowed as a whole."""
        if self.blocks is None:
            return None
        batch, heads = (torch.arange(count) for count in self.mask_axes)
        allowed = narrowed(self.mask_mod(batch, heads, rows, self.key).to(torch.bool))
        allowed = allowed & self._in_blocks(self.blocks, rows)
        return allowed if self.full is None else allowed | self._in_blocks(self.full, rows)

    def read(self, rows: Tensor) -> tuple[Any, Tensor | None]:
        """Returns what score_mod does to the scores of those rows, and which pairs are allowed."""
        allowed = self.of_mask(rows)
        if self.score_mod is None:
            return None, allowed
        reading = read_score(self.score_mod, self.dtype,
                             (torch.arange(self.B), torch.arange(self.H), rows, self.key))
        own = reading.allowed
        return reading, own if allowed is None else allowed if own is None else allowed & own


# ------------------------------------------------------------------------------------------------------ the three ways

class _Way(NamedTuple):
    """How a call is computed: in calls over disjoint keys, or in tiles of rows if `parts` is None."""

    parts: list[Options] | None  # for each call the options that are equal to the mask
    has_bias: bool  # the bias is evaluated in tiles
    what: str  # the options in words, for explain_flex_attention() and mask_counts()
    entries: int = 0  # in a row of the bias or the mask, over the batch elements and heads that it is evaluated for
    factor: float = 1.0  # multiplies all scores
    options: Options = NONE_GIVEN  # softcap and slopes

    def calls(self, rows: int) -> int:
        """Returns the number of calls of the operator for so many rows."""
        is_whole = self.parts is not None and not self.has_bias
        return len(self.parts) if is_whole else sum(1 for _ in tiles(rows, self.entries))


def _slopes(call: _Call, structure: Options, entries: int, dtype: torch.dtype) -> Tensor | None:
    """Returns the slopes [H] if the bias of every allowed pair is -slope |p_i - j| up to rounding, otherwise None."""
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
    rounded = slopes.float()  # the operator takes float32 slopes
    exact = (rounded.double() - slopes.double()).abs() <= torch.finfo(dtype).eps * slopes.double().abs()
    return rounded if bool(exact.all()) else None


def _find(call: _Call, dtype: torch.dtype) -> _Way:
    """Finds the fastest way for a call. Raises Unreadable if no option expresses score_mod."""
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
    """Merges the results over two disjoint sets of keys into those over their union, with gradients."""
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
    """Calls attend(q of the rows, rows) for each tile and joins the results. The backward computes each tile again
    instead of storing it."""
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
    """Computes (out, lse) with run(), the operator, as `way` says."""
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
    """Computes (out, lse, maximum score of each row) with torch's operations, as torch's own flex_attention does."""
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

_KEPT = 32  # the most ways that state.flex_ways holds, the newest one at the end


def _way(call: _Call, q: Tensor, score_mod: Callable | None, block_mask: BlockMask | None) -> _Way:
    """Returns the way of a call. It is found once for a block mask and for what mask_mod and score_mod capture, and
    again after one of these changes."""
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
    """Returns why torch computes the call, or an empty string. Torch also raises the error if an argument is wrong."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if type(tensor) not in autograd.PLAIN or tensor is None:
            return f"{name} is a {type(tensor).__name__}"
        if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.dim() != 4:
            return f"{name} is not a dense tensor of 4 axes on the CPU"
        if tensor.dtype != query.dtype or tensor.dtype not in FLOATING:
            return f"{name} is {tensor.dtype}"
    (B, H, Lq, D), (Bk, Hk, Lk, Dk) = query.shape, key.shape
    if Dk != D or value.shape[:3] != key.shape[:3] or Bk not in (1, B) or D > 1024 or value.shape[3] > 1024:
        return "the shapes of query, key and value do not fit together"
    if Bk != B and block_mask is None or (H % max(Hk, 1) if enable_gqa else H != Hk):
        return "the shapes of query, key and value do not fit together"
    if block_mask is not None:
        axes = block_mask.kv_num_blocks.shape
        if len(axes) != 3 or axes[0] not in (1, B) or axes[1] not in (1, H) or (
                tuple(block_mask.seq_lengths) != (Lq, Lk)):
            return "the block mask has another size than query and key"
        if block_mask.mask_mod is _module._sliced_mask_mod_error:
            return "the block mask is a slice of another"
    if torch._C._len_torch_dispatch_stack() > 0 or autograd.is_transformed():
        return "a mode or a transform is active"
    return "kernel options are given" if kernel_options else ""


def _prepared(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> tuple[Tensor, Tensor, Tensor, float]:
    """Returns q, k and v with one batch size and dtype, and the scale of their scores."""
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
            raise Unreadable("return_aux requests max_scores")
        way = _way(call, q, score_mod, block_mask)
        if strict and way.parts is None:
            raise Error("[flex_attention] the mask is none of causal, window, segments, padding and prefix, and "
                        "strict=True allows no other")
        if state.observers and way.calls(call.Lq) != 1:
            report(f"flex_attention needs several calls for its mask ({way.what})")
            with observed(None):
                out, lse = _fused(call, way, q, k, v, scale)
        else:
            out, lse = _fused(call, way, q, k, v, scale)
        count_mask("flex: " + way.what)
    except Unreadable as error:
        left_to_torch(f"no option of the operator expresses this call: {error}", strict, "flex_attention", 3)
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
    """Computes torch.nn.attention.flex_attention.flex_attention() without a compiler, in O(n) memory.

        >>> out = flex_attention(q, k, v, block_mask=create_block_mask(causal, None, None, n, n, "cpu"))

    Arguments
        query       [B, H, L, E]; key [B|1, Hk, S, E]; value [B|1, Hk, S, Ev]: float32, float64, bfloat16 or float16
        score_mod   (score, b, h, q_idx, kv_idx) -> score. The operator has options for products with numbers, tanh of
                    the score, sums and where(..., score, -inf): scale, softcap, bias and mask. It finds ALiBi in a bias
        block_mask  of create_block_mask() or BlockMask.from_kv_blocks(): mask_mod decides in the listed blocks, and
                    full blocks are allowed as a whole. The function evaluates mask_mod once for each block mask and
                    compares every entry, so it finds causal, windows, segments (also with these two), padding and
                    prefixes however mask_mod is written
        scale       factor on the scores, default 1 / sqrt(E)
        enable_gqa  H may be a multiple of Hk: query head h reads key head h / (H / Hk)
        return_lse  also return lse [B, H, L], natural logarithms
        kernel_options   options of torch's kernels. A call that has them goes to torch
        return_aux  the AuxRequest of torch: also return an AuxOutput
        strict      raise Error for a call that torch's operations would compute, and for a mask that is equal to no
                    options

    Returns out [B, H, L, Ev]; (out, lse) with return_lse; (out, AuxOutput) with return_aux. query, key and value have
    gradients, and so do tensors that score_mod captures, such as a table of biases.

    If the mask or the bias is equal to no options, the function computes tiles of rows. It evaluates the bias and the
    mask of a tile when it needs them, and again in the backward. mask_counts() counts what was found, and
    explain_flex_attention() returns it before a call.

    A call that the library cannot compute (another device, a subclass, wrong arguments) goes to torch, which raises its
    own errors. So does a call under torch.compile, unless it needs gradients: torch has none on the CPU, so the
    compiler breaks the graph there and this function runs.
    """
    arguments = (query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options)
    if torch.compiler.is_compiling() and not strict:
        return torchs(*arguments, return_aux=return_aux)
    return _attend(*arguments, return_aux, strict)


def explain_flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod: Callable | None = None,
                           block_mask: BlockMask | None = None, scale: float | None = None, enable_gqa: bool = False,
                           kernel_options: dict[str, Any] | None = None) -> Plan | str:
    """Returns what flex_attention() will do with these arguments: a Plan of all its calls, or a string with the reason
    why torch computes it.

        >>> explain_flex_attention(q, k, v, score_mod=alibi).path

    The path names the options that are equal to the functions, as "causal, slopes", and the number of calls: one, two
    over disjoint keys (a prefix), or one for each tile of rows. The function evaluates the masks and biases of tiles.
    """
    return _explained(_explain, query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options)


def explain_flex_attention_backward(query: Tensor, key: Tensor, value: Tensor, score_mod: Callable | None = None,
                                    block_mask: BlockMask | None = None, scale: float | None = None,
                                    enable_gqa: bool = False, kernel_options: dict[str, Any] | None = None
                                    ) -> Plan | str:
    """Returns what the backward of flex_attention() will do. As explain_flex_attention()."""
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
        return f"left to torch: no option of the operator expresses this call: {error}"
    number = "one call" if len(plans) == 1 else f"{len(plans)} calls"
    return of_all(plans)._replace(path=f"{plans[0].path}; read as: {way.what}; {number}")
