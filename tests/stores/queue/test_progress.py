"""The progress of a running attempt in its record: who may write it, and who reads it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nonet.messages.message import ErrorDocument, encode
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.results import Results
from nonet.stores.queue.submissions import Submission
from nonet.tasks.handles import Progress

FAILED = encode(ErrorDocument("", "ValueError", "no", "", 1, 1e9))


async def fetched(broker: Broker) -> Delivery:
    """The next delivery."""
    ((found,), *_) = await broker.fetch("small-a", "small", 1)
    return found


@pytest.fixture
async def delivery(broker: Broker) -> Delivery:
    """A task that runs."""
    await broker.submit([Submission("a", "p:T", "normal:small", b"e")])
    return await fetched(broker)


async def progress_of(results: Results) -> Progress | None:
    """What status shows; the two ways to read it agree."""
    status = await results.status("a")
    assert status is not None
    assert (await results.progress("a"))[1] == status.progress
    return status.progress


async def test_the_newest_report_is_shown(
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


async def test_a_new_attempt_starts_without_progress(
    broker: Broker, results: Results, delivery: Delivery
) -> None:
    """Neither while it waits for its retry nor when it runs again."""
    await broker.report_progress(delivery, 0.9, "nearly")
    await broker.settle(delivery, "retry", FAILED, text="ValueError: no")
    assert await progress_of(results) is None
    again = await fetched(broker)
    assert await progress_of(results) is None
    await broker.report_progress(again, 0.1, "again")
    found = await progress_of(results)
    assert found is not None and found.fraction == 0.1


async def test_who_has_lost_the_delivery_cannot_report(
    broker: Broker, results: Results, delivery: Delivery
) -> None:
    """Neither beside the next attempt nor after the end, which leaves nothing behind."""
    await broker.settle(delivery, "retry", FAILED, text="ValueError: no")
    again = await fetched(broker)
    assert not await broker.report_progress(delivery, 0.9, "late")
    assert await progress_of(results) is None
    await broker.settle(again, "done", b"")
    assert not await broker.report_progress(again, 1.0, "too late")
    assert not await broker.client.exists("{test}:t:a")
    assert await results.progress("a") == (False, None)


async def test_the_record_stays_compact(broker: Broker, delivery: Delivery) -> None:
    """Also with the longest text: a value of more than 64 bytes would cost much more."""
    await broker.report_progress(delivery, 1 / 3, "x" * 60)
    assert await broker.client.object("ENCODING", "{test}:t:a") == b"listpack"
