"""The figures of a namespace and of its classes: what is counted, and what is estimated."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from redis import exceptions
from stores.beats import Reports

from nonet.base.errors import ServerUnreachableError
from nonet.rules.figures import RESOLUTIONS
from nonet.stores.connection.redis import script
from nonet.stores.namespace import figures
from nonet.stores.namespace.figures import Measures
from nonet.stores.namespace.history import History
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.leases import Counted
from nonet.stores.queue.submissions import Submission
from nonet.stores.queue.workflows import NewWorkflow, Workflows

LOCK = "M|lock:mutex:job:7|30000|||"
LATER = 4 * 10**15


@pytest.fixture
def history(broker: Broker) -> History:
    return History(broker.client, "test")


async def test_reports_of_workers_add_up(
    broker: Broker, reports: Reports, history: History
) -> None:
    """By minutes and by ten minutes; each slot expires."""
    more = {"m:A": {0: 1, 1: 1, 25: 1}, "m:B": {2: 70_000}}
    reports.add(Counted({"m:A": {0: 300, 4: 300}}), Counted(more))
    for since in (timedelta(minutes=30), timedelta(hours=5)):
        one, other = await history.figures(since=since)
        assert (one.name, one.total.ended, one.total.failed) == ("m:A", 301, 1)
        assert one.total.wait.p50 == pytest.approx(0.0005) and one.total.run.p50 is not None
        assert (other.name, other.total.retried, other.total.wait.p50) == ("m:B", 70_000, None)
        assert sum(item.figures.ended for item in one.series) == 301
        (found,) = await history.figures(since=since, task="B")
        assert found.total == other.total
    assert reports.offset == 0.0
    left = [await broker.client.ttl(key) for key in await broker.client.keys("{test}:figures:*")]
    assert len(left) == 3 and all(0 < seconds <= 173_400 for seconds in left)


async def test_a_report_counts_once(
    reports: Reports, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beat whose reply was lost sends it again; what was counted meanwhile comes after it."""
    client, lost = reports.leases._client, iter([True])
    client.script_load(script("add_figures")[0])
    run = client.evalsha

    def deaf(*args: Any) -> Any:
        answer = run(*args)
        if next(lost, False):
            raise exceptions.ConnectionError("the reply was lost")
        return answer

    monkeypatch.setattr(client, "evalsha", deaf)
    with pytest.raises(ServerUnreachableError):
        reports.add(Counted({"m:A": {0: 5}}))
    reports.add(Counted({"m:A": {0: 2}}))
    (found,) = await history.figures()
    assert found.total.ended == 7


async def test_classes_are_bounded(reports: Reports, history: History) -> None:
    """Beyond 200 in a slot they share one name."""
    many = {f"m:C{n}": {0: 1} for n in range(250)}
    reports.add(Counted(many), Counted({"m:C1": {0: 1}, "m:New": {0: 1}}))
    found = {item.name: item.total.ended for item in await history.figures()}
    assert len(found) == 201
    assert (found["m:C1"], found["others"]) == (2, 51)


def test_lua_and_python_agree_on_the_slots() -> None:
    """Their lengths, and how long they are kept."""
    pairs = ", ".join(f"{{{slot}, {kept}}}" for slot, kept in RESOLUTIONS)
    assert f"RESOLUTIONS = {{{pairs}}}" in script("add_figures")[0]


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
