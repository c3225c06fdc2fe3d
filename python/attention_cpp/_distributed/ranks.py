"""Attention over the ranks of a process group: placements, messages by torch.distributed, and the autograd function."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from typing import Any, Iterator, Sequence, Unpack

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _core
from .._core import Error
from .._flash.arguments import check
from .._torch.attention import as_tensors
from .._torch.operators import GRADIENTS, new_lse, new_out, readable, readable_options
from .._torch.options import OptionArguments, Options

Ranges = Sequence[tuple[int, int]]
_KINDS = ("contiguous", "zigzag", "striped")


@dataclasses.dataclass(frozen=True)
class Placement:
    """Which rank holds which tokens of a sequence.

        >>> placement = Placement("zigzag", tokens=65536)       # the same on all ranks
        >>> x = placement.take(tokens, dim=1)                   # those of this rank

    kind        "contiguous": consecutive tokens; "zigzag": as many from the end as from the beginning, so that all have
                the same work under a causal mask; "striped": chunks all over the sequence, for other masks
    tokens      length of the whole sequence
    chunk       tokens that stay together; 0: 1024, or fewer where a rank would get less than two chunks. Results have
                the same bits for any number of ranks with the same kind and chunk

    Placement.of_ranges() has any other placement.
    """

    kind: str
    tokens: int
    chunk: int = 0
    _ranges: tuple[tuple[tuple[int, int], ...], ...] = ()

    def __post_init__(self) -> None:
        if not self._ranges and self.kind not in _KINDS:
            raise Error(f"[Placement] kind is {self.kind!r}, must be one of {', '.join(_KINDS)}")
        if not isinstance(self.tokens, int) or self.tokens < 0:
            raise Error(f"[Placement] tokens is {self.tokens!r}, must be a whole number from 0 on")

    @staticmethod
    def of_ranges(ranges: Sequence[Ranges], chunk: int = 1024) -> Placement:
        """Returns the placement of rank r's tokens ranges[r], which are pairs (begin, end). Together they are the
        tokens 0 to n - 1, each once. The arrays of a rank hold them by rising position."""
        taken = tuple(tuple((int(begin), int(end)) for begin, end in of_rank) for of_rank in ranges)
        tokens = sum(end - begin for of_rank in taken for begin, end in of_rank)
        return Placement("ranges", tokens, chunk, taken)

    def described(self) -> tuple[str, Any, int]:
        """As the extension reads it."""
        if self._ranges:
            return "ranges", [list(of_rank) for of_rank in self._ranges], self.chunk
        return self.kind, self.tokens, self.chunk

    def ranges(self, group: dist.ProcessGroup | None = None, rank: int | None = None) -> list[tuple[int, int]]:
        """Returns the tokens of a rank, this one if none is named, as pairs (begin, end) by rising position."""
        ranks = GroupRanks.of(group)
        return _core.cluster_ranges(self.described(), ranks.size, ranks.rank if rank is None else rank)

    def take(self, whole: Tensor, dim: int, group: dist.ProcessGroup | None = None) -> Tensor:
        """Returns a copy of this rank's tokens of a tensor that has all of them on axis `dim`."""
        if whole.shape[dim] != self.tokens:
            raise Error(f"[Placement.take] the tensor has {whole.shape[dim]} tokens, must have {self.tokens}")
        parts = [whole.narrow(dim, begin, end - begin) for begin, end in self.ranges(group)]
        return torch.cat(parts, dim) if parts else whole.narrow(dim, 0, 0).clone()


def _bytes(address: int, count: int) -> Tensor:
    """Returns memory that the library owns as a tensor, for as long as the library waits."""
    return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)


