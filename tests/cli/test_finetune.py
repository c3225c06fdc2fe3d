"""attn train --from and attn export: a model learns on from a folder, of attn or of the hub, and leaves as one."""

import json
import re

import pytest
from attn import SHAPE, TEXT

LABELLED = "".join(f"{line}\t{'left' if 'cat' in line else 'right'}\n" for line in TEXT.splitlines())


@pytest.fixture
def model(attn):
    attn.file("text.txt", TEXT)
    attn.file("rows.tsv", LABELLED)
    attn.run("train", "text.txt", "--out", "model", "--steps", 8, "--quiet", *SHAPE)
    return "model"


def config_of(attn, folder):
    return json.loads((attn.folder / folder / "config.json").read_text())


def test_a_text_goes_on(attn, model):
    """The first loss is where the training before has ended; the tokenizer and the shape are the folder's."""
    last = attn.losses(model)[8][0]
    said = attn.run("train", "text.txt", "--from", model, "--out", "more", "--steps", 30, "--batch", 4).stderr
    assert re.search(r"from model: (\S+) of \1 parameters are trained \(all\)", said), said
    assert abs(attn.losses("more")[1][0] - last) < 0.3 and attn.losses("more")[30][0] < last
    assert (attn.folder / "more/tokenizer.json").read_text() == (attn.folder / "model/tokenizer.json").read_text()
    assert config_of(attn, "more") == config_of(attn, model)
    settings = json.loads((attn.folder / "more/training.json").read_text())
    assert settings["from"] == str(attn.folder / "model") and settings["learning_rate"] == 5e-5


def test_a_classifier_of_a_text_model(attn, model):
    said = attn.run("train", "rows.tsv", "--from", model, "--out", "classes", "--epochs", 3, "--batch", 8,
                    "--learning-rate", 0.01).stderr
    assert "new, from random numbers: head.weight, head.bias" in said, said
    found = attn.run("classify", "classes", stdin="The cat sat on the mat, and the mat looked at the cat.\n").stdout
    assert found.split("\t")[0] in ("left", "right")
    # Its labels are known: the head goes on, and more classes make another one.
    again = attn.run("train", "rows.tsv", "--from", "classes", "--out", "again", "--steps", 2).stderr
    assert "new, from" not in again, again
    attn.file("three.tsv", LABELLED + "The bird sat.\tup\n" * 20)
    three = attn.run("train", "three.tsv", "--from", "classes", "--out", "three", "--steps", 2).stderr
    assert "new, from random numbers: head.weight, head.bias" in three and config_of(attn, "three")["classes"] == 3


def test_adapters_resume_to_the_same_bits(attn, model):
    flags = ["--from", model, "--lora-rank", 2, "--lora-targets", "query,value,down", "--lora-dropout", 0.1,
             "--batch", 4, "--learning-rate", 0.01, "--decay-steps", 12, "--warmup", 0, "--eval-every", 5]
    said = attn.run("train", "text.txt", "--out", "whole", "--steps", 12, *flags).stderr
    assert "adapters of rank 2 on query,value,down" in said, said
    trained, parameters = re.search(r"from model: ([\d,]+) of ([\d,]+) parameters", said).groups()
    assert int(trained.replace(",", "")) * 4 < int(parameters.replace(",", ""))
    attn.run("train", "text.txt", "--out", "half", "--steps", 5, *flags)
    attn.run("train", "--resume", "--out", "half", "--steps", 12)
    assert attn.last_checkpoint("half", 12) == attn.last_checkpoint("whole", 12)
    attn.run("generate", "whole", "--prompt", "The cat", "--max-new-tokens", 5)


