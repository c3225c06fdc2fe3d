"""Every field of the files of a sentence encoder, set to other values, to null, and removed, next to
sentence-transformers: the vectors are the same, or the field is refused by name, or it is on the list of
docs/sentence-encoders.md and changes neither's vectors.

ATTN is the program. A sample without ATTN_EXHAUSTIVE=1; ATTN_SEED says which.
"""

import inspect
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import typing

import numpy as np
import pytest
import sentence_transformers as st
import torch
import transformers
from sentence_transformers.base import modules as base_modules
from sentence_transformers.sentence_transformer import modules as text_modules
from peers import draw
from tolerance import UNIT

ROOT = pathlib.Path(__file__).parents[2]
CONTEXT, WIDTH = 24, 32
SHORT = ["Hello World", "a Fine film, NICE", "b", ""]
LONG = ["the old film was good " * 12, "New film " * 30]
WORDS = ["hello", "world", "a", "fine", "film", "nice", "the", "old", "was", "good", "new", "Hello", "World", "Fine",
         "NICE", "New", "query", "search", ":", ",", *"bcdefgh"]
GENERIC = [None, True, False, 0, 1, -1, 7, 2.5, "text", "", [], {}, "removed"]
REMOVED = "removed"


def is_exhaustive() -> bool:
    return os.environ.get("ATTN_EXHAUSTIVE") == "1"


# ------------------------------------------------------------------------------------------------------------- folders


def put_model(folder: pathlib.Path) -> None:
    """A random BERT whose tokenizer knows capitals, so that lower-casing shows."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    tokenizer = transformers.BertTokenizer(vocab=vocabulary, do_lower_case=False, model_max_length=20)
    tokenizer.save_pretrained(folder)
    config = transformers.BertConfig(vocab_size=len(vocabulary), hidden_size=WIDTH, num_hidden_layers=2,
                                     num_attention_heads=4, intermediate_size=44, max_position_embeddings=CONTEXT)
    model = transformers.BertModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(draw(name, tuple(parameter.shape)))
    model.save_pretrained(folder)


def put(folder: pathlib.Path, name: str, content: object) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content))


def modern(folder: pathlib.Path) -> None:
    """As sentence-transformers writes it today, with a module of every kind."""
    put_model(folder / "plain")
    torch.manual_seed(3)
    layers = [base_modules.Transformer(str(folder / "plain")), text_modules.WeightedLayerPooling(WIDTH, 2, 1),
              base_modules.Dense(WIDTH, 24, activation_function=torch.nn.GELU(), use_residual=True,
                                 module_input_name="token_embeddings"),
              text_modules.Pooling(24, ("mean", "max")),
              base_modules.Dense(48, 16), text_modules.LayerNorm(16), text_modules.Dropout(0.3),
              base_modules.Normalize()]
    model = st.SentenceTransformer(modules=layers, device="cpu", prompts={"query": "search query: ", "none": ""})
    model.save(str(folder), create_model_card=False)
    shutil.rmtree(folder / "plain")


def older(folder: pathlib.Path) -> None:
    """As files of older versions are, the Transformer in a folder of its own."""
    put_model(folder / "0_Transformer")
    kinds = ["Transformer", "Pooling", "Normalize"]
    put(folder, "modules.json", [{"idx": n, "name": str(n), "path": f"{n}_{kind}",
                                  "type": f"sentence_transformers.models.{kind}"} for n, kind in enumerate(kinds)])
    put(folder, "0_Transformer/sentence_bert_config.json", {"max_seq_length": 16, "do_lower_case": False})
    put(folder, "1_Pooling/config.json", {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": False,
                                          "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False,
                                          "pooling_mode_mean_sqrt_len_tokens": False})
    put(folder, "config_sentence_transformers.json", {
        "__version__": {"sentence_transformers": "2.0.0"}, "prompts": {"query": "search query: "},
        "default_prompt_name": "query"})


def plain(folder: pathlib.Path) -> None:
    """A model alone."""
    put_model(folder)


# ------------------------------------------------------------------------------------------------------------ programs


def theirs(folder: pathlib.Path, *lists: list[str]) -> list[np.ndarray | None]:
    """Of each list of texts the vectors, or None where sentence-transformers refuses."""
    model = None
    try:
        model = st.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        return [model.encode([text for texts in lists for text in texts])] if len(lists) > 1 else [model.encode(*lists)]
    except Exception:  # of whatever kind
        return [theirs(folder, texts)[0] if model and len(lists) > 1 else None for texts in lists]


def ours(folder: pathlib.Path, texts: list[str], *flags: str) -> np.ndarray | str:
    """The vectors, or the error."""
    out = folder.parent / "out.npy"
    done = subprocess.run([os.environ["ATTN"], "embed", str(folder), "--out", str(out), "--threads", "1", *flags],
                          input="".join(f"{text}\n" for text in texts), capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1), (done.returncode, done.stderr)
    return np.load(out) if done.returncode == 0 else done.stderr


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Two layers and a few products of sums in another order each, which may grow through the norms; 2^-16 of the
    largest number, where another field makes a difference of a tenth and more."""
    if a.shape != b.shape:
        return False
    both = np.isfinite(a) & np.isfinite(b)
    bound = 2**8 * UNIT["float32"] * max(1, np.abs(b[both]).max(initial=0))
    return bool((np.isfinite(a) == np.isfinite(b)).all() and (np.abs(a - b)[both] <= bound).all())


