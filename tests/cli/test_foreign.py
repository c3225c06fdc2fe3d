"""What people give in place of a model or a tokenizer: every command says what it is, and what to do."""

import io
import json
import pickle
import struct
import subprocess
import zipfile

from attn import SHAPE, TEXT

LLAMA = {"model_type": "llama", "vocab_size": 13, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
         "num_attention_heads": 2, "max_position_embeddings": 24}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 497774208\n"
GGUF = b"GGUF\x03\0\0\0" + bytes(64)
ONNX = b"\x08\x08\x12\x07pytorch\x1a\x052.1.0" + bytes(32)
CTRANSLATE2 = struct.pack("<IH", 6, 12) + b"WhisperSpec\0" + bytes(32)
SPM = b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02" + bytes(8)
TIKTOKEN = b"IQ== 0\nIg== 1\nIw== 2\n"
HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(32)


def zipped(name):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, "x")
    return file.getvalue()


HEADER = json.dumps({"lm_head.weight": {"dtype": "U8", "shape": [4000], "data_offsets": [0, 4000]}}).encode()
WHOLE = struct.pack("<Q", len(HEADER)) + HEADER + bytes(4000)


# What is at the path, a file's bytes or a folder's files, and words of the answer.
FILES = {
    "x.ggml": (b"lmgg" + bytes(64), "is a GGML file of llama.cpp"),
    "x.llamafile": (b"MZqFpD='\n" + bytes(64), "is a llamafile, a program with a model inside"),
    "x.onnx": (ONNX, "is an ONNX file, which is not read"),
    "whisper.bin": (CTRANSLATE2, "is a model of CTranslate2, which is not read"),
    "model.bin": (struct.pack("<7i", 64, 172, 5, 8, 4, 512, 512), "is a file, not a folder"),  # one of llama2.c
    "pytorch_model.bin": (pickle.dumps({}), "is a pickle, which is code and is not run: save the model once more"),
    "x.pt": (zipped("archive/data.pkl"), "is a zip archive, as PyTorch's .pt and .bin are"),
    "x.ckpt": (b"what PyTorch Lightning writes", "is a pickle, which is code"),
    "weights.npz": (zipped("w.npy"), "is an archive of NumPy, as older versions of MLX write weights"),
    "tf_model.h5": (HDF5, "is an HDF5 file, as TensorFlow and Keras write weights, which is not read: save"),
    "saved_model.pb": (b"\x08\x01\x12\x80\x80\x04" + bytes(32), "is a file of TensorFlow"),
    "flax_model.msgpack": (b"\x82\xa5model" + bytes(32), "is a msgpack file, as Flax writes weights"),
    "x.tflite": (b"\x1c\0\0\0TFL3" + bytes(32), "is a model of TensorFlow Lite, Core ML or OpenVINO"),
    "spiece.model": (SPM, "is a SentencePiece vocabulary, which is a tokenizer alone"),
    "source.spm": (SPM, "is a SentencePiece vocabulary, which is a tokenizer alone"),
    "x.tiktoken": (TIKTOKEN, "is a vocabulary of tiktoken"),
    "model.safetensors": (WHOLE, "is a safetensors file, which has tensors alone: give the folder"),
    "config.json": (json.dumps(LLAMA).encode(), "is one file of several: give the folder that it belongs to"),
    "pointer": (POINTER, "is a pointer of git-lfs in place of a file: git lfs pull"),
    "page": (b"<!DOCTYPE html>\n<html>", "is a page of HTML"),
    "empty": (b"", "is an empty file"),
    "text.txt": (b"Once upon a time\n", "is a file, not a folder: a model is a folder that attn train wrote, or one"),
}
FOLDERS = {
    "nothing": ({}, "is not a folder of a model: it has no config.json; a model is a folder that attn train wrote"),
    "gguf": ({"x.gguf": GGUF}, "no config.json, but x.gguf, a GGUF file of llama.cpp, which is read for inference "
                               "alone: give its own path to generate, evaluate or see"),
    "onnx": ({"onnx/model.onnx": ONNX}, "no config.json, but onnx/model.onnx, an ONNX file"),
    "meta": ({"params.json": b"{}", "consolidated.00.pth": b""}, "but consolidated.00.pth, a pickle"),
    "adapter": ({"adapter_config.json": b"{}", "adapter_model.safetensors": b""},
                "is an adapter (LoRA or another of PEFT), not a whole model: merge it into its model"),
    "adapter_beside": ({"adapter_config.json": b"{}", "config.json": json.dumps(LLAMA).encode()}, "is an adapter"),
    "cache": ({"snapshots/1a2b/config.json": b"{}"}, "no config.json; its folder snapshots/1a2b has one"),
    "ctranslate2": ({"model.bin": CTRANSLATE2, "config.json": b'{"alignment_heads": [[1, 0]], "lang_ids": [50259]}'},
                    "config.json names no model_type, as transformers writes it, and is none that attn train wrote, "
                    "but model.bin, a model of CTranslate2, which is not read"),
    "diffusers": ({"config.json": b'{"_class_name": "UNet2DConditionModel", "sample_size": 64}'},
                  "config.json names no model_type"),
    "older": ({"config.json": b'{"hidden_size": 8, "vocab_size": 13}'}, "config.json names no model_type"),
    "no_object": ({"config.json": b"[1]"}, "config.json: must be an object, is a list"),
    "empty_config": ({"config.json": b""}, "config.json: is an empty file"),
    "pointer_config": ({"config.json": POINTER}, "config.json: is a pointer of git-lfs"),
    "folder_config": ({"config.json/x": b""}, "config.json: is a folder, must be a file"),
}
# Commands that need weights say what is there in their place.
WEIGHTS = {
    "none": ({}, "has no model.safetensors"),
    "pickles": ({"pytorch_model.bin": pickle.dumps({})},
                "has no model.safetensors, but pytorch_model.bin, a pickle, which is code and is not run: save"),
    "tensorflow": ({"tf_model.h5": HDF5}, "but tf_model.h5, an HDF5 file, as TensorFlow"),
    "flax": ({"flax_model.msgpack": b"\x82"}, "but flax_model.msgpack, a msgpack file, as Flax"),
    "graph": ({"model.onnx": ONNX}, "but model.onnx, an ONNX file"),
    "converted": ({"x.gguf": GGUF}, "but x.gguf, a GGUF file of llama.cpp"),
    "shards": ({"model.safetensors.index.json": json.dumps({"weight_map": {
                    "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}).encode(),
                "model-00001-of-00002.safetensors": WHOLE},
               "model.safetensors.index.json names files that are not there: model-00002-of-00002.safetensors"),
    "cut_off": ({"model.safetensors": WHOLE[:-3960]},
                f"the file is cut off: it has {len(WHOLE) - 3960} bytes, its header promises {len(WHOLE)}"),
    "cut_in_header": ({"model.safetensors": WHOLE[:30]}, "the file is cut off, or is not a safetensors file"),
    "no_weights": ({"model.safetensors": b""}, "model.safetensors: is an empty file"),
    "pointer_weights": ({"model.safetensors": POINTER}, "model.safetensors: is a pointer of git-lfs"),
    "pickle_weights": ({"model.safetensors": pickle.dumps({})}, "model.safetensors: is a pickle"),
    "folder_weights": ({"model.safetensors/x": b""}, "model.safetensors: is a folder, must be a file"),
}
NAMES = {
    "gpt2": "gpt2: there is no such file or folder; a name of the Hugging Face hub is not looked up, nothing is "
            "downloaded: a model is a folder",
    "sentence-transformers/all-MiniLM-L6-v2": "nothing is downloaded",
    "/no/such/folder": "/no/such/folder: there is no such file or folder",
    "text.txt/x": "text.txt/x: a part of this path is a file, not a folder",
    "dangling": "dangling: is a symbolic link to nothing",
    "": "empty",
}
TOKENIZERS = {
    "x.gguf": "x.gguf: tokenizer.ggml.tokens is missing: the file has no tokenizer",
    "x.tiktoken": "x.tiktoken: is a vocabulary of tiktoken, which is not read",
    "pointer": "pointer: is a pointer of git-lfs",
    "page": "page: is a page of HTML",
    "empty": "empty: is an empty file",
    "config.json": "config.json: is one file of several: give the folder that it belongs to",
    "pytorch_model.bin": "pytorch_model.bin: is a pickle",
    "model.safetensors": "model.safetensors: is a safetensors file",
    "text.txt": "text.txt: is not JSON at byte 0",
    "gpt2": "gpt2: there is no such file or folder; a name of the Hugging Face hub is not looked up",
    "nothing": "nothing: has no tokenizer.json",
    "qwen": "has no tokenizer.json, tokenizer.model, spiece.model, sentencepiece.bpe.model, vocab.json with "
            "merges.txt, encoder.json with vocab.bpe, or vocab.txt, but qwen.tiktoken, a vocabulary of "
            "tiktoken, which is not read",
}


def put(attn, name, content):
    """A file of these bytes, or a folder of these files."""
    if isinstance(content, bytes):
        return attn.file(name, content)
    (attn.folder / name).mkdir()
    for file, inside in content.items():
        (attn.folder / name / file).parent.mkdir(parents=True, exist_ok=True)
        attn.file(f"{name}/{file}", inside)


def openers(name):
    """Every command that opens a model."""
    text = ("--text", "a")
    return [("generate", name, "--prompt", "a"), ("embed", name, "lines.txt"), ("classify", name, "lines.txt"),
            ("eval", name, "lines.txt"), ("fill", name, *text), ("see", name, *text), ("heads", name, *text),
            ("bench", name), ("info", name), ("prune", name, "--heads", "50%", "--out", "pruned")]


def refused(attn, arguments, *words):
    done = subprocess.run(attn.command(*arguments), cwd=attn.folder, text=True, capture_output=True, timeout=60)
    for each in words:
        assert done.returncode in (1, 2) and each in done.stderr, f"attn {arguments}: {done.stderr!r} lacks {each!r}"
    assert done.stderr.count("\n") == 1 and not done.stdout, (arguments, done)


def test_files_in_place_of_a_model(attn):
    attn.file("lines.txt", "a\n")
    (attn.folder / "dangling").symlink_to("nowhere")
    for name, (content, words) in (FILES | FOLDERS).items():
        put(attn, name, content)
        for arguments in openers(name):
            if arguments[0] != "see" or not isinstance(content, bytes):  # a file is one of saved attention there
                refused(attn, arguments, name, words)
    for name, words in NAMES.items():
        for arguments in openers(name):
            if name or arguments[0] not in ("see", "info", "bench"):  # which go without a model
                refused(attn, arguments, words)


def test_gguf_in_place_of_a_folder(attn):
    """Commands that read such files find no model in this one; the others say that they need a folder."""
    attn.file("lines.txt", "a\n")
    put(attn, "x.gguf", GGUF)
    reads = ("generate", "classify", "eval", "fill", "heads", "bench", "info", "prune")
    for arguments in openers("x.gguf"):
        if arguments[0] != "see":  # a file is one of saved attention there
            refused(attn, arguments, "x.gguf", "general.architecture is null" if arguments[0] in reads else
                    "is a GGUF file of llama.cpp, which is read for inference alone: give its own path")
    for arguments in (("export", "x.gguf", "--to", "o"), ("lora", "merge", "x.gguf", "--to", "o")):
        refused(attn, arguments, "x.gguf", "which is read for inference alone")


def test_weights_in_other_formats(attn):
    attn.file("lines.txt", "a\n")
    for name, (content, words) in WEIGHTS.items():
        put(attn, name, content | {"config.json": json.dumps(LLAMA).encode()})
        for arguments in openers(name):
            if arguments[0] not in ("info", "prune"):  # which read none, or only those of trainings
                refused(attn, arguments, words)


def test_files_in_place_of_a_tokenizer(attn):
    for name, (content, _) in FILES.items():
        put(attn, name, content)
    put(attn, "x.gguf", GGUF)
    put(attn, "nothing", {})
    put(attn, "qwen", {"qwen.tiktoken": TIKTOKEN})
    for name, words in TOKENIZERS.items():
        refused(attn, ("tokenizer", "encode", name, "--text", "a"), words)


def test_wrong_order(attn):
    attn.file("text.txt", TEXT)
    attn.run("tokenizer", "train", "text.txt", "--out", "t.json")
    put(attn, "folder", {"tokenizer.json": (attn.folder / "t.json").read_bytes()})
    for tokenizer in ("t.json", "folder"):
        refused(attn, ("tokenizer", "encode", "text.txt", tokenizer),
                f"give the tokenizer first: attn tokenizer encode {tokenizer} text.txt")
    refused(attn, ("tokenizer", "encode", "text.txt", "text.txt"), "text.txt: is not JSON")


def test_converted(attn):
    attn.file("t.model", SPM)
    for name in ("x.pt", "x.onnx", "pointer", "empty"):
        put(attn, name, FILES[name][0])
        refused(attn, ("convert", name, "--tokenizer", "t.model", "--out", "out"), FILES[name][1])


def test_a_family_in_a_file_means_its_defaults(attn):
    """A file that names a family means its defaults, as --model does; what else is said wins."""
    attn.file("text.txt", TEXT)
    attn.file("llama.json", '{"model": "llama"}')
    attn.file("mixed.json", '{"bias": true, "model": "llama", "layers": 1}')
    attn.file("other.json", '{"model": "gpt"}')
    flags = ("--steps", 1, "--quiet", *SHAPE)

    def config(out, *arguments):
        attn.run("train", "text.txt", *arguments, *flags, "--out", out)
        return json.loads((attn.folder / out / "config.json").read_text())

    named = config("named", "--model", "llama")
    assert named["positions"] == "rope" and not named["bias"], named
    assert config("from_file", "--config", "llama.json") == named
    assert config("both", "--config", "llama.json", "--model", "llama") == named
    refused(attn, ("train", "text.txt", "--config", "other.json", "--model", "llama", "--out", "none"),
            '--model is llama, but other.json says "model": "gpt"')
    mixed = config("mixed", "--config", "mixed.json")
    assert mixed == named | {"bias": True}, "and so does another option: --layers"
    attn.run("train", "text.txt", "--resume", "--out", "from_file", "--config", "llama.json", "--steps", 2, "--quiet")
    refused(attn, ("train", "text.txt", "--resume", "--out", "from_file", "--config", "other.json"),
            'model is "llama" in from_file/config.json, not "gpt"')
    refused(attn, ("train", "text.txt", "--resume", "--out", "from_file", "--config", "mixed.json"),
            "layers is 2 in from_file/config.json, not 1; bias is false in from_file/config.json, not true")
    shown = [attn.run("info", *arguments).stdout.split("\nmodel ")[1]
             for arguments in (("--model", "llama"), ("--config", "llama.json"))]
    assert shown[0] == shown[1], shown
