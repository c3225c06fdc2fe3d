"""What a folder's files say of its tokenizer, next to transformers' AutoTokenizer: every field that the classes read is
set to other values, to null, and removed, in every class that the families use, with tokenizer.json and without. Each
time the results are the same, or the folder is refused with the field's name, or the field is on the list of
docs/tokenizers.md of those without effect. A sample of the cases; all of them where ATTN_EXHAUSTIVE is set."""

import copy
import inspect
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import warnings

import pytest
import transformers
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import SLOW_TO_FAST_CONVERTERS
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

import folders

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
PROGRAM = os.environ["ATTN_TOKENIZE"]
SEED = int(os.environ.get("ATTN_SEED", "1"))
SAMPLE = None if os.environ.get("ATTN_EXHAUSTIVE") else 700
DOCS = pathlib.Path(__file__).parents[2] / "docs/tokenizers.md"


def listed(title):
    """The names in the paragraph of the page that begins with the title."""
    text = DOCS.read_text()
    paragraph = text[text.index(title):].split("\n\n")[0]
    return re.findall(r"`([^`]+)`", paragraph)


WITHOUT_EFFECT, REFUSED = listed("**Fields without effect:**"), listed("**Fields that are an Error**")
REMOVED = object()
FLAGS = [True, False, None, "yes", 3]


def token(content, **options):
    return {"__type": "AddedToken", "content": content, "lstrip": False, "rstrip": False, "normalized": False,
            "single_word": False, "special": True, **options}


def entry(content, **options):
    return {key: value for key, value in token(content, **options).items() if key != "__type"}


TOKENS = ["<new>", "he", "hello", "[MASK]", token("<new>", lstrip=True, rstrip=True), token("<sp>", special=False),
          token("<TOOL>", normalized=True), token("<tool>", single_word=True, normalized=True, special=False), 7, ["a"],
          {"content": "<new>"}]
LISTS = [["<tool>"], ["<new>", "he", "<tool>"], [token("<tool>", lstrip=True)], [token("<TOOL>", normalized=True)], [],
         ["<extra_id_0>", "<extra_id_1>"], "<tool>", [3], {"image_token": "<image>", "a_token": "<tool>"}]
VALUES = {
    **dict.fromkeys(["do_lower_case", "tokenize_chinese_chars", "strip_accents", "add_prefix_space", "legacy",
                     "add_bos_token", "add_eos_token", "clean_up_tokenization_spaces", "split_special_tokens",
                     "predict_timestamps",
                     "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"], FLAGS),
    **dict.fromkeys(["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"],
                    [*TOKENS, None]),
    "image_token": ["<image>", token("<image>"), None, 3], "another_token": ["<tool>", token("<tool>", rstrip=True)],
    "additional_special_tokens": [*LISTS, None], "extra_special_tokens": [*LISTS, None],
    "model_max_length": [4, 6, 512, 10**30, None, "long", -1], "max_len": [4, 5, None],
    "padding_side": ["left", "right", "up", None], "truncation_side": ["left", "right", None],
    "model_input_names": [["input_ids"], ["input_ids", "token_type_ids", "attention_mask"], "input_ids", None],
    "extra_ids": [0, 2, 100, None, "a", -1], "task": ["transcribe", "translate", "dream", None],
    "tokenizer_class": ["BertTokenizerFast", "RobertaTokenizer", "GPT2Tokenizer", "PreTrainedTokenizerFast",
                        "Qwen2Tokenizer", "LlamaTokenizerFast", "NoSuchTokenizer", "AlbertTokenizer",
                        "TokenizersBackend", None],
}


def values_of(field, size):
    if field == "added_tokens_decoder":
        return [{str(size): entry("<tool>"), str(size + 1): entry("<new>", special=False, normalized=True)},
                {str(size): entry("<tool>", lstrip=True, rstrip=True, single_word=True)},
                {str(size): entry("<TOOL>", normalized=True)}, {"5": entry("<tool>")}, {str(size): "<tool>"}, {}, None,
                {"a": entry("<tool>")}, {str(size): entry("<tool>", extra=1)}]
    if field in VALUES:
        return VALUES[field]
    return ["x", 3, True, [], ["tokenizer.json"], {"a": "b"}, None]


def fields_of(tokenizer):
    """Those that the class and its bases name, and those that only the files have."""
    names = set()
    for cls in type(tokenizer).__mro__:
        if "__init__" in cls.__dict__ and cls.__module__.startswith("transformers"):
            names |= set(inspect.signature(cls.__init__).parameters)
            source = inspect.getsource(cls)
            names |= set(re.findall(r'kwargs\.(?:pop|get|setdefault)\(\s*"(\w+)"', source))
    return sorted((names | set(VALUES) | set(WITHOUT_EFFECT) | set(REFUSED) | {"added_tokens_decoder"}) -
                  {"self", "args", "kwargs"})


