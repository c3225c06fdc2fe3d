"""A tokenizer.json of every family: its own normalizer, pre-tokenizer, post-processor and decoder around a vocabulary
that the package learns here from a small text."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
QWEN = GPT4.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
META = "\u2581"
SIZE = 3000

N, P = normalizers, pre_tokenizers


def special(content, **options):
    return AddedToken(content, special=True, normalized=False, **options)


def trained(tokenizer, trainer, texts):
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def byte_level(texts, pre_tokenizer, normalizer=None, specials=("<|endoftext|>",), **model):
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=list(specials), show_progress=False,
                                  initial_alphabet=P.ByteLevel.alphabet())
    return trained(tokenizer, trainer, texts)


def cut(pattern, *more):
    parts = [P.Split(Regex(each), "isolated") for each in (pattern, *more)]
    return P.Sequence([*parts, P.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2(texts):
    tokenizer = byte_level(texts, P.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def roberta(texts):
    specials = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True, normalized=False)]
    tokenizer = byte_level(texts, P.ByteLevel(add_prefix_space=False), specials=specials)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def llama3(texts):
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer = byte_level(texts, cut(GPT4), specials=specials, ignore_merges=True)
    around = processors.TemplateProcessing("<|begin_of_text|> $A", "<|begin_of_text|> $A <|begin_of_text|> $B:1",
                                           [("<|begin_of_text|>", 0)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), around])
    return tokenizer


def qwen2(texts):
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return byte_level(texts, cut(QWEN), N.NFC(), specials)


def gpt4o(texts):
    return byte_level(texts, cut(GPT4O))


def deepseek(texts):
    return byte_level(texts, cut(r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK))


def bloom(texts):
    return byte_level(texts, cut(BLOOM))


def smollm(texts):
    return byte_level(texts, P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)]))


def falcon(texts):
    return byte_level(texts, P.Sequence([P.Punctuation("contiguous"), P.ByteLevel(add_prefix_space=True), P.Digits(),
                                         P.Split(Regex("[0-9][0-9][0-9]"), "isolated")]))


def modernbert(texts):
    tokenizer = byte_level(texts, P.ByteLevel(add_prefix_space=False), N.NFC(),
                           ["[UNK]", "[CLS]", "[SEP]", "[PAD]", AddedToken("[MASK]", lstrip=True, special=True)])
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(2, 9)])
    tokenizer.add_tokens([AddedToken("|||IP_ADDRESS|||", normalized=True), AddedToken("é́x", normalized=True)])
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:0 [SEP]",
                                                             [("[CLS]", 1), ("[SEP]", 2)])
    return tokenizer


def clip(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = N.Sequence([N.NFC(), N.Replace(Regex(r"\s+"), " "), N.Lowercase()])
    tokenizer.pre_tokenizer = P.Sequence([P.Split(Regex(CLIP), "removed", invert=True),
                                          P.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=["<|startoftext|>", "<|endoftext|>"],
                                  end_of_word_suffix="</w>", initial_alphabet=P.ByteLevel.alphabet(),
                                  show_progress=False)
    trained(tokenizer, trainer, texts)
    tokenizer.post_processor = processors.RobertaProcessing(("<|endoftext|>", 1), ("<|startoftext|>", 0))
    return tokenizer


def with_bytes(texts, **options):
    """The vocabulary of a SentencePiece model: unknown, begin, end, bytes, then what merges made."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = P.Metaspace(replacement=META, prepend_scheme="always")
    trained(tokenizer, trainers.BpeTrainer(vocab_size=SIZE, show_progress=False, limit_alphabet=70), texts)
    import json
    learned = json.loads(tokenizer.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *BYTES, *sorted(learned["vocab"], key=learned["vocab"].get)]
    merges = [tuple(merge) for merge in learned["merges"]]
    model = models.BPE(vocab={name: n for n, name in enumerate(names)}, merges=merges, unk_token="<unk>",
                       fuse_unk=True, byte_fallback=True, **options)
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([special("<unk>"), special("<s>"), special("</s>")])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B:1", [("<s>", 1)])
    steps = [decoders.Replace(META, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return tokenizer


def llama2(texts):
    tokenizer = with_bytes(texts)
    tokenizer.normalizer = N.Sequence([N.Prepend(META), N.Replace(" ", META)])
    return tokenizer


def mistral(texts):
    tokenizer = with_bytes(texts)
    tokenizer.pre_tokenizer = P.Metaspace(replacement=META, prepend_scheme="first", split=False)
    tokenizer.add_tokens([AddedToken("[INST]", normalized=False, special=True), AddedToken("[/INST]", special=True)])
    return tokenizer


def gemma(texts):
    tokenizer = with_bytes(texts)
    tokenizer.normalizer = N.Replace(" ", META)
    tokenizer.pre_tokenizer = P.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(META, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(1, 6)])
    tokenizer.add_tokens([AddedToken(META * n, normalized=False) for n in range(2, 6)])
    tokenizer.add_special_tokens([special("<start_of_turn>"), special("<end_of_turn>")])
    return tokenizer


def wordpiece(texts, lower, around=("[CLS]", "[SEP]"), pair=None):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = N.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = P.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    names = ["[PAD]", "[UNK]", *around]
    trained(tokenizer, trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=names, show_progress=False), texts)
    begin, end = around
    tokenizer.post_processor = processors.TemplateProcessing(
        f"{begin} $A {end}", pair or f"{begin} $A {end} $B:1 {end}:1", [(begin, 2), (end, 3)])
    return tokenizer


