"""attn on pairs of texts: trained, asked, measured, looked at, resumed, misused."""

import re


# What is answered: each letter by its place in the alphabet, backwards.
SHAPE = "--model seq2seq --embed-dim 32 --layers 1 --encoder-layers 1 --heads 2 --context 16 --batch 16".split()
LETTERS = "abcde"


def answer(text):
    return " ".join(f"No{LETTERS.index(letter)}" for letter in reversed(text))


def words(count, length=3):
    return ["".join(LETTERS[n // len(LETTERS)**k % len(LETTERS)] for k in range(length)) for n in range(count)]


def pairs(attn, name="pairs.tsv", count=125):
    attn.file(name, "".join(f"{word}\t{answer(word)}\n" for word in words(count)))


def test_pairs_are_learned(attn):
    """A training learns the pairs; generate, eval and see then say and show what was learned."""
    pairs(attn)
    attn.run("train", "pairs.tsv", *SHAPE, "--tokens", "words", "--validation", "pairs.tsv", "--dropout", 0, "--steps",
             500, "--learning-rate", 3e-3, "--out", "out")
    assert attn.run("generate", "out", "--prompt", "cab", "--temperature", 0).stdout == answer("cab") + "\n"
    assert attn.run("generate", "out", "--prompt", "cab", "--temperature", 0, "--no-cache").stdout == "No1 No0 No2\n"
    lines = attn.run("generate", "out", "--interactive", "--temperature", 0, stdin="ace\ndad\n\n").stdout
    assert lines == f"{answer('ace')}\n{answer('dad')}\n", lines
    said = attn.run("eval", "out", "pairs.tsv").stdout
    assert said == "125 texts: 0.00 % of the tokens wrong, 100.00 % of the answers right\n", said
    attn.file("wrong.tsv", "abc\tNo0 No0 No0 No0\nabc\tNo2 No1 No1\ncab\tNo1\n")  # the nearer of two; 1 + 2 of 4
    said = attn.run("eval", "out", "wrong.tsv").stdout
    assert said == "2 texts: 75.00 % of the tokens wrong, 0.00 % of the answers right\n", said
    picture = attn.run("see", "out", "--text", "cab", "--plain").stdout
    rows = [re.sub(r"^ *\d+ (\S+).*", r"\1", line) for line in picture.splitlines() if re.match(r" *\d \S", line)]
    assert rows == ["<start>", "No1", "No0", "No2"], picture
    for part in ("decoder", "encoder", "cross"):
        page = attn.run("see", "out", "--text", "cab", "--part", part, "--html", "-").stdout
        assert page.lower().startswith("<!doctype html>") and ("No1" in page) == (part != "encoder"), part
    given = attn.run("see", "out", "--text", "cab", "--answer", "No4 No4", "--plain").stdout
    assert given.count("No4") == 2, given
    attn.run("see", "out", "--text", "cab", "--png", "cross.png", "--no-terminal")
    assert (attn.folder / "cross.png").read_bytes().startswith(b"\x89PNG")


def test_resumed_pairs_have_the_same_bits(attn):
    """A training that goes on has the same tokenizers and, bit for bit, the same weights."""
    pairs(attn)
    train = ("train", "pairs.tsv", *SHAPE, "--tokens", "words")
    attn.run(*train, "--steps", 8, "--save-every", 4, "--keep-every", 4, "--out", "whole")
    attn.run(*train, "--steps", 4, "--decay-steps", 8, "--warmup", 0, "--out", "half")
    attn.run("train", "--resume", "--out", "half", "--steps", 8)
    assert (attn.folder / "half" / "source_tokenizer.json").exists()
    assert attn.losses("half").keys() == attn.losses("whole").keys()
    assert attn.last_checkpoint("half", 8) == attn.last_checkpoint("whole", 8)
    attn.run(*train, "--steps", 2, "--overwrite", "--source-tokens", "bytes", "--out", "half")
    assert "bytes" in (attn.folder / "half" / "source_tokenizer.json").read_text()


def test_wrong_pairs_are_refused(attn):
    pairs(attn)
    attn.file("text.txt", "The cat sat on the mat. " * 40)
    one = attn.run("train", "pairs.tsv", "--model", "gpt", status=2).stderr
    assert "--model seq2seq" in one and "--model encoder" in one, one
    assert "learns from a file of pairs" in attn.run("train", "--model", "seq2seq", status=2).stderr
    assert "text.txt, line 1: must be source, a tab, and a target" in attn.run(
        "train", "text.txt", "--model", "seq2seq", status=1).stderr
    assert "--source-tokens" in attn.run("train", "text.txt", "--source-tokens", "words", status=2).stderr
    assert "--sample-prompt" in attn.run("train", "pairs.tsv", *SHAPE, "--sample-every", 2, status=2).stderr
    attn.run("train", "pairs.tsv", *SHAPE, "--steps", 2, "--sample-every", 1, "--sample-prompt", "cab", "--out", "out")
    assert "answers texts" in attn.run("generate", "out", status=2).stderr
    assert "U+0078" in attn.run("generate", "out", "--prompt", "xyz", status=1).stderr
    attn.run("train", "text.txt", "--embed-dim", 16, "--layers", 1, "--heads", 2, "--context", 8, "--steps", 2, "--out",
             "gpt")
    assert "--part and --answer" in attn.run("see", "gpt", "--text", "cat", "--part", "cross", status=2).stderr
    tokenizer = attn.folder / "out" / "source_tokenizer.json"
    tokenizer.write_text('{"kind": "bytes"}')
    said = attn.run("generate", "out", "--prompt", "cab", status=1).stderr
    assert "source_tokenizer.json has 256 tokens" in said, said
    tokenizer.unlink()
    assert "source_tokenizer.json" in attn.run("generate", "out", "--prompt", "cab", status=1).stderr
