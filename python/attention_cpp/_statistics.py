"""Statistics of the attention matrix. The functions allocate the results and call the extension."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence, Unpack, overload

from . import _core
from ._arrays import FLOATING, as_array, dtype_name, empty, exported, finished, wrong_types
from ._operator import A, _lse_dtype, _range_of, _shape
from ._options import Array, OptionArguments, Options, options_of

_ROWS = ("sum", "entropy", "participation", "maximum", "distance", "same_token")
_COLUMNS = ("column_mass", "column_position")
_BANDS = {"first": (0, 0, 0), "self": (0, 0, 1), "previous": (-1, -1, 1), "next": (1, 1, 1)}  # low, high, relative
_NAMES = (*_ROWS, "argmax_key", *_BANDS, *_COLUMNS)
USUAL = ("entropy", "maximum", "argmax_key", "distance", "first", "self", "previous")


def _check_names(wanted: Sequence[str], bands: Mapping[str, tuple[int, int]]) -> None:
    reasons = []
    if isinstance(wanted, str):
        raise TypeError("[attention_statistics] wanted must be a list of names, not one name")
    wrong_types("attention_statistics", wanted=(wanted, "list of strings"))
    unknown = sorted(set(wanted) - set(_NAMES))
    if unknown:
        reasons.append("there is no statistic " + ", ".join(map(repr, unknown)) + "; there are " + ", ".join(_NAMES))
    taken = sorted(set(bands) & {*_NAMES, "labels", "picture", "top_weight", "top_key"})
    if taken:
        reasons.append("a band must not be called " + ", ".join(map(repr, taken)))
    reasons += [f"bands[{name!r}] must be (low, high), not {band!r}" for name, band in bands.items()
                if not (isinstance(band, (tuple, list)) and len(band) == 2 and all(isinstance(n, int) for n in band))]
    if reasons:
        raise _core.Error("[attention_statistics] " + "; ".join(reasons))


def _bands_of(bands: Any) -> dict[str, tuple[int, int]]:
    if bands is not None and not isinstance(bands, Mapping):
        raise TypeError("[attention_statistics] bands must be a dict {name: (low, high)}, not "
                        f"{type(bands).__name__}")
    return dict(bands or {})


def _count_of(labels: Any) -> int:
    """Returns the number of sets, the highest label plus 1, or 0 if the array is wrong, for which the extension
    raises."""
    is_given = _shape(labels) and all(_shape(labels)) and dtype_name(labels) in ("int32", "int64")
    return max(int(labels.max()) + 1, 0) if is_given else 0


def _check_number(name: str, value: Any, most: int) -> None:
    if not isinstance(value, int) or not 0 <= value <= most:
        raise _core.Error(f"[attention_statistics] {name} is {value!r}, must be a whole number from 0 to {most}")


def ask(
    q: Array, keys: int | None, wanted: Sequence[str], compute: Callable[[Any, Options], None], *,
    means: bool = False, bands: Mapping[str, tuple[int, int]] | None = None, labels: Array | None = None,
    label_sets: int | None = None, query_token_ids: Array | None = None, key_token_ids: Array | None = None,
    top: int = 0, picture: tuple[int, int] | None = None,
    picture_of: str = "mean", picture_rows: slice | range | int | None = None,
    picture_columns: slice | range | int | None = None, key_factor: Array | None = None, **options: Any
) -> dict[str, Array]:
    """Computes attention_statistics() for keys in arrays or in a KV cache by calling compute(views and key sets,
    options).

    keys: the number of keys, or None if k has no such axis.
    """
    given = options_of("attention_statistics", options)
    bands = _bands_of(bands)
    _check_names(wanted, bands)
    if picture_of not in ("mean", "max"):
        raise _core.Error(f"[attention_statistics] picture_of is {picture_of!r}, must be 'mean' or 'max'")
    sets = {name: _BANDS[name] for name in wanted if name in _BANDS}
    sets |= {name: (low, high, 1) for name, (low, high) in bands.items()}
    labels = None if labels is None else as_array(labels)
    if labels is not None:
        label_sets = _count_of(labels) if label_sets is None else label_sets
        _check_number("label_sets", label_sets, 64)
    _check_number("top", top, 256)
    if picture is not None and not (isinstance(picture, (tuple, list)) and len(picture) == 2
                                    and all(isinstance(n, int) and n >= 0 for n in picture)):
        raise _core.Error(f"[attention_statistics] picture is {picture!r}, must be (rows, columns) of cells")

    arrays: dict[str, Any] = {}
    shown = (0, -1, 0, -1)
    rows, heads, dtype = _shape(q)[:-1], _shape(q)[:-2], "float32"
    if len(_shape(q)) >= 2 and keys is not None:  # otherwise the extension raises
        dtype = _lse_dtype(q)
        shapes = {name: () for name in _ROWS if name in wanted}
        shapes |= {"bands": (len(sets),)} if sets else {}
        shapes |= {"labels": (label_sets,)} if labels is not None else {}
        for name, more in shapes.items():
            arrays[name] = empty(q, (*rows, *more), dtype)
            if means:
                arrays["mean_" + name] = empty(q, (*heads, *more) or (1,), dtype)
        for name in _COLUMNS:
            if name in wanted:
                arrays[name] = empty(q, (*heads, keys), dtype)
        if "argmax_key" in wanted:
            arrays["argmax_key"] = empty(q, rows, "int64")
        if top:
            arrays |= {"top_weight": empty(q, (*rows, top), dtype), "top_key": empty(q, (*rows, top), "int64")}
        if picture is not None:
            arrays["picture"] = empty(q, (*heads, *picture), dtype)
            shown = (*_range_of(picture_rows, _shape(q)[-2], "picture_rows", "attention_statistics"),
                     *_range_of(picture_columns, keys, "picture_columns", "attention_statistics"))
    given_arrays = (exported(array, name) for name, array in (
        ("labels", labels), ("query_token_ids", query_token_ids), ("key_token_ids", key_token_ids),
        ("key_factor", key_factor)))
    compute(({name: exported(array, name, True) for name, array in arrays.items()}, list(sets.values()), *given_arrays,
             (*shown, int(picture_of == "max"))), given)

    results = {name: finished(array, q) for name, array in arrays.items()}
    for prefix in ("", "mean_"):
        masses = results.pop(prefix + "bands", None)
        if masses is not None:
            results |= {prefix + name: masses[..., n] for n, name in enumerate(sets)}
    if not heads:  # of one head the means are numbers
        results |= {name: array.reshape(()) for name, array in results.items()
                    if name.startswith("mean_") and name != "mean_labels"}
    return results


def attention_statistics(
    q: A,
    k: Array,
    lse: Array,
    wanted: Sequence[str] = USUAL,
    *,
    means: bool = False,
    bands: Mapping[str, tuple[int, int]] | None = None,
    labels: Array | None = None,
    label_sets: int | None = None,
    query_token_ids: Array | None = None,
    key_token_ids: Array | None = None,
    top: int = 0,
    picture: tuple[int, int] | None = None,
    picture_of: str = "mean",
    picture_rows: slice | range | int | None = None,
    picture_columns: slice | range | int | None = None,
    key_factor: Array | None = None,
    **options: Unpack[OptionArguments],
) -> dict[str, A]:
    """Computes numbers that describe the attention matrix P, in one pass and O(n) memory. P is never stored.

        >>> statistics = attention_statistics(q, k, lse, ["entropy", "previous"], causal=True)
        >>> statistics["entropy"]                                           # [B, H, Lq]

    Arguments
        q, k, lse   those of the forward, with return_lse=True
        wanted      names. Of a row, [B, H, Lq]: "sum", "entropy" (nats), "participation" (1 / sum P^2), "maximum",
                    "argmax_key" (int64, the key of the maximum; -1: none), "distance" (mean |p_i - j|), and the mass of
                    the keys "first", "self", "previous", "next", "same_token". Of a key, [B, H, Lk]: "column_mass" (the
                    mass that it receives) and "column_position" (the mean position of the queries that attend to it)
        means       also compute "mean_..." [B, H], the mean of each row statistic over the rows of a head that have an
                    allowed key
        bands       {name: (low, high)}: the mass of the keys p_i + low .. p_i + high, both included
        labels      int [B|1, Lk], the set of each key from 0 on, negative = in no set. "labels" [B, H, Lq, label_sets]
                    is the mass of each set; label_sets is at most 64, default max + 1
        query_token_ids, key_token_ids   int [B|1, Lq] and [B|1, Lk], for "same_token"
        top         n from 1 to 256: "top_weight" and "top_key" [B, H, Lq, n], the largest of each row, descending
        picture     (R, C): "picture" [B, H, R, C], P pooled by picture_of, "mean" or "max". picture_rows and
                    picture_columns select the part that is shown, as in attention_weights()
        key_factor  [B|1, H|Hk|1, Lk] of lse's type, not negative: multiplies P in column_mass and in the picture
        options     the options of the forward

    Returns {name: array}: arrays of the library of q, float32 (float64 for float64).

    Raises as attention() does. Raises Error too if a row of P does not sum up to 1, the sink's share included, because
    lse then belongs to other arrays or options.
    """
    q, k = as_array(q), as_array(k)
    return ask(
        q, _shape(k)[-2] if len(_shape(k)) >= 2 else None, wanted,
        lambda asked, given: _core.statistics(exported(q, "q"), exported(k, "k"), exported(lse, "lse"), asked, given),
        means=means, bands=bands, labels=labels, label_sets=label_sets, query_token_ids=query_token_ids,
        key_token_ids=key_token_ids, top=top, picture=picture, picture_of=picture_of,
        picture_rows=picture_rows, picture_columns=picture_columns,
        key_factor=key_factor, **options)