# -------------------------------------------------------------------------------------------------------------- fields


def listed() -> dict[str, set[str]]:
    """Of each file the fields that the page says to have no effect."""
    page = (ROOT / "docs/sentence-encoders.md").read_text().partition("## Fields without effect")[2]
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("|")][2:]
    return {name.strip().strip("`"): set(re.findall(r"`(\w+)`", fields)) for name, fields in rows}


LISTED = listed()
# Fields that must be obeyed: refusing them would be no answer. A value that changes the vectors.
OBEYED = {
    ("older", "0_Transformer/sentence_bert_config.json"): {
        "max_seq_length": 9, "do_lower_case": True, "processor_kwargs": {"model_max_length": 6}},
    ("older", "1_Pooling/config.json"): {
        "pooling_mode_max_tokens": True, "pooling_mode_cls_token": True, "pooling_mode_mean_sqrt_len_tokens": True,
        "pooling_mode_lasttoken": True, "pooling_mode_weightedmean_tokens": True, "include_prompt": False,
        "pooling_mode": "max"},
    ("older", "config_sentence_transformers.json"): {
        "default_prompt_name": None, "prompts": {"query": "the old "}, "truncate_dim": 5},
    ("modern", "config_sentence_transformers.json"): {"default_prompt_name": "query"},
    ("modern", "3_Pooling/config.json"): {"pooling_mode": ["weightedmean", "cls"]},
    ("modern", "2_Dense/config.json"): {"activation_function": "torch.nn.modules.activation.ReLU"},
    ("modern", "4_Dense/config.json"): {"activation_function": "torch.nn.Sigmoid"},
    ("modern", "7_Normalize/config.json"): {"module_input_name": "other", "module_output_name": "unread"},
    ("plain", "tokenizer_config.json"): {"model_max_length": 8},
}
SPECIAL = {
    "pooling_mode": [["mean"], ["mean", "mean", "lasttoken"], "cls", "lasttoken", "weightedmean",
                     "mean_sqrt_len_tokens"],
    "activation_function": ["torch.nn.modules.linear.Identity", "torch.nn.SiLU", "torch.nn.modules.activation.GELU",
                            "torch.nn.modules.activation.Softplus", "other.Tanh"],
    "module_input_name": ["token_embeddings", "sentence_embedding"],
    "module_output_name": ["token_embeddings", "sentence_embedding"],
    "max_seq_length": [2, 3, 16, CONTEXT, CONTEXT + 1, 512], "model_max_length": [3, 1e30, 512, CONTEXT],
    "do_lower_case": [], "truncate_dim": [3, 16, 400], "in_features": [48, 32], "out_features": [16, 24],
    "modality_config": [{"text": {"method": "forward", "method_output_name": ["last_hidden_state"]}},
                        {"text": {"method": "forward", "method_output_name": "pooler_output"}},
                        {"text": {"method": "get_input_embeddings", "method_output_name": "last_hidden_state"}},
                        {"image": {"method": "forward", "method_output_name": "last_hidden_state"}}],
    "transformer_task": ["feature-extraction", "fill-mask"], "model_type": ["SentenceTransformer", "SparseEncoder"],
    "prompts": [{"query": None}, {"query": ""}, {"query": 3}, {"document": "the old "}],
    "default_prompt_name": ["query", "document", "none"], "similarity_fn_name": ["dot", "euclidean"],
    "requirements": [{"torch": ">=2"}], "__version__": [{"sentence_transformers": "99.0.0"}],
    "processing_kwargs": [{"text": {"max_length": 5}}], "query_length": [4], "document_length": [4],
    "model_kwargs": [{"attn_implementation": "eager"}, {"trust_remote_code": True}, {"dtype": "float16"}],
    "model_args": [{"attn_implementation": "eager"}], "tokenizer_args": [{"model_max_length": 5}],
    "processor_kwargs": [{"model_max_length": 400}, {"truncation_side": "left"}],
    "config_kwargs": [{"use_cache": True}, {"hidden_act": "relu"}], "config_args": [{"hidden_act": "relu"}],
    "query_expansion": [{"strategy": "fixed", "length": 8}], "kwargs": [["task"]], "dropout": [0.0, 0.9],
    "path": ["..", "/tmp", "a/../..", "1_Pooling", "C:\\x"],
    "type": ["sentence_transformers.models.WordWeights", "custom.Pooling", "sentence_transformers.models.Normalize"],
    "layer_start": [2], "num_hidden_layers": [3],
}


