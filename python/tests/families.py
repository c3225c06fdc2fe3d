"""Tiny random models of every class of transformers, run with eager attention and with "attention_cpp".

`classes()` finds them, `outcome()` says what became of one: "equal", "without" (equal, and no attention function was
called), "refused: why", "as sdpa" (eager and
"sdpa" of transformers differ), "not run: why", or "WRONG: what". Sizes are set by the names that configurations use.

    python python/tests/families.py          runs all, some minutes, and writes docs/families.md
"""

import contextlib
import copy
import functools
import importlib
import inspect
import logging
import re
import signal
import textwrap
import warnings
from pathlib import Path

import torch
import transformers as hf

NAME = "attention_cpp"
VOCABULARY = 99
LARGEST = 20_000_000  # parameters: what is larger has sizes of names that are not known here
SECONDS = 60

# The first pattern that a field's name matches in whole says its value, if the field's default is a number.
SIZES = [
    (r"rotary_dim", 8), (r"qk_head_dim|num_feat_extract_layers|attention_layers", None),  # sums and parts of others
    (r"(\w+_)?(vocab_size|vocabulary_size|n_vocab|vocab_size_\w+|n_words)", VOCABULARY),
    (r"(\w+_)?(num_hidden_layers|num_layers|n_layers?|\w+_layers|depth|num_blocks|n_blocks)", 2),
    (r"num_kv_shared_layers", 0),
    (r"(\w+_)?(num_key_value_heads|num_kv_heads|n_kv_heads|num_query_groups|multi_query_group_num)", 2),
    (r"(\w+_)?(num_attention_heads|num_heads|n_heads?|attention_heads|\w+_attention_heads|nhead)", 4),
    (r"(\w+_)?(head_dim|d_kv|kv_channels)", 16),
    (r"(\w+_)?(hidden_size|d_model|n_embd|embed_dim|hidden_dim|dim|embedding_size|projection_dim|proj_dim|width|d_embed"
     r"|emb_dim|output_proj_dims)", 64),
    (r"(\w+_)?(intermediate_size|ffn_dim|d_ff|n_inner|ffn_hidden_size|mlp_dim|dim_feedforward|d_inner"
     r"|moe_intermediate_size|\w+_ffn_dim|\w+_intermediate_size|inner_dim)", 64),
    (r"(\w+_)?(num_experts|num_local_experts|n_routed_experts|moe_num_experts|n_experts|num_routed_experts)", 4),
    (r"(\w+_)?(num_experts_per_tok|num_experts_per_token|moe_topk|moe_k|top_k_experts|num_selected_experts)", 2),
    (r"n_group|num_group|topk_group", 1), (r"(\w+_)?index_kpool", 4),
    (r"(\w+_)?(sliding_window|attention_window|sliding_window_size|local_attention)", 8),
    (r"(\w+_)?(max_position_embeddings|n_positions|n_ctx|max_sequence_length|seq_length|max_target_positions"
     r"|max_source_positions|max_seq_len|context_length)", 256),
    (r"(\w+_)?(kv_lora_rank|q_lora_rank|o_lora_rank|lora_rank)", 32),
    (r"(\w+_)?index_topk", 8), (r"index_n_heads", 2), (r"index_head_dim", 32),
    (r"(\w+_)?(image_size|img_size)", 32), (r"(\w+_)?patch_size", 8),
    (r"(\w+_)?(dropout|drop|dropout_rate|dropout_prob|layerdrop|drop_path_rate|drop_rate)", 0.0),
    (r"mask_ratio|mask_time_prob|mask_feature_prob", 0.0),
    (r"pad_token_id", 0), (r"bos_token_id", 1), (r"eos_token_id", 2), (r"decoder_start_token_id", 1),
]
SIZES = [(re.compile(pattern), value) for pattern, value in SIZES]


def families():
    """The folders of transformers that have models."""
    return sorted({file.parent.name for file in (Path(hf.__file__).parent / "models").glob("*/modeling_*.py")})


