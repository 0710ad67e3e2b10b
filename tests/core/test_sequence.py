"""A request's life on a node: its prefix keys, what it publishes, and what ends it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.kvcache import KvCache
from baton.core.phase import Phase
from baton.core.prefix import chain, root_key
from baton.core.request import FinishReason, Request, SamplingParams
from baton.core.sequence import Sequence, finish_of

CONTEXT = 64
EOS = 99


def sequence_of(tokens: int, *, salt: str = "") -> Sequence:
    return Sequence(Request("r", tuple(range(tokens)), salt=salt), Phase.QUEUED, 0.0)


def test_a_retry_starts_from_all_tokens_so_far() -> None:
    request = Request("r", (1, 2, 3)).retried((4, 5), None)
    sequence = Sequence(request, Phase.QUEUED, 0.0)
    assert sequence.token_ids == [1, 2, 3, 4, 5]
    assert (sequence.prompt_len, sequence.output_len, sequence.remaining) == (3, 2, 5)
    assert sequence.key == ("r", 1)


def test_sequences_do_not_share_their_tokens_with_the_request() -> None:
    request = Request("r", (1, 2))
    one, other = (Sequence(request, Phase.QUEUED, 0.0) for _ in range(2))
    one.token_ids.append(3)
    assert other.token_ids == [1, 2]
    assert one != other, "a sequence is an identity, not a value"


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 5), st.sampled_from(["", "tenant"]))
def test_keys_grow_to_the_same_chain_in_any_steps(steps: list[int], block_size: int, salt: str) -> None:
    sequence = sequence_of(30, salt=salt)
    furthest = 0
    for upto in steps:
        sequence.extend_keys(block_size, upto, "rev")
        furthest = max(furthest, upto)
        assert len(sequence.keys) == furthest // block_size
    whole = list(chain(root_key(salt=salt, revision="rev"), sequence.token_ids, block_size))
    assert sequence.keys == whole[: len(sequence.keys)]


def test_publish_offers_full_computed_blocks_once() -> None:
    kv = KvCache(8, 4)
    sequence = sequence_of(14)
    sequence.blocks = kv.allocate(4)
    for computed, published in ((3, 0), (4, 1), (7, 1), (13, 3), (14, 3)):
        sequence.computed = computed
        sequence.publish(kv, "rev")
        assert sequence.published == published
        assert len(kv.index) == published
    assert kv.match(sequence.keys) == sequence.blocks[:3]
    kv.check()


def test_tokens_that_are_not_computed_are_never_published() -> None:
    """A block that is full of tokens but not of KV must stay unfindable, whatever keys are known."""
    kv = KvCache(8, 4)
    sequence = sequence_of(12)
    sequence.blocks = kv.allocate(3)
    sequence.extend_keys(4, 12, "rev")
    sequence.computed = 6
    sequence.publish(kv, "rev")
    assert list(kv.index.keys()) == sequence.keys[:1]


def test_after_giving_its_kv_back_a_sequence_finds_it_again() -> None:
    kv = KvCache(8, 4)
    sequence = sequence_of(10)
    sequence.blocks = kv.allocate(3)
    sequence.computed = 10
    sequence.publish(kv, "rev")
    before = list(sequence.blocks)
    sequence.drop_kv(kv)
    assert (list(sequence.blocks), sequence.computed, sequence.published) == ([], 0, 0)
    assert kv.usage == 0.0
    sequence.blocks = kv.match(sequence.keys) + kv.allocate(1)
    assert sequence.blocks[:2] == before[:2]
    sequence.computed = 10
    sequence.publish(kv, "rev")
    kv.check()


@given(
    output=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    stop=st.sets(st.integers(0, 9), max_size=2),
    eos=st.sets(st.integers(0, 9), max_size=2),
    ignore_eos=st.booleans(),
    max_tokens=st.integers(1, 14),
    prompt=st.integers(1, 20),
)
def test_the_first_end_wins_and_stop_comes_before_length(
    output: list[int], stop: set[int], eos: set[int], ignore_eos: bool, max_tokens: int, prompt: int
) -> None:
    """Fed token by token, the output is cut at the first stop or at the limit; a stop on the very last
    allowed token is a stop (SAMP1, SPEC3)."""
    context = 24
    request = Request(
        "r",
        (1,) * prompt,
        sampling=SamplingParams(stop_token_ids=tuple(stop), ignore_eos=ignore_eos),
        max_tokens=max_tokens,
        eos_token_ids=tuple(eos),
    )
    ends = stop if ignore_eos else stop | eos
    limit = min(max_tokens, context - prompt)
    first_stop = next((i for i, token in enumerate(output) if token in ends), len(output))
    if first_stop < limit and first_stop < len(output):
        expected = (first_stop + 1, FinishReason.STOP)
    elif len(output) >= limit:
        expected = (limit, FinishReason.LENGTH)
    else:
        expected = (len(output), None)

    sequence = Sequence(request, Phase.DECODE, 0.0)
    finish = None
    for token in output:
        sequence.token_ids.append(token)
        finish = finish_of(sequence, token, context)
        if finish is not None:
            break
    assert (sequence.output_len, finish) == expected


@pytest.mark.parametrize(
    ("max_tokens", "stop", "eos", "ignore_eos", "finish"),
    [
        (1, (), (), False, FinishReason.LENGTH),
        (4, (7,), (), False, FinishReason.STOP),
        (4, (), (7,), False, FinishReason.STOP),
        (4, (), (7,), True, None),
        (1, (7,), (), False, FinishReason.STOP),
        (1, (), (7,), True, FinishReason.LENGTH),
        (4, (7,), (7,), True, FinishReason.STOP),  # a stop id ends, even one that is EOS and ignored as such
        (2, (), (), False, None),
    ],
)
def test_the_first_token_may_be_the_last(
    max_tokens: int,
    stop: tuple[int, ...],
    eos: tuple[int, ...],
    ignore_eos: bool,
    finish: FinishReason | None,
) -> None:
    request = Request(
        "r",
        (1, 2),
        sampling=SamplingParams(stop_token_ids=stop, ignore_eos=ignore_eos),
        max_tokens=max_tokens,
        eos_token_ids=eos,
    )
    sequence = Sequence(request, Phase.PREFILL, 0.0)
    sequence.token_ids.append(7)
    assert finish_of(sequence, 7, CONTEXT) is finish


def test_a_retry_counts_what_earlier_attempts_made() -> None:
    request = Request("r", (1, 2), max_tokens=3).retried((5, 6), None)
    sequence = Sequence(request, Phase.PREFILL, 0.0)
    sequence.token_ids.append(7)
    assert finish_of(sequence, 7, CONTEXT) is FinishReason.LENGTH
