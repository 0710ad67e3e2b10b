"""Rows in flight: what ends meanwhile waits for the landing; a row says truly where it stands."""

import pytest

from baton.core.errors import IllegalTransition
from baton.core.flight import Ending, Flight, row_for
from baton.core.phase import Phase
from baton.core.request import FinishReason, Request, SamplingParams
from baton.core.sequence import Sequence


def sequence_of(name: str, *, prompt: int = 6, computed: int = 0, **sampling: object) -> Sequence:
    request = Request(name, tuple(range(prompt)), sampling=SamplingParams(**sampling), eos_token_ids=(9,))
    return Sequence(request, Phase.PREFILL, 0.0, computed=computed, blocks=[5, 3])


def test_endings_wait_for_the_landing() -> None:
    flight = Flight()
    one, two = (row_for(sequence_of(name), 2) for name in ("one", "two"))
    flight.depart([one, two])
    assert ("one", 0) in flight
    assert ("three", 0) not in flight
    flight.defer(("one", 0), Ending(FinishReason.CANCELLED))
    flight.defer(("one", 0), Ending(FinishReason.ERROR))
    landed = flight.land()
    assert [(row.seq[0], ending and ending.reason) for row, ending in landed] == [
        ("one", FinishReason.CANCELLED),
        ("two", None),
    ]
    assert flight.land() == []
    assert ("one", 0) not in flight


def test_a_second_batch_must_wait() -> None:
    flight = Flight()
    flight.depart([row_for(sequence_of("one"), 2)])
    with pytest.raises(IllegalTransition):
        flight.depart([row_for(sequence_of("two"), 2)])
    assert ("one", 0) in flight
    flight.land()
    flight.depart([])


def test_an_ending_does_not_outlive_its_flight() -> None:
    flight = Flight()
    row = row_for(sequence_of("one"), 1)
    flight.depart([row])
    flight.defer(("one", 0), Ending(FinishReason.CANCELLED))
    flight.land()
    flight.depart([row])
    assert flight.land() == [(row, None)]


def test_a_chunk_in_the_middle_samples_nothing() -> None:
    row = row_for(sequence_of("one", computed=2), 3)
    assert (row.token_ids, row.start, row.context, row.sample) == ([2, 3, 4], 2, 5, False)
    assert row.history == [0, 1, 2, 3, 4], "up to and including its own last token"
    assert (row.block_table, row.prompt_len, row.eos_token_ids) == ([5, 3], 6, (9,))


def test_a_chunk_whose_logprobs_are_wanted_knows_the_token_that_follows_it() -> None:
    sequence = sequence_of("one", computed=2, prompt_logprobs=1)
    assert row_for(sequence, 3, prompt_logprobs=True).history == [0, 1, 2, 3, 4, 5]
    assert row_for(sequence, 3).history == [0, 1, 2, 3, 4]


def test_the_last_chunk_samples_the_next_token() -> None:
    sequence = sequence_of("one", computed=5)
    row = row_for(sequence, 1)
    assert (row.token_ids, row.sample) == ([5], True)
    assert len(row.history) - row.prompt_len == sequence.output_len == 0


def test_prompt_logprobs_are_wanted_once() -> None:
    sequence = sequence_of("one", prompt_logprobs=2, logprobs=1)
    assert row_for(sequence, 2).sampling.prompt_logprobs is None
    assert row_for(sequence, 2).sampling.logprobs == 1
    assert row_for(sequence, 2, prompt_logprobs=True).sampling.prompt_logprobs == 2
