"""KVCache, the paged KV cache."""

from __future__ import annotations

from typing import Any, Literal, Sequence, Unpack, overload

import numpy.typing as npt

from . import _core
from ._arrays import FLOATING, as_array, dtype_name, empty, exported, finished, wrong_types
from ._operator import A, _lse_dtype, _shape
from ._options import Array, OptionArguments, options_of
from ._statistics import USUAL, ask


def _of_sequence(name: str, sequence: Any, **more: Any) -> None:
    wrong_types(f"kv_cache.{name}", sequence=(sequence, "whole number"),
                **{key: (value, "whole number") for key, value in more.items()})


class KVCache:
    """A paged KV cache: it owns the keys and values of many growing sequences. append() copies tokens into KV pages and
    never moves earlier ones.

        >>> cache = KVCache(kv_heads=2, head_dim=64)
        >>> sequence = cache.add()
        >>> cache.append(sequence, k, v)                # k and v [1, 2, n, 64]
        >>> out = cache.attend(q, [sequence])           # q [1, H, 1, 64]: the newest token

    Arguments
        kv_heads    Hk; head_dim is D; value_dim is Dv (None: D)
        dtype       "float32", "float64", "bfloat16" or "float16"
        page_size   tokens in a KV page; max_pages limits the memory, 0 = no limit
        storage     "exact", or "int8": each key and each value as 8-bit integers with one float32 scale, max |x| / 127.
                    That takes about a quarter of the memory in float32, half in 16 bits; attention is exact over the
                    rounded keys and values
        window      not 0: a streaming cache (StreamingLLM, Xiao et al. 2023, arXiv:2309.17453), which keeps the last
                    `window` tokens of a sequence and its first `sink_tokens`, for texts of any length

    Many threads may call attend() at a time. Methods that change the cache raise Error while one of them does.
    """

    def __init__(self, kv_heads: int, head_dim: int, value_dim: int | None = None, *, dtype: str = "float32",
                 page_size: int = 64, max_pages: int = 0, sink_tokens: int = 0, window: int = 0,
                 storage: Literal["exact", "int8"] = "exact") -> None:
        wrong_types("KVCache", kv_heads=(kv_heads, "whole number"), head_dim=(head_dim, "whole number"),
                    value_dim=(value_dim or 0, "whole number"), page_size=(page_size, "whole number"),
                    max_pages=(max_pages, "whole number"), sink_tokens=(sink_tokens, "whole number"),
                    window=(window, "whole number"), storage=(storage, "string"))
        self._cache = _core.Cache(kv_heads, head_dim, value_dim or 0, str(dtype).removeprefix("torch."), page_size,
                                  max_pages, sink_tokens, window, storage)
        self._value_dim = value_dim or head_dim

    def add(self) -> int:
        """Adds an empty sequence and returns its id."""
        return self._cache.add()

    def fork(self, sequence: int, length: int) -> int:
        """Adds a sequence that shares the first `length` tokens of another, and returns its id. Once a streaming cache
        has evicted tokens of that sequence, `length` is 0 or its length; so in truncate()."""
        _of_sequence("fork", sequence, length=length)
        return self._cache.fork(sequence, length)

    def append(self, sequence: int, k: Array, v: Array) -> None:
        """Copies n tokens to the end of a sequence: k [1, Hk, n, D], v [1, Hk, n, Dv], of the cache's dtype. If it
        raises, the cache has not changed."""
        _of_sequence("append", sequence)
        self._cache.append(sequence, exported(as_array(k), "k"), exported(as_array(v), "v"))

    def truncate(self, sequence: int, length: int) -> None:
        """Removes the tokens from `length` on."""
        _of_sequence("truncate", sequence, length=length)
        self._cache.truncate(sequence, length)

    def remove(self, sequence: int) -> None:
        """Removes a sequence."""
        _of_sequence("remove", sequence)
        self._cache.remove(sequence)

    def length(self, sequence: int) -> int:
        """Returns the number of tokens in a sequence, evicted ones included."""
        _of_sequence("length", sequence)
        return self._cache.length(sequence)

    @property
    def pages_in_use(self) -> int:
        """The number of KV pages that contain a token of a sequence."""
        return self._cache.pages_in_use()

    @property
    def nbytes(self) -> int:
        """The memory of those KV pages."""
        return self._cache.pages_in_use() * self._cache.page_bytes()

    @overload
    def attend(self, q: A, sequences: Sequence[int] | Array, cu_seqlens_q: Sequence[int] | Array | None = None, *,
               sink_queries: Array | None = None, return_lse: Literal[False] = False,
               **options: Unpack[OptionArguments]) -> A: ...

    @overload
    def attend(self, q: A, sequences: Sequence[int] | Array, cu_seqlens_q: Sequence[int] | Array | None = None, *,
               sink_queries: Array | None = None, return_lse: Literal[True],
               **options: Unpack[OptionArguments]) -> tuple[A, A]: ...

    @overload
    def attend(self, q: A, sequences: Sequence[int] | Array, cu_seqlens_q: Sequence[int] | Array | None = None, *,
               sink_queries: Array | None = None, return_lse: bool,
               **options: Unpack[OptionArguments]) -> A | tuple[A, A]: ...

    @overload
    def attend(self, q: memoryview, sequences: Sequence[int] | Array,
               cu_seqlens_q: Sequence[int] | Array | None = None, *, sink_queries: Array | None = None,
               return_lse: Literal[False] = False, **options: Unpack[OptionArguments]) -> npt.NDArray[Any]: ...

    def attend(self, q: Array, sequences: Sequence[int] | Array, cu_seqlens_q: Sequence[int] | Array | None = None, *,
               sink_queries: Array | None = None, return_lse: bool = False,
               **options: Unpack[OptionArguments]) -> Any:
        """Computes the attention of a ragged batch of queries to their sequences.

        Arguments
            q           [1, H, total, D]: the queries of all sequences, one sequence after the other
            sequences   the ids of the sequences, one for each entry of the batch
            cu_seqlens_q    the start of each entry's queries in q, then the total; None: one query for each
            options     those of attention(), causal with bottom_right alignment by default: the last query is the
                        newest token. A bias is [1, H|1, total|1, longest|1] with keys counted inside each sequence. The
                        options mask and segment ids are not supported
            sink_queries    for a streaming cache of rotary keys: q rotated by cache positions, min(position,
                        sink_tokens + window - 1), for the sink tokens. Keys and q are rotated by positions in the text

        In a streaming cache a query attends to the sink tokens and the last `window` tokens up to its own. The queries
        are those of the last append; window, ALiBi and bias count positions among these tokens.

        Returns out [1, H, total, Dv], or (out, lse) with return_lse=True. Raises as attention() does.
        """
        q = as_array(q)
        given = options_of("kv_cache.attend", options)
        wrong_types("kv_cache.attend", sequences=(sequences, "list of whole numbers"))
        if cu_seqlens_q is None:
            cu_seqlens_q = list(range(len(sequences) + 1))
        out = lse = None
        if 2 <= len(_shape(q)) <= 4 and dtype_name(q) in FLOATING:  # otherwise the extension raises
            out = empty(q, (*_shape(q)[:-1], self._value_dim), dtype_name(q))
            lse = empty(q, _shape(q)[:-1], _lse_dtype(q)) if return_lse else None
        self._cache.attend(exported(sequences, "sequences"), exported(cu_seqlens_q, "cu_seqlens_q"), exported(q, "q"),
                           exported(out), exported(lse), given,
                           exported(None if sink_queries is None else as_array(sink_queries), "sink_queries"))
        return (finished(out, q), finished(lse, q)) if return_lse else finished(out, q)

    def statistics(self, q: A, lse: Array, sequences: Sequence[int] | Array,
                   cu_seqlens_q: Sequence[int] | Array | None = None, wanted: Sequence[str] = USUAL,
                   **asked: Any) -> dict[str, A]:
        """Computes numbers that describe the attention matrix of an attend() with return_lse=True, in O(n) memory.

        Arguments
            q, lse, sequences, cu_seqlens_q   those of that call
            wanted      the names of the statistics
            asked       other arguments of attention_statistics() (means, bands, labels, query_token_ids, key_token_ids,
                        top, picture, key_factor ...) and the options of that call

        The axis Lk of results, labels and token ids consists of the keys of all sequences, one sequence after the
        other, and keys are indices on it. Positions, distances and bands count inside each sequence.

        Returns {name: array}; statistics of a row are [1, H, total]. Raises as attention_statistics() does.
        """
        q = as_array(q)
        wrong_types("kv_cache.statistics", sequences=(sequences, "list of whole numbers"))
        if cu_seqlens_q is None:
            cu_seqlens_q = list(range(len(sequences) + 1))
        return ask(
            q, sum(self.length(int(sequence)) for sequence in sequences), wanted,
            lambda what, options: self._cache.statistics(
                exported(sequences, "sequences"), exported(cu_seqlens_q, "cu_seqlens_q"), exported(q, "q"),
                exported(lse, "lse"), what, options), **asked)
