"""The figures of a namespace and of its classes: what is counted, and what is estimated."""

from __future__ import annotations

import time
from typing import Any

import pytest

from nonet.stores.namespace import figures
from nonet.stores.namespace.figures import Measures
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission
from nonet.stores.queue.workflows import NewWorkflow, Workflows

LOCK = "M|lock:mutex:job:7|30000|||"
LATER = 4 * 10**15


def task(id: str, locks: str = "", **fields: Any) -> Submission:
    return Submission(id, "p:T", "normal:small", b"e", locks, **fields)


async def test_waiting_and_delayed_are_counted_apart(broker: Broker) -> None:
    """A task that waits for a lock and one that waits for its time are different numbers."""
    await broker.submit([task("holder", LOCK), task("a", LOCK), task("b", LOCK)])
    await broker.submit([task("later", due_us=LATER)])
    await broker.fetch("small-a", "small", 10)
    found = await Measures(broker.client, "test", 900).figures()
    assert (found.waiting, found.delayed, found.dying, found.is_estimate) == (2, 1, 0, False)


async def test_many_waiters_are_estimated(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a sample of all; the answer says that it is an estimate."""
    soon = int(time.time() * 1e6) + 600_000_000
    await broker.submit([task("holder", LOCK), *(task(f"w{n}", LOCK) for n in range(100))])
    await broker.fetch("small-a", "small", 200)
    await broker.submit([task(f"d{n}", due_us=soon + n) for n in range(300)])
    monkeypatch.setattr(figures, "_LOOKS", 100)
    found = await Measures(broker.client, "test", 900).figures()
    assert found.is_estimate and found.waiting + found.delayed == 400
    assert abs(found.waiting - 100) <= 15


async def test_blocked_steps_are_waiting_tasks(broker: Broker) -> None:
    """Workflows are counted by their states."""
    terms = ["step w s - -", "step w s - - s0", "step w - - - s1"]
    steps = [task(f"w:{place}", terms=term) for place, term in enumerate(terms)]
    workflows = Workflows(broker)
    await workflows.submit([NewWorkflow("w", "", "", steps, True)], 60)
    await broker.submit([task("later", due_us=LATER)])
    found = await Measures(broker.client, "test", 900).figures()
    assert (found.waiting, found.blocked, found.delayed) == (2, 2, 1)
    assert found.workflows == {"building": 0, "running": 1, "resuming": 0, "failed": 0}


async def test_only_metrics_count_accepted_tasks(broker: Broker) -> None:
    """Reading the figures does not make submissions slower."""
    measures = Measures(broker.client, "test", 900)
    await measures.figures()
    assert not await broker.client.exists("{test}:watched")
    await measures.figures(count_accepted=True)
    assert await broker.client.exists("{test}:watched")