# ---------------------------------------------------------------------------------------------------------- changes

def changes_of(folder, tokenizer):
    """(field, file, function that changes the folder)"""
    size = len(tokenizer)

    def edit(file, change):
        def apply(to):
            path = to / file
            json_ = json.loads(path.read_text()) if path.exists() else {}
            folders.write(path, change(json_))
        return apply

    def put(key, value):
        def change(json_):
            json_.pop(key, None) if value is REMOVED else json_.update({key: copy.deepcopy(value)})
            return json_
        return change

    for field in fields_of(tokenizer):
        for value in [*values_of(field, size), REMOVED]:
            yield field, value, edit("tokenizer_config.json", put(field, value))
    for field in ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]:
        for value in ["<new>", "he", entry("<new>", lstrip=True), entry("<tool>", normalized=True), None]:
            yield field, value, edit("special_tokens_map.json", put(field, value))
    for field in ["additional_special_tokens", "extra_special_tokens"]:
        for value in [["<tool>"], ["<new>", "<tool>"], []]:
            yield field, value, edit("special_tokens_map.json", put(field, value))
    for value in [{"<tool>": size}, {"<tool>": size + 1, "<new>": size}, {"he": 5}, {"<tool>": "a"}, {"<tool>": 10**9}]:
        yield "added_tokens.json", value, edit("added_tokens.json", lambda json_, value=value: value)
    for name in ["bert", "roberta", "gpt2", "t5", "no_such_family"]:
        yield "model_type", name, edit("config.json", put("model_type", name))
    if (folder / "tokenizer.json").exists():
        yield from changes_of_tokenizer_json(size, edit, put)


def changes_of_tokenizer_json(size, edit, put):
    def model(key, value):
        def change(json_):
            put(key, value)(json_["model"])
            return json_
        return change

    def tokens(change):
        def apply(json_):
            change(json_["added_tokens"])
            return json_
        return apply

    for part, values in {
        "post_processor": [None, REMOVED],
        "normalizer": [None, {"type": "Lowercase"}, {"type": "NFD"}],
        "pre_tokenizer": [None, {"type": "WhitespaceSplit"}], "decoder": [None, {"type": "Fuse"}],
        "truncation": [{"direction": "Left", "max_length": 4, "strategy": "LongestFirst", "stride": 0}],
        "padding": [{"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": None, "pad_id": 1,
                     "pad_type_id": 0, "pad_token": "he"}],
    }.items():
        for value in values:
            yield part, value, edit("tokenizer.json", put(part, value))
    for key, values in {"unk_token": [None, REMOVED], "max_input_chars_per_word": [3], "fuse_unk": [True, False],
                        "continuing_subword_prefix": ["@@"], "byte_fallback": [True, False], "ignore_merges": [True],
                        "vocab": [None, [], {}, "x", REMOVED], "merges": [None, [], REMOVED],
                        "unk_id": [0, None]}.items():
        for value in values:
            yield f"model.{key}", value, edit("tokenizer.json", model(key, value))
    for change in [lambda list_: list_.clear(), lambda list_: list_.reverse(),
                   lambda list_: list_.append({"id": size, **entry("<tool>")}),
                   lambda list_: list_.append({"id": size, **entry("<TOOL>", normalized=True)}),
                   lambda list_: list_.append({"id": size + 3, **entry("<tool>")}),
                   lambda list_: list_.append({"id": 5, **entry("<tool>")}),
                   lambda list_: [each.update(rstrip=True, normalized=True) for each in list_],
                   lambda list_: [each.update(special=False) for each in list_]]:
        yield "added_tokens", inspect.getsource(change).strip(), edit("tokenizer.json", tokens(change))


# ------------------------------------------------------------------------------------------------------- comparison

