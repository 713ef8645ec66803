"""A delay counts from the submission, by the clock of Redis; promotions end it in batches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from stores.queue.test_broker import fetch_one, in_an_hour, task

from nonet.base.messages.signing import Signer
from nonet.client.envelopes import Envelopes
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission
from nonet.stores.sql.database import Database
from nonet.stores.sql.outbox import Outbox
from nonet.tasks.registry import Registry
from nonet.tasks.task import BaseTask, Options
from nonet.testing.inline import _NoConfig

HOUR_US = 3_600_000_000
DELAYED = "{test}:tasks:delayed"


class Plain(BaseTask):
    async def execute(self) -> None: ...


def prepared(**options: Any) -> Submission:
    """What a client sends for a task with these options."""
    registry = Registry()
    registry.add(Plain, "probe")
    envelopes = Envelopes(registry, _NoConfig(), Signer(), message_limit=10_000)
    return envelopes.prepare(Plain(), Options(**options))


@pytest.mark.parametrize(
    ("options", "due"),
    [
        ({}, 0),
        ({"delay": 0}, 0),
        ({"delay": 1.5}, -1_500_000),
        ({"delay": timedelta(hours=1)}, -HOUR_US),
        ({"at_time": datetime(1970, 1, 1, 0, 1, tzinfo=UTC)}, 60_000_000),
        ({"at_time": datetime(1969, 1, 1, tzinfo=UTC)}, 0),
    ],
)
def test_a_delay_is_sent_as_a_delay(options: dict[str, Any], due: int) -> None:
    """The clock of the submitter has no part in it."""
    assert prepared(**options).due_us == due


async def due_in(broker: Broker, id: str) -> float:
    """Seconds of the logical time until a task is due."""
    score = await broker.client.zscore(DELAYED, id)
    return float(score) / 1e6 - (await broker.logical_now()).timestamp()


@pytest.mark.parametrize("correction_us", [0, HOUR_US])
async def test_a_delay_counts_from_the_submission(broker: Broker, correction_us: int) -> None:
    """Redis adds it to its own time, also after a step of its clock was corrected."""
    await broker.client.set("{test}:clock", correction_us)
    await broker.accept([task("later", due_us=-HOUR_US)])
    assert 3590 < await due_in(broker, "later") <= 3600


async def test_a_delay_after_the_end_of_a_task_counts_from_that(broker: Broker) -> None:
    """A task of `after_commit` is submitted by the settle."""
    await broker.accept([task("first")])
    await broker.settle(await fetch_one(broker), "done", submissions=[task("x", due_us=-HOUR_US)])
    assert 3590 < await due_in(broker, "x") <= 3600


async def test_a_row_keeps_the_instant(broker: Broker, tmp_path: Path) -> None:
    """What the relay hands over later must not wait anew."""
    database = Database(f"sqlite:///{tmp_path}/nonet.db")
    outbox = Outbox(database, broker, "test")
    before = datetime.now(UTC)
    await outbox.submit([task("kept", due_us=-HOUR_US)], ids_are_new=True)
    assert 3590 < await due_in(broker, "kept") <= 3600
    kept = await outbox.find("kept")
    assert kept is not None and kept.due is not None
    assert before <= kept.due - timedelta(hours=1) <= datetime.now(UTC)
    await database.close()


@pytest.mark.parametrize("number", [1_250, pytest.param(100_000, marks=pytest.mark.soak)])
async def test_many_due_tasks_are_promoted_in_bounded_batches(broker: Broker, number: int) -> None:
    """A call moves at most a batch, reports that more are left, and the last one ends."""
    due = await in_an_hour(broker)
    for start in range(0, number, 5000):
        ids = [f"task-{n}" for n in range(start, min(number, start + 5000))]
        await broker.submit([Submission(id, "p:T", "normal:small", b"e", due_us=due) for id in ids])
    await broker.client.zunionstore(DELAYED, {DELAYED: 0})
    moved, more = [], True
    while more:
        promoted = await broker.promote(batch=100)
        moved.append(promoted.moved)
        more = promoted.next_in == 0
        assert len(moved) <= number, "it never ends"
    full, rest = divmod(number, 100)
    assert moved == [100] * full + [rest] * bool(rest)
    entries = await broker.client.xrange("{test}:tasks:normal:small")
    assert {fields[b"id"].decode() for _, fields in entries} == {f"task-{n}" for n in range(number)}
    assert len(entries) == number
