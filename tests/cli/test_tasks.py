"""attn train --task: numbers, tags, pairs, hidden tokens and sentence encoders; what comes out in eval and classify."""

import json
import re

import pytest
from test_streams import hub_bert

WORDS = "good old film bad new one two three".split()
TEXTS = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in ("film", "one")]
FAST = ["--epochs", 60, "--batch", 16, "--learning-rate", 4e-3, "--quiet"]


@pytest.fixture
def bert(attn):
    hub_bert(attn.folder / "bert", layers=2, more=["[MASK]"], gain=1)
    return "bert"


def resumes(attn, name, *arguments):
    """A training that stops and continues has the bits of one that does not."""
    flags = [*arguments, "--batch", 8, "--learning-rate", 1e-3, "--decay-steps", 8, "--warmup", 0, "--eval-every", 4,
             "--quiet"]
    attn.run("train", *flags, "--out", f"{name}-whole", "--steps", 8)
    attn.run("train", *flags, "--out", f"{name}-half", "--steps", 4)
    attn.run("train", "--resume", "--out", f"{name}-half", "--steps", 8, "--quiet")
    assert attn.last_checkpoint(f"{name}-half", 8) == attn.last_checkpoint(f"{name}-whole", 8)


def test_regression(attn, bert):
    """A number for a text, which grows with its good words; a new model and one of the hub."""
    rows = "".join(f"{text}\t{text.count('good') - text.count('bad') + 0.25}\n" for text in TEXTS)
    attn.file("rows.tsv", rows)
    said = attn.run("train", "rows.tsv", "--validation", "rows.tsv", "--from", bert, "--task", "regression", "--metric",
                    "pearson", "--packed", "--out", "value", *FAST[:-1]).stderr
    assert "task: regression" in said and re.search(r"best validation pearson 0\.9", said), said
    said = attn.run("eval", "value", "rows.tsv").stdout
    error, pearson = map(float, re.search(r"error (\S+), Pearson (\S+),", said).groups())
    assert error < 0.2 and pearson > 0.9, said
    high, low = (float(line.split("\t")[1]) for line in
                 attn.run("classify", "value", stdin="good good one\nbad bad one\n").stdout.splitlines())
    assert high > low + 1
    row = json.loads(attn.run("classify", "value", "--json", stdin="good film\n").stdout)
    assert set(row) == {"line", "values", "text"} and set(row["values"]) == {"value"}, row
    resumes(attn, "number", "rows.tsv", "--from", bert, "--task", "regression", "--packed")
    attn.run("train", "rows.tsv", "--task", "regression", "--embed-dim", 16, "--layers", 1, "--heads", 2, "--context",
             16, "--out", "new", *FAST)
    assert "mean squared error" in attn.run("eval", "new", "rows.tsv").stdout


def test_tags(attn, bert):
    """A tag for each word; lines of CoNLL, and what classify prints is what train reads."""
    tag = {"good": "B-JOY", "bad": "B-WOE", "film": "I-JOY"}
    texts = ["\n".join(f"{word} {tag.get(word, 'O')}" for word in text.split()) for text in TEXTS]
    attn.file("tags.txt", "\n\n".join(texts) + "\n")
    said = attn.run("train", "tags.txt", "--validation", "tags.txt", "--from", bert, "--task", "token-classification",
                    "--metric", "span_f1", "--class-weights", "balanced", "--out", "tagger", *FAST[:-1]).stderr
    assert "new, from random numbers: head.weight, head.bias" in said and "span_f1" in said, said
    said = attn.run("eval", "tagger", "tags.txt").stdout
    right, spans = map(float, re.search(r"([\d.]+) % right.*F1 of spans ([\d.]+)", said).groups())
    assert right > 95 and spans > 0.9, said
    found = attn.run("classify", "tagger", stdin="good film one\n\nbad\n").stdout
    assert found == "good\tB-JOY\nfilm\tI-JOY\none\tO\n\n\nbad\tB-WOE\n\n", found
    attn.file("found.tsv", found)
    attn.run("eval", "tagger", "found.tsv")
    row = json.loads(attn.run("classify", "tagger", "--json", stdin="two bad one\n").stdout)
    assert row["words"] == ["two", "bad", "one"] and row["classes"] == ["O", "B-WOE", "O"], row
    assert all(0 < each <= 1 for each in row["probabilities"]), row
    resumes(attn, "tags", "tags.txt", "--from", bert, "--task", "token-classification", "--class-weights", "balanced")
    attn.run("train", "tags.txt", "--task", "token-classification", "--embed-dim", 16, "--layers", 1, "--heads", 2,
             "--context", 16, "--out", "new", *FAST)
    assert "% right" in attn.run("eval", "new", "tags.txt").stdout