def bert_uncased(texts):
    tokenizer = wordpiece(texts, True)
    tokenizer.add_special_tokens(["[MASK]"])
    return tokenizer


def bert_cased(texts):
    tokenizer = wordpiece(texts, False)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def mpnet(texts):
    tokenizer = wordpiece(texts, True, ("<s>", "</s>"), "<s> $A </s> </s> $B </s>")
    tokenizer.add_special_tokens([special("<mask>", lstrip=True), special("[W]", single_word=True, rstrip=True)])
    tokenizer.add_tokens([AddedToken("ÉCOLE", normalized=True), AddedToken("Word", single_word=True)])
    return tokenizer


def unigram(texts, normalizer, pre_tokenizer, specials, **model):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Metaspace(replacement=META, prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=SIZE, special_tokens=specials, unk_token="<unk>", show_progress=False,
                                      initial_alphabet=list("abcdefghijklmnopqrstuvwxyz"))
    return trained(tokenizer, trainer, texts)


def metaspaced():
    return P.Sequence([P.WhitespaceSplit(), P.Metaspace(replacement=META, prepend_scheme="always")])


def t5(texts, charsmap):
    tokenizer = unigram(texts, N.Precompiled(charsmap), metaspaced(), ["<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens([special(f"<extra_id_{n}>", lstrip=True, rstrip=True) for n in range(9)])
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    return tokenizer


def xlmr(texts, charsmap):
    names = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)]
    tokenizer = unigram(texts, N.Precompiled(charsmap), metaspaced(), names)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> </s> $B </s>",
                                                             [("<s>", 0), ("</s>", 2)])
    return tokenizer


def deberta(texts, charsmap):
    normalizer = N.Sequence([N.Strip(left=False), N.Precompiled(charsmap), N.Replace(Regex(" {2,}"), " ")])
    return unigram(texts, normalizer, P.Metaspace(replacement=META, prepend_scheme="first"), ["[PAD]", "<unk>"])


def albert(texts, charsmap):
    normalizer = N.Sequence([N.Replace("``", '"'), N.Replace("''", '"'), N.NFKD(), N.StripAccents(), N.Lowercase(),
                             N.Precompiled(charsmap), N.Replace(Regex(" {2,}"), " "), N.Nmt()])
    return unigram(texts, normalizer, metaspaced(), ["<unk>"])


def wordlevel(texts):
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = P.Whitespace()
    return trained(tokenizer, trainers.WordLevelTrainer(vocab_size=SIZE, special_tokens=["[UNK]"],
                                                        show_progress=False), texts)


FAMILIES = [gpt2, roberta, llama3, qwen2, gpt4o, deepseek, bloom, smollm, falcon, modernbert, clip, llama2, mistral,
            gemma, bert_uncased, bert_cased, mpnet, wordlevel]
WITH_CHARSMAP = [t5, xlmr, deberta, albert]


def across_words(texts):
    """A model whose tokens cross spaces and line breaks, so that its ids show where a text was cut."""
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=["?"], show_progress=False, limit_alphabet=200)
    lines = [text[at:at + 60] for text in texts for at in range(0, min(len(text), 120_000), 60)]
    return trained(tokenizer, trainer, lines)


PRE_TOKENIZERS = {
    "whitespace": P.Whitespace(), "whitespace_split": P.WhitespaceSplit(), "bert": P.BertPreTokenizer(),
    "digits": P.Digits(), "each_digit": P.Digits(individual_digits=True), "delimiter": P.CharDelimiterSplit("e"),
    "metaspace_never": P.Metaspace(replacement=" ", prepend_scheme="never"),
    "metaspace_always": P.Metaspace(replacement="_"),
    **{f"punctuation_{how}": P.Punctuation(how) for how in
       ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")},
    **{f"split_{how}_{invert}_{type(pattern).__name__}": P.Split(pattern, how, invert)
       for how in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")
       for invert in (False, True) for pattern in ("th", Regex(r"\w|\d+[^\S\n]|\s*|[[:punct:]a[b]]\W"))},
}
NORMALIZERS = {
    "nfc": N.NFC(), "nfd": N.NFD(), "nfkc": N.NFKC(), "nfkd": N.NFKD(), "lower": N.Lowercase(), "nmt": N.Nmt(),
    "accents": N.Sequence([N.NFD(), N.StripAccents()]), "strip": N.Strip(), "strip_left": N.Strip(right=False),
    "bert": N.BertNormalizer(), "bert_plain": N.BertNormalizer(False, False, False, False),
    "bert_accents": N.BertNormalizer(strip_accents=True, lowercase=False), "prepend": N.Prepend("the "),
    "replace": N.Replace("e", ""), "replace_regex": N.Replace(Regex("[aeiou]+|$"), "<$0>"), "bytes": N.ByteLevel(),
    "first": N.Sequence([N.Strip(), N.Replace("T", ""), N.Lowercase()]),
}


def charsmap_of(model):
    """The table of replacements in a SentencePiece model: field 2 of its field 3."""
    def fields(message):
        at = 0
        while at < len(message):
            key, at = varint(message, at)
            if key & 7 == 2:
                length, at = varint(message, at)
                yield key >> 3, message[at:at + length]
                at += length
            elif key & 7 == 0:
                at = varint(message, at)[1]
            else:
                at += 4 if key & 7 == 5 else 8

    def varint(message, at):
        value = shift = 0
        while True:
            value |= (message[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if message[at - 1] < 128:
                return value, at
    return next(value for spec, inner in fields(model) if spec == 3 for field, value in fields(inner) if field == 2)