def parameters(kind: type) -> list[str]:
    names = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
    return [*names, *kind.config_keys, *kind.config_key_renames, *kind.config_key_renames.values()]


def fields() -> dict[tuple[str, str], list[str]]:
    """Of each file of each folder what the class that reads it knows, and one name that none does."""
    transformer = [name for name in parameters(base_modules.Transformer) if name != "model_name_or_path"]
    transformer += ["model_args", "tokenizer_args", "config_args", "cache_dir"]
    pooling = [*parameters(text_modules.Pooling), *text_modules.pooling._LEGACY_POOLING_MODE_KWARGS]
    dense = [name for name in parameters(base_modules.Dense) if not name.startswith("init_")]
    whole = ["__version__", "prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "model_type",
             "requirements"]
    weighted = [name for name in parameters(text_modules.WeightedLayerPooling) if name != "layer_weights"]
    known = {
        ("older", "0_Transformer/sentence_bert_config.json"): transformer,
        ("modern", "sentence_bert_config.json"): transformer,
        ("older", "1_Pooling/config.json"): pooling, ("modern", "3_Pooling/config.json"): pooling,
        ("modern", "1_WeightedLayerPooling/config.json"): weighted,
        ("modern", "2_Dense/config.json"): dense, ("modern", "4_Dense/config.json"): dense,
        ("modern", "5_LayerNorm/config.json"): parameters(text_modules.LayerNorm),
        ("modern", "6_Dropout/config.json"): parameters(text_modules.Dropout),
        ("modern", "7_Normalize/config.json"): parameters(base_modules.Normalize),
        ("older", "config_sentence_transformers.json"): whole, ("modern", "config_sentence_transformers.json"): whole,
        ("older", "modules.json"): ["idx", "name", "path", "type", "kwargs"],
        ("modern", "modules.json"): ["idx", "name", "path", "type", "kwargs"],
    }
    tokenizer = {(name, f"{folder}tokenizer_config.json"): ["model_max_length", "max_len"]
                 for name, folder in (("plain", ""), ("modern", ""))}
    return {place: [*dict.fromkeys(names), "unheard_of"] for place, names in known.items()} | tokenizer


