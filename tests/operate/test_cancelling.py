"""Cancelling many tasks by a filter: the estimate, and later tasks, which stay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nonet import BaseTask, Nonet
from nonet.operate import tasks as operate_tasks
from nonet.operate.tasks import cancel_many, preview_cancel
from nonet.stores.queue.places import UNFINISHED, TaskFilter


class Sweep(BaseTask):
    number: int = 0

    async def execute(self) -> None: ...


class Other(Sweep): ...


class Kept(Sweep):
    durable = True


TASKS = (Sweep, Other, Kept)

SWEEPS = TaskFilter("test:Sweep", {}, UNFINISHED)


async def test_later_tasks_are_left_alone(nonet: Nonet) -> None:
    """Only what existed at the moment of the estimate is cancelled: queued and delayed tasks."""
    later = datetime.now(UTC) + timedelta(hours=1)
    both = [Sweep(1), Sweep(2).with_options(at_time=later)]
    before = await nonet.submit_many(both)
    found = await preview_cancel(nonet.client, SWEEPS)
    assert (found.number, found.is_exact) == (2, True)
    assert {item.id for item in found.sample} == {str(id) for id in before}
    after = await nonet.submit_many(both)
    done = await cancel_many(nonet.client, SWEEPS, found.moment, "too many")
    assert (done.number, done.is_complete) == (2, True)
    assert [(await nonet.status(id)).state for id in before] == ["cancelled"] * 2
    assert [(await nonet.status(id)).state for id in after] == ["queued", "delayed"]


async def test_later_durable_tasks_are_left_alone(nonet: Nonet) -> None:
    """Rows in SQL that were stored after the moment stay."""
    selection = TaskFilter("test:Kept", {}, UNFINISHED)
    rows = await nonet.stores.outbox()

    async def store(id: str) -> None:  # as a transaction that is committed: Redis does not know it
        async with rows._database.engine.begin() as transaction:
            await nonet.submit(Kept(), id=id, transaction=transaction)

    await rows.prepare()
    await store("old")
    found = await preview_cancel(nonet.client, selection)
    await store("new")
    done = await cancel_many(nonet.client, selection, found.moment)
    assert done.number == 1
    assert (await nonet.status("old")).state == "cancelled"
    assert (await nonet.status("new")).state == "delayed"


async def test_an_estimate_scales_what_it_examined(
    nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long list is estimated from its first part: half of it matches, so half of all do."""
    monkeypatch.setattr(operate_tasks, "_BUDGET", 20)
    tasks: list[BaseTask] = [(Other, Sweep)[number % 2](number) for number in range(600)]
    await nonet.submit_many(tasks)
    found = await preview_cancel(nonet.client, SWEEPS)
    assert not found.is_exact
    assert found.number == pytest.approx(300, rel=0.5)


async def test_a_long_cancellation_is_continued(
    nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call ends when its time is over; the next one with the same moment cancels the rest."""
    monkeypatch.setattr(operate_tasks, "_SECONDS", 0.0)
    await nonet.submit_many([Sweep(number) for number in range(600)])
    found = await preview_cancel(nonet.client, SWEEPS)
    first = await cancel_many(nonet.client, SWEEPS, found.moment)
    assert not first.is_complete
    assert 0 < first.number < 600
    monkeypatch.setattr(operate_tasks, "_SECONDS", 60.0)
    rest = await cancel_many(nonet.client, SWEEPS, found.moment)
    assert rest.is_complete
    assert first.number + rest.number == 600