def theirs(folder):
    """What transformers makes of the texts; an error's text instead where it fails, of the whole or of a batch."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder))

        def of(encoding):
            return {"ids": encoding["input_ids"],
                    "types": encoding.get("token_type_ids", [0] * len(encoding["input_ids"]))}
        texts = []
        for text in folders.TEXTS:
            ids, marked = tokenizer(text, add_special_tokens=False).input_ids, tokenizer(text)
            texts.append({"ids": ids, "marked": of(marked), "text": tokenizer.decode(ids, skip_special_tokens=True),
                          "marked_text": tokenizer.decode(marked.input_ids, skip_special_tokens=True)})
        pairs = [of(tokenizer(*pair)) if pair[1] else None for pair in folders.PAIRS]
    except BaseException as error:  # the package tokenizers panics
        if isinstance(error, KeyboardInterrupt):
            raise
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    try:
        batch = tokenizer(folders.BATCH, padding=True, truncation=True)
        names = [pair for pair in (("ids", "input_ids"), ("mask", "attention_mask")) if pair[1] in batch]
        rows = [{key: batch[name][n] for key, name in names} for n in range(len(folders.BATCH))]
    except BaseException as error:
        rows = {"error": str(error)}
    return {"texts": texts, "pairs": pairs, "batch": rows, "size": len(tokenizer)}


class Ours:
    def __init__(self):
        self.process = subprocess.Popen([PROGRAM, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, folder):
        request = {"path": str(folder), "texts": folders.TEXTS, "pairs": folders.PAIRS, "batch": folders.BATCH}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def difference(wanted, ours):
    """What differs of two answers that are no errors; None if nothing does."""
    for text, want, got in zip(folders.TEXTS, wanted["texts"], ours["texts"], strict=True):
        for key, value in want.items():
            if got[key] != value:
                return f"{key} of {text!r}: {got[key]!r}, transformers {value!r}"
    for pair, want, got in zip(folders.PAIRS, wanted["pairs"], ours["pairs"], strict=True):
        if want is not None and got != want:
            return f"{pair}: {got}, transformers {want}"
    batch, rows = ours["batch"], wanted["batch"]
    if isinstance(rows, list) != isinstance(batch, list):
        return f"batch: {batch}, transformers {rows}"
    if isinstance(rows, list):
        for want, got in zip(rows, batch, strict=True):
            if {key: got[key] for key in want} != want:
                return f"batch: {got}, transformers {want}"
    return None


def verdict(field, value, wanted, ours):
    """None, or what is wrong."""
    texts = ours if "error" in ours else ours["texts"]
    if "error" in texts:
        if "error" in wanted:
            return None
        is_named = any(name in texts["error"] for name in (field.split(".")[-1], "has the id", "has no ", "vocab is"))
        return None if is_named and may_be_refused(field, value) else f"refused: {texts['error']}"
    if "error" in wanted:
        is_unread = field in WITHOUT_EFFECT or field in REFUSED or field.startswith("model.")  # of a class of its own
        return None if is_unread else f"not refused: transformers says {wanted['error']}"
    return difference(wanted, ours)


def may_be_refused(field, value):
    """What is not read; what is of a wrong type or contradicts another file, which transformers puts up with."""
    if field in REFUSED or field in ("tokenizer_class", "model_type") or field.startswith("added_tokens"):
        return True
    is_of_wrong_type = isinstance(value, (str, dict)) and field.endswith(("special_tokens", "input_names"))
    return (value in ("yes", 3, -1, "x", [3]) or is_of_wrong_type or (value is None and field.endswith("_token"))
            or (field == "model.vocab" and value in (None, REMOVED)))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return folders.make_all(tmp_path_factory.mktemp("fields"))


SERVED = ["TokenizersBackend", "PythonBackend", "BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer",
          "RobertaTokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer", "WhisperTokenizer", "Qwen2Tokenizer", "T5Tokenizer",
          "XLMRobertaTokenizer", "CamembertTokenizer", "LlamaTokenizer", "GemmaTokenizer"]


def test_every_class(tmp_path):
    """Of all names that transformers knows, those are refused whose class is not supported, and no others."""
    ours = Ours()
    names = {*SLOW_TO_FAST_CONVERTERS, *filter(None, TOKENIZER_MAPPING_NAMES.values()), *dir(transformers)}
    names = sorted({name.removesuffix("Fast") for name in names if re.search("Tokenizer(Fast)?$", name)} -
                   {"AutoTokenizer", "BasicTokenizer", "WordpieceTokenizer"})  # which are no tokenizers of a folder
    folders.of_files("bert_json").save(str(tmp_path / "tokenizer.json"))
    for name in [*names, "NoSuchTokenizer"]:
        cls = tokenizer_class_from_name(name)
        folders.write(tmp_path / "tokenizer_config.json", {"tokenizer_class": name})
        is_served = cls is None or cls.__name__ in SERVED
        assert ("which is not supported" in ours(tmp_path).get("error", "")) != is_served, name


def test_every_field(made, tmp_path):
    ours, wrong, cases = Ours(), [], []
    for name, folder in made.items():
        wanted, got = theirs(folder), ours(folder)
        if "error" in got or "error" in wanted or difference(wanted, got):
            wrong.append((name, "as it is", got if "error" in got else wanted if "error" in wanted else
                          difference(wanted, got)))
        cases += [(name, folder, *change) for change in changes_of(folder, AutoTokenizer.from_pretrained(str(folder)))]
    random.Random(SEED).shuffle(cases)
    for name, folder, field, value, change in cases[:SAMPLE]:
        work = tmp_path / "folder"
        shutil.copytree(folder, work)
        change(work)
        said = verdict(field, value, theirs(work), ours(work))
        if said:
            wrong.append((name, field, "removed" if value is REMOVED else value, said))
        shutil.rmtree(work)
    report = "\n".join(map(str, wrong))
    assert not wrong, f"{len(wrong)} of {len(cases[:SAMPLE])} cases:\n{report}"
