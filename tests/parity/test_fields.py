"""Everything that a folder's config.json says is obeyed, refused by name, or on the list of docs/pretrained.md.

For every family this walks over the fields that transformers' configuration class reads, gives each other values, null
and none at all, and compares logits with transformers. What we pass over although it is not what a field may be must be
on the list; what is on the list must change nothing in transformers. A sample by default, everything with
ATTN_EXHAUSTIVE=1; ATTN_SEED chooses the sample.
"""

import copy
import dataclasses
import functools
import inspect
import json
import os
import pathlib
import random
import re
import shutil
import typing

import pytest
import torch
import transformers
from test_folders import BY_NAME, Folder, float64_throughout, given, rows_of, saved
from test_parity import Tensors, run_program
from tolerance import PLAUSIBLE, max_abs

ROOT = pathlib.Path(__file__).parents[2]
EXHAUSTIVE = os.environ.get("ATTN_EXHAUSTIVE") == "1"
SAMPLE = 8  # of each folder's fields, and of their values
NAMES = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "phi3, longrope, within", "olmo2", "gpt2", "gpt_neox",
         "qwen3_next", "qwen3_5_text", "mamba2", "bamba", "lfm2",
         "llama, rope yarn", "llama, rope llama3", "llama, rope linear",
         "bert, masked words", "bert, classes", "roberta, masked words", "xlm-roberta", "mpnet, masked words",
         "distilbert, masked words", "electra, masked words", "modernbert, masked words", "modernbert, classes", "t5",
         "t5 1.1", "bart", "vit", "whisper"]

ABSENT, NOTHING, HUGE = "absent", {"nothing": "of the kind"}, 1 << 40
# Absent, these are so large that a model of that size would be made: ours is compared with the size written out.
SIZES = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "d_model", "d_ff", "d_kv", "dim",
         "hidden_dim", "n_embd", "n_layer", "n_layers", "n_inner", "encoder_layers", "decoder_layers",
         "encoder_ffn_dim", "decoder_ffn_dim", "embedding_size", "max_position_embeddings", "n_positions",
         "max_source_positions", "max_target_positions", "num_layers"}