def test_pairs_of_texts(attn, bert):
    """Whether two texts share their first word, which needs both; token types say where the second begins."""
    pairs = [(a, b) for n, a in enumerate(TEXTS[:64]) for b in (TEXTS[n], TEXTS[-n - 1])]
    rows = [(a, b, int(a.split()[0] == b.split()[0])) for a, b in pairs]
    attn.file("pairs.tsv", "sentence1\tsentence2\tlabel\n" + "".join(f"{a}\t{b}\t{c}\n" for a, b, c in rows))
    attn.run("train", "pairs.tsv", "--validation", "pairs.tsv", "--from", bert, "--packed", "--out", "same", "--metric",
             "matthews", *FAST)
    right = float(re.search(r"([\d.]+) % right", attn.run("eval", "same", "pairs.tsv").stdout)[1])
    found = [line.split("\t")[0] for line in attn.run(
        "classify", "same", "--pairs", stdin="".join(f"{a}\t{b}\n" for a, b, _ in rows)).stdout.splitlines()]
    assert abs(right - 100 * sum(said == str(c) for said, (_, _, c) in zip(found, rows)) / len(rows)) < 0.01
    assert right > 60, right
    said = attn.run("train", "--resume", "--out", "same").stderr  # all updates are done, and what was best is known
    assert "best validation matthews" in said, said
    said = attn.run("classify", "same", "--pairs", stdin="one text\n", status=1).stderr
    assert "line 1: must be two texts with a tab between them" in said, said


def test_truncated_rows_are_counted(attn, bert):
    """Every task that reads rows says how many are longer than a sequence, and what takes longer ones."""
    rows = ["good " * (20 if n < 3 else 2) for n in range(20)]
    attn.file("classes.tsv", "".join(f"{text}\t{n % 2}\n" for n, text in enumerate(rows)))
    attn.file("pairs.tsv", "".join(f"film\t{text}\t{n % 2}\n" for n, text in enumerate(rows)))
    attn.file("answers.tsv", "".join(f"film\t{text}\n" for text in rows))
    attn.file("tags.txt", "\n\n".join("\n".join(f"{word} {'OB'[n % 2]}" for n, word in enumerate(text.split()))
                                              for text in rows) + "\n")
    short = ["--steps", 1, "--overwrite", "--out", "model"]
    small = ["--embed-dim", 16, "--layers", 1, "--heads", 2, "--context", 8]
    for flags, end in (
            (["classes.tsv", "--from", bert, "--max-length", 8], "; a larger --max-length takes more"),
            (["pairs.tsv", "--from", bert, "--task", "similarity", "--max-length", 8],
             "; a larger --max-length takes more"),
            (["tags.txt", "--from", bert, "--task", "token-classification", "--max-length", 8],
             "; a larger --max-length takes more"),
            (["classes.tsv", "--model", "encoder", "--tokens", "words", *small], "; a larger --context takes more"),
            (["answers.tsv", "--model", "seq2seq", "--tokens", "words", "--source-tokens", "words", *small],
             "; a larger --context takes more")):
        said = attn.run("train", *flags, *short).stderr
        assert f"\n3 of 20 rows were cut to 8 tokens{end}\n" in said, (flags, said)
    said = attn.run("train", "classes.tsv", "--from", bert, "--max-length", 24, *short).stderr
    assert "were cut" not in said, said
    assert "were cut" not in attn.run("eval", "model", "classes.tsv").stderr
    for rows, task in (("classes.tsv", "classification"), ("classes.tsv", "regression"),
                       ("tags.txt", "token-classification")):
        attn.run("train", rows, "--task", task, "--tokens", "words", *small, *short)
        said = attn.run("eval", "model", rows).stderr
        assert "attn: 3 of 20 texts were cut to 8 tokens\n" in said, (task, said)
    said = attn.run("prune", "model", "--heads", 1, "--out", "pruned").stderr
    assert "attn: 3 of 20 texts were cut to 8 tokens\n" in said, said


