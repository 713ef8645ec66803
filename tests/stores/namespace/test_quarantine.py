"""The quarantine of what is no task: bounded, and each entry is retried once."""

from __future__ import annotations

import pytest

from nonet.base.errors import BrokerFullError, NotFoundError
from nonet.base.messages.repetition import repeat_of_entry
from nonet.stores.namespace.quarantine import Quarantine, Quarantined
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.submissions import Submission

NORMAL = "{test}:tasks:normal:small"
KIB = 1024


@pytest.fixture
def quarantine(broker: Broker) -> Quarantine:
    return Quarantine(broker, "test")


async def entries(quarantine: Quarantine) -> list[Quarantined]:
    return [item async for item in quarantine.newest(100_000)]


async def garbage(broker: Broker, data: bytes) -> None:
    """One entry that is no pointer, read by a fetch."""
    await broker.client.xadd(NORMAL, {b"data": data})
    await broker.fetch("small-a", "small", 1)


async def delivered(broker: Broker, id: str, envelope: bytes) -> Delivery:
    await broker.submit([Submission(id, "probes:Quick", "normal:small", envelope)])
    ((delivery,), _) = await broker.fetch("small-a", "small", 1)
    return delivery


def repeat(entry: str, envelope: bytes) -> Submission:
    """The task that an entry becomes."""
    made = repeat_of_entry("test", entry)
    return Submission(made.id, "probes:Quick", "normal:small", envelope, terms=made.term)


async def test_an_entry_has_reason_and_origin(broker: Broker, quarantine: Quarantine) -> None:
    """And the time, size and bytes of what is no pointer to a task."""
    at = await broker.now()
    entry = await broker.client.xadd(NORMAL, {b"data": b"\x80pickle"})
    await broker.fetch("small-a", "small", 1)
    (item,) = await entries(quarantine)
    assert (item.reason, item.task_id, item.size) == ("not a task pointer", "", 11)
    assert (item.stream, item.stream_entry) == (NORMAL, entry.decode())
    assert b"\x80pickle" in item.data
    assert item.is_whole
    assert at <= item.at <= await broker.now()
    assert await quarantine.get(item.entry) == item


async def test_an_envelope_is_kept_once(broker: Broker, quarantine: Quarantine) -> None:
    """However often a worker reads it."""
    delivery = await delivered(broker, "a", b"\xc1no task")
    await broker.quarantine(delivery, "not msgpack")
    await broker.quarantine(delivery, "not msgpack")
    (item,) = await entries(quarantine)
    assert (item.reason, item.task_id, item.data) == ("not msgpack", "a", b"\xc1no task")
    assert item.stream == NORMAL
    await broker.settle(delivery, "dead", b"")
    await broker.quarantine(delivery, "too late")
    assert len(await entries(quarantine)) == 1


@pytest.mark.parametrize(("size", "kept"), [(256 * KIB, 256 * KIB), (256 * KIB + 1, 64 * KIB)])
async def test_a_long_one_is_cut(
    broker: Broker, quarantine: Quarantine, size: int, kept: int
) -> None:
    """Up to 256 KiB are kept whole; of more, 64 KiB and the size."""
    delivery = await delivered(broker, "a", b"x" * size)
    await broker.quarantine(delivery, "too long")
    (item,) = await entries(quarantine)
    assert (item.size, len(item.data), item.is_whole) == (size, kept, size == kept)


async def test_long_entries_are_cut(broker: Broker, quarantine: Quarantine) -> None:
    """A field of 10 MB, and 100,000 fields, take little room as evidence."""
    await garbage(broker, b"x" * 10_000_000)
    await broker.client.execute_command("XADD", NORMAL, "*", *([b"f", b"v"] * 50_000))
    await broker.fetch("small-a", "small", 1)
    many, long = await entries(quarantine)
    assert (long.size, long.is_whole) == (10_000_004, False)
    assert len(long.data) <= 64 * KIB + 10
    assert many.size == 100_000
    assert len(many.data) <= 64 * KIB


async def test_the_oldest_entries_give_way(broker: Broker, quarantine: Quarantine) -> None:
    """All together hold at most 32 MiB, and the count of bytes is exact."""
    for number in range(140):
        await garbage(broker, b"%03d" % number + bytes(250 * KIB))
    items = await entries(quarantine)
    held = sum(len(item.data) for item in items)
    assert 31 * KIB * KIB < held <= 32 * KIB * KIB
    assert int(await broker.client.get("{test}:quarantine:bytes")) == held
    assert b"139\0" in items[0].data
    assert await quarantine.discard([item.entry for item in items], "me") == [True] * len(items)
    assert int(await broker.client.get("{test}:quarantine:bytes")) == 0


