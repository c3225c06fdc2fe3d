"""Wrong arguments of every public function: one error that names the argument and what is wrong with it.

Each function has a call that works; every argument of it is then replaced by what is no value of its kind.
"""

import importlib
import inspect
import os
import re

import numpy as np
import pytest

import attention_cpp

RNG = np.random.default_rng(0)
Q = RNG.standard_normal((1, 2, 5, 4)).astype(np.float32)
K = RNG.standard_normal((1, 1, 6, 4)).astype(np.float32)
OUT, LSE = attention_cpp.attention(Q, K, K, return_lse=True)
SELF = attention_cpp.attention(Q, Q, Q, return_lse=True)[1]
IDS = np.arange(5)[None]

# Values that are none, by what an argument is. Those of an array are of another type, rank or device, of a number NaN
# and negative ones where these are wrong.
ARRAYS = ["text", ["a"], 3, {"a": 1}, np.zeros((2,) * 5, np.float32), np.zeros((1, 2, 5, 4), np.complex64),
          np.array(["a"]), np.ma.zeros((1, 2, 5, 4), np.float32)]
WHOLE = ["text", [1, 2], 1.5, None]
TEXT = [3, ["a"], b"a"]
OPTIONS = {
    "scale": ["text", [1.0], float("nan"), float("inf")], "softcap": ["text", [1.0], -1.0, float("nan")],
    "causal": ["text", [True], 2], "window": ["text", 3, (1,), (1, 2, 3), (-2, 0), (0.5, 1), ("a", "b")],
    "alignment": [3, "middle"], "key_length": ["text", [7], [-1], [1, 2], [0.5]],
    "query_length": ["text", [9], [1, 2], ["a"]], "offset": ["text", [1, 2], ["a"]],
    "mask": ["text", 3, np.zeros((1, 1, 3, 3), bool), np.zeros((5, 6), np.int32), np.zeros((1,) * 5, bool)],
    "bias": ["text", 3, np.zeros((1, 1, 3, 3), np.float32), np.zeros((5, 6), np.int32), np.zeros((1,) * 5, np.float32)],
    "alibi_slopes": ["text", [1.0], ["a", "b"]], "query_segment_ids": ["text", 3, np.zeros((1, 4), np.int32)],
    "key_segment_ids": ["text", 3, np.zeros((1, 4), np.int32)], "cu_seqlens_q": ["text", [0, 9], [3, 0], [0.5, 1]],
    "cu_seqlens_k": ["text", [0, 9], [3, 0]], "blocks": ["text", 3, (1, 2), (np.zeros((1, 1, 9, 9), bool), 2, 2),
               (np.zeros((1, 1, 9), np.int64), np.zeros(3, np.int64), 2, 2)],
    "sink": ["text", [1.0], ["a", "b"]], "dropout": ["text", -0.1, 1.0, float("nan")], "seed": ["text", -1, 2**64, 0.5],
    "float32_precision": [3, "lowest"], "batch_invariant": ["text", 3],
    "shard": ["text", 3, (1, 2), (0, 0, 0, 0, 0, 0.5), (-1, 0, 0, 0, 0, 0), (0, 0, 5, 0, 6, 0)],
}
NEEDS = {"query_length": {"alignment": "bottom_right", "causal": True},
         "offset": {"alignment": "offset", "causal": True}, "alibi_slopes": {"alignment": "top_left"},
         "query_segment_ids": {"key_segment_ids": np.zeros((1, 6), np.int32)},
         "key_segment_ids": {"query_segment_ids": np.zeros((1, 5), np.int32)}, "cu_seqlens_q": {"cu_seqlens_k": [0, 6]},
         "cu_seqlens_k": {"cu_seqlens_q": [0, 5]}, "seed": {"dropout": 0.5}}
ROWS = ["text", slice(0, 4, 2), 9, 1.5]


def conllu():
    return "1\ta\t_\tNOUN\t_\t_\t0\troot\t_\t_\n\n"


LAYER = [(Q, Q, SELF)]
SENTENCE = attention_cpp.Sentence(list("abcde"), [-1, 0, 0, 0, 0], ["root"] + ["x"] * 4)
DOCUMENT = attention_cpp.Document(list("abcde"), [5], [attention_cpp.Mention(0, "e", "PRON")])


def cache():
    made = attention_cpp.KVCache(1, 4)
    made.append(made.add(), K, K)
    return made