def classes(family):
    """{name of a class: class} of all in a folder that mean a configuration: a generating one, the base model."""
    found = {}
    for file in sorted((Path(hf.__file__).parent / "models" / family).glob("modeling_*.py")):
        try:
            module = importlib.import_module(f"transformers.models.{family}.{file.stem}")
        except ImportError:
            continue
        of_configuration = {}
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, hf.PreTrainedModel) and value.config_class is not None:
                if value.__module__ == module.__name__ and not value.__name__.endswith("PreTrainedModel"):
                    of_configuration.setdefault(value.config_class, []).append(value)
        for models in of_configuration.values():
            generating = [model for model in models if issubclass(model, hf.GenerationMixin)]
            base = [model for model in models if re.fullmatch("(?!.*Pretrained).*Model", model.__name__)] or models
            for model in (*generating[:1], *base[:1]):
                found[model.__name__] = model
    return found


# ------------------------------------------------------------------------------------------------------ configurations

# Ways to make a configuration, tried in turn: fewer key heads than heads or as many, the first layer of each kind that
# the default has or the first layers alone, sections of rotary embeddings, heads as they are.
WAYS = [dict(zip(("key_heads", "kinds", "layers", "sections", "heads"), way)) for way in (
    (2, True, 2, False, True), (4, True, 2, False, True), (2, True, 2, True, True), (4, True, 2, True, True),
    (2, True, 8, False, True), (4, False, 2, False, True), (4, False, 2, False, False))]


def small(name, value, way):
    for pattern, size in SIZES:
        if pattern.fullmatch(name):
            if "key_value_heads" in name or "kv_heads" in name:
                size = way["key_heads"]
            if size == 2 and "layers" in name:
                size = way["layers"]
            if size is None or isinstance(value, bool) or not way["heads"] and "head" in name:
                return value
            if name in ("head_dim", "num_experts_per_tok", "sliding_window") and value is None and way["sections"]:
                return size
            if not isinstance(value, (int, float)) or isinstance(size, float) and value == 0:
                return value
            if isinstance(size, float) or name.endswith("token_id"):
                return size
            return value if value <= 0 else size if "position" in name else min(size, value)
    if name.endswith("token_id") or name.endswith("token_index"):
        return 3 + sum(map(ord, name)) % 90 if isinstance(value, int) and value >= VOCABULARY else value
    return value


