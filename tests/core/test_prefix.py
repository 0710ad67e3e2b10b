"""Prefix keys: the same in every process (PFX1), never shared between tenants (PFX2)."""

import itertools
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.prefix import HASH_BYTES, PrefixIndex, block_key, chain, root_key

PROMPT = tuple(range(100, 116))

CHILD = """
from baton.core.prefix import chain, root_key
root = root_key(salt="tenant", adapter="a", revision="r1")
print(" ".join(key.hex() for key in chain(root, range(12), 4)))
"""


def keys_in_another_process(hash_seed: str | None) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    if hash_seed is not None:
        env["PYTHONHASHSEED"] = hash_seed
    done = subprocess.run([sys.executable, "-c", CHILD], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_keys_are_equal_in_every_process() -> None:
    here = " ".join(
        key.hex() for key in chain(root_key(salt="tenant", adapter="a", revision="r1"), range(12), 4)
    )
    assert len(set(here.split())) == 3
    assert {keys_in_another_process(seed) for seed in ("0", "1", None)} == {here}


def test_keys_do_not_change_between_releases() -> None:
    """Two releases share a cluster during a roll: whoever changes these bytes must change the root."""
    keys = list(chain(root_key(), (1, 2, 3, 4), 2))
    assert [key.hex() for key in keys] == [
        "46d4b2903738b189c6f1d506995434f0",
        "342bfa4c400749f3fd399a66e8e9b7c7",
    ]
    assert all(len(key) == HASH_BYTES for key in keys)


TUPLES = [
    {},
    {"salt": "x"},
    {"adapter": "x"},
    {"revision": "x"},
    {"cluster_key": b"x"},
    {"salt": "0"},
    {"salt": "ab", "adapter": "c"},
    {"salt": "a", "adapter": "bc"},
    {"salt": "c", "adapter": "ab"},
    {"salt": "abc"},
    {"salt": "p" * 64},
    {"salt": "p" * 64 + "1"},
    {"salt": "p" * 64 + "2"},
    {"adapter": "x", "revision": "1"},
    {"adapter": "x", "revision": "2"},
    {"salt": "s\x01\x00\x00\x00"},
]


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(TUPLES, 2)))
def test_different_fields_share_no_block(one: dict[str, str], other: dict[str, str]) -> None:
    mine, theirs = set(chain(root_key(**one), PROMPT, 4)), set(chain(root_key(**other), PROMPT, 4))
    assert len(mine) == len(theirs) == 4
    assert not mine & theirs


fields = st.fixed_dictionaries(
    {}, optional={name: st.text("ab:", max_size=3) for name in ("salt", "adapter", "revision")}
)


@given(fields, fields)
def test_roots_are_equal_only_for_equal_fields(one: dict[str, str], other: dict[str, str]) -> None:
    filled = [{"salt": "", "adapter": "", "revision": ""} | given_fields for given_fields in (one, other)]
    assert (root_key(**one) == root_key(**other)) == (filled[0] == filled[1])


tokens = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(tokens, tokens, st.integers(1, 8))
def test_keys_are_equal_exactly_as_far_as_the_tokens_are(
    one: list[int], other: list[int], block_size: int
) -> None:
    mine, theirs = (list(chain(root_key(), ids, block_size)) for ids in (one, other))
    assert len(mine) == len(one) // block_size
    common = sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    )
    shared = common // block_size
    assert mine[:shared] == theirs[:shared]
    assert not set(mine[shared:]) & set(theirs[shared:])


def test_a_block_key_depends_on_its_parent() -> None:
    assert block_key(root_key(), (1, 2)) != block_key(root_key(salt="s"), (1, 2))


def test_match_stops_at_the_first_unknown_block() -> None:
    index = PrefixIndex()
    keys = list(chain(root_key(), PROMPT, 4))
    for block, key in enumerate(keys, start=1):
        assert index.insert(key, block)
    assert index.match(keys) == [1, 2, 3, 4]
    assert index.remove(2) == keys[1]
    assert index.match(keys) == [1], "a block was reached without its parent"
    assert sorted(index.keys()) == sorted([keys[0], keys[2], keys[3]])
    assert len(index) == 3


def test_insert_changes_nothing_that_is_known() -> None:
    index = PrefixIndex()
    assert index.insert(b"k", 1)
    assert not index.insert(b"k", 2), "the first block of a content stays the one that is found"
    assert not index.insert(b"other", 1), "a block holds one content"
    assert list(index.items()) == [(b"k", 1)]
    with pytest.raises(KeyError):
        index.remove(2)
    index.check()
