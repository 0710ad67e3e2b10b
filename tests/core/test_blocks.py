"""BlockPool: each way a block can go, and what is refused."""

import pytest

from baton.core.blocks import NULL_BLOCK, BlockPool, OutOfBlocks


def places(pool: BlockPool) -> tuple[int, int, int, int]:
    pool.check()
    return pool.free, pool.owned, pool.idle, pool.quarantined


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
    pool.retain([block])
    assert pool.refs(block) == 2
    pool.release([block], cached={block})
    assert places(pool) == (1, 1, 0, 0)
    pool.release([block], cached={block})
    assert places(pool) == (1, 0, 1, 0)
    pool.retain([block])
    assert pool.refs(block) == 1
    assert places(pool) == (1, 1, 0, 0)


def test_release_of_a_block_nobody_can_find_frees_it() -> None:
    pool = BlockPool(3)
    pool.release(pool.allocate(2), cached=set())
    assert places(pool) == (2, 0, 0, 0)


def test_a_chain_is_evicted_from_its_tail() -> None:
    pool = BlockPool(5)
    chain = pool.allocate(3)
    pool.release(chain, cached=set(chain))
    assert pool.evict(1) + pool.evict(2) == chain[::-1]
    assert places(pool) == (4, 0, 0, 0)


def test_no_more_are_evicted_than_are_idle() -> None:
    pool = BlockPool(5)
    chain = pool.allocate(3)
    pool.release(chain[:2], cached=set(chain))
    with pytest.raises(OutOfBlocks, match="3 idle KV blocks wanted, there are 2"):
        pool.evict(3)
    assert places(pool) == (1, 1, 2, 0)


@pytest.mark.parametrize("action", ["retain", "release", "absolve"])
def test_a_free_block_cannot_be_used(action: str) -> None:
    pool = BlockPool(3)
    with pytest.raises(KeyError):
        {
            "retain": lambda: pool.retain([1]),
            "release": lambda: pool.release([1], set()),
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
    pool.release([three], set())
    with pytest.raises(ValueError, match=f"block {three} has 0 owners, not 1"):
        pool.quarantine([three])


def test_check_sees_what_is_wrong() -> None:
    pool = BlockPool(3)
    pool._free.append(1)
    with pytest.raises(AssertionError, match="two places"):
        pool.check()
    pool = BlockPool(3)
    pool._unused += 1
    with pytest.raises(AssertionError, match="lost"):
        pool.check()