def rotated(parameters, sections):
    """Parameters of rotary embeddings, whose sections add up to half a head's size."""
    if not isinstance(parameters, dict):
        return parameters
    parameters = {name: rotated(value, sections) for name, value in parameters.items()}
    if "mrope_section" in parameters or sections and "rope_type" in parameters:
        half = int(8 * parameters.get("partial_rotary_factor", 1.0))
        parameters["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
    return parameters


def tiny(config_class, way):
    """A configuration of small sizes, sub-configurations included."""
    default = config_class()
    arguments = {}
    for name, value in list(vars(default).items()):
        if name.startswith("_") or name in ("transformers_version", "dtype", "model_type"):
            continue
        if isinstance(value, hf.PreTrainedConfig):
            arguments[name] = tiny(type(value), way)
        elif name in ("rope_parameters", "rope_scaling"):
            arguments[name] = rotated(value, way["sections"])
        elif (new := small(name, value, way)) is not value and new != value:
            arguments[name] = new
    layers = next((name for name in ("num_hidden_layers", "n_layers", "num_layers") if name in arguments), None)
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
        types = vars(default).get(name)
        if isinstance(types, (list, tuple)) and types and layers:
            kinds = list(dict.fromkeys(types)) if way["kinds"] else list(types)
            count = max(2, len(set(kinds)) if way["kinds"] else arguments[layers])
            arguments[name] = (kinds * count)[:count]
            arguments[layers] = count
    return config_class(**arguments)


# -------------------------------------------------------------------------------------------------------------- inputs

def text_config(config):
    try:
        return config.get_text_config(decoder=True)
    except Exception:
        return config


PARTS = ["plain", "with image", "video", "features last", "one channel"]


def inputs(model, part, length, generator, changed=False):
    """Arguments of a model's forward, of two sequences: its main input, and what a decoder reads."""
    names = inspect.signature(model.forward).parameters
    config = model.config
    vocabulary = getattr(text_config(config), "vocab_size", None)
    vocabulary = vocabulary if isinstance(vocabulary, int) and vocabulary > 8 else VOCABULARY

    def tokens():
        ids = torch.randint(4, min(vocabulary, VOCABULARY), (2, length), generator=generator)
        if changed:
            ids[:, -1] = 4 + (ids[:, -1] - 3) % (min(vocabulary, VOCABULARY) - 4)
        return ids

    def size(*candidates, default):
        for where in (config, getattr(config, "vision_config", None), getattr(config, "audio_config", None),
                      getattr(config, "encoder_config", None)):
            for candidate in candidates:
                value = getattr(where, candidate, None)
                if value is not None:
                    return value
        return default

    def image():
        sides = size("image_size", "img_size", default=32)
        sides = sides if isinstance(sides, (list, tuple)) else (sides, sides)
        frames = [size("num_frames", default=4)] if part == "video" else []
        channels = size("num_channels", "in_channels", "in_chans", default=3)
        return torch.randn(2, *frames, channels, *sides, generator=generator)

    given = {}
    if "input_ids" in names:
        given["input_ids"] = tokens()
        if part == "with image" and "pixel_values" in names:
            given["pixel_values"] = image()
    elif "inputs_embeds" in names and model.main_input_name not in ("pixel_values", "input_features", "input_values"):
        hidden = next(value for name in ("hidden_size", "d_model") if (value := getattr(config, name, None)))
        given["inputs_embeds"] = torch.randn(2, length, hidden, generator=generator)
    elif "pixel_values" in names:
        given["pixel_values"] = image()
    elif "input_features" in names:
        mel = size("num_mel_bins", "feature_size", "input_feat_per_channel", "feature_projection_input_dim", default=80)
        shape = [mel, 2 * size("max_source_positions", default=64)]
        shape = shape[::-1] if part == "features last" else shape
        given["input_features"] = torch.randn(2, *shape, generator=generator)
    elif "input_values" in names:
        given["input_values"] = torch.randn(2, *([1] if part == "one channel" else []), 4000, generator=generator)
    elif "hidden_states" in names:
        given["hidden_states"] = torch.randn(2, length, getattr(config, "hidden_size", 64), generator=generator)
    if "decoder_input_ids" in names and getattr(config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = tokens()
    return given


def outputs(result):
    """All floating tensors of a model's result, in order."""
    found = []

    def collect(value):
        if isinstance(value, torch.Tensor):
            if value.is_floating_point():
                found.append(value)
        elif isinstance(value, dict):
            for name, item in value.items():
                if not any(word in name for word in ("cache", "past", "attentions")):  # weights are there on request
                    collect(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                collect(item)

    collect(result)
    return found


# ------------------------------------------------------------------------------------------------------------ outcomes

class Refused(Exception):
    """By us or by transformers."""


class NotRun(Exception):
    """The test cannot make such a model, or it does not run with eager attention."""


def of_eager(function):
    """What a function gives; what it raises means that the class cannot be tested."""
    try:
        return function()
    except NotRun:
        raise
    except ImportError as error:
        raise NotRun("a library is not installed") from error
    except Exception as error:
        raise NotRun("the sizes or the inputs that the test makes do not fit") from error


REASONS = [  # the names of refusals, by what the error says
    (r"calls its attention with ([\w, ]+), which", r"it hands \1 to its attention"),
    (r"take no attn_implementation", "its layers take no attention function"),
    (r"KeyError: '(attention_cpp)'", "transformers looks the name up in a table of its own, KeyError: 'attention_cpp'"),
    (r"does not support setting .*attn|attn_implementation.* is not supported", "transformers refuses the name"),
]


def of_ours(function):
    """What a function gives; what it raises by name is a refusal."""
    import attention_cpp

    try:
        return function()
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        for pattern, reason in REASONS:
            if found := re.search(pattern, text):
                raise Refused(found.expand(reason)) from error
        if isinstance(error, attention_cpp.Error):
            raise Refused(text[:160]) from error
        raise AssertionError(f"it fails: {text[:160]}") from error


def eager_model(model_class, way):
    torch.manual_seed(0)
    config = tiny(model_class.config_class, way)
    with torch.device("meta"):
        count = sum(p.numel() for p in model_class(copy.deepcopy(config)).parameters())
    if count > LARGEST:
        raise NotRun("it is large with these sizes")
    model = model_class._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    return config, model


def pair(model_class):
    """The same model with eager attention and with ours, and what it is called with: the first way that runs."""
    first = None
    for way in WAYS:
        try:
            config, model = of_eager(lambda: eager_model(model_class, way))
        except NotRun as error:
            first = first or error
            continue
        for part in PARTS:
            try:
                of_eager(lambda: model(**inputs(model, part, 40, torch.Generator().manual_seed(1))))
                break
            except NotRun as error:
                first = first or error
        else:
            continue
        ours = of_ours(lambda: model_class._from_config(copy.deepcopy(config), attn_implementation=NAME).eval())
        ours.load_state_dict(model.state_dict())
        return model, ours, functools.partial(inputs, model, part)
    raise first


def compare(what, actual, expected, rows=None):
    """rows [B, L]: of those that count, in tensors that have them."""
    if len(outputs(actual)) != len(outputs(expected)):
        raise AssertionError(f"{what}: {len(outputs(actual))} results and {len(outputs(expected))}")
    for a, e in zip(outputs(actual), outputs(expected)):
        if a.shape != e.shape:
            raise AssertionError(f"{what}: shapes {list(a.shape)} and {list(e.shape)}")
        if rows is not None:
            if e.shape[:2] != rows.shape:
                continue
            a, e = a[rows], e[rows]
        a, e = a.double(), e.double()
        same = torch.isfinite(e) == torch.isfinite(a)
        error = torch.where(torch.isfinite(e) & same, a - e, 0.0).abs().max().item() if e.numel() else 0.0
        scale = e[torch.isfinite(e)].abs().max().item() if bool(torch.isfinite(e).any()) else 0.0
        if not bool(same.all()) or error > 2e-3 * scale + 1e-5:
            raise AssertionError(f"{what}: off by {error:.1e} of {scale:.1e}")


def run(model, given):
    torch.manual_seed(5)  # for models that draw
    return model(**given)


def check_forward(model, ours, make, length):
    """The results for a text, and for one with another last token."""
    first = []
    for changed in (False, True):
        given = [make(length, torch.Generator().manual_seed(1), changed) for _ in range(2)]
        expected = of_eager(lambda: run(model, given[0]))
        if not outputs(expected):
            raise NotRun("it returns no numbers")
        actual = of_ours(lambda: run(ours, given[1]))
        compare(f"{length} tokens" + (", another last one" if changed else ""), actual, expected)
        first.append((outputs(expected)[0], outputs(actual)[0]))
    (e, a), (e_changed, a_changed) = first
    if e.dim() == 3 and e.shape[1] == length and torch.equal(e[:, 0], e_changed[:, 0]):
        if (a[:, 0] - a_changed[:, 0]).abs().max() > 1e-5 * max(1.0, a.abs().max().item()):
            raise AssertionError("the first row sees the last token")


def check(model, ours, make):
    check_forward(model, ours, make, 40)
    if "input_ids" in inspect.signature(model.forward).parameters:
        check_forward(model, ours, make, 150)
    check_padding(model, ours, make, 24)
    check_generation(model, ours, make)


def check_padding(model, ours, make, length):
    given = make(length, torch.Generator().manual_seed(1))
    if "input_ids" not in given or "attention_mask" not in inspect.signature(model.forward).parameters:
        return
    for side in ("left", "right"):
        mask = torch.ones(2, length, dtype=torch.long)
        mask[1, slice(length // 3) if side == "left" else slice(length - length // 3, length)] = 0
        try:
            expected = of_eager(lambda: run(model, {**given, "attention_mask": mask}))
        except NotRun:
            continue  # not every model takes such padding
        actual = of_ours(lambda: run(ours, {**given, "attention_mask": mask}))
        if "decoder_input_ids" in given:  # of which no token is padding
            compare(f"padding on the {side}", outputs(actual)[:1], outputs(expected)[:1])
        else:
            compare(f"padding on the {side}", actual, expected, mask.bool())


def check_generation(model, ours, make):
    given = make(12, torch.Generator().manual_seed(1))
    given.pop("decoder_input_ids", None)
    if not isinstance(model, hf.GenerationMixin) or "input_ids" not in given:
        return
    given["attention_mask"] = torch.ones(2, 12, dtype=torch.long)
    given["attention_mask"][1, :4] = 0
    options = {"max_new_tokens": 6, "do_sample": False, "output_logits": True, "return_dict_in_generate": True,
               "pad_token_id": 0}
    try:
        expected = of_eager(lambda: model.generate(**given, **options))
    except NotRun:
        return  # not every model generates from text alone
    actual = of_ours(lambda: ours.generate(**given, **options))
    before = expected.sequences.shape[1] - len(expected.logits)
    for step, (a, e) in enumerate(zip(actual.logits, expected.logits)):
        compare(f"generate(), step {step}", a, e)
        if not torch.equal(actual.sequences[:, :before + step + 1], expected.sequences[:, :before + step + 1]):
            return  # two logits were equal


@contextlib.contextmanager
def limited(seconds):
    def stop(*_):
        raise NotRun(f"it takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(model_class):
    """What became of a class, in a few words."""
    import attention_cpp.transformers as integration

    integration.register()
    calls = []

    def counted(*args, **kwargs):
        calls.append(1)
        return integration.attention_cpp_forward(*args, **kwargs)

    hf.AttentionInterface.register(NAME, counted)
    try:
        with limited(SECONDS), torch.no_grad():
            model, ours, make = pair(model_class)
            try:
                check(model, ours, make)
            except AssertionError:
                if not model_class._supports_sdpa:
                    raise
                other = model_class._from_config(copy.deepcopy(model.config), attn_implementation="sdpa").eval()
                other.load_state_dict(model.state_dict())
                check(other, ours, make)
                return "as sdpa"
        return "equal" if calls else "without"
    except NotRun as error:
        return f"not run: {error}"
    except Refused as error:
        return f"refused: {error}"
    except AssertionError as error:
        return f"WRONG: {error}"
    finally:
        integration.register()


# ------------------------------------------------------------------------------------------------------------ the page

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
HEADINGS = {"equal": "Equal to eager attention", "as sdpa": "Equal to transformers' sdpa",
            "without": "Without attention functions", "refused": "Refused", "not run": "Not run by the test"}
MEANINGS = {
    "equal": "Results are those of eager attention.",
    "as sdpa": 'The results of transformers\' own "eager" and "sdpa" differ, and ours are those of "sdpa".',
    "without": "These have no attention, or one of their own that asks for no function: "
               '"attention_cpp" changes nothing.',
    "refused": 'Load these models with `attn_implementation="eager"`, or with `"sdpa"` and '
               "`attention_cpp.torch.enable()` where transformers has that for them.",
    "not run": "The test makes small models by the names of sizes in configurations, and gives them text, an image or "
               "sound; these need something else, and nothing has been found out about them.",
}


def entries(outcomes, wanted):
    """[(reason, {family: [names]})] of an outcome, the most frequent reason first."""
    found = {}
    for (family, name), what in sorted(outcomes.items()):
        kind, _, reason = what.partition(": ")
        if kind == wanted:
            found.setdefault(reason, {}).setdefault(family, []).append(name)
    return sorted(found.items(), key=lambda item: -sum(map(len, item[1].values())))


def written(outcomes):
    """The text of docs/families.md for {(family, name): outcome}."""
    text = ["# Models of transformers", "", INTRODUCTION.format(version=hf.__version__, count=len(outcomes))]
    for kind, heading in HEADINGS.items():
        text += ["", f"## {heading}", "", *textwrap.wrap(MEANINGS[kind], 120)]
        for reason, of_family in entries(outcomes, kind):
            names = "; ".join(f"{family}: {', '.join(names)}" for family, names in of_family.items())
            text += ["", *([f"**{reason}**", ""] if reason else []), *textwrap.wrap(names, 120, break_on_hyphens=False)]
    return "\n".join(text) + "\n"


INTRODUCTION = """\
What becomes of `attn_implementation="attention_cpp"` for each class of transformers {version} that means a
configuration: the base model, and the one that generates. `python/tests/test_families.py` runs tiny random models with
eager attention and with ours, over 40 and 150 tokens, with another last token, with padding on the left and on the
right, and through `generate()`; `python python/tests/families.py` writes this page, of {count} classes."""


def read():
    """{(family, name): outcome} of the page, and the version of transformers that it is of."""
    text = PAGE.read_text()
    kinds, outcomes = {heading: kind for kind, heading in HEADINGS.items()}, {}
    for section in text.split("\n## ")[1:]:
        heading, _, body = section.partition("\n")
        reason = ""
        for paragraph in body.split("\n\n")[1:]:
            paragraph = " ".join(paragraph.split())
            if paragraph.startswith("**"):
                reason = ": " + paragraph.strip("*")
            else:
                for entry in paragraph.split("; "):
                    family, _, names = entry.partition(": ")
                    outcomes.update({(family, name): kinds[heading] + reason for name in names.split(", ")})
    return outcomes, re.search(r"transformers (\S+) that", text).group(1)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    results = {}
    for each in families():
        for name, model_class in classes(each).items():
            results[each, name] = outcome(model_class)
            print(each, name, results[each, name], flush=True)
    PAGE.write_text(written(results))