def test_export_and_back(attn, model):
    """A training from the folder of the hub that it exported to itself."""
    said = attn.run("export", model, "--to", "hub").stderr
    assert "wrote hub, a GPT2LMHeadModel" in said, said
    prompt = ["--prompt", "The cat", "--temperature", 0, "--max-new-tokens", 20]
    text = attn.run("generate", model, *prompt).stdout
    assert attn.run("generate", "hub", *prompt).stdout == text
    attn.run("train", "text.txt", "--from", "hub", "--out", "tuned", "--steps", 2, "--batch", 4)
    assert "GPT2LMHeadModel" in (attn.folder / "tuned/pretrained.json").read_text()
    attn.run("export", "tuned", "--to", "again", "--precision", "bfloat16")
    assert config_of(attn, "again")["dtype"] == "bfloat16"
    before, after = config_of(attn, "hub"), config_of(attn, "again")
    assert {key for key in before if before[key] != after.get(key)} == {"dtype"}


def test_parts_of_a_model(attn, model):
    counts = []
    for tune in ("all", "layers", "last:1", "head"):
        said = attn.run("train", "rows.tsv", "--from", model, "--out", tune.replace(":", ""), "--steps", 1, "--tune",
                        tune).stderr
        counts.append(int(re.search(r"from model: ([\d,]+) of", said)[1].replace(",", "")))
    assert counts == sorted(counts, reverse=True) and len(set(counts)) == 4, counts


def test_patience(attn, model):
    said = attn.run("train", "text.txt", "--from", model, "--out", "early", "--steps", 50, "--eval-every", 1, "--batch",
                    4, "--patience", 2, "--learning-rate", 1e-12).stderr
    assert re.search(r"stopped after update \d: 2 validations without a better one", said), said


def test_what_does_not_fit(attn, model):
    attn.run("export", model, "--to", "hub")

    def refused(*arguments, status=2):
        said = attn.run("train", *arguments, "--out", "none", status=status).stderr
        assert len(said.splitlines()) == 1 and not (attn.folder / "none").exists(), said
        return said

    assert "--layers must not be given" in refused("text.txt", "--from", model, "--layers", 3)
    assert "--model, --config and --mixer must not" in refused("text.txt", "--from", model, "--model", "llama")
    assert "--tokens must not be given" in refused("text.txt", "--from", model, "--tokens", "bytes")
    assert "must be all, layers, head, lora or last:N" in refused("text.txt", "--from", model, "--tune", "last:x")
    assert "--tune lora needs --lora-rank" in refused("text.txt", "--from", model, "--tune", "lora")
    too_long = refused("text.txt", "--from", model, "--max-length", 17)
    assert "--max-length is 17, but the model's context is 16" in too_long
    assert "needs a file to learn from" in refused("--from", model)
    assert "known are" in refused("rows.tsv", "--from", "hub", "--task", "token-classification", status=1)
    assert "nowhere" in refused("text.txt", "--from", "nowhere", status=1)
    assert "lora_targets" in refused("text.txt", "--from", model, "--lora-rank", 2, "--lora-targets", "dense", status=1)
    attn.file("odd.txt", TEXT + "\u00e9")
    assert "\u00e9" in refused("odd.txt", "--from", model, status=1)
    said = attn.run("export", model, "--to", "hub", status=1).stderr
    assert "hub is not empty" in said
    (attn.folder / "tuned").mkdir()
    attn.run("train", "text.txt", "--from", "hub", "--out", "tuned", "--steps", 1, "--batch", 4)
    original = json.loads((attn.folder / "tuned/pretrained.json").read_text())
    for name in ("../outside", "/tmp/outside", "a//b", "a/../../b"):
        (attn.folder / "tuned/pretrained.json").write_text(json.dumps(original | {"files": {name: ""}}))
        said = attn.run("export", "tuned", "--to", "elsewhere", status=1).stderr
        assert f'files has "{name}", which is not inside a folder' in said, said
        assert not (attn.folder / "outside").exists() and not (attn.folder / "elsewhere").exists()
    (attn.folder / "tuned/pretrained.json").write_text('{"config": 3}')
    assert "pretrained.json must have the objects" in attn.run("generate", "tuned", "--prompt", "a", status=1).stderr
