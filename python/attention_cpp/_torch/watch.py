"""attention_cpp.watch(), which records what the heads of a running torch model attend to."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import html
import json
import os
import warnings
from typing import Any, Iterator, Sequence

import torch
from torch import Tensor

from .. import _core
from .._arrays import exported, wrong_types
from .._core import Error
from .._heads import HeadMeasures
from .._operator import _range_of, attention_weights
from .._options import options_of
from .._statistics import attention_statistics
from .enabling import reporting
from .options import Options, detached
from .state import observed, state
from .weights import head_index, options_of_heads

# The statistics of statistics() by default: entropy in nats, the largest weight, the mean distance in tokens, and the
# mass on the first key, on the query's own key and on the one before it.
STATISTICS = ("entropy", "maximum", "distance", "first", "self", "previous")
_SAVED = ("scale", "softcap", "causal", "window", "alignment", "offset", "key_length")


@dataclasses.dataclass
class Call:
    """The recorded attention of one call: every weight can be computed from it."""

    q: Tensor  # [B, H, Lq, D]
    k: Tensor  # [B, Hk, Lk, D]
    lse: Tensor  # [B, H, Lq]
    options: Options  # without dropout, which is not part of the weights
    first_row: int = 0  # the number of rows in the earlier calls of its run


@dataclasses.dataclass
class Layer:
    """The calls of one module, in runs. A run is a prompt and the tokens that were generated after it."""

    name: str
    runs: list[list[Call]] = dataclasses.field(default_factory=list)

    def run(self, number: int) -> list[Call]:
        """Returns run `number`, counted from the end if it is negative."""
        if not -len(self.runs) <= number < len(self.runs):
            raise Error(f"[watch] {self.name} has {len(self.runs)} runs: there is no run {number}")
        return self.runs[number]

    def add(self, call: Call) -> None:
        """Adds a call. If its keys begin with those of the last call, it continues that run; keys are stored once."""
        run = self.runs[-1] if self.runs else []
        if not run or not _extends(run[-1].k, call.k):
            self.runs.append([call])
            return
        call.first_row = run[-1].first_row + run[-1].q.shape[2]
        for earlier in run:
            earlier.k = call.k[:, :, :earlier.k.shape[2]]
        run.append(call)


def _options_of(calls: list[Call]) -> dict[str, Any]:
    """Returns the options of a run as one call. In a run of several calls a token attends to all tokens before it."""
    options = calls[0].options
    if len(calls) > 1:
        options = options.without("offset").having(causal=True, alignment="top_left")
    return dict(vars(options))


def _said(layer: str, calls: list[Call], batch: int) -> dict[str, Any]:
    """Returns the options of a run for one text, as numbers."""
    given = _options_of(calls)
    other = sorted(name for name, value in given.items() if name not in _SAVED and value is not None)
    if other:
        raise Error(f"[watch] {layer or 'the layer'} has {', '.join(other)}, which neither a file nor a page can store")
    for name in ("offset", "key_length"):
        if given.get(name) is not None:
            given[name] = int(given[name][batch])
    return {name: value for name, value in given.items() if value is not None}


def _check_head(head: int | None, call: Call) -> None:
    if head is not None:
        wrong_types("watch", head=(head, "whole number"))
        if not 0 <= head < call.q.shape[1]:
            raise Error(f"[watch] head must be in [0, {call.q.shape[1]}), not {head}")


def _extends(before: Tensor, now: Tensor) -> bool:
    """Whether `now` begins with the keys of `before`. It compares the first key and the last key of `before`."""
    length = before.shape[2]
    return (length < now.shape[2] and before.dtype == now.dtype and before.shape[:2] == now.shape[:2]
            and before.shape[3] == now.shape[3]
            and all(torch.equal(before[:, :, row], now[:, :, row]) for row in (0, length - 1)))


class Seen:
    """What watch() has recorded: q, k and lse. Each method computes its result from them when you call it.

    layers   the recorded modules, in the order in which they first computed attention
    missed   for each call that torch computed, and watch() could not record, the reason
    """

    def __init__(self, layers: Sequence[int | str] | None, heads: Sequence[int] | None) -> None:
        self.layers: list[Layer] = []
        self.missed: list[str] = []
        self._wanted, self._heads = layers, None if heads is None else list(heads)
        self._order: dict[str, int] = {}  # all modules that compute attention, in the order of their first calls
        self._running: list[str] = []

    # ------------------------------------------------------------------------------------------------------- capture

    def _is_wanted(self, name: str) -> bool:
        number = self._order.setdefault(name, len(self._order))
        return self._wanted is None or any(
            number == wanted if isinstance(wanted, int) else fnmatch.fnmatchcase(name, wanted)
            for wanted in self._wanted)

    def _is_of_another(self) -> bool:
        """Whether a call belongs to another model: none of our modules runs, and another watched model runs, or was
        watched later."""
        watches = state.watches
        return not self._running and (watches[-1] is not self or any(seen._running for seen in watches))

    def _miss(self, reason: str) -> None:
        if not self._is_of_another():
            self.missed.append(reason)

    def _note(self, q: Tensor, k: Tensor, lse: Tensor, options: Options) -> None:
        if self._is_of_another():
            return
        name = self._running[-1] if self._running else ""
        if not self._is_wanted(name):
            return
        with torch.no_grad():
            given = detached(options.without("dropout", "seed"))
            q, k, lse = q.detach(), k.detach(), lse.detach()
            if self._heads is not None:
                try:
                    index = head_index(self._heads, q.shape[1])
                except Error as error:  # scaled_dot_product_attention would catch an Error and leave the call to torch
                    raise IndexError(f"[watch] {name}: {error}") from None
                given = options_of_heads(given, index)
                k = k.index_select(1, index // (q.shape[1] // k.shape[1]))
                q, lse = q.index_select(1, index), lse.index_select(1, index)
            self._layer(name).add(Call(q, k, lse, given))

    def _layer(self, name: str) -> Layer:
        for layer in self.layers:
            if layer.name == name:
                return layer
        self.layers.append(Layer(name))
        return self.layers[-1]

    # ------------------------------------------------------------------------------------------------------- answers

    def layer(self, layer: int | str) -> Layer:
        """Returns a recorded layer by its index in `layers` or by its name. Raises Error if there is no such layer."""
        count = len(self.layers)
        found = [one for number, one in enumerate(self.layers) if layer in (number, number - count, one.name)]
        if not found:
            names = ", ".join(one.name or "(no module)" for one in self.layers) or "none"
            raise Error(f"[watch] there is no layer {layer!r}; the recorded layers are: {names}")
        return found[0]

    def weights(self, layer: int | str, head: int | None = None, rows: slice | range | int | None = None,
                columns: slice | range | int | None = None, *, run: int = -1) -> Tensor:
        """Recomputes a rectangle of a layer's attention matrix: [B, H, rows, columns], or [B, rows, columns] of a head.

            >>> seen.weights(0, head=3, rows=range(90, 100))      # [B, 10, Lk]

        Rows and columns count from the start of the run: row i of a generated text is its i-th token, and later keys
        have weight 0. Raises Error for a layer, head, run, row or column that was not recorded.
        """
        calls = self.layer(layer).run(run)
        last = calls[-1]
        _check_head(head, last)
        first, count = _range_of(rows, last.first_row + last.q.shape[2], "rows")
        column, width = _range_of(columns, last.k.shape[2], "columns")
        parts = []
        for call in calls:
            begin, end = max(first - call.first_row, 0), min(first + count - call.first_row, call.q.shape[2])
            seen = min(column + width, call.k.shape[2])
            if begin >= end:
                continue
            part = attention_weights(call.q, call.k, call.lse, range(begin, end), range(min(column, seen), seen),
                                     **vars(call.options))
            parts.append(torch.nn.functional.pad(part, (0, width - part.shape[3])))
        result = torch.cat(parts, 2) if parts else last.lse.new_empty((*last.lse.shape[:2], 0, width))
        return result if head is None else result[:, head]

    def statistics(self, wanted: Sequence[str] = STATISTICS, *, layer: int | str | None = None,
                   head: int | None = None, rows: slice | range | int | None = None,
                   layers: Sequence[int | str] | None = None, run: int = -1) -> dict[str, Tensor]:
        """Computes statistics of each row: {name: [layers, B, H, rows]}, with layer= {name: [B, H, rows]}, and with
        head= {name: [B, rows]}.

        Arguments
            wanted   names of row statistics, as "entropy", "argmax_key" or "previous", or "column_mass", the mass that
                     each key receives, [layers, B, H, Lk]
            layer, head, rows   as in weights(); "column_mass" is always the sum over all rows
            layers   the recorded layers, by index or name; they must have the same B, H and Lq. None: all
        """
        if layer is not None:
            if layers is not None:
                raise Error("[watch] layer and layers must not both be given")
            return self._of_layer(layer, wanted, head, rows, run)
        if head is not None or rows is not None:
            raise Error("[watch] head and rows select a part of one layer: give layer too")
        numbers = range(len(self.layers)) if layers is None else layers
        found = [self._statistics_of(self.layer(layer).run(run), wanted) for layer in numbers]
        sizes = {tuple(one[name].shape) for one in found for name in wanted if name != "column_mass"}
        if len(sizes) > 1:
            raise Error(f"[watch] B, H and Lq of the layers are {' and '.join(map(str, sorted(sizes)))}: select layers "
                        "with the same ones")
        return {name: torch.stack([one[name] for one in found]) for name in wanted} if found else {}

    def _of_layer(self, layer: int | str, wanted: Sequence[str], head: int | None,
                  rows: slice | range | int | None, run: int) -> dict[str, Tensor]:
        calls = self.layer(layer).run(run)
        _check_head(head, calls[-1])
        first, count = _range_of(rows, calls[-1].first_row + calls[-1].q.shape[2], "rows", "watch")
        found = {name: array if name == "column_mass" else array.narrow(2, first, count)
                 for name, array in self._statistics_of(calls, wanted).items()}
        return found if head is None else {name: array[:, head] for name, array in found.items()}

    @staticmethod
    def _statistics_of(calls: list[Call], wanted: Sequence[str]) -> dict[str, Tensor]:
        parts = []
        for call in calls:
            options = {"alignment": "bottom_right", **vars(call.options)}
            parts.append(attention_statistics(call.q, call.k, call.lse, wanted, **options))
        length = calls[-1].k.shape[2]
        received = [torch.nn.functional.pad(part.pop("column_mass"), (0, length - call.k.shape[2]))
                    for part, call in zip(parts, calls) if "column_mass" in part]
        joined = {name: torch.cat([part[name] for part in parts], 2) for name in parts[0]}
        return {**joined, "column_mass": torch.stack(received).sum(0)} if received else joined

    def heads(self, ids: Any, kinds: Any = None, *, run: int = -1) -> dict[str, Any]:
        """Returns HeadMeasures.table() for the recorded layers and the texts of a run.

        ids and kinds are [B, n], token ids and token kinds as in HeadMeasures.add(). docs/heads.md defines the
        measures. For several batches, add self.inputs() of each batch to one HeadMeasures.
        """
        measures = HeadMeasures()
        measures.add(self.inputs(run=run), ids, kinds)
        return measures.table()

    def inputs(self, *, run: int = -1) -> list[tuple[Tensor, Tensor, Tensor, dict[str, Any]]]:
        """Returns (q, k, lse, options) of each recorded layer, for HeadMeasures, HeadSyntax, attention_rollout() ..."""
        found = []
        for layer in self.layers:
            calls = layer.run(run)
            found.append((torch.cat([call.q for call in calls], 2), calls[-1].k,
                          torch.cat([call.lse for call in calls], 2), _options_of(calls)))
        return found

    def save(self, file: str | os.PathLike[str], *, tokens: Sequence[str] | None = None, second: int | None = None,
             batch: int = 0, run: int = -1) -> None:
        """Writes q, k and lse of one text to a safetensors file, which `attn see FILE` draws and turns into HTML pages.

        tokens: one for each key. second: for a pair of sentences, the index of the second one's first token; the page
        then draws lines between the two. batch: the index of the text. A file cannot store masks, biases, segment ids,
        slopes and sinks: a layer with one of these raises Error. Needs the package safetensors.
        """
        from safetensors.torch import save_file

        tensors: dict[str, Tensor] = {}
        options: dict[str, dict[str, Any]] = {}
        for layer in self.layers:
            *parts, options[layer.name] = self._text(layer, batch, run)
            tensors.update({f"{layer.name}.{name}": part.contiguous().clone()
                            for name, part in zip(("q", "k", "lse"), parts)})
        said = {"attention": json.dumps(options)} | ({} if tokens is None else {"tokens": json.dumps(list(tokens))})
        if second is not None:
            said["second"] = str(self._checked_second(second, run))
        save_file(tensors, file, said)

    @staticmethod
    def _text(layer: Layer, batch: int, run: int) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """Returns q [H, Lq, D], k [Hk, Lk, D], lse [H, Lq] and the options, as numbers, of one text."""
        calls = layer.run(run)
        options = _said(layer.name, calls, batch)
        return (torch.cat([call.q[batch] for call in calls], 1), calls[-1].k[batch],
                torch.cat([call.lse[batch] for call in calls], 1), options)

    def _checked_second(self, second: int | None, run: int) -> int:
        """Returns `second`, or -1 if it is None. Raises Error if there is no such token."""
        keys = self.layers[0].run(run)[-1].k.shape[2] if self.layers else 0
        if second is not None and not 0 < second < keys:
            raise Error(f"[watch] second must be in [1, {keys}), not {second}")
        return -1 if second is None else second

    def page(self, file: str | os.PathLike[str], *, tokens: Sequence[str] | None = None, second: int | None = None,
             batch: int = 0, run: int = -1) -> None:
        """Writes an HTML page with the attention of one text, which docs/seeing.md describes. It needs no network.

        tokens, second and batch are those of save(), and the same options raise Error.
        """
        layers = []
        for layer in self.layers:
            q, k, lse, options = self._text(layer, batch, run)
            listed = {name: [value] if name in ("offset", "key_length") else value for name, value in options.items()}
            layers.append((exported(q, "q"), exported(k, "k"), exported(lse, "lse"),
                           options_of("watch", listed)))
        title = os.path.splitext(os.path.basename(os.fspath(file)))[0] or "page"
        page = _core.html_page(title, [layer.name for layer in self.layers], layers, list(tokens or ()),
                               self._checked_second(second, run))
        with open(file, "wb") as out:
            out.write(page)

    def __repr__(self) -> str:
        if not self.layers:
            return f"<attention_cpp.Seen: no attention{' but what torch computed' if self.missed else ''}>"
        runs = {len(layer.runs) for layer in self.layers}
        last = self.layers[-1].run(-1)[-1]
        names = [layer.name or "(no module)" for layer in self.layers]
        shown = names if len(names) < 4 else [names[0], "...", names[-1]]
        return (f"<attention_cpp.Seen: {len(names)} layers ({', '.join(shown)}), {' or '.join(map(str, sorted(runs)))} "
                f"runs; the last of {last.q.shape[0]} texts, {last.q.shape[1]} heads, {last.k.shape[2]} keys>")

    def _repr_html_(self) -> str:
        """Returns a table with the means of the row statistics of each head."""
        rows = []
        for layer in self.layers:
            statistics = self._statistics_of(layer.run(-1), STATISTICS)
            for head in range(statistics["entropy"].shape[1]):
                means = "".join(f"<td>{statistics[name][:, head].mean():.3f}</td>" for name in STATISTICS)
                rows.append(f"<tr><td>{html.escape(layer.name)}</td><td>{head}</td>{means}</tr>")
        names = "".join(f"<th>{name}</th>" for name in ("layer", "head", *STATISTICS))
        return f"<table><tr>{names}</tr>{''.join(rows)}</table>"

    def plot(self, layer: int | str, head: int, *, batch: int = 0, rows: slice | range | None = None,
             columns: slice | range | None = None, tokens: Sequence[str] | None = None, run: int = -1,
             axes: Any = None) -> Any:
        """Draws weights() of one head and one text with matplotlib on `axes`, or on new axes. Returns the axes.

        tokens: one for each key; an axis with at most 64 of them gets labels.
        """
        from matplotlib import pyplot

        weights = self.weights(layer, head, rows, columns, run=run)
        if not 0 <= batch < len(weights):
            raise Error(f"[watch] batch must be in [0, {len(weights)}), not {batch}")
        picture = weights[batch].float().numpy()
        axes = pyplot.subplots()[1] if axes is None else axes
        calls = self.layer(layer).run(run)
        top, _ = _range_of(rows, calls[-1].first_row + calls[-1].q.shape[2], "rows")
        left, _ = _range_of(columns, calls[-1].k.shape[2], "columns")
        edges = (left - 0.5, left + picture.shape[1] - 0.5, top + picture.shape[0] - 0.5, top - 0.5)
        image = axes.imshow(picture, vmin=0, aspect="auto", interpolation="nearest", extent=edges)
        axes.figure.colorbar(image, ax=axes)
        axes.set(title=f"{self.layer(layer).name}, head {head}", xlabel="key", ylabel="query")
        for axis, begin, length in ((axes.xaxis, left, picture.shape[1]), (axes.yaxis, top, picture.shape[0])):
            if tokens is not None and length <= 64 and begin + length <= len(tokens):
                axis.set_ticks(range(begin, begin + length), tokens[begin:begin + length])
        return axes


@contextlib.contextmanager
def watch(model: torch.nn.Module, *, layers: Sequence[int | str] | None = None,
          heads: Sequence[int] | None = None) -> Iterator[Seen]:
    """Records q, k and lse of the attention that a model computes inside the with block. It does not change the model.

        >>> with attention_cpp.watch(model, layers=[0, 5]) as seen:
        ...     model.generate(**inputs)
        >>> seen.weights(0, head=3, rows=range(90, 100))      # [B, 10, Lk]

    It works for every torch model that calls scaled_dot_product_attention or has attn_implementation="attention_cpp".
    Inside the block this library computes these calls, as under attention_cpp.torch.enable(). The records need O(n)
    memory; the keys of a generated text are stored once. Compiled models and "eager" attention cannot be recorded.

    Arguments
        layers   the modules to record: indices in the order in which they first compute attention, or patterns of their
                 names in the model ("*.layers.3.*"); None: all
        heads    the query heads to record; None: all

    Blocks may be nested: each records its own model. Yields a Seen. Warns if nothing was recorded. Raises TypeError if
    the model is no torch.nn.Module.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"[watch] the model must be a torch.nn.Module, not {type(model).__name__}")
    if layers is not None and not (isinstance(layers, (list, tuple, range)) and all(
            isinstance(layer, (int, str)) for layer in layers)):
        raise TypeError(f"[watch] layers must be a list of numbers and names, not {type(layers).__name__}")
    if heads is not None:
        wrong_types("watch", heads=(heads, "list of whole numbers"))
    seen = Seen(layers, heads)

    def enter(name: str) -> Any:
        return lambda *_: seen._running.append(name)

    def leave(*_: Any) -> None:
        seen._running.pop()

    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(enter(name)).remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        state.watches.append(seen)
        stack.callback(state.watches.remove, seen)
        stack.enter_context(reporting(seen._miss))
        stack.enter_context(observed(seen._note))
        yield seen
    if not seen._order:
        why = "; ".join(sorted(set(seen.missed))) or ("it called no scaled_dot_product_attention: give a model of "
                                                      'transformers attn_implementation="sdpa", and do not compile it')
        warnings.warn(f"attention_cpp.watch recorded no attention of this {type(model).__name__}: {why}", stacklevel=3)
