"""What is sent: times, lengths, prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton.bench.load.plan import Plan, shots, token_writer
from baton.bench.load.words import word_ids, word_writer
from baton.bench.load.workload import Workload, length_range
from baton.core.errors import InvalidArgument
from baton.core.request import Slo
from baton.engine.weights.locate import locate
from baton.router.text import TextCodec, load_tokenizer
from baton.sim.workload.arrival import Arrival
from tests.fakes import ByteTokenizer

SLO = Slo(1.0, 0.1)


@pytest.fixture(scope="module")
def tokenizer() -> TextCodec:
    return load_tokenizer(str(locate("demo")))


# ---- prompts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 2, 17, 256, 1000])
def test_words_have_exactly_so_many_tokens(tokenizer: TextCodec, tokens: int) -> None:
    write = word_writer(tokenizer, chat=False)
    prompt = write(Arrival(0.0, tokens, 1), 3)
    assert prompt.text is not None
    assert tokenizer.encode(prompt.text) == list(prompt.token_ids)
    assert len(prompt.token_ids) == prompt.tokens == tokens


@pytest.mark.parametrize("tokens", [40, 256])
def test_a_chat_counts_its_template(tokenizer: TextCodec, tokens: int) -> None:
    prompt = word_writer(tokenizer, chat=True)(Arrival(0.0, tokens, 1), 3)
    assert prompt.text is not None
    assert len(tokenizer.encode_chat([("user", prompt.text)])) == prompt.tokens == tokens


def test_a_prompt_shorter_than_its_template_is_one_word(tokenizer: TextCodec) -> None:
    prompt = word_writer(tokenizer, chat=True)(Arrival(0.0, 1, 1), 3)
    assert prompt.text is not None
    assert len(tokenizer.encode_chat([("user", prompt.text)])) == prompt.tokens > 1


def test_a_tokenizer_without_words_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no words that stay whole"):
        word_ids(ByteTokenizerWithSize())


class ByteTokenizerWithSize(ByteTokenizer):
    vocab_size = 259


def test_runs_share_no_prefix_and_requests_of_one_do() -> None:
    arrivals = [Arrival(0.0, 40, 1, (0, 1), 16), Arrival(1.0, 40, 1, (0, 2), 16), Arrival(2.0, 40, 1)]
    write = token_writer(5000)
    first, again, other = (shots(arrivals, write, run, SLO) for run in (1, 1, 2))
    ids = [[shot.write().token_ids for shot in made] for made in (first, again, other)]
    assert ids[0] == ids[1]
    assert ids[0][0][:16] == ids[0][1][:16]
    assert ids[0][0][16:32] != ids[0][1][16:32]
    everything = [prompt[:16] for made in (ids[0], ids[2]) for prompt in made]
    assert len(set(everything)) == 4  # two of each run begin alike
    assert all(len(prompt) == 40 and 0 <= min(prompt) <= max(prompt) < 5000 for prompt in ids[0])


def test_targets_are_the_arrival_s_own_or_the_experiment_s() -> None:
    own = shots([Arrival(0.0, 4, 1, slo=Slo(ttft_s=9.0)), Arrival(0.0, 4, 1)], token_writer(300), 0, SLO)
    assert [shot.slo for shot in own] == [Slo(9.0, 0.1), SLO]


def test_the_window_is_half_open() -> None:
    plan = Plan((), 2.0, 5.0)
    assert [plan.counts(at) for at in (1.9, 2.0, 4.9, 5.0)] == [False, True, True, False]
    assert plan.window_s == 3.0


# ---- times and lengths -----------------------------------------------------------------------------------


def test_the_rate_changes_times_and_not_requests() -> None:
    slow, fast = (Workload("10-90", "5-20").make(rate, 200.0, 3) for rate in (1.0, 2.0))
    assert 130 < len(slow) < 280
    lengths = [[(a.prompt_tokens, a.output_tokens) for a in made] for made in (slow, fast)]
    assert lengths[0] == lengths[1][: len(slow)]
    assert all(b.at_s == pytest.approx(a.at_s / 2) for a, b in zip(slow, fast, strict=False))
    assert Workload("10-90", "5-20").make(1.0, 200.0, 3) == slow
    assert Workload("10-90", "5-20").make(1.0, 200.0, 4) != slow
    assert {a.prompt_tokens for a in slow} <= set(range(10, 91))


def test_a_trace_keeps_its_shape_and_may_be_stretched_and_shortened(tmp_path: Path) -> None:
    rows = [{"timestamp": 1000 * i * i, "input_length": 600 + i, "output_length": 9} for i in range(5)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps(row | {"hash_ids": [0, i]}) for i, row in enumerate(rows)))
    as_is = Workload("", "", trace=path).make(None, 100.0, 0)
    assert [a.at_s for a in as_is] == [0.0, 1.0, 4.0, 9.0, 16.0]
    assert [a.prompt_tokens for a in as_is] == [600, 601, 602, 603, 604]
    faster = Workload("300", "4", trace=path).make(2.5, 100.0, 0)  # 4 gaps in 16 s are 0.25 per second
    assert [a.at_s for a in faster] == pytest.approx([0.0, 0.1, 0.4, 0.9, 1.6])
    assert {(a.prompt_tokens, a.output_tokens) for a in faster} == {(300, 4)}
    assert len(Workload("", "", trace=path).make(None, 5.0, 0)) == 3


def test_shared_prefixes() -> None:
    made = Workload("64", "4", prefixes=2, prefix_tokens=32).make(5.0, 20.0, 0)
    assert {a.prefix for a in made} == {(0, 1), (2, 3)}


@pytest.mark.parametrize("text", ["", "0", "5-4", "a", "1-2-3", "-1", "1.5"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(InvalidArgument, match="write 256, or 100-400"):
        length_range(text, "prompt-tokens")


def test_nothing_to_send_is_told() -> None:
    with pytest.raises(InvalidArgument, match="no request comes within"):
        Workload().make(1e-6, 1.0, 0)
    with pytest.raises(InvalidArgument, match="give --rate"):
        Workload().make(None, 1.0, 0)
