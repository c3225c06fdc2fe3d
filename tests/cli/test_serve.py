"""attn serve: texts, streams, errors, limits, clients that leave, and the end."""

import base64
import contextlib
import http.client
import json
import re
import signal
import socket
import struct
import subprocess
import threading
import time

from attn import TEXT
from test_chat import talker

KEY = "a secret"


@contextlib.contextmanager
def server(attn, *arguments, status=128 + signal.SIGINT, key=""):
    """Yields the port; ends the server as Ctrl-C does."""
    process = subprocess.Popen(attn.command("serve", *arguments, "--port", 0), cwd=attn.folder, text=True,
                               env=attn.environment | {"ATTN_API_KEY": key}, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    try:
        line = process.stdout.readline()
        yield int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/v1  \(Ctrl-C ends it\)\n", line)[1])
        process.send_signal(signal.SIGINT)
        process.wait(20)
        assert process.returncode == status, process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def ask(port, path, body=None, **headers):
    """Status and body of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    text = body if isinstance(body, (str, bytes, type(None))) else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, text, headers)
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, json.loads(content) if content.startswith("{") else content


def events(port, path, body):
    status, text = ask(port, path, dict(body, stream=True))
    assert status == 200
    pieces = [each.removeprefix("data: ") for each in text.split("\n\n") if each]
    assert pieces.pop() == "[DONE]"
    return [json.loads(each) for each in pieces]


def metric(port, name):
    return int(re.search(rf"^{name} (\d+)$", ask(port, "/metrics")[1], re.M)[1])


def reason_of(answer):
    status, body = answer
    assert set(body["error"]) == {"message", "type", "param", "code"}, body
    return status, body["error"]["message"]


def test_texts_are_those_of_generate(attn):
    talker(attn)
    prompts = ["ROMEO:", "The sky", "a"]
    expected = [attn.run("generate", "hub", "--prompt", each, "--temperature", 0, "--max-new-tokens", 9).stdout
                for each in prompts]
    with server(attn, "hub", "--max-requests", 2) as port:
        status, body = ask(port, "/v1/completions", {"prompt": prompts, "max_tokens": 9, "temperature": 0, "n": 2})
        assert status == 200 and body["object"] == "text_completion" and body["model"] == "hub"
        texts = [choice["text"] for choice in body["choices"]]
        assert [prompt + text + "\n" for prompt, text in zip(prompts, texts[::2])] == expected
        assert texts[::2] == texts[1::2]
        assert {choice["finish_reason"] for choice in body["choices"]} <= {"stop", "length"}
        assert body["usage"]["prompt_tokens"] == sum(map(len, prompts))
        assert body["usage"]["completion_tokens"] <= 2 * 3 * 9
        pieces = events(port, "/v1/completions", {"prompt": "ROMEO:", "max_tokens": 9, "temperature": 0,
                                                  "stream_options": {"include_usage": True}})
        assert "".join(each["choices"][0]["text"] for each in pieces if each["choices"]) == texts[0]
        assert pieces[-1]["choices"] == [] and pieces[-1]["usage"]["prompt_tokens"] == 6
        ids = ask(port, "/v1/completions", {"prompt": [82, 79, 77, 69, 79, 58], "max_tokens": 9, "temperature": 0})
        assert ids[1]["choices"][0]["text"] == texts[0]
        drawn = [ask(port, "/v1/completions", {"prompt": "a", "seed": 5, "temperature": 1})[1]["choices"][0]["text"]
                 for _ in range(2)]
        assert drawn[0] == drawn[1]
        assert ask(port, "/health") == (200, {"status": "ok"})
        assert ask(port, "/v1/models")[1]["data"][0]["id"] == "hub"
        assert metric(port, "attn_texts_finished_total") == 6 + 1 + 1 + 2


def test_logprobs(attn):
    """Of each token and of the most probable ones; in a stream the last piece has them."""
    talker(attn)
    with server(attn, "hub") as port:
        body = {"prompt": "ROMEO:", "max_tokens": 7, "temperature": 0, "logprobs": 2}
        choice = ask(port, "/v1/completions", body)[1]["choices"][0]
        found = choice["logprobs"]
        shown = [re.sub("^0x..$", "\ufffd", token) for token in found["tokens"]]  # a byte that is no character
        assert "".join(shown) == choice["text"]
        assert [choice["text"][n:n + len(token)] for n, token in zip(found["text_offset"], shown)] == shown
        for token, logprob, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
            assert len(top) == 2 and top[token] == logprob == max(top.values()) < 0
        assert events(port, "/v1/completions", body)[-1]["choices"][0]["logprobs"] == found
        talk = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 5}
        assert ask(port, "/v1/chat/completions", talk)[1]["choices"][0]["logprobs"] is None
        choice = ask(port, "/v1/chat/completions", dict(talk, logprobs=True, top_logprobs=1))[1]["choices"][0]
        content = choice["logprobs"]["content"]
        shown = [re.sub("^0x..$", "\ufffd", each["token"]) for each in content]
        assert "".join(shown) == choice["message"]["content"]
        for each in content:
            assert bytes(each["bytes"]).decode() == each["token"] and each["top_logprobs"] == [
                {name: each[name] for name in ("token", "logprob", "bytes")}]
        refused = ask(port, "/v1/chat/completions", dict(talk, top_logprobs=1))
        assert reason_of(refused) == (400, "top_logprobs needs logprobs")


def test_kv_cache_in_8_bits(attn):
    talker(attn)
    used = {}
    for storage in ("exact", "int8"):
        with server(attn, "hub", "--kv-cache", storage) as port:
            said = ask(port, "/v1/completions", {"prompt": "ROMEO:", "max_tokens": 9, "temperature": 0})[1]
            used[storage] = metric(port, "attn_cache_bytes")
        alone = attn.run("generate", "hub", "--prompt", "ROMEO:", "--temperature", 0, "--max-new-tokens", 9,
                         "--kv-cache", storage).stdout
        assert alone == "ROMEO:" + said["choices"][0]["text"] + "\n", storage
    assert used["int8"] < used["exact"] / 2, used


def test_conversations(attn):
    talker(attn)
    with server(attn, "hub", "--name", "talker") as port:
        talk = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
                "temperature": 0, "max_completion_tokens": 6}
        body = ask(port, "/v1/chat/completions", talk)[1]
        answer = body["choices"][0]["message"]
        assert answer["role"] == "assistant" and body["model"] == "talker"
        once = attn.run("chat", "hub", "--system", "Be brief.", "--message", "Hi", "--temperature", 0,
                        "--max-new-tokens", 6).stdout
        assert answer["content"] + "\n" == once
        pieces = events(port, "/v1/chat/completions", talk)
        assert pieces[0]["choices"][0]["delta"]["role"] == "assistant"
        assert "".join(each["choices"][0]["delta"].get("content", "") for each in pieces) == answer["content"]
        assert pieces[-1]["choices"][0]["finish_reason"] in ("stop", "length")
        talk["messages"] += [answer, {"role": "user", "content": [{"type": "text", "text": "And?"}]}]
        body = ask(port, "/v1/chat/completions", talk)[1]
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] > 40, "the first turn was computed before"


def test_what_is_not_supported_has_a_reason(attn):
    talker(attn)
    with server(attn, "hub", "--max-body", 5000) as port:
        def said(body, path="/v1/completions"):
            return reason_of(ask(port, path, body))

        hello = {"prompt": "x"}
        assert said("{") == (400, "the body is not JSON")
        assert said("[]") == (400, "the body must be a JSON object")
        assert said({}) == (400, "prompt is missing")
        assert said({"prompt": 3}) == (400, "prompt must be a text, a list of texts, or token ids")
        assert said({"prompt": [99999]})[0] == 400
        assert said(dict(hello, temperature=-1)) == (400, "temperature is -1, must be a number from 0 to 100")
        assert said(dict(hello, max_tokens=1.5))[1].startswith("max_tokens is 1.5, must be a whole number")
        assert said(dict(hello, stop=[""])) == (400, "stop has an empty text")
        assert said(dict(hello, stop=7))[1] == "stop must be a text or a list of 1 to 16 texts"
        assert said(dict(hello, logprobs=30)) == (400, "logprobs is 30, must be a whole number from 0 to 20")
        assert said(dict(hello, logit_bias={"5": 1})) == (400, "logit_bias is not supported")
        assert said(dict(hello, presence_penalty=1)) == (400, "presence_penalty is not supported")
        assert said(dict(hello, stream=True, n=2)) == (400, "stream supports one text at a time")
        assert said(dict(hello, colour="red")) == (400, 'unknown field "colour"')
        assert said({"prompt": "x" * 600})[1] == "the prompt has 600 tokens, the model's context is 512"
        assert said({"prompt": ""})[1].endswith("the prompt must have at least one token")
        chat = "/v1/chat/completions"
        assert said({"messages": []}, chat)[1] == "messages must be a list of at least one message"
        assert said({"messages": [{"role": "user"}]}, chat)[1] == "messages[0].content must be a text"
        assert "of the role 'tool'" in said({"messages": [{"role": "tool", "content": "x"}]}, chat)[1]
        image = [{"type": "image_url", "image_url": {"url": "x"}}]
        assert "not text" in said({"messages": [{"role": "user", "content": image}]}, chat)[1]
        tool = {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}
        assert said(tool, chat)[1] == "tools is not supported"
        assert said({"input": "x"}, "/v1/embeddings")[1].endswith("start the server with --embedder")
        assert said(hello, "/v1/nothing") == (404, "there is no POST /v1/nothing")
        assert said("x" * 10_000_000) == (413, "the body has more than 5000 bytes")
        assert reason_of(ask(port, "/v1/models", Host="example.com"))[0] == 403
        assert ask(port, "/v1/completions", dict(hello, logprobs=None, n=1, user="me", model="any"))[0] == 200


def test_a_key_is_required(attn):
    talker(attn)
    for arguments in (("--api-key", KEY), ()):
        with server(attn, "hub", *arguments, key="" if arguments else KEY) as port:
            assert ask(port, "/health")[0] == 200
            assert reason_of(ask(port, "/v1/models"))[0] == 401
            assert ask(port, "/v1/models", Authorization=f"Bearer {KEY}x")[0] == 401
            assert ask(port, "/v1/models", Authorization=f"Bearer {KEY}")[0] == 200
    error = attn.run("serve", "hub", "--host", "0.0.0.0", status=2).stderr
    assert "--host 0.0.0.0 opens the model to the network: --api-key must be given" in error


def test_clients_that_leave_are_forgotten(attn):
    talker(attn)
    body = json.dumps({"prompt": "a", "max_tokens": 450, "temperature": 1})
    with server(attn, "hub", "--max-requests", 1, "--max-waiting", 2) as port:
        def ended():
            return metric(port, "attn_texts_cancelled_total") + metric(port, "attn_texts_finished_total")

        for stream in (body, body[:-1] + ', "stream": true}'):
            before = ended()
            sockets = []
            for _ in range(3):
                sockets.append(socket.create_connection(("127.0.0.1", port)))
                sockets[-1].sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: "
                                    f"{len(stream)}\r\n\r\n{stream}".encode())
            while metric(port, "attn_requests_waiting") + metric(port, "attn_requests_running") + ended() == before:
                time.sleep(0.001)
            for each in sockets:
                each.close()
            end = time.monotonic() + 20
            while ended() < before + 3:
                assert time.monotonic() < end
                time.sleep(0.02)
        assert ask(port, "/v1/completions", {"prompt": "a"})[0] == 200
        slow = socket.create_connection(("127.0.0.1", port))
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\n")  # and nothing more
        assert ask(port, "/v1/completions", {"prompt": "a"})[0] == 200
        slow.close()


def test_many_at_once(attn):
    talker(attn)
    alone, together, refused = {}, {}, []
    with server(attn, "hub", "--max-requests", 4, "--max-waiting", 6) as port:
        def text(n):
            return ask(port, "/v1/completions", {"prompt": TEXT[n:n + 30 + 3 * n], "max_tokens": 12, "seed": n})

        for n in range(12):
            alone[n] = text(n)[1]["choices"][0]["text"]

        def work(n):
            while True:
                status, body = text(n)
                if status == 200:
                    together[n] = body["choices"][0]["text"]
                    return
                refused.append((status, body["error"]["type"]))
                time.sleep(0.05)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert together == alone, "a text does not depend on its neighbours"
    assert set(refused) <= {(429, "rate_limit_error")}


def test_limits_of_a_text_and_of_the_server(attn):
    talker(attn)
    long = {"prompt": "a", "max_tokens": 500, "temperature": 1}
    with server(attn, "hub", "--max-new-tokens", 7) as port:
        body = ask(port, "/v1/completions", long)[1]
        assert body["usage"]["completion_tokens"] <= 7
        kept = http.client.HTTPConnection("127.0.0.1", port)  # a connection that stays does not keep the server
        kept.request("GET", "/health")
        kept.getresponse().read()
    kept.close()


def test_embeddings(attn):
    attn.file("text.txt", TEXT)
    talker(attn)
    attn.run("train", "text.txt", "--model", "gpt", "--steps", 2, "--out", "own", "--layers", 1, "--embed-dim", 16,
             "--heads", 2, "--context", 64, "--batch", 1)
    attn.run("export", "own", "--to", "embeds")
    with server(attn, "hub", "--embedder", "embeds") as port:
        body = ask(port, "/v1/embeddings", {"input": ["The cat", "a"]})[1]
        assert "data" in body, body
        rows = [each["embedding"] for each in body["data"]]
        assert [len(row) for row in rows] == [16, 16] and body["usage"]["prompt_tokens"] > 0
        coded = ask(port, "/v1/embeddings", {"input": "The cat", "encoding_format": "base64"})[1]
        assert list(struct.unpack("<16f", base64.b64decode(coded["data"][0]["embedding"]))) == list(
            struct.unpack("<16f", struct.pack("<16f", *rows[0])))
        assert reason_of(ask(port, "/v1/embeddings", {"input": 3}))[1] == "input must be a text or a list of texts"
        assert reason_of(ask(port, "/v1/embeddings", {"input": "a", "dimensions": 3}))[0] == 400


def test_a_port_in_use(attn):
    talker(attn)
    with server(attn, "hub") as port:
        error = attn.run("serve", "hub", "--port", port, status=1).stderr
        assert "the port cannot be opened on 127.0.0.1: is it in use?" in error
