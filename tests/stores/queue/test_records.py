"""Records: what a queued task takes, and where it stands."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
import records
from stores.queue.test_broker import record

from nonet.base.messages.formats import FORMAT
from nonet.base.messages.message import Envelope, encode
from nonet.rules.findings.diagnosis import examine
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.submissions import Submission

STREAM = "{test}:tasks:normal:small"
NAME = "probe_tasks:Probe"


def an_envelope(id: str, **arguments: object) -> bytes:
    return encode(Envelope(FORMAT, id, NAME, arguments, {}, 1795211645.25))


def a_task(id: str, envelope: bytes, name: str = NAME) -> Submission:
    return Submission(id, name, "normal:small", envelope)


async def handed_over(broker: Broker) -> dict[str, bytes]:
    deliveries, _ = await broker.fetch("small-a1", "small", 1000)
    return {each.id: each.envelope for each in deliveries}


@pytest.mark.parametrize("length", [10, 5000])
async def test_a_long_envelope_has_a_key_of_its_own(broker: Broker, length: int) -> None:
    """A record is written several times, an envelope once; both are gone with the task."""
    envelope = an_envelope("a", text="x" * length)
    await broker.submit([a_task("a", envelope)])
    assert await broker.client.get("{test}:b:a") == (envelope if length > 1024 else None)
    assert await broker.client.strlen("{test}:t:a") < 1024
    assert await handed_over(broker) == {"a": envelope}
    await broker.submit([a_task("b", envelope)])
    await broker.cancel(["b"], "by a test")
    assert await broker.client.exists("{test}:b:b", "{test}:t:b") == 0


@pytest.mark.parametrize("terms", ["", "tenant|a", "unique|done|0|ff", "start_by|+60000000|1"])
async def test_an_envelope_arrives_as_it_was_sent(broker: Broker, terms: str) -> None:
    """Whatever fields of the record stand before it."""
    item = a_task("a", an_envelope("a"))
    await broker.submit(
        [msgspec.structs.replace(item, terms=terms, locks="M|lock:mutex:job:1||||")]
    )
    assert await handed_over(broker) == {"a": an_envelope("a")}


async def test_fields_survive_each_other(broker: Broker) -> None:
    """Whatever bytes they have; an empty one is removed."""
    await broker.submit([a_task("a", an_envelope("a"))])
    odd = {"error": b"\n\n+\xff 9", "locks": b"M|lock:mutex:job:1||||", "tenant": b"t"}
    await records.hset(broker.client, "{test}:t:a", mapping=odd)
    await records.hset(broker.client, "{test}:t:a", mapping={"since": "7", "reserved": ""})
    found = records.paired(await records.hgetall(broker.client, "{test}:t:a"))
    assert found == found | {name.encode(): value for name, value in odd.items()}
    assert found[b"since"] == b"7" and b"reserved" not in found
    assert await records.hget(broker.client, "{test}:t:a", "envelope") == an_envelope("a")


@pytest.mark.parametrize("is_late", [False, True])
async def test_the_entry_of_a_queued_task_is_known(broker: Broker, is_late: bool) -> None:
    """The doctor finds it, also if the stream is ahead of the clock."""
    if is_late:
        await broker.client.xadd(STREAM, {"id": "x", "gen": "1"}, id="9999999999999-0")
    await broker.submit([a_task("a", an_envelope("a"))])
    assert ("pointer" in await record(broker, "a")) is is_late
    rows = [row async for row in Inspection(broker, "test").rows()]
    (entry,) = [row for row in rows if row[0] == "entry" and row[3] == "a"]
    assert entry[4:] == [1, 1]
    await broker.cancel(["a"], "by a test")
    assert len(await broker.client.xrange(STREAM)) == is_late


async def test_tasks_made_together_have_entries_of_their_own(broker: Broker) -> None:
    """Also when one is put back."""
    await broker.submit([a_task(f"a{n}", an_envelope(f"a{n}")) for n in range(3)])
    (first,), _ = await broker.fetch("small-a1", "small", 1)
    await broker.settle(first, "retry", text="later", delay=timedelta(minutes=10))
    rows = [row async for row in Inspection(broker, "test").rows()]
    problems = [found for row in rows if (found := examine(row, lease=60))]
    assert {found.kind for found in problems} <= {"worker"}, "small-a1 never beats"


@pytest.mark.parametrize("submitter", ["plain", "unique|done|0|ff"])
async def test_any_id_may_submit(broker: Broker, submitter: str) -> None:
    """The submitter is named among the terms, and its id may look like one."""
    item = a_task("{}", b"envelope")
    children = [
        msgspec.structs.replace(item, id=f"c{n}", terms=f"by|{submitter}") for n in range(3)
    ]
    assert await broker.submit(children) == [True] * 3