LAYERS = ["text", 3, [3], [(Q, Q)], [("text", Q, SELF)], [(Q, Q, SELF, "text")], [(Q, Q, SELF, {"causl": True})]]
TEXTS = {"layers": LAYERS, "ids": ["text", 3, np.zeros((1, 9), np.int64), np.zeros((1, 5), np.float32)],
         "kinds": ["text", 3, np.zeros((1, 9), np.int64)]}
ZEROS = np.zeros((1, 2, 5, 1), np.float32)
LINEAR = {"scale": ["text", [1.0], float("nan")],
          "log_decay": ["text", 3, ZEROS + 1, ZEROS[:, :, :3], ZEROS.astype(int)],
          "beta": ["text", 3, ZEROS, ZEROS[:, :, :3, 0], ZEROS[..., 0].astype(int)], "delta": ["text", 2],
          "l2norm": ["text", 2], "l2norm_epsilon": ["text", -1.0, float("nan")], "normalize": ["text", 2],
          "initial_state": ["text", 3, np.zeros((1, 2, 3, 4), np.float32), np.zeros((1, 2, 4, 4))],
          "cu_seqlens": ["text", 3, [0, 9], [3, 0], [0.5, 1]]}
WORDS = {"layers": LAYERS, "word_of": ["text", 3, [0], ["a"] * 5]}
# function: (the call, what is wrong of each argument); "options": those above too.
CALLS = {
    "attention": (dict(q=Q, k=K, v=K), {"q": ARRAYS, "k": ARRAYS, "v": ARRAYS, "out": ["text", OUT[:, :, :2]],
                                        "options": OPTIONS}),
    "attention_backward": (dict(q=Q, k=K, v=K, out=OUT, lse=LSE, dout=OUT),
                           {**dict.fromkeys(("q", "k", "v", "out", "lse", "dout", "dlse"), ARRAYS),
                            "wanted": ["dq", 3, ["text"], [3]], "options": OPTIONS}),
    "attention_weights": (dict(q=Q, k=K, lse=LSE), {**dict.fromkeys(("q", "k", "lse"), ARRAYS), "rows": ROWS,
                                                    "columns": ROWS, "out": ["text", OUT], "options": OPTIONS}),
    "attention_statistics": (dict(q=Q, k=Q, lse=SELF), {
        **dict.fromkeys(("q", "k", "lse"), ARRAYS), "wanted": ["entropy", 3, ["entrpy"], [3]],
        "bands": ["text", {"self": (0, 1)}, {"a": 3}, {"a": ("b", "c")}],
        "labels": ["text", 3, np.zeros((1, 3), np.int32)], "top": ["text", -1, 257, 1.5],
        "picture": ["text", 3, (1, 2, 3), (-1, 2)],
        "options": OPTIONS}),
    "explain": (dict(q=Q, k=K, v=K), {**dict.fromkeys(("q", "k", "v"), ARRAYS), "options": OPTIONS}),
    "explain_backward": (dict(q=Q, k=K, v=K), {**dict.fromkeys(("q", "k", "v"), ARRAYS), "options": OPTIONS}),
    "linear_attention": (dict(q=Q, k=Q, v=Q), {**dict.fromkeys("qkv", ARRAYS), **LINEAR,
                                               "return_state": ["text", 1]}),
    "linear_attention_backward": (dict(q=Q, k=Q, v=Q, dout=Q), {
        **dict.fromkeys(("q", "k", "v", "dout"), ARRAYS), **LINEAR, "wanted": ["dq", 3, ["text"], [3]],
        "dstate": ["text", 3, np.zeros((1, 2, 3, 4), np.float32)]}),
    "merge": (dict(out=OUT, lse=LSE, out_b=OUT, lse_b=LSE),
              {"out": ARRAYS[:-1], "lse": ARRAYS[:-1], "out_b": ARRAYS, "lse_b": ARRAYS}),
    "dropout_keeps": (dict(seed=1, probability=0.5, shape=(1, 1, 2, 3)), {
        "seed": [*WHOLE, -1, 2**64], "probability": ["text", [1], 1.0, -0.5, float("nan")],
        "shape": ["text", 3, (1, 2), (1, 1, -1, 2), (1, 1, 1, "a")], "first_query": [*WHOLE, -1],
        "first_key": [*WHOLE, -1]}),
    "gradient_times_attention": (dict(q=Q, k=Q, v=Q, lse=SELF, dout=Q), {
        **dict.fromkeys(("q", "k", "lse"), ARRAYS), "v": [K[..., :3], Q[0]], "dout": [Q[..., :3], Q[0]],
        "rows": ROWS, "columns": ROWS}),
    "head_points": (dict(divergences=np.zeros((3, 3))), {"divergences": ["text", ["a"], None]}),
    "head_clusters": (dict(divergences=np.zeros((3, 3)), count=2), {"divergences": ["text", ["a"]],
                                                                   "count": [*WHOLE, 0, 4]}),
    "attention_rollout": (dict(layers=LAYER, query=1), {"layers": LAYERS, "query": [*WHOLE, 9, -1]}),
    "attention_flow": (dict(layers=LAYER, query=1), {"layers": LAYERS, "query": [*WHOLE, 9],
                                                     "threshold": ["text", [1]]}),
    "repeated_tokens": (dict(length=3, lowest=0, highest=9), {name: WHOLE for name in (
        "length", "lowest", "highest", "copies", "seed")} | {"start": ["text", 1.5]}),
    "read_conllu": (dict(text=conllu()), {"text": TEXT, "source": TEXT}),
    "read_coreference": (dict(text=conllu()), {"text": TEXT, "source": TEXT}),
    "isa": (dict(), {"name": [*TEXT, "z80"]}), "float32_precision": (dict(), {"name": [*TEXT, "lowest"]}),
    "threads": (dict(), {"count": ["text", [1], 1.5]}), "isas": (dict(), {}),
    "profile": (dict(), {"tasks": ["text", 2, None]}), "profile_scope": (dict(name="layer"), {"name": TEXT}),
    "Profile": (dict(), {}), "Profile.table": (dict(), {"rows": [*WHOLE, -1]}),
    "Profile.save_trace": (dict(path=os.devnull), {"path": [3, None, ["trace.json"]]}),
    "KVCache": (dict(kv_heads=1, head_dim=4), {
        "kv_heads": [*WHOLE, 0, -1], "head_dim": [*WHOLE, 0, 2000], "value_dim": ["text", [1], 1.5, -1],
        "dtype": [3, "int32", None], "page_size": [*WHOLE, 0], "max_pages": [*WHOLE, -1],
        "sink_tokens": [*WHOLE, -1, 4], "window": [*WHOLE, -1], "storage": [3, None, "int4"]}),
    "KVCache.add": (dict(), {}),
    "KVCache.fork": (dict(sequence=0, length=2), {"sequence": [*WHOLE, 9], "length": [*WHOLE, 9, -1]}),
    "KVCache.append": (dict(sequence=0, k=K, v=K), {"sequence": [*WHOLE, 9], "k": ARRAYS, "v": ARRAYS}),
    "KVCache.truncate": (dict(sequence=0, length=2), {"sequence": [*WHOLE, 9], "length": [*WHOLE, 9, -1]}),
    "KVCache.remove": (dict(sequence=0), {"sequence": [*WHOLE, 9]}),
    "KVCache.length": (dict(sequence=0), {"sequence": [*WHOLE, 9]}),
    "KVCache.attend": (dict(q=Q[:, :, :1], sequences=[0]), {
        "q": ARRAYS, "sequences": ["text", 3, [9], ["a"]], "cu_seqlens_q": ["text", 3, [0, 9], ["a", "b"]],
        "sink_queries": [*ARRAYS, Q[:, :, :1]],
        "options": {name: OPTIONS[name] for name in ("scale", "softcap", "causal", "window", "alignment", "bias",
                                                     "sink", "dropout")}}),
    "KVCache.statistics": (dict(q=Q[:, :, :1], lse=LSE[:, :, :1], sequences=[0]), {
        "q": ARRAYS, "lse": ARRAYS, "sequences": ["text", 3, [9], ["a"]], "wanted": ["entropy", 3, ["entrpy"]]}),
    "HeadMeasures": (dict(), {}), "HeadMeasures.add": (dict(layers=LAYER, ids=IDS), TEXTS),
    "HeadMeasures.table": None, "HeadDistances": (dict(), {}),
    "HeadDistances.add": (dict(layers=LAYER, ids=IDS), TEXTS),
    "HeadSyntax": (dict(), {}), "HeadSyntax.relations": None,
    "HeadSyntax.add": (dict(layers=LAYER, sentence=SENTENCE, word_of=list(range(5))), {
        **WORDS, "sentence": ["text", 3, SENTENCE._replace(governors=["a"] * 5), SENTENCE._replace(words="abcde")]}),
    "HeadCoreference": (dict(), {}), "HeadCoreference.kinds": None,
    "HeadCoreference.add": (dict(layers=LAYER, document=DOCUMENT, word_of=list(range(5))), {
        **WORDS, "document": ["text", 3, DOCUMENT._replace(ends=["a"]), DOCUMENT._replace(mentions=[3])]}),
    "HeadDistances.divergences": None,  # takes nothing, and needs texts
}
OBJECTS = {"KVCache": cache, **{name: getattr(attention_cpp, name) for name in (
    "HeadMeasures", "HeadDistances", "HeadSyntax", "HeadCoreference", "Profile")}}