class Case(typing.NamedTuple):
    folder: str
    file: str
    field: str
    value: object
    entry: int = 0  # of modules.json

    def __str__(self) -> str:
        entry = f"[{self.entry}]" if self.file == "modules.json" else ""
        return f"{self.folder}: {self.file}{entry}: {self.field} = {self.value!r}"

    def change(self, folder: pathlib.Path) -> None:
        path = folder / self.file
        content = json.loads(path.read_text()) if path.exists() else {}
        where = content[self.entry] if isinstance(content, list) else content
        if self.value == REMOVED:
            where.pop(self.field, None)
        else:
            where[self.field] = self.value
        put(folder, self.file, content)

    @property
    def list_entry(self) -> set[str]:
        """What the page lists of this file."""
        name = pathlib.Path(self.file).name
        kind = self.file.rpartition("/")[0].partition("_")[2]
        return LISTED.get(name if name != "config.json" else kind, set())

    def is_listed(self, content: dict) -> bool:
        if self.field == "module_output_name" and self.file.endswith("sentence_bert_config.json"):
            return "modality_config" not in content
        return self.field in self.list_entry


def cases(place: tuple[str, str]) -> list[Case]:
    folder, file = place
    entries = range(3 if folder == "older" else 8) if file == "modules.json" else [0]
    found = [Case(folder, file, field, value, entry) for entry in entries for field in fields()[place]
             for value in [*GENERIC, *SPECIAL.get(field, [])]]
    if is_exhaustive():
        return found
    return random.Random(f"{os.environ.get('ATTN_SEED', 1)} {place}").sample(found, min(len(found), 7))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    transformers.logging.set_verbosity_error()
    made = {make.__name__: tmp_path_factory.mktemp("encoders") / make.__name__ for make in (modern, older, plain)}
    for name, folder in made.items():
        folder.mkdir()
        globals()[name](folder)
    return made


