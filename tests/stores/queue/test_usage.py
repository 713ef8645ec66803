"""What status and explain tell of attempts that crashed, and of what attempts took."""

from __future__ import annotations

from datetime import timedelta

import pytest

from nonet.base.errors import MemoryLimitExceeded, NonetError, TaskCrashed
from nonet.messages.message import ErrorDocument, ResultDocument, Usage, encode
from nonet.rules.explanation import explain
from nonet.rules.outcomes import CRASH_LIMIT
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.results import Results
from nonet.stores.queue.submissions import Submission

USAGE = Usage(1.5, 0.25, 200 * 2**20)
SOON = timedelta(seconds=20)


@pytest.fixture
async def delivery(broker: Broker) -> Delivery:
    """A task that runs."""
    await broker.submit([Submission("a", "p:T", "normal:small", b"e")])
    ((found,), *_) = await broker.fetch("small-a", "small", 1)
    return found


def failure(error: NonetError, attempt: int = 1) -> bytes:
    name = type(error).__name__
    return encode(ErrorDocument("", name, str(error), "", attempt, 1e9, USAGE))


async def test_a_crash_is_told_while_its_retry_waits(
    broker: Broker, results: Results, delivery: Delivery
) -> None:
    """Status has the whole reason, which the record has no room for, and explain counts crashes."""
    error = MemoryLimitExceeded(allowed=512 * 2**20)
    text = f"MemoryLimitExceeded: {error}"
    assert len(text) > 60
    await broker.settle(delivery, "crash", failure(error), text=text, delay=SOON)
    found = await results.status("a")
    assert found is not None
    assert (found.state, found.error, found.crashes, found.usage) == ("delayed", text, 1, USAGE)
    told = explain(await TaskFacts(broker.client, "test").read("a"))
    assert told.cause == "retry"
    crash = f"for attempt 2. The last attempt failed: {text} (crash 1 of {CRASH_LIMIT})"
    assert told.text.endswith(crash)


async def test_a_document_that_cannot_be_read_leaves_what_the_record_has(
    broker: Broker, results: Results, delivery: Delivery
) -> None:
    """A later version may have written it."""
    await broker.settle(delivery, "crash", b"\xc1", text="TaskCrashed: x", delay=SOON)
    found = await results.status("a")
    assert found is not None
    assert (found.error, found.crashes, found.usage) == ("TaskCrashed: x", 1, None)
    told = explain(await TaskFacts(broker.client, "test").read("a"))
    assert "attempt 2. The last attempt failed: TaskCrashed: x" in told.text


async def test_a_dying_task_tells_its_last_attempt(
    broker: Broker, results: Results, delivery: Delivery
) -> None:
    """Not the attempt before."""
    await broker.settle(delivery, "dying", failure(TaskCrashed(signal=11), attempt=3))
    found = await results.status("a")
    assert found is not None
    assert (found.state, found.attempt, found.usage) == ("dying", 3, USAGE)
    assert found.error == "TaskCrashed: its process was killed by signal 11 (SIGSEGV)"


async def test_an_ended_task_keeps_what_it_took_and_what_died_with_it(
    broker: Broker, results: Results, delivery: Delivery
) -> None:
    """For as long as its result is kept."""
    document = ResultDocument(
        "p:T", 3, 1e9, error_type="TaskCrashed", usage=USAGE, crashes=3, deaths=2
    )
    await broker.settle(delivery, "dead", encode(document))
    found = await results.status("a")
    assert found is not None
    assert (found.usage, found.crashes, found.worker_deaths) == (USAGE, 3, 2)


async def test_the_death_of_a_shared_process_uses_no_attempt(
    broker: Broker, results: Results, delivery: Delivery
) -> None:
    """It is no crash either; the next delivery says that the task is a suspect."""
    assert await broker.settle(delivery, "suspect", b"", text="its fork server ended") == "OK"
    found = await results.status("a")
    assert found is not None
    assert (found.state, found.worker_deaths, found.crashes) == ("queued", 0, 0)
    ((again,), *_) = await broker.fetch("small-a", "small", 1, room=1)
    assert (again.used, again.suspect, again.crashes) == (0, 1, 0)
