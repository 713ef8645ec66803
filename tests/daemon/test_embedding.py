"""What a program sees of daemons in its event loop: when they are ready, fail, and stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence

import pytest
from waits import until

from nonet import Size
from nonet.daemon.answer import Page
from nonet.daemon.embedding import chosen_sizes, running_inside
from nonet.daemon.health import Report
from nonet.daemon.service import ExitCode, Stop
from nonet.telemetry.metrics import Sample


class Fake:
    """A daemon that does what a test says.

    Attributes:
        events: what has happened to it.
    """

    def __init__(self, *, ready: bool = True, slow: bool = False) -> None:
        self._ready = ready
        self._slow = slow
        self._fails = asyncio.Event()
        self.events: list[str] = []

    async def run(self, stop: Stop) -> ExitCode:
        self.events.append("started")
        failing = asyncio.create_task(self._fails.wait())
        stopping = asyncio.create_task(stop.requested.wait())
        await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if failing.done():
            raise OSError("the disk is gone")
        failing.cancel()
        self.events.append("draining")
        if self._slow:
            await stop.forced.wait()
            self.events.append("forced")
        self.events.append("drained")
        return ExitCode.OK

    def fail(self) -> None:
        self._fails.set()

    async def comes_to(self, event: str) -> None:
        await until(lambda: event in self.events, f"it is {event}")

    def report(self) -> Report:
        return Report(self._ready, [] if self._ready else ["Redis has not answered yet"])

    def stuck(self) -> Sequence[str]:
        return ()

    def samples(self) -> Iterator[Sample]:
        yield from ()

    def pages(self) -> Mapping[str, Page]:
        return {}


async def test_daemons_drain_at_the_end_of_the_block() -> None:
    """Each has begun before the block, and has ended after it."""
    small, scheduler = Fake(), Fake()
    async with running_inside({"small worker": small, "scheduler": scheduler}, 60) as running:
        assert running.ready
        await asyncio.sleep(0)
        assert small.events == scheduler.events == ["started"]
    assert small.events == scheduler.events == ["started", "draining", "drained"]


async def test_an_error_of_the_block_drains_the_daemons() -> None:
    """The error is raised as it is."""
    worker = Fake()
    with pytest.raises(KeyError, match="mine"):
        async with running_inside({"small worker": worker}, 60):
            raise KeyError("mine")
    assert worker.events[-1] == "drained"


async def test_a_daemon_that_is_not_ready_in_time_is_an_error() -> None:
    """The error names the daemon and its reason, and all daemons drain."""
    worker = Fake(ready=False)
    with pytest.raises(TimeoutError) as raised:
        async with running_inside({"small worker": worker, "scheduler": Fake()}, 0.1):
            raise AssertionError("the block must not begin")
    assert str(raised.value) == "not ready after 0.1 s: small worker: Redis has not answered yet"
    assert worker.events[-1] == "drained"


async def test_a_failure_at_the_start_is_raised() -> None:
    """The block does not begin, and the other daemons drain."""
    worker, other = Fake(ready=False), Fake()
    worker.fail()
    with pytest.raises(OSError, match="the disk is gone"):
        async with running_inside({"small worker": worker, "scheduler": other}, 60):
            raise AssertionError("the block must not begin")
    assert other.events[-1] == "drained"


async def test_a_failure_cancels_the_block_and_becomes_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise a program would believe that its tasks are executed."""
    worker, other = Fake(), Fake()
    with caplog.at_level(logging.CRITICAL), pytest.raises(OSError, match="the disk is gone"):
        async with running_inside({"small worker": worker, "scheduler": other}, 60):
            worker.fail()
            await asyncio.Event().wait()
    assert other.events[-1] == "drained"
    assert "small worker failed: cancelling its program" in caplog.text
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_a_cancellation_from_outside_is_raised() -> None:
    """The failure of a daemon at the same time does not replace it."""
    worker = Fake()

    async def program() -> None:
        async with running_inside({"small worker": worker}, 60):
            await asyncio.Event().wait()

    running = asyncio.create_task(program())
    await worker.comes_to("started")
    worker.fail()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_cancellation_ends_the_drain() -> None:
    """Tasks are handed back at once, as after the second signal to a daemon."""
    worker = Fake(slow=True)

    async def program() -> None:
        async with running_inside({"small worker": worker}, 60):
            pass

    running = asyncio.create_task(program())
    await worker.comes_to("draining")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert worker.events[-2:] == ["forced", "drained"]


def test_sizes_are_named_or_given() -> None:
    """Each once, in the order of the caller; another name is refused."""
    assert chosen_sizes(["large", Size.SMALL, "large"]) == [Size.LARGE, Size.SMALL]
    assert chosen_sizes("small") == [Size.SMALL]
    with pytest.raises(ValueError, match=r"^'tiny' is no size: use small, medium, large$"):
        chosen_sizes(["tiny"])
