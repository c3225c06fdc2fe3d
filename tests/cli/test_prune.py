"""attn prune: models of each kind without some of their heads, used as any other, trained on, and what is refused."""

import json
import re
import signal
import time

from attn import TEXT
from test_pairs import SHAPE as PAIRS
from test_pairs import pairs

SHAPE = "--embed-dim 16 --layers 2 --heads 4 --context 16 --batch 4 --dropout 0.1".split()


def pruned(attn, *arguments):
    return json.loads(attn.run("prune", *arguments, "--json").stdout)


def text_model(attn, *flags):
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 60, "--out", "model", *SHAPE, *flags)


def kept(result):
    return [layer["kept"] for layer in result["layers"]]


def test_pruned_model_in_every_command(attn):
    """The smaller model is what gates of 0 leave, and every command takes it."""
    text_model(attn, "--positions", "alibi")
    done = attn.run("prune", "model", "--heads", "40%", "--out", "small")
    shown = done.stdout
    assert "attn: --heads 40% is 3 of 8 heads\n" in done.stderr, done.stderr
    assert shown.count("[") == 3 and re.search(r"^heads +8 +5$", shown, re.M), shown
    assert re.search(r"^perplexity +[\d.]+ +[\d.]+$", shown, re.M) and "time a batch" in shown, shown
    result = pruned(attn, "model", "--heads", 3, "--out", "again")
    assert result["after"]["heads"] == 5 and sum(map(len, kept(result))) == 5
    gated = next(point for point in result["curve"] if point["heads"] == 3)
    assert abs(gated["loss"] - result["after"]["loss"]) < 1e-5 * gated["loss"], (gated, result["after"])
    assert result["after"]["parameters"] == result["before"]["parameters"] - 3 * (4 * 4 * 16 + 3 * 4)
    assert result["after"]["bytes"] == (attn.folder / "again" / "step-0.safetensors").stat().st_size
    assert result["after"]["bytes"] < result["before"]["bytes"]
    config = json.loads((attn.folder / "again" / "config.json").read_text())
    assert config["kept_heads"] == kept(result) and config["heads"] == 4
    generate = ("generate", "small", "--prompt", "The cat", "--max-new-tokens", 12, "--temperature", 0)
    said = [attn.run(*generate, *flags).stdout for flags in ((), ("--no-cache",))]
    assert said[0] == said[1], said
    assert "loss" in attn.run("eval", "small", "text.txt").stdout
    info = attn.run("info", "small").stdout
    assert re.search(r"^shape +2 layers, 5 of 8 heads, width 16", info, re.M), info
    assert all(f"blocks.{n}.attention" in info and f"{len(list_)} of 4 heads" in info
               for n, list_ in enumerate(kept(result))), info
    shown = attn.run("see", "small", "--text", "The cat", "--layer", "0,1", "--head", 1, "--plain").stdout
    titles = re.findall(r"layer \d, head \d", shown)
    assert titles == ["layer 0, head 1", "layer 1, head 1"], titles
    assert attn.run("bench", "small", "-p", 8, "-n", 4, "-r", 1).stdout


def test_training_and_pruning_continue(attn):
    """A training goes on from what is left, a second pruning too."""
    text_model(attn)
    first = pruned(attn, "model", "--heads", "50%", "--out", "small")
    attn.run("train", "--resume", "--out", "small", "--steps", 30)
    rows = [json.loads(line) for line in (attn.folder / "small" / "log.jsonl").read_text().splitlines()]
    assert rows[-1]["validation_loss"] < first["after"]["loss"], (rows[-1], first["after"])
    second = pruned(attn, "small", "--heads", 1, "--method", "random", "--out", "smaller", "--seed", 5)
    assert second["before"]["heads"] == 4 and second["after"]["heads"] == 3
    assert all(set(less) <= set(more) for less, more in zip(kept(second), kept(first)))
    assert "each layer keeps one" in attn.run("prune", "small", "--heads", 3, "--out", "x", status=2).stderr
    retrained = pruned(attn, "model", "--heads", "50%", "--rounds", 2, "--retrain", 20, "--out", "rounds")
    assert retrained["after"]["heads"] == 4 and retrained["after"]["loss"] < first["after"]["loss"]
    attn.run("train", "--resume", "--out", "rounds", "--steps", 5)


