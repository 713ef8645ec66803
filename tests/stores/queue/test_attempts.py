"""What status and explain report of attempts: progress, crashes and resources that they used."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from clients import client_of

from nonet.base.errors import MemoryLimitExceeded, NonetError, TaskCrashed
from nonet.base.messages.message import ErrorDocument, ResultDocument, Usage, encode
from nonet.rules.findings.explanation import explain
from nonet.rules.outcomes import CRASH_LIMIT
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.results import Results
from nonet.stores.queue.submissions import Submission
from nonet.tasks.handles import Progress
from nonet.tasks.registry import Registry

FAILED = encode(ErrorDocument("", "ValueError", "no", "", 1, 1e9))

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


async def test_a_crash_is_shown_while_its_retry_waits(
    broker: Broker, results: Results, delivery: Delivery
) -> None:
    """Status has the whole reason; explain counts the crashes."""
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


async def test_an_unreadable_document_is_left_out(
    broker: Broker, results: Results, delivery: Delivery
) -> None:
    """The record still shows the error."""
    await broker.settle(delivery, "crash", b"\xc1", text="TaskCrashed: x", delay=SOON)
    found = await results.status("a")
    assert found is not None
    assert (found.error, found.crashes, found.usage) == ("TaskCrashed: x", 1, None)
    told = explain(await TaskFacts(broker.client, "test").read("a"))
    assert "attempt 2. The last attempt failed: TaskCrashed: x" in told.text


async def test_a_dying_and_a_dead_task_keep_the_usage(
    broker: Broker, results: Results, delivery: Delivery
) -> None:
    """Of the last attempt, with its error; an end also keeps crashes and deaths."""
    await broker.settle(delivery, "dying", failure(TaskCrashed(signal=11), attempt=3))
    found = await results.status("a")
    assert found is not None
    assert (found.state, found.attempt, found.usage) == ("dying", 3, USAGE)
    assert found.error == "TaskCrashed: its process was killed by signal 11 (SIGSEGV)"
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


async def progress_of(results: Results) -> Progress | None:
    """What status shows; the two ways to read it agree."""
    status = await results.status("a")
    assert status is not None
    assert (await results.progress("a"))[1] == status.progress
    return status.progress


async def test_the_last_report_is_shown(
    broker: Broker, results: Results, delivery: Delivery
) -> None:
    """With the time of Redis; a fraction may be unknown."""
    assert await progress_of(results) is None
    assert await broker.report_progress(delivery, 1 / 3, "page 1")
    first = await progress_of(results)
    assert first is not None and (first.fraction, first.text) == (0.3333, "page 1")
    assert abs(first.at - datetime.now(UTC)) < timedelta(minutes=1)
    assert await broker.report_progress(delivery, None, "")
    second = await progress_of(results)
    assert second is not None and (second.fraction, second.text) == (None, "")
    listed = [item.progress async for item in results.live()]
    assert listed == [second]


async def test_only_the_owner_of_a_task_adds_to_its_log(broker: Broker, delivery: Delivery) -> None:
    """Lines of the last 20 attempts are kept, for a time; another task with the id begins anew."""
    await broker.client.hset("{test}:l:a", 7, "of an earlier task")
    for attempt in range(1, 23):
        assert await broker.keep_log(delivery, attempt, f"line {attempt}", 60)
    assert await broker.logs("a") == {n: f"line {n}" for n in range(3, 23)}
    assert 0 < await broker.client.ttl("{test}:l:a") <= 60
    await broker.settle(delivery, "retry", FAILED, text="ValueError: no")
    assert not await broker.keep_log(delivery, 1, "late", 60)
    assert len(await broker.logs("a")) == 20


async def test_a_new_attempt_starts_without_progress(
    broker: Broker, results: Results, delivery: Delivery
) -> None:
    """The attempt before can no longer report, nor can any after the end."""
    await broker.report_progress(delivery, 0.9, "nearly")
    await broker.settle(delivery, "retry", FAILED, text="ValueError: no")
    assert await progress_of(results) is None
    ((again,), *_) = await broker.fetch("small-a", "small", 1)
    assert not await broker.report_progress(delivery, 0.9, "late")
    assert await progress_of(results) is None
    await broker.report_progress(again, 0.1, "again")
    found = await progress_of(results)
    assert found is not None and found.fraction == 0.1
    await broker.settle(again, "done", b"")
    assert not await broker.report_progress(again, 1.0, "too late")
    assert not await broker.client.exists("{test}:t:a")
    assert await results.progress("a") == (False, None)


@pytest.mark.parametrize(("share", "text"), [(0.3333, "half"), (0.3334, "half"), (0.3333, "end")])
async def test_the_last_report_is_followed_once(
    broker: Broker, delivery: Delivery, share: float, text: str
) -> None:
    """The end brings it, unless the follower has seen it already, at another time."""
    await broker.report_progress(delivery, 1 / 3, "half")
    reports = client_of(broker, Registry()).progress("a")
    seen = [await anext(reports)]
    document = ResultDocument("p:T", 1, 1e9, progress=share, doing=text)
    await broker.settle(delivery, "done", encode(document))
    seen += [item async for item in reports]
    said = [(item.fraction, item.text) for item in seen]
    assert said == list(dict.fromkeys([(0.3333, "half"), (share, text)]))