def test_masked_language_model(attn, bert):
    attn.file("text.txt", "\n".join(TEXTS * 4) + "\n")
    flags = ["text.txt", "--from", bert, "--max-length", 16]
    said = attn.run("train", *flags, "--out", "filler", *FAST[:-1]).stderr
    assert "task: masked-lm" in said and "new, from random numbers: head_dense.weight" in said, said
    losses = attn.losses("filler")
    assert losses[max(losses)][0] < 0.8 * losses[1][0]
    assert attn.run("fill", "filler", "--text", "good [MASK] film").stdout
    resumes(attn, "masked", *flags)


def test_bert_from_the_beginning(attn):
    """A tokenizer, a BERT that learns to fill gaps, the folder for transformers, and a classifier of it."""
    attn.file("text.txt", "\n".join(TEXTS * 4) + "\n")
    attn.run("tokenizer", "train", "text.txt", "--kind", "wordpiece", "--vocab-size", 60, "--out", "tokenizer.json")
    shape = ["--embed-dim", 16, "--hidden-dim", 32, "--layers", 1, "--heads", 2, "--context", 32]
    flags = ["text.txt", "--task", "masked-lm", "--tokenizer", "tokenizer.json", *shape]
    attn.run("train", *flags, "--out", "field", "--max-length", 16, *FAST)
    losses = attn.losses("field")
    assert losses[max(losses)][0] < 0.7 * losses[1][0]
    resumes(attn, "scratch", *flags)
    said = attn.run("export", "field", "--to", "hub").stderr
    assert "a BertForMaskedLM" in said, said
    filled = [attn.run("fill", folder, "--text", "good old [MASK]").stdout for folder in ("field", "hub")]
    assert filled[0] == filled[1] and filled[0]
    attn.file("rows.tsv", "".join(f"{text}\t{int('good' in text)}\n" for text in TEXTS))
    for folder in ("field", "hub"):
        attn.run("train", "rows.tsv", "--from", folder, "--task", "classification", "--out", f"{folder}-classes",
                 *FAST)
        assert "% right" in attn.run("eval", f"{folder}-classes", "rows.tsv").stdout
    said = attn.run("train", "text.txt", "--tokenizer", "tokenizer.json", "--tokens", "bytes", "--out", "none",
                    status=2).stderr
    assert "give only one of them" in said, said


@pytest.mark.parametrize("task", ["similarity", "contrastive"])
def test_sentence_encoders(attn, bert, task):
    """Each word has a partner; texts of partners are alike, which the vectors of the folder do not say."""
    partner = dict(zip(WORDS, WORDS[3:] + WORDS[:3]))
    texts = [f"{a} {b}" for a in WORDS for b in WORDS if a < b]
    others = [" ".join(partner[word] for word in text.split()) for text in texts]
    rows = [(a, b, 1.0) for a, b in zip(texts, others)]
    if task == "similarity":
        rows += [(a, b, 0.0) for a, b in zip(texts, others[9:] + others[:9])]
    attn.file("pairs.tsv", "".join("\t".join(map(str, row[:3 if task == "similarity" else 2])) + "\n" for row in rows))
    flags = ["pairs.tsv", "--validation", "pairs.tsv", "--from", bert, "--task", task]

    def measured(folder):
        return float(re.search(r"Spearman (\S+),|([\d.]+) %", attn.run("eval", folder, "pairs.tsv").stdout).group(
            1 if task == "similarity" else 2))

    attn.run("train", *flags, "--out", "encoder", "--epochs", 150, "--batch", 28, "--learning-rate", 3e-4, "--dropout",
             0, "--quiet")
    assert measured("encoder") > measured(bert) + (0.2 if task == "similarity" else 20)
    attn.run("export", "encoder", "--to", "hub")
    vectors = [json.loads(attn.run("embed", folder, "--normalize", stdin="good old\n").stdout)["embedding"]
               for folder in ("encoder", "hub")]
    assert max(abs(a - b) for a, b in zip(*vectors)) < 1e-6
    resumes(attn, task, *flags)


