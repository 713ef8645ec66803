"""Slots that readers of several namespaces share."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from nonet.worker import slots as slots_module
from nonet.worker.slots import Slots


class Pool:
    """Readers `a`, `b` and `c` of one pool, each with tasks that it runs."""

    def __init__(self, number: int) -> None:
        self.slots = Slots(number)
        self.running: Counter[str] = Counter()
        for name in "abc":
            self.slots.share(lambda name=name: self.running[name])  # type: ignore[misc]

    async def start(self, name: str, most: int) -> int:
        """Take a turn and start as many tasks as there are slots for."""
        assert await self.slots.take_turn(name)
        number = self.slots.reserve(name, most)
        await asyncio.sleep(0)  # the fetch
        self.running[name] += number
        self.slots.release(name, number)
        return number

    def end(self, name: str, number: int = 1) -> None:
        self.running[name] -= number
        self.slots.freed.set()


@pytest.fixture
async def pool() -> Pool:
    return Pool(6)


async def test_each_gets_the_same_number_of_starts(pool: Pool) -> None:
    """Although one ends its tasks at once, and turns differ in size."""
    starts: Counter[str] = Counter()

    async def read(name: str) -> None:
        while sum(starts.values()) < 600:
            starts[name] += (number := await pool.start(name, 2 + "abc".index(name)))
            loop, rest = asyncio.get_running_loop(), 0.0 if name == "a" else 0.003
            loop.call_later(rest, pool.end, name, number)

    await asyncio.gather(*(asyncio.wait_for(read(name), 20) for name in "abc"))
    assert max(starts.values()) - min(starts.values()) <= 40


async def test_one_that_was_idle_has_saved_up_nothing(pool: Pool) -> None:
    """It gets the next turn, and from then on its share."""
    for _ in range(10):
        pool.end("a", await pool.start("a", 3))
    assert pool.slots._starts["a"] == 30
    assert await pool.start("b", 1) == 1
    assert pool.slots._starts["b"] >= 28


async def test_a_turn_waits_for_a_free_slot(pool: Pool) -> None:
    """And a wait that is too long, or cancelled, lets the next one go on."""
    assert (await pool.start("a", 6), pool.slots.free) == (6, 0)
    assert not await pool.slots.take_turn("b", 0.01)
    waiting = asyncio.create_task(pool.slots.take_turn("b"))
    next_one = asyncio.create_task(pool.slots.take_turn("c"))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.sleep(0.01)
    assert not next_one.done()
    pool.end("a")
    assert await asyncio.wait_for(next_one, 1)
    assert (pool.slots.reserve("b", 5), pool.slots.reserve("c", 5)) == (0, 1)


async def test_a_fetch_that_hangs_stops_no_other(pool: Pool) -> None:
    """It keeps what it has reserved, and no turn."""
    assert await pool.slots.take_turn("a")
    assert pool.slots.reserve("a", 3) == 3
    assert await asyncio.wait_for(pool.start("b", 6), 1) == 3
    pool.slots.release("a", 0)
    assert pool.slots.free == 3


async def test_a_fetch_that_hangs_keeps_no_slots(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others get what two readers have reserved whose Redis does not answer."""
    monkeypatch.setattr(slots_module, "_PATIENCE_SECONDS", 0.2)
    for name in "ab":
        assert await pool.slots.take_turn(name)
        assert pool.slots.reserve(name, 3) == 3
    async with asyncio.timeout(5):
        assert await pool.start("c", 6) == 6
    assert pool.slots.is_late("a")
    pool.slots.release("a", 0)
    assert pool.slots.free == 0
