"""attn chat: conversations on standard input, on a terminal, and what ends an answer."""

import os
import pty
import re
import select
import signal
import subprocess
import time

from attn import TEXT

CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']}}"
          "<|im_end|>\n{% endfor %}{{ '<|im_start|>assistant\n' }}")


def talker(attn):
    """A folder of the hub with a chat_template; its tokens are bytes."""
    attn.file("text.txt", TEXT * 4)
    attn.run("train", "text.txt", "--model", "llama", "--tokens", "bytes", "--steps", 3, "--out", "model",
             "--layers", 2, "--embed-dim", 16, "--heads", 2, "--context", 512, "--batch", 1)
    attn.run("export", "model", "--to", "hub")
    attn.file("hub/chat_template.jinja", CHATML)


def test_a_conversation(attn):
    talker(attn)
    fixed = ("--temperature", 0, "--max-new-tokens", 6)
    lines = ("Hi\nAnd?\n/retry\n/save talk.txt\n/undo\n/save shorter.txt\n/clear\n/save none.txt\n/nonsense\n/help\n"
             "/save\n/save \n/quit\nx\n")
    done = attn.run("chat", "hub", *fixed, "--stats", "--system", "Be brief.", stdin=lines)
    saved = (attn.folder / "talk.txt").read_text()
    roles = ["system", "user", "assistant", "user", "assistant"]
    assert re.findall(r"^(system|user|assistant): ", saved, re.M) == roles
    assert "user: And?" not in (attn.folder / "shorter.txt").read_text()
    assert (attn.folder / "none.txt").read_text() == "system: Be brief.\n\n"
    assert done.stderr.count("tokens/s") == 2 * 3 and "unknown command /nonsense" in done.stderr
    assert done.stderr.count("/save needs a file") == 2
    assert "/retry   answers the last message once more" in done.stderr
    once = attn.run("chat", "hub", *fixed, "--system", "Be brief.", "--message", "Hi").stdout
    assert done.stdout.startswith(once)


def test_an_answer_can_be_stopped(attn):
    """Ctrl-C ends the answer and not the program; at the prompt it ends the program."""
    talker(attn)
    main_end, terminal = pty.openpty()
    process = subprocess.Popen(attn.command("chat", "hub", "--max-new-tokens", 10**5, "--context", 10**6),
                               cwd=attn.folder, stdin=terminal, stdout=terminal, stderr=terminal, close_fds=True)
    os.close(terminal)

    def read_until(words, limit=60):
        seen, end = b"", time.monotonic() + limit
        while words not in seen:
            assert time.monotonic() < end, seen[-300:]
            if select.select([main_end], [], [], 0.2)[0]:
                seen += os.read(main_end, 65536)
        return seen

    read_until(b"> ")
    for _ in range(2):
        os.write(main_end, b"Hi\n")
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        read_until(b"\r\n> ")
    os.write(main_end, b"/save talk.txt\n")
    read_until(b"4 messages")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 128 + signal.SIGINT
    os.close(main_end)


def test_no_conversation(attn):
    talker(attn)
    (attn.folder / "hub/chat_template.jinja").unlink()
    for folder in ("hub", "model"):
        said = attn.run("chat", folder, "--message", "Hi", status=1).stderr
        assert "the model has no chat_template: it was not trained to converse" in said
    attn.file("hub/chat_template.jinja", "[INST] {{ message }} [/INST]")
    assert "is of a family that is not supported" in attn.run("chat", "hub", "--message", "Hi", status=1).stderr
    attn.file("hub/chat_template.jinja", CHATML)
    said = attn.run("chat", "hub", "--message", "x" * 600, status=1).stderr
    assert re.search(r"the message makes a text of \d+ tokens, the model's context is 512", said)
    said = attn.run("chat", "hub", "--message", "Hi", "--no-cache", status=2).stderr
    assert "a conversation supports no --no-cache, --streaming and --num-beams" in said
