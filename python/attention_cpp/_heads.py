"""Measures of what the heads of a model do. docs/heads.md defines them."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, NamedTuple, Sequence, Unpack

import numpy as np
import numpy.typing as npt

from . import _core
from ._arrays import as_array, exported, wrong_types
from ._operator import A, _range_of, _shape, attention_weights
from ._options import Array, OptionArguments, Options, options_of

PADDING, WORD, PUNCTUATION, START, SEPARATOR = -1, 0, 1, 2, 3  # kinds of tokens


class HeadMeasure(NamedTuple):
    """One measure: its unit, its definition in a line, its source, and the threshold above which a head is named after
    it."""

    unit: str
    definition: str
    source: str
    threshold: float  # NaN: the source names none


HEAD_MEASURES: dict[str, HeadMeasure] = {name: HeadMeasure(*rest) for name, *rest in _core.head_measures()}


def _layers_of(layers: Iterable[Sequence[Any]]) -> list[tuple[Any, Any, Any, Options]]:
    """Converts layers to the tuples (q, k, lse, options) that the extension reads."""
    given = []
    if not isinstance(layers, Iterable):
        raise TypeError(f"[heads] layers must be a list of (q, k, lse) or (q, k, lse, options), not "
                        f"{type(layers).__name__}")
    for layer in layers:
        if not (isinstance(layer, (tuple, list)) and len(layer) in (3, 4)):
            given_as = f"{len(layer)} values" if isinstance(layer, (tuple, list)) else type(layer).__name__
            raise TypeError(f"[heads] a layer must be (q, k, lse) or (q, k, lse, options), not {given_as}")
        q, k, lse, options = (*layer, {})[:4]
        if not isinstance(options, Mapping):
            raise TypeError(f"[heads] the options of a layer must be a dict, not {type(options).__name__}")
        arrays = (exported(as_array(array), name) for name, array in (("q", q), ("k", k), ("lse", lse)))
        given.append((*arrays, options_of("heads", options)))
    return given


def _whole(values: Any) -> Any:
    """Converts a list of numbers to an array [B, n]. Arrays stay as they are."""
    return np.asarray(values, np.int64) if isinstance(values, (list, tuple)) else exported(values)


class HeadMeasures:
    """The measures of all heads, as means over texts. Each text has the same weight, whatever its length.

        >>> measures = attention_cpp.HeadMeasures()
        >>> measures.add([(q, k, lse, {"causal": True})], ids)
        >>> measures.table()["previous"]

    HEAD_MEASURES has their names, units, definitions and sources.
    """

    def __init__(self) -> None:
        self._sums = _core.HeadMeasures()

    def add(self, layers: Iterable[Sequence[Any]], ids: Array, kinds: Array | None = None) -> None:
        """Adds B texts of n tokens.

        Arguments
            layers   for each layer (q, k, lse) or (q, k, lse, options): q [B, H, n, D], k [B, Hk, n, D], lse [B, H, n]
                     and a dict with the options of attention()
            ids      int [B, n], token ids: equal tokens have equal ids
            kinds    int [B, n], token kinds: 0 a word, 1 punctuation, 2 the start of a text ([CLS], <s>), 3 a separator
                     ([SEP], </s>), -1 padding, which must follow the text. None: all are words

        Raises as attention() does. Raises Error too if an lse does not belong to q, k and the options. If it raises,
        nothing is added.
        """
        self._sums.add(_layers_of(layers), _whole(ids), None if kinds is None else _whole(kinds))

    @property
    def texts(self) -> int:
        """The number of texts that were added."""
        return self._sums.texts()

    def table(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the columns "layer", "head" and one for each measure, with one number for each head. A number is NaN
        if no text had tokens for the measure."""
        rows = self._sums.table()
        columns = {"layer": np.array([row[0] for row in rows]), "head": np.array([row[1] for row in rows])}
        values = np.array([row[2] for row in rows])
        return columns | {name: values[:, number] for number, name in enumerate(HEAD_MEASURES)}


class HeadDistances:
    """The difference between heads: the mean Jensen-Shannon divergence of their rows, over texts.

        >>> distances = attention_cpp.HeadDistances()
        >>> distances.add([(q, k, lse, {"causal": True})], ids)
        >>> points = attention_cpp.head_points(distances.divergences())
    """

    def __init__(self) -> None:
        self._sums = _core.HeadDistances()

    def add(self, layers: Iterable[Sequence[Any]], ids: Array, kinds: Array | None = None) -> None:
        """Adds texts as HeadMeasures.add() does. Only the shape of ids matters."""
        self._sums.add(_layers_of(layers), _whole(ids), None if kinds is None else _whole(kinds))

    def divergences(self) -> npt.NDArray[np.float64]:
        """Returns the divergences [N, N] of N heads, layer by layer, in nats, 0 to ln 2. Their roots are a metric."""
        values = np.array(self._sums.divergences())
        return values.reshape((round(len(values) ** 0.5),) * 2)


def _divergences(operation: str, divergences: Any) -> list[float]:
    try:
        return np.ravel(np.asarray(divergences, np.float64)).tolist()
    except (TypeError, ValueError):
        raise TypeError(f"[{operation}] divergences must be an array [N, N] of numbers, as of HeadDistances, not "
                        f"{type(divergences).__name__}") from None