ACTIVATIONS = ["relu", "gelu", "gelu_new", "silu", "gelu_fast", "tanh", "quick_gelu", "sine"]
ROPES = [{"rope_type": "default", "rope_theta": 50.0}, {"rope_theta": 50.0}, {"rope_type": "linear", "factor": 2.0},
         {"type": "dynamic", "factor": 2.0, "rope_theta": 77.0}, {"rope_type": "linear"},
         {"rope_type": "yarn", "factor": 2.0},
         {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 8}, {}, [], "linear",
         {"rope_type": "yarn", "factor": 2.0, "beta_fast": 0, "beta_slow": None, "truncate": False},
         {"rope_type": "yarn", "factor": 2.0, "attention_factor": 0.5, "original_max_position_embeddings": 8},
         {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7, "mscale_all_dim": 0.4},
         {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
         {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0},
         {"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0] * 4, "factor": 4.0},
         {"type": "su", "short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0] * 4},
         {"rope_type": "proportional", "factor": 2.0}, {"rope_type": None}, {"rope_theta": None},
         {"partial_rotary_factor": 0.5, "rope_theta": 50.0}, {"partial_rotary_factor": 1.0},
         {"full_attention": {"rope_theta": 50.0}}, {"full_attention": {"rope_type": "linear", "factor": 2.0}},
         {"full_attention": {"rope_theta": 50.0}, "sliding_attention": {"rope_theta": 70.0, "rope_type": "default"}},
         {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 9.0},
          "sliding_attention": {"type": "linear", "factor": 2.0}}]
LAYERS = [["full_attention"] * 3, ["sliding_attention"] * 3, ["full_attention", "sliding_attention", "full_attention"],
          ["full_attention", "linear_attention", "linear_attention"], ["conv", "conv", "full_attention"],
          ["full_attention"] * 2, ["full_attention"] * 4, ["chunked_attention"] * 3, ["attention"] * 3, []]
VALUES = {
    "rope_parameters": ROPES, "rope_scaling": ROPES, "layer_types": LAYERS,
    "rope_theta": [50.0, 0.5], "partial_rotary_factor": [0.5, 0.3, 1.0, 0.0, 2.0], "rotary_pct": [0.5, 1.0, 0.3, -1.0],
    "rotary_emb_base": [50.0], "global_rope_theta": [50.0], "local_rope_theta": [50.0],
    "original_max_position_embeddings": [8, 30, 0], "global_attn_every_n_layers": [1, 2, 0],
    "id2label": [{"0": "a", "1": "b", "2": "c"}, {"0": "a", "1": "b"}, {"1": "a", "2": "b", "3": "c"}, {"a": 0}],
    "num_labels": [3, 2, 0, -1], "label2id": [{"a": 0, "b": 1, "c": 2}],
    "problem_type": ["regression", "single_label_classification", "multi_label_classification", "other"],
    "dtype": ["bfloat16"], "torch_dtype": ["float16"], "classifier_pooling": ["cls", "mean", "max"],
    "feed_forward_proj": ["gelu", "gated-gelu", "gated-relu", "gated-silu", "silu", "gelu-gated", "gated-tanh"],
    "dense_act_fn": ACTIVATIONS, "is_gated_act": [True, False], "scale_decoder_outputs": [True, False],
    "per_layer_config": [{"0": {"hidden_act": "relu"}}], "quantization_config": [{"quant_method": "bitsandbytes"}],
    "pruned_heads": [{"0": [1]}], "is_causal": [False, True], "tie_word_embeddings": [True, False],
    "position_embedding_type": ["absolute", "relative_key"], "image_size": [[12, 12], [8, 16], 24, 0, [12]],
    "pad_token_id": [0, 2, 1, -1, 99], "summary_type": ["first"], "head_dim": [8, 4, 10],
    "num_experts": [0, 4], "mlp_only_layers": [[0, 1, 2], [1]], "full_attn_idxs": [[0, 2], [1], [7], []],
    "attn_layer_indices": [[0, 2], [1], [7], []], "mamba_d_head": ["auto", 8, 4, "other"],
    "full_attention_interval": [1, 2], "time_step_limit": [[0.0, 0.01], [1.0, 2.0], [0.0, float("inf")]],
    "block_ffn_dim_multiplier": [0.5, 1.5, 2],
    "begin_suppress_tokens": [[3]], "suppress_tokens": [[3]], "pooler_act": ["tanh", "relu"],
}
ALIASES = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}  # of lfm2's constructor
# What only some of the classes read although the text of all has their names: with rope, and as decoders.
OF_ROPE = ["rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "original_max_position_embeddings"]
# What is read elsewhere, and what files of older versions have.
OLDER = ["per_layer_config", "quantization_config", "pruned_heads", "layer_types", "architectures", "num_labels",
         "torch_dtype"]
BEHIND_ROPE_PARAMETERS = ["rope_theta", "partial_rotary_factor", "rotary_pct", "rotary_emb_base", "global_rope_theta",
                          "local_rope_theta"]


def functions_of(kind: type) -> str:
    """What the class does with its arguments, as text."""
    names = ("__post_init__", "convert_rope_params_to_dict", "standardize_rope_params", "validate_rope",
             "validate_architecture", "validate_layer_type")
    return "".join(inspect.getsource(vars(base)[name]) for base in kind.__mro__ for name in names
                   if name in vars(base) and inspect.isfunction(vars(base)[name]))


@functools.lru_cache(maxsize=None)
def fields_of(kind: type) -> list[str]:
    read = re.findall(r"kwargs\.(?:get|pop)\(\s*\"(\w+)\"|getattr\(self, \"(\w+)\"", functions_of(kind))
    setters = [name for base in kind.__mro__ for name, value in vars(base).items()
               if isinstance(value, property) and value.fset]
    names = {field.name for field in dataclasses.fields(kind)} | {name for pair in read for name in pair if name}
    names |= set(kind.attribute_map) | set(setters) | set(vars(kind())) | set(OLDER)
    names = names | set(OF_ROPE) if hasattr(kind(), "rope_parameters") else names - set(OF_ROPE)
    if not hasattr(kind(), "head_dim"):
        names -= {"head_dim"}
    if hasattr(kind(), "type_vocab_size"):
        names.add("position_embedding_type")
    if any(kind is type(case.config) and case.causal for case in BY_NAME.values()):
        names.add("is_causal")
    return sorted(name for name in names if not name.startswith("_") and name not in ("model_type", "sub_configs"))


def values_of(case: Folder, field: str) -> list:
    kind, old = type(case.config), getattr(case.config, field, None)
    if field == "architectures":  # the class is given there
        return [["BertForQuestionAnswering"], ["GPT2DoubleHeadsModel"], "BertModel", [1]]
    if field in VALUES:
        return [*VALUES[field], None, ABSENT]
    annotation = next((f.type for f in dataclasses.fields(kind) if f.name == field), None)
    types = {type(old)} | set(typing.get_args(annotation)) | {annotation}
    values: list = [None, ABSENT, "some text"]
    if field.endswith(("act", "activation", "activation_function", "act_fn")):
        return [*ACTIVATIONS, *values]
    if bool in types:
        values += [True, False, 1]
    elif int in types and not isinstance(old, float):
        base = old if isinstance(old, int) and old else 2
        values += [2 * base, max(1, base // 2), base + 1, 0, -1, float(base), HUGE]
    elif float in types:
        values += [0.5, 0.25, 0.0, -1.0, 1, 1e30]
    return values


# ------------------------------------------------------------------------------------------------ the list in the docs

@functools.lru_cache(maxsize=None)
def listed(heading: str) -> list[tuple[set[str], set[str]]]:
    """Fields and the families that have them without effect, from the table below the heading."""
    text = (ROOT / "docs/pretrained.md").read_text().split(f"### {heading}\n")[1].split("\n#")[0]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    return [(set(re.findall(r"`(\w+)`", row[1])), set(row[2].replace(",", " ").split())) for row in rows]


def is_listed(case: Folder, field: str) -> bool:
    classifies = case.model.__name__.endswith("Classification")
    return any(field in fields and ("all" in families or case.config.model_type in families or
                                    ("others" in families and not classifies))
               for fields, families in listed("Fields of config.json without effect"))


# ------------------------------------------------------------------------------------------------------------ the runs

class Place:
    """A folder whose config.json is changed, with what both programs are given."""

    def __init__(self, case: Folder, where: pathlib.Path) -> None:
        self.case, self.where = case, where
        saved(case, str(where), False)
        self.config = json.loads((where / "config.json").read_text())
        self.inputs = {key: value for key, value in given(case, False).items() if key != "targets"}
        self.rows = rows_of(case, self.inputs) if case.sees or case.hears else {}
        self.base = self.theirs()
        assert self.base is not None, case.name

    def write(self, field: str, value) -> None:
        config = copy.deepcopy(self.config)
        config[field] = value
        if field in BEHIND_ROPE_PARAMETERS:
            config.pop("rope_parameters", None)
        if isinstance(value, str) and value == ABSENT:
            del config[field]
        (self.where / "config.json").write_text(json.dumps(config))

    def ours(self) -> torch.Tensor | str:
        sent = {f"input.{key}": value for key, value in self.inputs.items() if key not in ("pixels", "features")}
        sent |= {f"input.{key}": value.contiguous() for key, value in self.rows.items()}
        try:
            program = {"folder": str(self.where), "precision": "float64", "task": self.case.task}
            return run_program(program, sent)["logits"]
        except AssertionError as error:
            text = str(error)
            assert "parity: [" in text, text  # an Error, not a crash
            return text

    def theirs(self) -> torch.Tensor | None:
        """Nothing where transformers refuses, or makes up numbers that the file has not."""
        arguments: Tensors = {"input_ids": self.inputs.get("tokens")}
        if self.case.sees:
            arguments = {"pixel_values": self.inputs["pixels"].double()}
        elif self.case.hears:
            arguments = {"input_features": self.inputs["features"].double(), "decoder_input_ids": self.inputs["tokens"]}
        elif self.case.encodes:
            arguments = {"input_ids": self.inputs["source"], "decoder_input_ids": self.inputs["tokens"]}
        if self.case.types:
            arguments["token_type_ids"] = self.inputs["types"]
        try:
            model, info = self.case.model.from_pretrained(
                self.where, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
            with torch.no_grad(), float64_throughout():  # a small model may amplify the roundings of float32
                out = model.double().eval()(**arguments, return_dict=True)
        except Exception:
            return None
        missing = [name for name in info["missing_keys"] if not name.endswith("final_logits_bias")]
        return None if missing else self.case.logits(out).detach()


def are_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """By what float32 can cost in these small cases; a field that is passed over changes far more."""
    return a.shape == b.shape and max_abs(a.double() - b.double()) <= PLAUSIBLE["float32"] * max_abs(b.double())


def is_named(text: str, case: Folder, field: str, value=None) -> bool:
    """By its name, that of the field it means, or of a part of it."""
    means = ALIASES.get(field, case.config.attribute_map.get(field, field))
    names = [field, means, *(value if isinstance(value, dict) else [])]
    return any(re.search(rf"\b{name}\b", text) for name in names)


def fault_of(place: Place, field: str, value) -> str:
    """What is wrong with a value; empty where nothing is."""
    case = place.case
    if value == ABSENT and field not in place.config:
        return ""
    place.write(field, value)
    ours = place.ours()
    if value == ABSENT and field in SIZES:
        default = getattr(type(case.config)(), field)
        if field == "vocab_size":
            return "" if isinstance(ours, str) else "works without it"
        place.write(field, default)
        written = place.ours()
        same = ours == written if isinstance(ours, str) or isinstance(written, str) else are_close(ours, written)
        return "" if same else f"absent is not {default}: {ours} and {written}"
    if value == HUGE:  # as many layers would be made
        named = isinstance(ours, torch.Tensor) or is_named(ours, case, field)
        return "" if named else f"refused without its name: {ours}"
    theirs = place.theirs()
    if theirs is None:
        return "" if isinstance(ours, str) or is_listed(case, field) else "transformers refuses it"
    if is_listed(case, field):
        if not are_close(theirs, place.base):
            return "is on the list, but changes what transformers computes"
        return "" if isinstance(ours, torch.Tensor) and are_close(ours, theirs) else f"is on the list, but ours: {ours}"
    if isinstance(ours, str):
        return "" if is_named(ours, case, field, value) else f"refused without its name: {ours}"
    return "" if are_close(ours, theirs) else f"off by {max_abs(ours - theirs):.2g} of {max_abs(theirs):.2g}"


def is_lenient(case: Folder, field: str, value) -> bool:
    """Where ours may serve what transformers refuses."""
    if field == "layer_types" and case.config.model_type in ("mamba2", "bamba") and value is None:  # not stored there
        return True
    if field == "num_hidden_layers" and case.config.model_type == "bamba":  # fewer than the layers with attention
        return True
    if value is None:  # as if it were absent
        return field in ("num_labels", "sliding_window", "original_max_position_embeddings")
    if isinstance(value, dict) and value.get("type") == "su":  # of older files of Phi 3
        return True
    if field in ("query_pre_attn_scalar", "relative_attention_num_buckets"):  # a number that need not be whole
        return True
    if field in ("layer_types", "feed_forward_proj") and case.encodes:  # not read, and read as dense_act_fn
        return True
    return isinstance(value, int) and isinstance(getattr(case.config, field, None), float)  # 1 for 1.0


def sample(choices: list, name: str) -> list:
    if EXHAUSTIVE:
        return choices
    return random.Random(f"{os.environ.get('ATTN_SEED', '1')} {name}").sample(choices, SAMPLE)


def unread(place: Place, field: str) -> str:
    """Where ours reads a field, what it cannot be is refused by name."""
    refused = []
    for value in (NOTHING, "some text"):
        place.write(field, value)
        ours = place.ours()
        if isinstance(ours, str):
            refused.append(ours)
    if refused and not is_named(refused[0], place.case, field):
        return f"refused without its name: {refused[0]}"
    return "" if refused or is_listed(place.case, field) else "neither read nor on the list"


@pytest.mark.parametrize("name", NAMES)
def test_fields(name: str, tmp_path: pathlib.Path) -> None:
    place = Place(BY_NAME[name], tmp_path)
    fields = fields_of(type(place.case.config))
    cases = [(field, value) for field in fields for value in values_of(place.case, field)]
    faults = [f"{name}: {field}: {fault}" for field in sample(fields, name) if (fault := unread(place, field))]
    for field, value in sample(cases, name):
        fault = fault_of(place, field, value)
        if fault and not (fault == "transformers refuses it" and is_lenient(place.case, field, value)):
            faults.append(f"{name}: {field} {json.dumps(value)}: {fault}")
    assert not faults, "\n".join(faults)
