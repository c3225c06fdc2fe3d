"""Every command on every page, as it is there. The commands of a page run one after the other in a folder that has
the files and models that the pages name, all of them small; what the page itself writes is not there before.

Trainings are as short as SMALL makes them, sweeps are of small models and short lengths, and attn_bench lists what it
would measure. ATTN_BUILD is the build.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import struct
import subprocess
import sys

import numpy
import pytest
import sentencepiece
import transformers
from gguf_files import written
from peers import draw
from test_gguf import mixed, put_tokens, small_model
from test_real import MINILM, answering, attn, small, small_bert

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import extract_snippets  # noqa: E402

BUILD = pathlib.Path(os.environ["ATTN_BUILD"])
SMALL = ("--steps 3 --embed-dim 16 --layers 4 --heads 4 --context 64 --batch 2 --eval-every 3 "
         "--validation-batches 2")
OF_THE_MODEL = "--embed-dim --layers --heads --context"  # which --from decides
PRELUDE = r"""
set -eEuo pipefail
trap 'echo "in: ${FUNCNAME:-$BASH_COMMAND} $*" >&2' ERR
launcher=()
mpirun() {  # -n RANKS attn SUBCOMMAND ...
  local -a launcher=(command mpirun "$1" "$2")
  attn "${@:4}"
}
attn() {
  local -a small=()
  if [[ $1 == train && $* != *--resume* ]]; then
    while read -r option value; do
      [[ $* != *--from* || $OF_THE_MODEL != *$option* ]] || continue
      [[ " $* " == *" $option "* || $option$* == --steps*--epochs* ]] || small+=("$option" "$value")
    done < <(xargs -n 2 <<< "$SMALL")
  fi
  [[ $1 != sweep ]] || small=(--embed-dim 32 --layers 1)
  [[ $1 != sweep || $* == *--over* ]] || small+=(--over tokens=32,64,128)
  if [[ " $* " != *" --serve "* && $1 != serve ]]; then
    "${launcher[@]}" "$ATTN" "$@" "${small[@]}"
    return
  fi
  "${launcher[@]}" "$ATTN" "$@" > server.txt 2>&1 &
  until grep http:// server.txt; do
    kill -0 $! || { cat server.txt >&2 && return 1; }
    sleep 0.1
  done
  kill $!
  wait $! || (($? == 143 || (${#launcher[@]} && $? == 1)))  # mpirun ends with its own status or that of a rank
}
build/release/bench/attn_bench() {
  "$ATTN_BUILD/bench/attn_bench" "$@" --list | grep -c . > /dev/null
}
"""
# What the reader of a page has done before.
BEFORE = {"docs/seeing.md":
          "attn train shakespeare.txt --model llama --context 10000 --layers 1 --steps 1 --out model\n"}
# Of pkg-config, bench/run, mpirun and srun.
OF_OTHERS = {"--static", "--with-llama", "--bind-to", "--map-by", "--mca", "--kill-on-bad-exit", "--signal"}
TEXT = "ROMEO: The cat sat on the mat.\nTo be, or not to be, that is the question\n"
SENTENCES = [f"The {a} sat on the {b}." for a in ("cat", "dog", "bird") for b in ("mat", "rug", "tree", "hill")]
ARCS = ("1\tThe\t_\tDET\t_\t_\t2\tdet\t_\tEntity=(e1\n2\tcat\t_\tNOUN\t_\t_\t3\tnsubj\t_\tEntity=e1)\n"
        "3\tsat\t_\tVERB\t_\t_\t0\troot\t_\t_\n4\tit\t_\tPRON\t_\t_\t3\tobj\t_\tEntity=(e1)\n")


def commands_of(page: pathlib.Path) -> str:
    """The page as a script. A program whose output the page does not show is one of the commands."""
    shown = [block for block in extract_snippets.blocks_of(page) if block.runs]
    return "".join(block.text if block.language == "sh" else f"$ATTN_BUILD/docs/snippet_{block.argument}\n"
                   for block in shown if block.language == "sh" or (block.language == "cpp" and block.output is None))


PAGES = {str(page.relative_to(ROOT)): commands_of(page) for page in extract_snippets.files_of(ROOT)}


def train(*arguments) -> None:
    attn("train", *arguments, "--quiet", *SMALL.split())


def write_texts(folder: pathlib.Path) -> None:
    labelled = [f"{sentence}\t{n % 2}\n" for n, sentence in enumerate(SENTENCES)]
    files = {"reviews.csv": "text,label\n" + "".join(f'"{line}"\n'.replace("\t", '",').replace('"\n', "\n")
                                                     for line in map(str.strip, labelled)),
             "words.tsv": 10 * "hello\tHH AH0 L OW1\nattention\tAH0 T EH1 N SH AH0 N\n",
             "treebank.conllu": f"{ARCS}\n", "entities.conllu": f"# newdoc\n{ARCS}\n"}
    files |= {f"{name}.txt": "".join(f"{sentence}\n" for sentence in SENTENCES)
              for name in ("lines", "sentences", "questions")}
    files |= {f"{name}.txt": count * TEXT for name, count in
              {"shakespeare": 1400, "text": 100, "other": 100, "book": 130}.items()}
    files |= {f"{name}.tsv": "".join(labelled) for name in ("train", "dev", "test")}
    readme = extract_snippets.blocks_of(ROOT / "README.md")
    (folder / "data").mkdir()
    numbers = [f"{sentence}\t{n % 5 - 2}.5\n" for n, sentence in enumerate(SENTENCES)]
    pairs = [f"{a}\t{b}\n" for a, b in zip(SENTENCES, reversed(SENTENCES))]
    tags = ["".join(f"{word} {'ON' if word == 'on' else 'O'}\n" for word in sentence.split()) + "\n"
            for sentence in SENTENCES]
    of_tasks = {"words.tsv": numbers, "definitions.tsv": pairs, "marks.txt": tags,
                "near.tsv": [f"{pair[:-1]}\t0.{n % 10}\n" for n, pair in enumerate(pairs)],
                "kinds.tsv": ["sentence1\tsentence2\tlabel\n",
                              *(f"{pair[:-1]}\t{n % 2}\n" for n, pair in enumerate(pairs))]}
    files |= {f"data/{part}_{name}": "".join(rows) for name, rows in of_tasks.items() for part in ("train", "test")}
    files["data/pairs.txt"] = "".join(pairs)
    for name, content in files.items():
        (folder / name).write_text(content)
    (folder / "program.cpp").write_text(next(block.text for block in readme if block.language == "cpp"))
    shutil.copy(ROOT / "examples/03_plain_c.c", folder / "program.c")


def write_llama2c(folder: pathlib.Path) -> None:
    """A model of llama2.c and its tokenizer; the numbers of the header are those of its `Config`."""
    folder.mkdir()
    width, hidden, layers, heads, kv_heads, vocabulary, context = 32, 44, 2, 4, 2, 300, 64
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_prefix=str(folder / "tok512"), vocab_size=vocabulary, model_type="bpe",
        byte_fallback=True, hard_vocab_limit=False, minloglevel=2)
    vocabulary = sentencepiece.SentencePieceProcessor(str(folder / "tok512.model")).vocab_size()
    keys = kv_heads * width // heads
    count = (vocabulary * width + width + context * width // heads +
             layers * (2 * width + 2 * width * width + 2 * keys * width + 3 * width * hidden))
    header = struct.pack("<7i", width, hidden, layers, heads, kv_heads, vocabulary, context)
    (folder / "stories260K.bin").write_bytes(header + draw("llama2.c", (count,)).numpy().astype("<f4").tobytes())


def put_talk(writer) -> None:
    put_tokens(writer, "gpt-2")
    writer.add_chat_template("{{ '<|im_start|>' }}")


def write_hub_folders(folder: pathlib.Path) -> None:
    small_bert("BertForMaskedLM", folder / "bert-base")
    small_bert("BertForSequenceClassification", folder / "sst2-bert", id2label={0: "0", 1: "1"},
               label2id={"0": 0, "1": 1})
    answering("t5", folder / "t5-small")
    written(small_model("llama"), folder / "model.gguf", mixed, put_talk)
    config = transformers.LlamaConfig(vocab_size=300, hidden_size=32, intermediate_size=44, num_hidden_layers=2,
                                      num_attention_heads=4)
    small(transformers.LlamaForCausalLM, config, folder / "llama")
    config = transformers.GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4)
    small(transformers.GPT2LMHeadModel, config, folder / "gpt2")
    for name in ("gpt2", "llama"):
        attn("tokenizer", "train", folder / "text.txt", "--vocab-size", 300, "--out", folder / name / "tokenizer.json")
    for name in ("all-MiniLM-L6-v2", "some-encoder", "MODEL", "folder"):
        (folder / name).symlink_to(MINILM)
    (folder / "nomic-embed").mkdir()
    for file in MINILM.iterdir():
        (folder / "nomic-embed" / file.name).symlink_to(file)
    (folder / "nomic-embed/config_sentence_transformers.json").unlink(missing_ok=True)
    (folder / "nomic-embed/config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "search_query: "}}))


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("everything")
    write_texts(folder)
    write_llama2c(folder / "stories260K")
    write_hub_folders(folder)
    train(folder / "text.txt", "--out", folder / "model")
    train(folder / "reviews.csv", "--out", folder / "reviews")
    train(folder / "words.tsv", "--model", "seq2seq", "--tokens", "words", "--out", folder / "phonemes")
    attn("see", folder / "model", "--text", "To be", "--no-terminal", "--save", folder / "saved.safetensors")
    for name in ("q", "k"):
        numpy.save(folder / f"{name}.npy", draw(name, (1, 2, 5, 8)).float().numpy())
    (folder / "build").mkdir()
    for name in ("run", "install", "release"):
        (folder / "build" / name).symlink_to(BUILD)
    subprocess.run(["cmake", "--install", BUILD, "--prefix", folder / "usr/local"], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("page", [page for page, commands in PAGES.items() if commands])
def test_commands(page: str, everything: pathlib.Path, tmp_path: pathlib.Path) -> None:
    commands = (BEFORE.get(page, "") + PAGES[page]).replace("/usr/local", shlex.quote(str(tmp_path / "usr/local")))
    written = set(re.findall(r"--out (\S+)", commands))
    for path in everything.iterdir():
        if path.name in written:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, tmp_path / path.name, symlinks=True)
        else:
            shutil.copy(path, tmp_path / path.name, follow_symlinks=False)
    environment = os.environ | {"ATTN_BUILD": str(BUILD), "SMALL": SMALL, "OF_THE_MODEL": OF_THE_MODEL,
                                "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                                "OMPI_MCA_rmaps_base_oversubscribe": "1",
                                "PKG_CONFIG_PATH": ":".join(map(str, tmp_path.glob("usr/local/lib*/**/pkgconfig")))}
    done = subprocess.run(["bash", "-c", PRELUDE + commands], cwd=tmp_path, env=environment, capture_output=True,
                          text=True, errors="replace", timeout=300)
    assert done.returncode == 0, done.stderr


def test_options_in_the_text() -> None:
    """Options of `attn` and attn_bench that a sentence names, with _ or -, are there, in the subcommand it names."""
    helps = {"": attn("man").replace("\\-", "-") + subprocess.run(
        [BUILD / "bench/attn_bench", "--help-all"], capture_output=True, text=True, check=True).stdout}
    wrong = []  # but for the changelog, which may name what has gone
    for page in set(extract_snippets.files_of(ROOT)) - {ROOT / "CHANGELOG.md"}:
        text = re.sub(r"^ {0,3}```.*?^ {0,3}```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for span in re.findall(r"`((?:attn|--[a-z])[^`]*)`", text):
            command = (re.match(r"attn\s+([a-z]+)", span) or ["", ""])[1]
            if command not in helps:
                helps[command] = attn(command, "--help")
            known = helps[command].replace("_", "-")
            wrong += [f"{page}: `{span}`" for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", span.replace("_", "-"))
                      if option not in OF_OTHERS and not re.search(rf"{option}(?![\w-])", known)]
    assert not wrong, "\n".join(wrong)