NO_CALLS = {"Document", "Error", "Gradients", "HEAD_MEASURES", "HeadMentions", "HeadRelation", "LinearGradients",
            "Mention", "Plan", "Sentence"}  # results, and what is passed on


def names_of(module, skipped=()):
    """The public functions and classes of a module, and these classes' methods."""
    for name in module.__all__:
        value = getattr(module, name)
        if name in NO_CALLS or name in skipped:
            continue
        yield name
        if inspect.isclass(value):
            yield from (f"{name}.{method}" for method, function in vars(value).items()
                        if inspect.isfunction(function) and not method.startswith("_"))


def test_every_public_function_is_in_the_table():
    assert set(names_of(attention_cpp)) == set(CALLS)


def function_of(name):
    owner, _, method = name.partition(".")
    return getattr(OBJECTS[owner](), method) if method else getattr(attention_cpp, owner)


def cases_of(calls):
    for name, entry in calls.items():
        if entry is None:
            continue
        good, wrong = entry
        for argument, values in wrong.items():
            if argument != "options":
                yield from ((name, good, argument, value) for value in values)
                continue
            for option, bad in values.items():
                yield from ((name, {**good, **NEEDS.get(option, {})}, option, value) for value in bad)
        if "options" in wrong:
            yield name, good, "is_causal", True