def test_wrong_tasks(attn, bert):
    def refused(*arguments, status=2):
        said = attn.run("train", *arguments, "--out", "none", status=status).stderr
        assert len(said.splitlines()) == 1 and not (attn.folder / "none").exists(), said
        return said

    attn.file("rows.tsv", "".join(f"{text}\t{n % 2}\n" for n, text in enumerate(TEXTS)))
    attn.file("text.txt", "\n".join(TEXTS) + "\n")
    attn.file("words.tsv", "".join(f"{text}\tgood\n" for text in TEXTS))
    assert "must be one of causal-lm" in refused("rows.tsv", "--from", bert, "--task", "telepathy")
    assert "--task masked-lm needs --from FOLDER, or --tokenizer FILE" in refused("text.txt", "--task", "masked-lm")
    assert "--task contrastive begins with a sentence encoder" in refused("rows.tsv", "--task", "contrastive")
    assert "does not continue texts" in refused("text.txt", "--from", bert, "--task", "causal-lm")
    assert "--task seq2seq needs a model with an encoder" in refused("rows.tsv", "--from", bert, "--task", "seq2seq")
    assert "the label must be a finite number" in refused("words.tsv", "--from", bert, "--task", "regression", status=1)
    assert "words.tsv has no scores" in refused("words.tsv", "--from", bert, "--task", "similarity", status=1)
    assert "--packed is for sentences with labels" in refused("text.txt", "--from", bert, "--packed")
    assert "--class-weights has 3 numbers, but there are 2 classes: 0, 1" in refused(
        "rows.tsv", "--from", bert, "--class-weights", "1,2,3")
    assert "must have a number above 0" in refused("rows.tsv", "--from", bert, "--class-weights", "0,0")
    attn.file("few.tsv", "good film\t1\n" * 9)
    for task in ("classification", "regression", "contrastive"):
        assert "few.tsv has 9 rows, of which the last tenth validates: it must have at least 10" in refused(
            "few.tsv", "--from", bert, "--task", task), task
    assert "must be balanced or numbers" in refused("rows.tsv", "--from", bert, "--class-weights", "1,x")
    assert "--class-weights is for classes, but --task is regression" in refused(
        "rows.tsv", "--from", bert, "--task", "regression", "--class-weights", "1,2")
    for task, metric, allowed in (("classification", "pearson", "loss, accuracy, macro_f1, matthews, f1"),
                                  ("regression", "accuracy", "loss, pearson, spearman"),
                                  ("contrastive", "spearman", "loss, accuracy")):
        said = refused("rows.tsv", "--from", bert, "--task", task, "--metric", metric)
        assert f"--metric {metric} does not fit --task {task} with these labels, must be one of {allowed}" in said, said
    attn.file("plain.txt", "good NOUN\nold ADJ\n\n" * 20)
    assert "span_f1 needs the labels O and B-" in refused(
        "plain.txt", "--from", bert, "--task", "token-classification", "--metric", "span_f1", status=1)
    hub_bert(attn.folder / "maskless", layers=1)  # its tokenizer has a [MASK], beyond the embeddings
    assert "needs a model with a token [MASK] or <mask>" in refused("text.txt", "--from", "maskless")
