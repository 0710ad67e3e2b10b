"""Published traces' forms: what is read, and which line an error names."""

import json
from itertools import islice

import pytest

from baton.sim.workload.traces import TraceError, read_azure, read_mooncake, read_sharegpt, read_trace

AZURE_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


def mooncake_line(at_ms, tokens, output, ids):
    row = {"timestamp": at_ms, "input_length": tokens, "output_length": output, "hash_ids": ids}
    return json.dumps(row) + "\n"


def test_mooncake(tmp_path):
    text = mooncake_line(2500, 700, 3, [0, 9]) + "\n" + mooncake_line(1000, 100, 8, [0])
    first, second = read_mooncake(write(tmp_path, "a.jsonl", text))
    assert (first.at_s, first.prompt_tokens, first.output_tokens) == (1.0, 100, 8)
    assert (second.at_s, second.prefix, second.prefix_block) == (2.5, (0, 9), 512)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{", "not JSON"),
        ("[]", "not an object"),
        (mooncake_line("soon", 1, 1, []), "timestamp"),
        (mooncake_line(0, -1, 1, []), "input_length"),
        (mooncake_line(0, 1, 1.5, []), "output_length"),
        (mooncake_line(0, 1, 1, [-1]), "hash_ids"),
        (mooncake_line(0, 1, 1, 7), "hash_ids"),
    ],
)
def test_mooncake_errors_name_the_line(tmp_path, bad, why):
    path = write(tmp_path, "bad.jsonl", mooncake_line(0, 5, 5, []) + bad)
    with pytest.raises(TraceError) as caught:
        read_mooncake(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert why in str(caught.value)


def test_azure(tmp_path):
    rows = "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.4799600,0,0\n"
    first, second = read_trace(write(tmp_path, "code.csv", AZURE_HEAD + rows))
    assert (first.at_s, first.prompt_tokens, first.output_tokens, first.prefix) == (0.0, 4808, 10, ())
    assert second.at_s == pytest.approx(1.5)
    assert (second.prompt_tokens, second.output_tokens) == (1, 1)


@pytest.mark.parametrize("bad", ["yesterday,1,2", "2023-11-16 18:17:03,many,2", "2023-11-16 18:17:03,1"])
def test_azure_errors_name_the_line(tmp_path, bad):
    path = write(tmp_path, "bad.csv", AZURE_HEAD + "2023-11-16 18:17:03,1,2\n" + bad + "\n")
    with pytest.raises(TraceError, match=r"bad\.csv:3: "):
        read_azure(path)


def test_a_file_that_is_something_else(tmp_path):
    with pytest.raises(TraceError, match=r":1: no column ContextTokens"):
        read_azure(write(tmp_path, "a.csv", "TIMESTAMP,b\n"))
    with pytest.raises(TraceError, match=r":1: holds no requests"):
        read_mooncake(write(tmp_path, "a.jsonl", "\n"))
    with pytest.raises(TraceError, match=r"none\.jsonl: no such file or directory$"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match="unknown form"):
        read_trace(write(tmp_path, "a.txt", ""))


def test_sharegpt_turns_share_what_was_said_before(tmp_path):
    turns = [("human", "x" * 400), ("gpt", "y" * 40), ("human", "z" * 40), ("gpt", "w" * 80)]
    item = {"id": "a", "conversations": [{"from": who, "value": text} for who, text in turns]}
    opened_by_the_model = {"conversations": [{"from": "gpt", "value": "hello"}]}
    path = write(tmp_path, "chat.json", json.dumps([item, opened_by_the_model, item], indent=1))
    one, two, other, _ = read_sharegpt(path)
    assert (one.prompt_tokens, one.output_tokens) == (100, 10)
    assert (two.prompt_tokens, two.output_tokens) == (120, 20)
    assert two.prefix[: len(one.prefix)] == one.prefix
    assert one.shared_tokens == 100
    assert not set(other.prefix) & set(one.prefix)
    counted = read_sharegpt(path, count=len)
    assert counted[0].prompt_tokens == 400


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{}", 1),
        ("[\n{},\n", 2),
        ('[\n{"conversations": []},\n{"conversations": [{"from": "human"}]}]', 3),
        ('[\n{"conversations": []}\n', 3),
        ('[\n{"conversations": []},\n\n{oops}]', 4),
        ("", 1),
    ],
)
def test_sharegpt_errors_name_the_line(tmp_path, text, line):
    with pytest.raises(TraceError, match=rf"chat\.json:{line}: "):
        read_sharegpt(write(tmp_path, "chat.json", text))


def test_a_large_trace_is_read_in_order(tmp_path):
    lines = (mooncake_line((i * 7919) % 1000, 10 + i, 1, [i]) for i in range(1000))
    arrivals = read_mooncake(write(tmp_path, "many.jsonl", "".join(islice(lines, 500))))
    times = [arrival.at_s for arrival in arrivals]
    assert times == sorted(times)
    assert len(arrivals) == 500
