"""Small folders of every tokenizer class that the families use, with tokenizer.json and without."""

import json

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

import families

SENTENCES = ["hello world, this is text about cats and dogs.", "Don't do it! We've 12 of 345, haven't we?",
             "the quick brown fox jumps over the lazy dog", "él está aquí, naïve café à la carte", "HELLO World AGAIN",
             "def main(argv): return 0x1F + 1", "中文字 and 日本 text"] * 30
TEXTS = ["hello world", " Hello  WORLD again. ", "ÉCOLE café naïve", "a中文b 中 文", "x<tool>y <new> hello<sp>!",
         "x [MASK] y <mask>  z <s>a</s> <|endoftext|>b</s>", "😀 it's, don't  . ?", "", "[CLS] he\nhello\t12 </s>",
         "<extra_id_0> a <extra_id_1><|startoftranscript|> b<|0.02|>c <image>he", "<tool> <tool>  Hello<TOOL>"]
PAIRS = [["hello world", "cats"], ["", "a <tool>"], ["dogs", ""]]
BATCH = ["hello world, this is", "a", "the quick brown fox"]


def trained_pairs():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(SENTENCES, trainers.BpeTrainer(
        vocab_size=400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [" ".join(merge) for merge in model["merges"]]


def trained_words(first):
    tokenizer = families.wordpiece(SENTENCES, True, ("[CLS]", "[SEP]"))
    words = [word for word, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    return [*first, *(word for word in words if word not in first and not word.startswith("["))]


def pieces(folder, kind, **options):
    path = folder / f"{kind}-{len(options)}"
    if not path.with_suffix(".model").exists():
        (folder / "sentences").write_text("\n".join(SENTENCES))
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "sentences"), model_prefix=str(path), model_type=kind, vocab_size=330, minloglevel=2,
            num_threads=1, hard_vocab_limit=False, character_coverage=1.0, **options)
    return path.with_suffix(".model").read_bytes()


def write(path, value):
    if isinstance(value, bytes):
        path.write_bytes(value)
    else:
        path.write_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def words_of(first):
    return {"vocab.txt": "\n".join(trained_words(first)) + "\n"}


def pairs_of(first, behind=()):
    vocab, merges = trained_pairs()
    names = [*first, *sorted(vocab, key=vocab.get), *behind]
    return {"vocab.json": {name: n for n, name in enumerate(names)},
            "merges.txt": "#version: 0.2\n" + "\n".join(merges)}


BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
TIMES = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>", "<|startofprev|>",
         "<|notimestamps|>", "<|0.00|>", "<|0.02|>"]


def bases(work):
    """name -> (model_type, tokenizer_class, files)"""
    unigram = pieces(work, "unigram", byte_fallback=False)
    bytes_ = pieces(work, "bpe", byte_fallback=True, bos_id=1, eos_id=2, unk_id=0)
    gemma = pieces(work, "bpe", byte_fallback=True, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
                   user_defined_symbols=["<mask>", "<start_of_turn>"])
    t5 = pieces(work, "unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    gpt2, roberta = pairs_of([], ["<|endoftext|>"]), pairs_of(FAIRSEQ, ["<mask>"])
    return {
        "bert": ("bert", "BertTokenizer", words_of(BERT)),
        "distilbert": ("distilbert", "DistilBertTokenizer", words_of(BERT)),
        "electra": ("electra", "ElectraTokenizer", words_of(BERT)),
        "mpnet": ("mpnet", "MPNetTokenizer", words_of(["<s>", "<pad>", "</s>", "[UNK]", "<mask>"])),
        "roberta": ("roberta", "RobertaTokenizer", roberta), "bart": ("bart", "BartTokenizer", roberta),
        "gpt2": ("gpt2", "GPT2Tokenizer", gpt2),
        "gpt_neox": ("gpt_neox", "GPTNeoXTokenizer", pairs_of(["<|endoftext|>", "<|padding|>"])),
        "whisper": ("whisper", "WhisperTokenizer", pairs_of([], TIMES)),
        "qwen2": ("qwen2", "Qwen2Tokenizer", pairs_of([], ["<|endoftext|>"])),
        "qwen3": ("qwen3", "Qwen2Tokenizer", pairs_of([], ["<|endoftext|>", "<|im_start|>"])),
        "xlm-roberta": ("xlm-roberta", "XLMRobertaTokenizer", {"sentencepiece.bpe.model": unigram}),
        "camembert": ("camembert", "CamembertTokenizer", {"sentencepiece.bpe.model": unigram}),
        "t5": ("t5", "T5Tokenizer", {"spiece.model": t5}),
        "llama": ("llama", "LlamaTokenizer", {"tokenizer.model": bytes_}),
        "mistral": ("mistral", "LlamaTokenizer", {"tokenizer.model": bytes_}),
        "phi3": ("phi3", "LlamaTokenizer", {"tokenizer.model": bytes_}),
        "gemma2": ("gemma2", "GemmaTokenizer", {"tokenizer.model": gemma}),
    }


def of_files(name):
    """The general class, whose pipeline is the file's."""
    make = {"modernbert": families.modernbert, "olmo2": families.llama3, "llama3": families.llama3,
            "mistral_json": families.mistral, "bert_json": families.bert_uncased}[name]
    return make(SENTENCES)


GENERAL = {"modernbert": "modernbert", "olmo2": "olmo2", "llama3": "llama", "mistral_json": "mistral",
           "bert_json": "bert"}


def make_all(work):
    """name -> folder: "bert" (older files), "bert+json" (what transformers saves of it), "bert-bare" (no config)."""
    folders = {}
    for name, (family, class_name, files) in bases(work).items():
        folder = work / name
        folder.mkdir()
        for file, value in files.items():
            write(folder / file, value)
        write(folder / "config.json", {"model_type": family})
        write(folder / "tokenizer_config.json", {"tokenizer_class": class_name})
        folders[name] = folder
        bare = work / f"{name}-bare"
        bare.mkdir()
        for file in [*files, "config.json"]:
            (bare / file).write_bytes((folder / file).read_bytes())
        folders[bare.name] = bare
        saved = work / f"{name}+json"
        AutoTokenizer.from_pretrained(str(folder)).save_pretrained(str(saved))
        write(saved / "config.json", {"model_type": family})
        folders[saved.name] = saved
    for name, family in GENERAL.items():
        folder = work / name
        folder.mkdir()
        of_files(name).save(str(folder / "tokenizer.json"))
        write(folder / "config.json", {"model_type": family})
        write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
        folders[name] = folder
    return folders
