"""Vocabularies from the command line: learnt, used, misused."""

import json

from attn import TEXT


def test_tokenizers(attn):
    attn.file("text.txt", TEXT)
    for kind, letters in (("bpe", 257), ("wordpiece", 0), ("unigram", 0)):
        train = ("tokenizer", "train", "text.txt", "--kind", kind, "--vocab-size", letters + 60, "--out")
        assert "tokens" in attn.run(*train, "t.json").stderr
        file = json.loads((attn.folder / "t.json").read_text())
        assert {"version", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder"} <= file.keys()
        assert len(file["model"]["vocab"]) <= letters + 60
        ids = attn.run("tokenizer", "encode", "t.json", "text.txt").stdout
        assert len(ids.split()) < len(TEXT) / 2, kind
        words = TEXT.lower().split() if kind == "wordpiece" else TEXT.split()
        assert attn.run("tokenizer", "decode", "t.json", stdin=ids).stdout.split() == words
        assert json.loads(attn.run(*train, "-").stdout) == file, "the same text teaches the same tokens"
    folder = attn.folder / "folder"
    folder.mkdir()
    (attn.folder / "t.json").rename(folder / "tokenizer.json")
    plain, marked = (attn.run("tokenizer", "encode", "folder", *flags, stdin="The cat").stdout.split()
                     for flags in ((), ("--add-special-tokens",)))
    assert marked == [*plain, "1"]


def test_wrong_tokenizers(attn):
    attn.file("text.txt", TEXT)
    attn.file("bytes.txt", b"ab\xff")
    attn.file("empty.txt", "")
    attn.file("bad.json", '{"model":{"type":"Magic"}}')
    attn.run("tokenizer", "train", "text.txt", "--out", "t.json")
    cases = [(("train", "text.txt", "--vocab-size", 9, "--out", "x"), 1, "at least 257: 1 special tokens and 256"),
             (("train", "bytes.txt", "--out", "x"), 1, "bytes.txt: not UTF-8 at byte 2"),
             (("train", "empty.txt", "--out", "x"), 1, "no words"), (("train",), 2, "files"),
             (("train", "text.txt", "--kind", "magic"), 2, "one of bpe, wordpiece, unigram"),
             (("guess", "text.txt"), 2, "one of train, encode, decode"),
             (("encode", "bad.json", "text.txt"), 1, 'bad.json: model: type is "Magic", must be one of BPE'),
             (("encode", "t.json", "text.txt", "text.txt"), 2, "one file"),
             (("encode", "."), 1, "has no tokenizer.json"),
             (("encode", "none.json"), 1, "none.json"),
             (("encode", "t.json", "bytes.txt"), 1, "bytes.txt: the text: not UTF-8 at byte 2")]
    for arguments, status, message in cases:
        said = attn.run("tokenizer", *arguments, status=status).stderr
        assert message in said, (arguments, said)
    assert not (attn.folder / "x").exists()
    for ids, message in (("1 2 x", "at byte 4 there is"), ("99999999", "id 99999999"), ("1.5", "at byte 0 there is")):
        assert message in attn.run("tokenizer", "decode", "t.json", stdin=ids, status=1).stderr
