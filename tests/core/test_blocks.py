"""BlockPool: each way a block can go, and what is refused."""

import pytest

from baton.core.blocks import IDLE, NULL_BLOCK, BlockPool, OutOfBlocks


def places(pool: BlockPool) -> tuple[int, int, int, int]:
    pool.check()
    return pool.free, pool.owned, pool.idle, pool.quarantined


def kept(pool: BlockPool, count: int) -> list[int]:
    blocks = pool.allocate(count)
    for block in blocks:
        pool.keep(block)
    return blocks


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(4)
    assert pool.usable == 3
    assert NULL_BLOCK not in pool.allocate(3)


def test_a_pool_needs_a_block_beside_the_null_block() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        BlockPool(1)


def test_allocate_takes_all_or_nothing() -> None:
    pool = BlockPool(4)
    with pytest.raises(OutOfBlocks, match="4 KV blocks wanted, 3 free"):
        pool.allocate(4)
    assert places(pool) == (3, 0, 0, 0)
    assert len(set(pool.allocate(3))) == 3
    assert places(pool) == (0, 3, 0, 0)


def test_a_shared_block_stays_until_its_last_owner_goes() -> None:
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.keep(block)
    pool.retain([block])
    assert pool.refs(block) == 2
    pool.release([block])
    assert places(pool) == (1, 1, 0, 0)
    pool.release([block])
    assert places(pool) == (1, 0, 1, 0)
    pool.retain([block])
    assert pool.refs(block) == 1
    assert places(pool) == (1, 1, 0, 0)


def test_release_of_a_block_nobody_can_find_frees_it() -> None:
    pool = BlockPool(3)
    pool.release(pool.allocate(2))
    assert places(pool) == (2, 0, 0, 0)


def test_a_chain_is_evicted_from_its_tail() -> None:
    pool = BlockPool(5)
    chain = kept(pool, 3)
    pool.release(chain)
    assert pool.evict(1) + pool.evict(2) == chain[::-1]
    assert places(pool) == (4, 0, 0, 0)


def test_no_more_are_evicted_than_are_idle() -> None:
    pool = BlockPool(5)
    chain = kept(pool, 3)
    pool.release(chain[:2])
    with pytest.raises(OutOfBlocks, match="3 idle KV blocks wanted, there are 2"):
        pool.evict(3)
    assert places(pool) == (1, 1, 2, 0)


def test_what_was_used_last_is_evicted_last() -> None:
    """However often it was used again before."""
    pool = BlockPool(6)
    first, *rest = kept(pool, 5)
    pool.release([first, *rest])
    for _ in range(1000):
        pool.retain([first])
        pool.release([first])
        pool.check()
    pool.retain(rest[1:])
    assert pool.evict(2) == [rest[0], first]
    assert places(pool) == (2, 3, 0, 0)
    pool.release(rest[1:])
    assert pool.evict(3) == rest[:0:-1]
    assert len(pool._queue) == len(pool._stale) == 0


@pytest.mark.parametrize("action", ["retain", "release", "keep", "absolve"])
def test_a_free_block_cannot_be_used(action: str) -> None:
    pool = BlockPool(3)
    with pytest.raises(KeyError):
        {
            "retain": lambda: pool.retain([1]),
            "release": lambda: pool.release([1]),
            "keep": lambda: pool.keep(1),
            "absolve": lambda: pool.absolve([1]),
        }[action]()
    assert places(pool) == (2, 0, 0, 0)


def test_quarantine_keeps_blocks_from_everyone_until_absolved() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    pool.quarantine(blocks)
    assert places(pool) == (0, 0, 0, 2)
    with pytest.raises(OutOfBlocks):
        pool.allocate(1)
    with pytest.raises(KeyError):
        pool.retain(blocks)
    pool.absolve(blocks)
    assert places(pool) == (2, 0, 0, 0)


def test_quarantine_takes_all_or_nothing() -> None:
    pool = BlockPool(4)
    one, two, three = pool.allocate(3)
    pool.retain([two])
    with pytest.raises(ValueError, match=f"block {two} has 2 owners, not 1"):
        pool.quarantine([one, two, three])
    assert places(pool) == (0, 3, 0, 0)
    with pytest.raises(ValueError, match="named twice"):
        pool.quarantine([one, one])
    assert places(pool) == (0, 3, 0, 0)
    pool.release([three])
    with pytest.raises(ValueError, match=f"block {three} has 0 owners, not 1"):
        pool.quarantine([three])
    pool.keep(one)
    with pytest.raises(ValueError, match=f"block {one} may be found: a write to it would be seen"):
        pool.quarantine([one])
    assert places(pool) == (1, 2, 0, 0)


def test_check_sees_what_is_wrong() -> None:
    pool = BlockPool(3)
    pool._free.append(1)
    with pytest.raises(AssertionError, match="two places"):
        pool.check()
    pool = BlockPool(3)
    pool._unused += 1
    with pytest.raises(AssertionError, match="lost"):
        pool.check()
    pool = BlockPool(3)
    pool.release(kept(pool, 2))
    pool._queue.append(1)
    with pytest.raises(AssertionError, match="queued twice"):
        pool.check()
    pool = BlockPool(3)
    pool.allocate(1)
    pool._place[1] = IDLE
    with pytest.raises(AssertionError, match="no owner"):
        pool.check()
