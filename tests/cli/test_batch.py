"""attn generate --batch: a text for each line of a file, in its order, as each alone."""

import json
import signal
import time

from attn import TEXT
from test_chat import talker


def rows_of(text):
    return [json.loads(line) for line in text.splitlines()]


def test_lines_are_texts_of_their_own(attn):
    talker(attn)
    rows = [{"prompt": TEXT[n:2 * n + 3], "seed": n, "mine": [n]} for n in range(9)]
    rows[3] |= {"max_new_tokens": 2, "temperature": 0}
    rows[4] |= {"stop": "e", "max_new_tokens": 60}
    attn.file("in.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    options = ("--max-new-tokens", 8, "--temperature", 0.7)
    done = rows_of(attn.run("generate", "hub", "--batch", "in.jsonl", *options).stdout)
    assert [{name: row[name] for name in given} for row, given in zip(done, rows)] == rows, "fields stay"
    for row, given in zip(done, rows):
        alone = attn.run("generate", "hub", "--prompt", given["prompt"], "--seed", given["seed"],
                         "--max-new-tokens", given.get("max_new_tokens", 8),
                         "--temperature", given.get("temperature", 0.7), *(["--stop", "e"] if "stop" in given else []))
        assert given["prompt"] + row["text"] + "\n" == alone.stdout
        assert row["finish_reason"] in ("length", "eos", "stopped") and row["new_tokens"] <= 60
    assert done[3]["new_tokens"] == 2
    few = attn.run("generate", "hub", "--batch", "-", "--max-requests", 2, "--out", "out.jsonl", *options,
                   stdin=(attn.folder / "in.jsonl").read_text())
    assert few.stdout == "" and rows_of((attn.folder / "out.jsonl").read_text()) == done


def test_wrong_lines(attn):
    talker(attn)

    def said(line, status=1):
        attn.file("in.jsonl", '{"prompt": "a"}\n' + line)
        done = attn.run("generate", "hub", "--batch", "in.jsonl", status=status)
        assert done.stdout == "", "nothing is generated before the whole file is right"
        return done.stderr

    assert "in.jsonl, line 2: the line is not JSON" in said("{")
    assert "in.jsonl, line 2: the line must be a JSON object" in said("[1]")
    assert "in.jsonl, line 2: prompt is 3, must be a text" in said('{"prompt": 3}')
    assert "in.jsonl, line 2: prompt is missing, or empty" in said("{}")
    assert 'in.jsonl, line 2: temperature is "hot", must be a number' in said('{"prompt": "a", "temperature": "hot"}')
    assert "in.jsonl, line 2: max_new_tokens is 1.5, must be a whole number" in said(
        '{"prompt": "a", "max_new_tokens": 1.5}')
    assert "in.jsonl, line 2: stop must be a text" in said('{"prompt": "a", "stop": [1]}')
    assert "temperature is -1" in said('{"prompt": "a", "temperature": -1}')
    assert "the prompt has 600 tokens" in said(json.dumps({"prompt": "x" * 600}))
    assert "--batch supports no --no-cache" in attn.run("generate", "hub", "--batch", "-", "--speculate", 3,
                                                        status=2).stderr


def test_what_is_complete_stays(attn):
    talker(attn)
    attn.file("in.jsonl", "".join(json.dumps({"prompt": "a", "max_new_tokens": 5 if n < 3 else 500, "temperature": 1,
                                              "seed": n}) + "\n" for n in range(400)))
    with open(attn.folder / "out.txt", "w") as out:
        process = attn.start("generate", "hub", "--batch", "in.jsonl", stdout=out)
        while (attn.folder / "out.txt").read_text().count("\n") < 3:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=60)[1]
    rows = rows_of((attn.folder / "out.txt").read_text())
    assert 3 <= len(rows) < 400 and f"stopped: {len(rows)} of 400 texts were written" in error