def judged(case: Case, folders: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> str:
    """"same", "refused" or "without effect"; else fails."""
    folder = tmp_path / "changed"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(folders[case.folder], folder)
    case.change(folder)
    content = json.loads((folder / case.file).read_text())
    answers = theirs(folder, SHORT, LONG)
    lists = [SHORT + LONG] if len(answers) == 1 else [SHORT, LONG]  # a text that is too long for them leaves the others
    found = "same"
    for texts, wanted in zip(lists, answers):
        got = ours(folder, texts)
        if case.is_listed(content):
            assert isinstance(got, np.ndarray), f"{case}: is listed, but refused: {got}"
            if wanted is None:  # refused there for its type alone
                wanted = theirs(folders[case.folder], texts)[0]
            assert same(got, wanted) and same(got, ours(folders[case.folder], texts)), f"{case}: is listed, but acts"
            found = "without effect"
        elif isinstance(got, str):
            both = wanted is None and (str(folder) in got or "standard input, line" in got)  # in words of its own
            # Another module reads the file then, and has not all of its fields.
            other = case.field in ("path", "type") and re.search(r'the field "\w+" is not supported', got)
            names = case.field in got or both or other
            assert names and got.count("\n") == 1, f"{case}: refused without its name: {got}"
            found = "refused"
        else:
            assert wanted is not None, f"{case}: sentence-transformers refuses it"
            assert same(got, wanted), f"{case}: other vectors"
    return found


def test_the_folders_as_they_are(folders: dict[str, pathlib.Path]) -> None:
    for folder in folders.values():
        assert same(ours(folder, SHORT + LONG), theirs(folder, SHORT, LONG)[0]), folder


@pytest.mark.parametrize("place", fields(), ids=lambda place: "/".join(place))
def test_fields(place: tuple[str, str], folders: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    failed = []
    for case in cases(place):
        try:
            judged(case, folders, tmp_path)
        except AssertionError as error:
            failed.append(str(error).splitlines()[0])
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("place", OBEYED, ids=lambda place: "/".join(place))
def test_fields_that_act(place: tuple[str, str], folders: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    """No field that a folder needs is refused."""
    for field, value in OBEYED[place].items():
        case = Case(*place, field, value)
        assert judged(case, folders, tmp_path) == "same", case
        before, after = (ours(each, SHORT + LONG) for each in (folders[place[0]], tmp_path / "changed"))
        assert not same(before, after), f"{case}: changes nothing"


def module_types() -> list[str]:
    """Every module that a folder can name."""
    import sentence_transformers.multi_vector_encoder.modules as multi
    import sentence_transformers.sparse_encoder.modules as sparse
    found = []
    for package in (base_modules, text_modules, sparse, multi):
        for name, kind in inspect.getmembers(package, inspect.isclass):
            if issubclass(kind, base_modules.Module) and not inspect.isabstract(kind):
                found.append(f"{package.__name__}.{name}")
    return found


def test_modules_of_every_kind(folders: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    """What is not supported is refused by its name."""
    served = {"Transformer", "Pooling", "Dense", "Normalize", "LayerNorm", "Dropout", "WeightedLayerPooling"}
    types = module_types()
    assert served <= {name.rpartition(".")[2] for name in types} and len(types) > 15, types
    for name in types:
        if name.rpartition(".")[2] not in served:
            for entry in (0, 1):
                assert judged(Case("older", "modules.json", "type", name, entry), folders, tmp_path) == "refused", name


def test_older_names(folders: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    """The first of the siblings that says anything counts."""
    names = ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"]
    for n, name in enumerate(names):
        folder = tmp_path / name
        shutil.copytree(folders["older"], folder)
        (folder / "0_Transformer/sentence_bert_config.json").unlink()
        for m, other in enumerate(names):
            content = {"max_seq_length": 5 + m} if m >= n else {}
            put(folder, f"0_Transformer/sentence_{other}_config.json", content)
        got = ours(folder, LONG)
        assert same(got, theirs(folder, LONG)[0]) and not same(got, ours(folders["older"], LONG)), name


def test_prompts_of_the_caller(folders: dict[str, pathlib.Path]) -> None:
    folder = folders["modern"]
    model = st.SentenceTransformer(str(folder), device="cpu")
    for flags, arguments in ((("--prompt-name", "query"), {"prompt_name": "query"}),
                             (("--prompt", "the old "), {"prompt": "the old "}), (("--prompt", ""), {}),
                             (("--truncate-dim", "5", "--normalize"),
                              {"truncate_dim": 5, "normalize_embeddings": True})):
        assert same(ours(folder, SHORT, *flags), model.encode(SHORT, **arguments)), flags


def test_decoders_without_modules(tmp_path: pathlib.Path) -> None:
    """A folder of a decoder is embedded by its last row; with a chat template only where the caller says how."""
    put_model(tmp_path / "a")
    config = transformers.LlamaConfig(vocab_size=40, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4,
                                      intermediate_size=44, max_position_embeddings=CONTEXT)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(draw(name, tuple(parameter.shape)))
    shutil.rmtree(tmp_path / "a")
    model.save_pretrained(tmp_path / "a")
    words = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    transformers.BertTokenizer(vocab=words, do_lower_case=False).save_pretrained(tmp_path / "a")
    assert same(ours(tmp_path / "a", SHORT), theirs(tmp_path / "a", SHORT)[0])
    (tmp_path / "a/chat_template.jinja").write_text("{{ messages }}")
    said = ours(tmp_path / "a", SHORT)
    assert isinstance(said, str) and "chat_template" in said
    assert isinstance(ours(tmp_path / "a", SHORT, "--pooling", "lasttoken"), np.ndarray)