def test_methods_repeat(attn):
    """A classifier by each of them; the same command gives the same model."""
    rows = [f"{a} {b} film\t{int(a == 'good')}" for a in ("good", "bad") for b in ("old", "new", "long", "short")] * 10
    attn.file("rows.tsv", "\n".join(rows) + "\n")
    attn.run("train", "rows.tsv", "--model", "encoder", "--steps", 80, "--out", "model", *SHAPE)
    for method in ("gradient", "leave-one-out", "gates", "random"):
        flags = ("model", "--heads", "40%", "--method", method, "--batches", 3, "--gate-steps", 5)
        results = [pruned(attn, *flags, "--out", f"{method}{n}") for n in range(2)]
        assert results[0]["layers"] == results[1]["layers"] and results[0]["method"] == method
        weights = [(attn.folder / f"{method}{n}" / "step-0.safetensors").read_bytes() for n in range(2)]
        assert weights[0] == weights[1], method
        classes = attn.run("classify", f"{method}0", stdin="good old film\nbad new film\n").stdout.splitlines()
        assert [line.split("\t")[0] for line in classes] == ["1", "0"], (method, classes)
    assert "% right" in attn.run("prune", "model", "--heads", 2, "--out", "gates0", "--overwrite").stdout


def test_model_with_an_encoder(attn):
    """The three kinds of attention of a model with an encoder."""
    pairs(attn)
    attn.run("train", "pairs.tsv", *PAIRS, "--tokens", "words", "--dropout", 0, "--steps", 100, "--out", "model")
    result = pruned(attn, "model", "--heads", "50%", "--retrain", 10, "--out", "small")
    assert [layer["name"] for layer in result["layers"]] == ["blocks.0.attention", "blocks.0.cross",
                                                             "encoder.0.attention"]
    assert kept(result) and all(len(one) == 1 for one in kept(result))
    said = [attn.run("generate", "small", "--prompt", "cab", "--temperature", 0, *flags).stdout
            for flags in ((), ("--no-cache",))]
    assert said[0] == said[1] and "texts" in attn.run("eval", "small", "pairs.tsv").stdout


def test_stopped(attn):
    """Ctrl-C ends what takes long, and nothing is written."""
    text_model(attn)
    running = attn.start("prune", "model", "--heads", 3, "--method", "gates", "--gate-steps", 10**8, "--out", "small")
    time.sleep(1.5)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGINT and "stopped before there was a result" in said, said
    assert not (attn.folder / "small").exists()


def test_refused(attn):
    text_model(attn)
    attn.run("train", "text.txt", "--model", "selfhead", "--embed-dim", 16, "--steps", 2, "--out", "single")
    before = sorted(path.name for path in attn.folder.iterdir())
    attn.file("rows.tsv", "a film\t1\n")
    hub = attn.folder / "hub"
    hub.mkdir()
    (hub / "config.json").write_text('{"model_type": "llama", "vocab_size": 8}')
    for wrong, message, status in (
            (("model", "--heads", "0%"), "must be a share, as 40%", 2),
            (("model", "--heads", "0.1%"), "would remove 0 of 8 heads", 2),
            (("model", "--heads", "100%"), "must remove 1 to 6: each layer keeps one", 2),
            (("model", "--heads", "1.5"), "must be a share, as 40%", 2),
            (("model", "--heads", "40 %"), "must be a share, as 40%", 2),
            (("model", "--heads", "nan"), "must be a share, as 40%", 2),
            (("model", "--heads", "-3"), "must be a share, as 40%", 2),
            (("model",), "--heads is required", 2),
            (("model", "--heads", 2, "--rounds", 3), "--rounds is 3, must be at most 2", 2),
            (("model", "--heads", 2, "--method", "luck"), "--method", 2),
            (("model", "--heads", 2, "--data", "gone.txt"), "gone.txt", 1),
            (("model", "--heads", 2, "--data", "rows.tsv"), "has labels", 2),
            (("single", "--heads", 1), "must remove 1 to 0", 2),
            (("hub", "--heads", 2), "holds no checkpoint", 1),
            (("gone", "--heads", 2), "gone: there is no such file or folder", 1)):
        done = attn.run("prune", *wrong, "--out", "x", status=status)
        assert message in done.stderr and len(done.stderr.splitlines()) == 1, (wrong, done.stderr)
    same = attn.run("prune", "model", "--heads", 2, "--out", "model", "--overwrite", status=2).stderr
    assert "--out must not be the folder of the model" in same, same
    assert "holds a model already" in attn.run("prune", "model", "--heads", 2, "--out", "single", status=2).stderr
    assert sorted(path.name for path in attn.folder.iterdir()) == sorted([*before, "rows.tsv", "hub"])
