"""Tasks that wait for something else: each slot, and each process, does its full share."""

from __future__ import annotations

import statistics

import pytest
from acceptance.contention import PRODUCTION, workers
from acceptance.napping_tasks import NAP_SECONDS, Nap
from acceptance.site import Site, submit_all

from nonet import Size


@pytest.fixture
def napping(site: Site) -> Site:
    """A site whose daemons know tasks that sleep, with the leases of production."""
    site.settings |= {"NONET_TASKS": "acceptance.napping_tasks", **PRODUCTION}
    return site


async def share(site: Site, slots: int, naps_each: int, **labels: str) -> float:
    """Which part of the ideal throughput so many slots have, from first start to last end."""
    known = len(site.journal("end"))
    async with site.app() as app:
        await submit_all(app, [Nap() for _ in range(slots * naps_each)], labels=labels)
    events = await site.until_event("end", known + slots * naps_each)
    ended = events[known:]
    ids = {event.id for event in ended}
    began = min(event.at for event in site.journal("start") if event.id in ids)
    return naps_each * NAP_SECONDS / (max(event.at for event in ended) - began)


@pytest.mark.parametrize(
    ("counts", "naps_each", "rounds", "least"),
    [
        # On a machine that others use at the same time it is the shape that is tested.
        pytest.param((1, 16), 4, 1, 0.3, id="scaled"),
        pytest.param((1, 2, 4, 8, 16), 12, 3, 0.95, id="full", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("size", [Size.SMALL, Size.MEDIUM])
async def test_throughput_rises_with_the_slots(
    napping: Site, size: Size, counts: tuple[int, ...], naps_each: int, rounds: int, least: float
) -> None:
    """A worker of 16 slots does 16 times what one slot does; so do 16 child processes."""
    for count in counts:
        worker = napping.worker("--concurrency", str(count), size=size)
        await share(napping, count, 1, size=size)  # child processes have started
        found = [await share(napping, count, naps_each, size=size) for _ in range(rounds)]
        worker.terminate()
        worker.wait()
        print(f"\n{size}: {count} slots: {statistics.median(found):.3f} of the ideal")
        assert statistics.median(found) >= least


@pytest.mark.parametrize(
    ("counts", "naps_each", "rounds", "least"),
    [
        pytest.param((1, 4), 4, 1, 0.3, id="scaled"),
        pytest.param((1, 2, 4, 8, 16), 12, 3, 0.95, id="full", marks=pytest.mark.soak),
    ],
)
async def test_throughput_rises_with_the_processes(
    napping: Site, counts: tuple[int, ...], naps_each: int, rounds: int, least: float
) -> None:
    """So do 16 processes of one slot each."""
    running = 0
    for count in counts:
        workers(napping, count - running, slots=1)
        running = count
        await share(napping, count, 1)
        found = [await share(napping, count, naps_each) for _ in range(rounds)]
        print(f"\n{count} processes: {statistics.median(found):.3f} of the ideal")
        assert statistics.median(found) >= least
