"""KvCache: eviction, findability and the record of changes, case by case."""

import pytest

from baton.core.blocks import OutOfBlocks
from baton.core.kvcache import KvCache
from baton.core.prefix import chain, root_key


def keys_of(prompt: int, blocks: int) -> list[bytes]:
    return list(chain(root_key(), range(1000 * prompt, 1000 * prompt + 4 * blocks), 4))


def fill(kv: KvCache, keys: list[bytes]) -> list[int]:
    """Allocate and publish a whole chain, as a request would that found nothing."""
    blocks = kv.allocate(len(keys))
    for key, block in zip(keys, blocks, strict=True):
        kv.publish(key, block)
    return blocks


def test_blocks_for_rounds_up() -> None:
    kv = KvCache(4, 4)
    assert [kv.blocks_for(tokens) for tokens in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


def test_a_released_prefix_is_found_again() -> None:
    kv = KvCache(8, 4)
    keys = keys_of(1, 3)
    blocks = fill(kv, keys)
    kv.release(blocks)
    assert kv.usage == 0.0
    assert kv.available == 7
    assert kv.peek(keys) == 3
    assert kv.match(keys) == blocks
    assert kv.usage == pytest.approx(3 / 7)
    kv.check()


def test_what_nobody_holds_gives_way_to_new_requests() -> None:
    """100 different prompts, one after another, through a pool that holds two of them."""
    kv = KvCache(12, 4)
    for prompt in range(100):
        kv.release(fill(kv, keys_of(prompt, 5)))
        kv.check()
        assert kv.usage == 0.0
    assert kv.peek(keys_of(99, 5)) == 5
    assert kv.peek(keys_of(0, 5)) == 0


def test_eviction_shortens_a_chain_from_its_tail() -> None:
    kv = KvCache(6, 4)
    keys = keys_of(1, 4)
    kv.release(fill(kv, keys))
    kv.drain_events()
    held = kv.allocate(3)  # one is free, two must be evicted
    assert kv.peek(keys) == 2
    assert set(kv.drain_events().removed) == set(keys[2:])
    kv.release(held)
    kv.check()


def test_held_blocks_are_never_evicted() -> None:
    kv = KvCache(6, 4)
    keys = keys_of(1, 3)
    kv.release(fill(kv, keys))
    held = kv.match(keys[:2])
    with pytest.raises(OutOfBlocks, match="4 KV blocks wanted, 3 available of 5"):
        kv.allocate(4)
    assert kv.peek(keys) == 3, "a refusal changed something"
    assert not set(kv.allocate(3)) & set(held)
    assert kv.peek(keys) == 2
    kv.check()


def test_events_tell_every_change_once() -> None:
    kv = KvCache(4, 4)
    keys = keys_of(1, 3)
    blocks = fill(kv, keys)
    kv.publish(keys[0], blocks[0])
    assert kv.drain_events().stored == keys
    assert kv.drain_events().stored == []
    kv.release(blocks)
    kv.allocate(1)
    assert kv.drain_events().removed == [keys[2]]


def test_events_are_the_net_change() -> None:
    """Stored, evicted and stored again between two drains: order is not kept, so only the outcome is told."""
    kv = KvCache(3, 4)
    keys = keys_of(1, 2)
    kv.release(fill(kv, keys))
    kv.release(fill(kv, keys_of(2, 2)))
    kv.release(fill(kv, keys))
    events = kv.drain_events()
    assert (set(events.stored), events.removed) == (set(keys), [])
    kv.release(fill(kv, keys_of(2, 2)))
    kv.release(fill(kv, keys))
    events = kv.drain_events()
    assert (events.stored, events.removed) == ([], [])


def test_a_second_copy_of_a_content_is_not_findable() -> None:
    kv = KvCache(6, 4)
    keys = keys_of(1, 2)
    first, second = fill(kv, keys), fill(kv, keys)
    kv.release(first)
    kv.release(second)
    assert kv.match(keys) == first
    assert kv.pool.free == 3, "the copy must be free, not idle"
    kv.check()


def test_a_second_copy_is_given_back_for_the_first() -> None:
    kv = KvCache(6, 4)
    keys = keys_of(1, 2)
    first, second = fill(kv, keys), kv.allocate(2)
    assert [kv.unify(key, block) for key, block in zip(keys, second, strict=True)] == first
    assert [kv.unify(key, block) for key, block in zip(keys, first, strict=True)] == first
    assert (kv.pool.free, [kv.pool.refs(block) for block in first]) == (3, [2, 2])
    kv.release(first)
    kv.release(first)
    kv.check()


def test_without_prefix_caching_copies_stay() -> None:
    kv = KvCache(6, 4, prefix_caching=False)
    keys = keys_of(1, 2)
    fill(kv, keys)
    blocks = kv.allocate(2)
    assert [kv.unify(key, block) for key, block in zip(keys, blocks, strict=True)] == blocks


def test_every_new_block_is_to_be_cleared() -> None:
    kv = KvCache(4, 4)
    one = kv.allocate(2)
    two = kv.allocate(1)
    assert kv.take_dirty() == one + two
    assert kv.take_dirty() == []


def test_without_prefix_caching_nothing_is_findable() -> None:
    kv = KvCache(4, 4, prefix_caching=False)
    keys = keys_of(1, 2)
    kv.release(fill(kv, keys))
    assert kv.match(keys) == []
    assert kv.peek(keys) == 0
    assert (kv.pool.free, kv.pool.idle) == (3, 0)
    assert kv.drain_events().stored == []


def test_a_findable_block_cannot_be_quarantined() -> None:
    kv = KvCache(4, 4)
    blocks = fill(kv, keys_of(1, 1))
    with pytest.raises(ValueError, match="may be found"):
        kv.quarantine(blocks)
    kv.check()