def head_points(divergences: Array) -> npt.NDArray[np.float64]:
    """Returns points [N, 2] whose distances approximate the roots of the divergences [N, N], by classical scaling."""
    return np.array(_core.scaled(_divergences("head_points", divergences))).reshape(-1, 2)


def head_clusters(divergences: Array, count: int) -> npt.NDArray[np.int64]:
    """Returns the cluster of each of N heads, [N]: `count` clusters by agglomerative average-linkage clustering."""
    wrong_types("head_clusters", count=(count, "whole number"))
    return np.array(_core.clusters(_divergences("head_clusters", divergences), count))


def attention_rollout(layers: Iterable[Sequence[Any]], query: int) -> npt.NDArray[np.float64]:
    """Returns the share of each token of a text in token `query` of the last layer: [n], with the sum 1.

    layers: those of one text, as in HeadMeasures.add(). Each layer counts as half the mean of its heads and half the
    identity (Abnar & Zuidema 2020).
    """
    wrong_types("attention_rollout", query=(query, "whole number"))
    return np.array(_core.rollout(_layers_of(layers), query))


def attention_flow(layers: Iterable[Sequence[Any]], query: int, threshold: float = 0.0) -> tuple[
        npt.NDArray[np.float64], float]:
    """Returns the exact maximum flow from each token of a text to token `query` of the last layer, [n].

    The graph is that of attention_rollout() without edges below `threshold`, with at most 512 tokens. Returns the flows
    and a bound: each flow may be this much too small because of the threshold.
    """
    wrong_types("attention_flow", query=(query, "whole number"), threshold=(threshold, "number"))
    flows, missing = _core.flow(_layers_of(layers), query, threshold)
    return np.array(flows), missing


class Sentence(NamedTuple):
    """A sentence with its dependency arcs."""

    words: list[str]
    governors: list[int]  # for each word the index of its governor; -1: the root
    relations: list[str]  # for each word the relation to its governor: "nsubj"


class HeadRelation(NamedTuple):
    """For how many arcs of a relation the largest attention weight of a head agrees with the annotation."""

    arcs: int
    offset: int  # the most frequent offset from the dependent to the governor, in words
    baseline: float  # the share of arcs with that offset
    to_governor: npt.NDArray[np.float64]  # [heads of all layers]: the dependent's largest weight is on the governor
    to_dependent: npt.NDArray[np.float64]  # of all words, the governor attends most to the dependent


def read_conllu(text: str, source: str = "text") -> list[Sentence]:
    """Returns the sentences of a CoNLL-U text. Skips multiword tokens and empty nodes. Raises Error, which names the
    wrong lines of `source`."""
    wrong_types("read_conllu", text=(text, "string"), source=(source, "string"))
    return [Sentence(*sentence) for sentence in _core.read_conllu(text, source)]


class HeadSyntax:
    """The dependency relations that heads follow, counted over sentences (Clark et al. 2019)."""

    def __init__(self) -> None:
        self._counts = _core.HeadSyntax()

    def add(self, layers: Iterable[Sequence[Any]], sentence: Sentence, word_of: Sequence[int]) -> None:
        """Adds a sentence of n tokens. layers: as in HeadMeasures.add(), for one text; word_of [n]: the index of each
        token's word, -1 for none. Every word must have a token."""
        if not (isinstance(sentence, tuple) and len(sentence) == 3):
            raise TypeError(f"[head_syntax] the sentence must be a Sentence, not {type(sentence).__name__}")
        words, heads, relations = sentence
        wrong_types("head_syntax", words=(words, "list of strings"), heads=(heads, "list of whole numbers"),
                    relations=(relations, "list of strings"), word_of=(word_of, "list of whole numbers"))
        self._counts.add(_layers_of(layers), (list(words), list(heads), list(relations)), list(word_of))

    def relations(self) -> dict[str, HeadRelation]:
        """Returns the counts by name of the relation: "all" first, then by descending number of arcs."""
        return {name: HeadRelation(*rest[:3], np.array(rest[3]), np.array(rest[4]))
                for name, *rest in self._counts.relations()}


class Mention(NamedTuple):
    """A mention of an entity, represented by its governor, the word on which its other words depend."""

    word: int  # index of the governor in the document
    entity: str  # the same for all mentions of one entity
    upos: str  # part of speech of the governor: "PRON"


class Document(NamedTuple):
    """A text whose entities are annotated."""

    words: list[str]
    ends: list[int]  # for each sentence the number of words up to its end
    mentions: list[Mention]


class HeadMentions(NamedTuple):
    """For how many mentions the largest attention weight of the governor is on the governor of an antecedent."""

    mentions: int  # those that have an antecedent
    nearest: float  # the share whose nearest earlier mention is an antecedent
    offset: int  # the most frequent offset from a mention's governor to that of an antecedent, in words
    baseline: float  # the share of mentions that have an antecedent at this offset
    to_antecedent: npt.NDArray[np.float64]  # [heads of all layers]: the share of each head