async def test_entries_are_at_most_ten_thousand(broker: Broker, quarantine: Quarantine) -> None:
    """Small entries are bounded by their number."""
    async with broker.client.pipeline(transaction=False) as pipe:
        for number in range(10_050):
            pipe.xadd(NORMAL, {b"data": b"%d" % number})
        await pipe.execute()
    for _ in range(60):
        await broker.fetch("small-a", "small", 1)
    assert await broker.client.xlen(NORMAL) == 0
    items = await entries(quarantine)
    assert len(items) == 10_000
    assert b"10049" in items[0].data


async def test_a_retry_executes_once(broker: Broker, quarantine: Quarantine) -> None:
    """The entry becomes a task in one step; a repetition answers its state."""
    await garbage(broker, b"x")
    (item,) = await entries(quarantine)
    task = repeat(item.entry, b"better")
    assert await quarantine.retry(item.entry, task, "me@here 1") == ""
    assert await quarantine.retry(item.entry, task, "me@here 1") == "queued"
    deliveries, _ = await broker.fetch("small-a", "small", 5)
    assert [(d.id, d.envelope) for d in deliveries] == [(task.id, b"better")]
    assert await entries(quarantine) == []
    events = [fields for _, fields in await broker.client.xrange("{test}:events")]
    assert [fields[b"kind"] for fields in events] == [b"quarantine-retry"]
    assert item.entry.encode() in events[0][b"text"]
    other = Submission("q-1-1", "probes:Quick", "normal:small", b"")
    with pytest.raises(NotFoundError, match="no entry 1-1"):
        await quarantine.retry("1-1", other, "me")


@pytest.mark.parametrize(
    ("outcome", "stays"), [("done", False), ("back", False), ("dying", True), ("dead", True)]
)
async def test_an_entry_stays_if_its_task_has_failed(
    broker: Broker, quarantine: Quarantine, outcome: str, stays: bool
) -> None:
    """Its bytes are the only ones left then."""
    await garbage(broker, b"x")
    (item,) = await entries(quarantine)
    task = repeat(item.entry, b"better")
    await broker.submit([task])
    ((delivery,), _) = await broker.fetch("small-a", "small", 1)
    await broker.settle(delivery, outcome, b"")
    state = {"back": "queued"}.get(outcome, outcome)
    assert await quarantine.retry(item.entry, task, "me") == state
    assert bool(await entries(quarantine)) is stays
    kinds = [fields[b"kind"] for _, fields in await broker.client.xrange("{test}:events")]
    assert kinds == ([] if stays else [b"quarantine-retry"])


async def test_a_discard_is_one_event(broker: Broker, quarantine: Quarantine) -> None:
    """For each call; the count of what was put there stays."""
    for _ in range(3):
        await garbage(broker, b"x")
    newest, *others = await entries(quarantine)
    await quarantine.discard([newest.entry], "me")
    await quarantine.discard([item.entry for item in others], "me")
    await quarantine.discard(["1-1"], "me")
    events = [fields for _, fields in await broker.client.xrange("{test}:events")]
    assert [fields[b"kind"] for fields in events] == [b"quarantine-discard"] * 2
    assert events[0][b"text"].decode() == f"entry {newest.entry}"
    assert events[1][b"text"].startswith(b"2 entries")
    assert await quarantine.count_since_loss() == 3


@pytest.mark.parametrize("entry", ["", "-", "+", "x", "1-1-1", "1 - 1", f"{2**64}-0"])
async def test_a_wrong_id_is_refused(quarantine: Quarantine, entry: str) -> None:
    """A range or a typing error never means more than one entry."""
    with pytest.raises(NotFoundError, match="an id looks like"):
        await quarantine.get(entry)
    with pytest.raises(NotFoundError, match="an id looks like"):
        await quarantine.discard([entry], "me")


async def test_a_full_memory_keeps_evidence(broker: Broker, quarantine: Quarantine) -> None:
    """But nothing is submitted again."""
    delivery = await delivered(broker, "a", b"\xc1")
    await broker.client.config_set("maxmemory", 1)
    try:
        await broker.quarantine(delivery, "not msgpack")
        (item,) = await entries(quarantine)
        task = repeat(item.entry, b"better")
        with pytest.raises(BrokerFullError, match="out of memory"):
            await quarantine.retry(item.entry, task, "me")
    finally:
        await broker.client.config_set("maxmemory", 0)
