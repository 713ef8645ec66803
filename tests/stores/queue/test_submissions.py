"""Simultaneous submissions share calls, without affecting each other."""

from __future__ import annotations

import asyncio

import pytest
from servers import RedisServer
from stores.namespace.test_ceilings import publish
from stores.queue.test_broker import make_broker

from nonet.base.errors import AdmissionRejected, LimitImpossible, ServerUnreachableError
from nonet.stores.queue.broker import Broker, Presence
from nonet.stores.queue.submissions import Accepted, Submission, chunks
from nonet.tasks.locks import RateLimiter, encode_locks

_IMPOSSIBLE = encode_locks([RateLimiter("job", 7, n_items=5, limit=2, window_seconds=60)])


def task(
    id: str, name: str = "probe:Task", stream: str = "normal:small", **more: str
) -> Submission:
    return Submission(id, name, stream, b"envelope", **more)  # type: ignore[arg-type]


async def calls(broker: Broker) -> int:
    """How many scripts Redis has run."""
    found = await broker.client.info("commandstats")
    return sum(found.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


async def known(broker: Broker, *ids: str) -> list[bool]:
    _, found = await broker.presence(ids)
    return [presence is not Presence.UNKNOWN for presence in found]


@pytest.mark.parametrize(
    ("lengths", "expected"), [([1] * 501, [500, 1]), ([400_000] * 3, [2, 1]), ([2**21], [1])]
)
def test_a_chunk_has_at_most_500_tasks_or_one_mebibyte(
    lengths: list[int], expected: list[int]
) -> None:
    """A task that is longer is a chunk of its own."""
    tasks = [Submission("a", "p:T", "normal:small", b"e" * length) for length in lengths]
    assert [len(chunk) for chunk in chunks(tasks)] == expected


async def test_callers_share_calls(broker: Broker) -> None:
    """Tasks that many callers submit at the same time are made by few calls, each once."""
    before = await calls(broker)
    answers = await asyncio.gather(*(broker.accept([task(f"t{n}")]) for n in range(1200)))
    assert answers == [[Accepted(f"t{n}", True)] for n in range(1200)]
    assert await calls(broker) - before <= 6  # the first one alone, then 500 at a time
    assert all(await known(broker, *(f"t{n}" for n in range(1200))))


async def test_a_lone_caller_waits_for_no_other(broker: Broker) -> None:
    """It makes one call for each task."""
    await asyncio.gather(*(broker.accept([task(f"c{n}")]) for n in range(20)))
    before = await calls(broker)
    for n in range(10):
        assert await broker.accept([task(f"t{n}")]) == [Accepted(f"t{n}", True)]
    assert await calls(broker) - before == 10


async def test_a_refusal_concerns_its_caller(broker: Broker) -> None:
    """A call above a ceiling, or with an impossible task, is refused as a whole, and no other."""
    await publish(broker, {"task:probe:Scarce": 3})
    bad = task("bad", locks=_IMPOSSIBLE)
    scarce = [[task(f"s{n}-{i}", "probe:Scarce") for i in range(2)] for n in range(4)]
    plenty = [[task(f"p{n}")] for n in range(20)]
    chunks = [*plenty[:10], *scarce, [task("b"), bad], [bad], *plenty[10:]]
    answers = await asyncio.gather(*map(broker.accept, chunks), return_exceptions=True)
    assert all(isinstance(answer, list) for answer in [*answers[:10], *answers[16:]])
    refused = [answer for answer in answers[10:14] if isinstance(answer, AdmissionRejected)]
    assert {(error.scope, error.wanted, error.accepted) for error in refused} == {
        ("task:probe:Scarce", 2, 0)
    }
    made = [await known(broker, *(item.id for item in chunk)) for chunk in scarce]
    assert sorted(made) == [[False, False]] * 3 + [[True, True]]
    assert [type(answer) for answer in answers[14:16]] == [LimitImpossible] * 2
    assert await known(broker, "b", "bad") == [False, False]


async def test_a_cancelled_caller_disturbs_no_other(broker: Broker) -> None:
    """What had not been sent yet is not submitted."""
    first = asyncio.create_task(broker.accept([task("first")]))
    others = [asyncio.create_task(broker.accept([task(f"t{n}")])) for n in range(10)]
    await asyncio.sleep(0)  # the first call is under way, the others wait for its answer
    first.cancel()
    others[3].cancel()
    answers = await asyncio.gather(*others, return_exceptions=True)
    assert isinstance(answers.pop(3), asyncio.CancelledError)
    assert all(answer[0].created for answer in answers)  # type: ignore[index]
    assert (await broker.accept([task("t3")]))[0].created


@pytest.mark.server
async def test_every_caller_learns_that_redis_is_gone() -> None:
    """Later ones submit again."""
    with RedisServer() as server:
        broker = make_broker(server.url)
        try:
            assert (await broker.accept([task("before")]))[0].created
            server.stop()
            answers = await asyncio.gather(
                *(broker.accept([task(f"t{n}")]) for n in range(20)), return_exceptions=True
            )
            assert {type(answer) for answer in answers} == {ServerUnreachableError}
            server.start()
            assert (await broker.accept([task("after")]))[0].created
        finally:
            await broker.aclose()