def read_coreference(text: str, source: str = "text") -> list[Document]:
    """Returns the documents of a CoNLL-U text with CorefUD's Entity in MISC. Raises Error, which names the wrong lines
    of `source`."""
    wrong_types("read_coreference", text=(text, "string"), source=(source, "string"))
    return [Document(words, ends, [Mention(*mention) for mention in mentions])
            for words, ends, mentions in _core.read_coreference(text, source)]


class HeadCoreference:
    """The heads that attend from a mention to its antecedent, counted over documents (Clark et al. 2019)."""

    def __init__(self) -> None:
        self._counts = _core.HeadCoreference()

    def add(self, layers: Iterable[Sequence[Any]], document: Document, word_of: Sequence[int]) -> None:
        """Adds a document; layers and word_of are as in HeadSyntax.add()."""
        if not (isinstance(document, tuple) and len(document) == 3):
            raise TypeError(f"[head_coreference] the document must be a Document, not {type(document).__name__}")
        words, ends, mentions = document
        wrong_types("head_coreference", words=(words, "list of strings"), ends=(ends, "list of whole numbers"),
                    word_of=(word_of, "list of whole numbers"))
        if not all(isinstance(mention, tuple) and len(mention) == 3 for mention in mentions):
            raise TypeError("[head_coreference] the document's mentions must be a list of Mention")
        for mention in mentions:
            wrong_types("head_coreference", **{"a mention's word": (mention[0], "whole number"), "its entity": (
                mention[1], "string"), "its upos": (mention[2], "string")})
        given = (list(words), list(ends), [(word, entity, upos) for word, entity, upos in mentions])
        self._counts.add(_layers_of(layers), given, list(word_of))

    def kinds(self) -> dict[str, HeadMentions]:
        """Returns the counts by UPOS of the mentions' governors: "all" first, then by descending number of mentions."""
        return {name: HeadMentions(*rest[:4], np.array(rest[4])) for name, *rest in self._counts.kinds()}


def gradient_times_attention(
    q: A,
    k: Array,
    v: Array,
    lse: Array,
    dout: Array,
    rows: slice | range | int | None = None,
    columns: slice | range | int | None = None,
    **options: Unpack[OptionArguments],
) -> A:
    """Returns P_ij dL/dP_ij for a rectangle of the attention matrix: [B, H, rows, columns].

    Arguments
        q, k, v, lse   those of the forward, with return_lse=True
        dout           [B, H, Lq, Dv], the gradient of the loss with respect to out: dL/dP_ij = <dout_i, v_j>
        rows, columns  as in attention_weights()
        options        the options of the forward, without dropout

    A value is positive where less weight would reduce the loss. The sum over all pairs of a head equals the sum over
    its rows of <dout_i, out_i>, in O(n) memory; its absolute value is the importance of the head (Michel et al. 2019).

    Raises as attention_weights() does, and Error for a dropout.
    """
    if options.get("dropout"):
        raise _core.Error(f"[gradient_times_attention] dropout must be 0, not {options['dropout']}")
    p = attention_weights(q, k, lse, rows, columns, **options)
    first_row, row_count = _range_of(rows, _shape(q)[-2], "rows", "gradient_times_attention")
    first_column, column_count = _range_of(columns, _shape(k)[-2], "columns", "gradient_times_attention")
    if _shape(dout)[:-1] != _shape(q)[:-1] or _shape(v)[:-1] != _shape(k)[:-1] or _shape(dout)[-1:] != _shape(v)[-1:]:
        raise _core.Error(f"[gradient_times_attention] dout is {list(_shape(dout))} and v {list(_shape(v))}, must have "
                          f"the axes of q and k, {list(_shape(q))} and {list(_shape(k))}, with one width Dv")
    heads = _shape(q)[-3] if len(_shape(q)) > 2 else 1
    dout = dout[..., first_row:first_row + row_count, :]
    v = v[..., first_column:first_column + column_count, :]
    if len(_shape(v)) > 2 and heads != _shape(v)[-3]:  # query heads that share a key/value head
        shape = (*_shape(v)[:-3], _shape(v)[-3], heads // _shape(v)[-3], *_shape(dout)[-2:])
        shared = p.reshape((*shape[:-2], *_shape(p)[-2:]))
        product = dout.reshape(shape) @ v[..., :, None, :, :].swapaxes(-1, -2)
        return (shared * product).reshape(_shape(p))
    return p * (dout @ v.swapaxes(-1, -2))


def repeated_tokens(
    length: int, lowest: int, highest: int, *, copies: int = 2, start: int | None = None, seed: int = 0
) -> list[int]:
    """Returns random token ids for the measures of induction and duplicates: `length` different ids from range(lowest,
    highest), repeated `copies` times, after the id `start` if it is given."""
    wrong_types("repeated_tokens", length=(length, "whole number"), lowest=(lowest, "whole number"),
                highest=(highest, "whole number"), copies=(copies, "whole number"),
                start=(0 if start is None else start, "whole number"), seed=(seed, "whole number"))
    return _core.repeated_tokens(length, copies, lowest, highest, -1 if start is None else start, seed)
