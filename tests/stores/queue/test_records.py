"""Records: what a queued task takes, and records of older releases."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from nonet.messages.message import VERSION, Envelope, decode_envelope, encode
from nonet.rules.diagnosis import examine
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.records import read_envelopes
from nonet.stores.queue.submissions import Submission

STREAM = "{test}:tasks:normal:small"
NAME = "probe_tasks:Probe"


def an_envelope(id: str, **arguments: object) -> bytes:
    return encode(Envelope(VERSION, id, NAME, arguments, {}, 1795211645.25))


def a_task(id: str, envelope: bytes, name: str = NAME) -> Submission:
    return Submission(id, name, "normal:small", envelope)


async def handed_over(broker: Broker) -> dict[str, bytes]:
    deliveries, _ = await broker.fetch("small-a1", "small", 1000)
    return {each.id: each.envelope for each in deliveries}


async def test_a_small_task_takes_at_most_400_bytes(broker: Broker) -> None:
    """A task with few arguments is a compact record, its envelope and a stream entry."""
    ids = [f"{n:020}" for n in range(500)]
    await broker.submit([a_task(id, an_envelope(id, number=int(id))) for id in ids])
    kinds = {key.decode()[7:9] for key in await broker.client.keys("{test}:*:0*")}
    assert kinds == {"t:", "b:"}
    key = f"{{test}}:t:{7:020}"
    assert await broker.client.object("encoding", key) == b"listpack"
    used = await broker.client.memory_usage(key)
    used += await broker.client.memory_usage(f"{{test}}:b:{7:020}")
    used += await broker.client.memory_usage(STREAM, samples=0) / 500
    assert used <= 400


async def test_a_large_envelope_leaves_its_record_compact(broker: Broker) -> None:
    """Its key is its own: Redis stores records with long fields less compactly."""
    large = an_envelope("a", text="x" * 100)
    await broker.submit([a_task("a", large)])
    assert await broker.client.get("{test}:b:a") == large
    assert await broker.client.object("encoding", "{test}:t:a") == b"listpack"
    assert await handed_over(broker) == {"a": large}


def shortened(id: str, envelope: bytes) -> bytes:
    """The field b of a record as releases before 0.1.0 wrote it."""
    head = bytes((160 + len(id),)) + id.encode() + bytes((160 + len(NAME),)) + NAME.encode()
    assert envelope[2:].startswith(head)
    body = envelope[2 + len(head) :].rstrip(b"\xa0")
    empty = len(envelope) - 2 - len(head) - len(body)
    if envelope.startswith(b"\x99\x01"):
        return bytes((ord("A") + empty,)) + body
    return bytes((ord("0") + empty,)) + envelope[:2] + body


@pytest.mark.parametrize("start", [b"\x99\x01", b"\x99\x02"])
@pytest.mark.parametrize("is_shortened", [True, False])
async def test_an_envelope_in_a_record_is_handed_over(
    broker: Broker, start: bytes, is_shortened: bool
) -> None:
    """Releases before 0.1.0 kept short envelopes in the record, mostly shortened."""
    whole = start + an_envelope("a")[2:]
    await broker.submit([a_task("a", whole)])
    await broker.client.delete("{test}:b:a")
    kept = shortened("a", whole) if is_shortened else b"+" + whole
    await broker.client.hset("{test}:t:a", "b", kept)
    assert await read_envelopes(broker.client, broker.prefix, ["a"]) == [whole]
    assert await handed_over(broker) == {"a": whole}


async def test_a_record_of_the_version_before_is_executed(broker: Broker) -> None:
    """What was queued before an upgrade is handed over, may wait and ends as ever."""
    gen = "1795211645116863"
    entry = await broker.client.xadd(STREAM, {"id": "old", "gen": gen})
    old = {"state": "queued", "gen": gen, "name": NAME, "stream": "normal:small", "attempt": 0}
    old |= {"ticket": gen, "group": "", "pointer": f"tasks:normal:small {entry.decode()}"}
    await broker.client.hset("{test}:t:old", mapping=old)
    await broker.client.set("{test}:b:old", b"its envelope")
    deliveries, _ = await broker.fetch("small-a1", "small", 10)
    assert [(each.id, each.envelope, each.attempt) for each in deliveries] == [
        ("old", b"its envelope", 1)
    ]
    assert await broker.settle(deliveries[0], "done") == "OK"
    assert await broker.client.exists("{test}:t:old", "{test}:b:old") == 0


@pytest.mark.parametrize("is_late", [False, True])
async def test_its_place_is_known(broker: Broker, is_late: bool) -> None:
    """Of what is queued the doctor finds the entry, also if the stream is ahead of the clock."""
    if is_late:
        await broker.client.xadd(STREAM, {"id": "x", "gen": "1"}, id="9999999999999-0")
    await broker.submit([a_task("a", an_envelope("a"))])
    assert ("pointer" in await fields_of(broker, "a")) is is_late
    rows = [row async for row in Inspection(broker, "test").rows()]
    (entry,) = [row for row in rows if row[0] == "entry" and row[3] == "a"]
    assert entry[4:] == [1, 1]
    await broker.cancel(["a"], "by a test")
    assert len(await broker.client.xrange(STREAM)) == is_late


async def test_it_keeps_its_place_in_line(broker: Broker) -> None:
    """The time of its submission is known in its first delivery, and after it was handed back."""
    await broker.submit([a_task("a", an_envelope("a"))])
    first = (await fields_of(broker, "a"))["gen"]
    assert "ticket" not in await fields_of(broker, "a")
    (delivery,), _ = await broker.fetch("small-a1", "small", 1)
    await broker.settle(delivery, "back")
    found = await fields_of(broker, "a")
    assert found["ticket"] == first
    assert found["gen"] != first


async def fields_of(broker: Broker, id: str) -> dict[str, str]:
    found = await broker.client.hgetall(f"{{test}}:t:{id}")
    return {name.decode(): value.decode(errors="replace") for name, value in found.items()}


def test_what_is_left_out_is_what_an_envelope_begins_with() -> None:
    """The id and the name stand where the scripts look for them."""
    envelope = an_envelope("a" * 20)
    assert envelope[:2] == b"\x99\x01"
    assert envelope[2:].startswith(b"\xb4" + b"a" * 20 + b"\xb1" + NAME.encode())
    assert decode_envelope(envelope).name == NAME


async def test_who_waits_is_not_in_the_place_of_its_neighbour(broker: Broker) -> None:
    """Of tasks made together each has an entry of its own, also when one is put back."""
    await broker.submit([a_task(f"a{n}", an_envelope(f"a{n}")) for n in range(3)])
    (first,), _ = await broker.fetch("small-a1", "small", 1)
    await broker.settle(first, "retry", text="later", delay=timedelta(minutes=10))
    rows = [row async for row in Inspection(broker, "test").rows()]
    problems = [found for row in rows if (found := examine(row, lease=60))]
    assert {found.kind for found in problems} <= {"worker"}, "small-a1 never beats"


@pytest.mark.parametrize("submitter", ["plain", "unique|done|0|ff"])
async def test_an_id_is_no_term(broker: Broker, submitter: str) -> None:
    """Who submits is named among the terms, and may have any id."""
    item = a_task("{}", b"envelope")
    children = [
        msgspec.structs.replace(item, id=f"c{n}", terms=f"by|{submitter}") for n in range(3)
    ]
    assert await broker.submit(children) == [True] * 3