# What a message may call an argument: by its whole, or by what it is said to be.
ALIASES = {"rows": "rows|row", "columns": "columns", "layers": "layer|options|q |lse|'causl'", "sequences": "sequence",
           "sentence": "sentence|heads|words", "document": "document|ends|mentions", "count": "count|clusters",
           "divergences": "divergence", "query": "query|token", "shape": "shape", "probability": "probability",
           "wanted": "wanted|statistic|gradient", "bands": "band", "cu_seqlens_q": "cu_seqlens_q", "ids": "ids|token",
           "head_dim": "head_dim|width|D ", "kv_heads": "kv_heads|heads", "value_dim": "value_dim|width|Dv",
           "name": "name|isa|instruction|'lowest'", "out": "out|weights", "text": "text", "key_segment_ids": "segment",
           "word_of": "word", "dtype": "dtype", "cu_seqlens_k": "cu_seqlens_k", "kinds": "kinds|kind", "v": r"\bv\b|Hk",
           "k": r"\bk\b", "q": r"\bq\b",
           "dstate": "dfinal_state|dstate", "lse": r"\blse\b", "length": "length|token", "sequence": "sequence"}


def check_refusal(call, argument, value, aliases=ALIASES):
    with pytest.raises((attention_cpp.Error, TypeError, BufferError, IndexError)) as caught:
        call()
    message = str(caught.value)
    assert re.search(aliases.get(argument, rf"\b{argument}\b"), message), f"does not name {argument}: {message}"
    assert "incompatible function arguments" not in message and "nanobind" not in message, message
    if argument not in ("out", "out_b", "dout"):
        assert not re.search(r"(^|; |\] )(out|weights|dq|dk|dv) (is|has|must)", message), message
    assert len(message) < 600, message
    return message


@pytest.mark.parametrize("name", [name for name, entry in CALLS.items() if entry is not None])
def test_wrong_arguments_are_named_in_one_error(name):
    function = function_of(name)
    function(**CALLS[name][0])  # which is right
    for _, good, argument, value in cases_of({name: CALLS[name]}):
        try:
            check_refusal(lambda: function_of(name)(**{**good, argument: value}), argument, value)
        except BaseException as error:
            raise AssertionError(f"{name}({argument}={value!r}): {error}") from None
