"""The slots of a worker process, which the workers of several namespaces may share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from contextlib import suppress

# A fetch that takes longer has lost its turn, and then its reservation.
_TURN_SECONDS = 0.02
_PATIENCE_SECONDS = 0.05


class Slots:
    """So many tasks run at a time, of all namespaces together.

    A reader takes its turn, reserves free slots, fetches for them, and releases what it did not
    use. The next turn is that of the reader with the fewest starts. So each namespace that has a
    backlog gets the same number of starts, however long its tasks are and however many slots are
    free in a turn. A reader that had nothing to do has saved up nothing.

    A turn lasts until the fetch has answered: meanwhile slots become free, and the next reader
    fetches for all of them at once. A Redis that does not answer must not stop the other
    namespaces: after 20 ms the turn passes to the next reader, and after 50 ms the reserved slots
    are free for all.

    Args:
        number: how many there are.

    Attributes:
        number: how many there are.
        freed: set when a slot has become free.

    Example:
        slots = Slots(10)
        slots.share(lambda: runner.slots_taken)
        if await slots.take_turn("main"):
            wanted = slots.reserve("main", 5)
            fetched = await fetch(wanted)
            slots.end_turn("main")
            slots.release("main", started=start(fetched))
    """

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.freed: asyncio.Event = asyncio.Event()
        self._taken: list[Callable[[], int]] = []
        self._turn: Hashable = None
        self._waiting: dict[Hashable, asyncio.Future[None]] = {}
        self._starts: dict[Hashable, int] = {}
        self._reserved: dict[Hashable, tuple[int, float]] = {}
        self._backlogged: set[Hashable] = set()
        self._pace = self._granted = 0

    def share(self, taken: Callable[[], int]) -> None:
        """Let one more worker use them; `taken` returns how many it uses."""
        self._taken.append(taken)

    @property
    def are_shared(self) -> bool:
        """Whether several workers use them."""
        return len(self._taken) > 1

    @property
    def free(self) -> int:
        """How many more tasks may run; 0 or less: none."""
        reserved = sum(n for reader, (n, _) in self._reserved.items() if not self.is_late(reader))
        return self.number - sum(taken() for taken in self._taken) - reserved

    def is_late(self, reader: Hashable) -> bool:
        """Whether others may have taken what a reader has reserved, because its fetch took long."""
        number, since = self._reserved.get(reader, (0, 0.0))
        return number > 0 and time.monotonic() - since > _PATIENCE_SECONDS

    async def take_turn(self, reader: Hashable, seconds: float | None = None) -> bool:
        """Wait for the turn of a reader, and then for a free slot, which no other one can take.

        Returns:
            False if that took longer than `seconds`; the reader then has no turn.
        """
        if reader not in self._backlogged:
            self._starts[reader] = max(self._starts.get(reader, 0), self._pace)
        try:
            async with asyncio.timeout(seconds):
                if self._turn is None:
                    self._turn = reader
                else:
                    self._waiting[reader] = asyncio.get_running_loop().create_future()
                    await self._waiting[reader]
                while (free := self.free) <= 0:
                    self.freed.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_PATIENCE_SECONDS):
                            await self.freed.wait()
            self._granted = free
            return True
        except TimeoutError:
            self._end_turn(reader)
            return False
        except asyncio.CancelledError:
            self._end_turn(reader)
            raise

    def reserve(self, reader: Hashable, most: int) -> int:
        """Reserve at most so many slots for the reader whose turn it is; 0 if it has no turn.

        Call it right after `take_turn`.
        """
        if self._turn != reader:
            return 0
        self._pace = max(self._pace, self._starts[reader])
        number = min(most, self._granted)
        self._reserved[reader] = number, time.monotonic()
        loop = asyncio.get_running_loop()
        self._end = loop.call_later(_TURN_SECONDS, self._end_turn, reader)
        return number

    def end_turn(self, reader: Hashable) -> None:
        """Let the next reader fetch; call it before the new tasks run, so that both go on."""
        if self._turn == reader:
            self._end.cancel()
            self._end_turn(reader)

    def release(self, reader: Hashable, started: int) -> None:
        """Give back what a reader has reserved, after it has started so many tasks."""
        self._starts[reader] = self._starts.get(reader, 0) + started
        self._backlogged.add(reader)
        if self._reserved.pop(reader, (0, 0.0))[0] > started:
            self._backlogged.discard(reader)
            self.freed.set()
        self.end_turn(reader)

    def _end_turn(self, reader: Hashable) -> None:
        """End the turn of a reader, or its wait for one."""
        self._waiting.pop(reader, None)
        if self._turn != reader:
            return
        self._turn = min(self._waiting, key=self._starts.__getitem__, default=None)
        if self._turn is not None:
            granted = self._waiting.pop(self._turn)
            if not granted.done():  # else a stop has just cancelled that wait, which ends its turn
                granted.set_result(None)