class _Transfer:
    """Messages under way."""

    def __init__(self, works: list[Any], buffers: list[Tensor]) -> None:
        self._works, self._buffers = works, buffers

    def progress(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def wait(self) -> None:
        for work in self._works:
            work.wait()
        self._works, self._buffers = [], []


class GroupRanks:
    """The ranks of a process group, as the extension calls them."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    @staticmethod
    def of(group: dist.ProcessGroup | None) -> GroupRanks:
        if not dist.is_available() or not dist.is_initialized():
            raise Error("[attention] there is no process group: call torch.distributed.init_process_group('gloo'), as "
                        "under torchrun")
        if dist.get_rank(group) < 0:
            raise Error("[attention] this process is not in the group")
        return GroupRanks(group)

    def peer(self, rank: int) -> int:
        return rank if self._group is None else dist.get_global_rank(self._group, rank)

    def start(self, sent: list[tuple[int, int, int]], received: list[tuple[int, int, int]], tag: int) -> _Transfer:
        buffers = [_bytes(address, count) for _, address, count in (*received, *sent)]
        works = [dist.irecv(buffer, self.peer(rank), self._group, tag)
                 for buffer, (rank, _, _) in zip(buffers, received)]
        works += [dist.isend(buffer, self.peer(rank), self._group, tag)
                  for buffer, (rank, _, _) in zip(buffers[len(received):], sent)]
        return _Transfer(works, buffers)

    def all_gather(self, address: int, count: int, to: int) -> None:
        gathered = _bytes(to, count * self.size)
        dist.all_gather(list(gathered.split(count)), _bytes(address, count), group=self._group)

    def exchange(self, sent: dict[int, Tensor], received: dict[int, Tensor]) -> None:
        """Sends tensors to ranks and fills those that come from ranks, and waits for all; empty ones do not travel."""
        works = [dist.irecv(x, self.peer(rank), self._group) for rank, x in received.items() if x.numel()]
        works += [dist.isend(x, self.peer(rank), self._group) for rank, x in sent.items() if x.numel()]
        for work in works:
            if work is not None:
                work.wait()

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """What is wrong inside is said to the other ranks too, which raise it instead of waiting for this one."""
        try:
            yield
        except (Error, TypeError) as error:
            with contextlib.suppress(Error):
                _core.cluster_refuse(self, str(error))
            raise

    def shared_seed(self) -> Tensor:
        """Draws a seed from the generator of the first rank."""
        _core.cluster_synchronize(self, "seed of dropout")
        seed = torch.randint(2**62, ())
        dist.broadcast(seed, self.peer(0), group=self._group)
        return seed


@dataclasses.dataclass(frozen=True)
class _Call:
    ranks: GroupRanks
    queries: Placement
    keys: Placement
    options: Options
    schedule: str

    def given(self, bias: Tensor | None, sink: Tensor | None) -> Options:
        changes = {name: value for name, value in (("bias", bias), ("sink", sink)) if value is not None}
        return readable_options(self.options.having(**changes))


class _OverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None,  # type: ignore[override]
                sink: Tensor | None) -> tuple[Tensor, Tensor]:
        out, lse = new_out(q, v), new_lse(q)
        _core.cluster_forward(call.ranks, call.queries.described(), call.keys.described(), readable(q), readable(k),
                              readable(v), readable(out), readable(lse), call.given(bias, sink), call.schedule)
        ctx.call = call
        ctx.save_for_backward(q, k, v, out, lse, bias, sink)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        q, k, v, out, lse, bias, sink = ctx.saved_tensors
        call = ctx.call
        results = [torch.empty_like(source) if wanted else None
                   for source, wanted in zip((q, k, v, bias, sink), ctx.needs_input_grad[1:])]
        arrays = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "dout": dout, "dlse": dlse,
                  **dict(zip(GRADIENTS, results))}
        _core.cluster_backward(call.ranks, call.queries.described(), call.keys.described(),
                               {name: readable(x) for name, x in arrays.items() if x is not None},
                               call.given(bias, sink), call.schedule)
        return None, *results


def over_ranks(ranks: GroupRanks, queries: Placement, keys: Placement, q: Tensor, k: Tensor, v: Tensor,
               options: Options, schedule: str = "ring") -> tuple[Tensor, Tensor]:
    """Computes (out, lse) of this rank's queries, with gradients of q, k, v, bias and sink."""
    if options.dropout and options.seed is None:
        options = options.having(seed=ranks.shared_seed())
    call = _Call(ranks, queries, keys, options.without("bias", "sink"), schedule)
    return _OverRanks.apply(call, q, k, v, options.bias, options.sink)


def attention(q: Tensor, k: Tensor, v: Tensor, placement: Placement, *, key_placement: Placement | None = None,
              group: dist.ProcessGroup | None = None, schedule: str = "ring", return_lse: bool = False,
              **options: Unpack[OptionArguments]) -> Any:
    """Computes exact attention over a sequence that the ranks of a process group share.

        >>> placement = Placement("zigzag", tokens=65536)
        >>> out = attention(q, k, v, placement, causal=True)    # q [B, H, tokens of this rank, D]

    q [B, H, Lq, D], k [B, Hk, Lk, D], v [B, Hk, Lk, Dv]: the tokens of this rank, CPU tensors of one floating type
    placement       which rank has which queries, and keys
    key_placement   the same of the keys, where they are other tokens
    group           the process group; None: all ranks. Its backend must send CPU tensors, as gloo does
    schedule        "ring": keys of one rank after the other; "gather": of all at once; "heads": ranks exchange tokens
                    for heads before and after, and "heads:n" in groups of n ranks, with the ring between groups
    return_lse      also return lse [B, H, Lq]
    options         those of attention_cpp.torch.attention(), for the whole sequence and the same on all ranks. A mask
                    and a bias have the queries of this rank and all keys. Without a seed, dropout takes one from the
                    generator of the first rank

    Every rank of the group calls it, and its backward. Returns out [B, H, Lq, Dv], with gradients of q, k, v, a bias
    and a sink. Raises Error on all ranks if a call is wrong on one of them, or if their calls differ.
    """
    ranks = GroupRanks.of(group)
    with ranks.refusing():
        for name, given_placement in (("placement", placement), ("key_placement", key_placement or placement)):
            if not isinstance(given_placement, Placement):
                raise TypeError(f"[attention] {name} must be a Placement, not {type(given_placement).__name__}")
        check("attention", q=(q, "B H Lq D"), k=(k, "B Hk Lk D"), v=(v, "B Hk Lk Dv"))
        given = as_tensors("attention", options)
    out, lse = over_ranks(ranks, placement, key_placement or placement, q, k, v, given, schedule)
    return (out, lse) if return_lse else out


def merge(out: Tensor, lse: Tensor, group: dist.ProcessGroup | None = None) -> tuple[Tensor, Tensor]:
    """Merges the attention states of all ranks, each over keys of its own, into that over the keys of all.

        >>> out, lse = merge(*cache.attend(q, [sequence], causal=False, return_lse=True), group)

    out [B, H, Lq, Dv] and lse [B, H, Lq] of the same queries, float32 or float64; a rank without keys has (0, -inf).
    So ranks decode with a KV cache that they share. Returns new tensors, the same on all ranks, without gradients.
    """
    ranks = GroupRanks.of(group)
    with ranks.refusing():
        check("merge", out=(out, "B H Lq Dv"), lse=(lse, "B H Lq"))
    out, lse = out.detach().clone(), lse.detach().clone()
    _core.cluster_merge(ranks, readable(out), readable(lse))
    return out, lse
