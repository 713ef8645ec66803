"""A tenant moves to another namespace: nothing is lost or doubled, and no lock is held in both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import pytest

from nonet import BaseTask, ConfigurationError, ConflictError, Nonet, Size, Unique
from nonet.client.parts import Parts
from nonet.config.models import Config
from nonet.config.settings import plain_settings
from nonet.operate.moving import Progress, begin
from nonet.scheduler.arrivals import Arrivals
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.locks import MutexLock

ROUTES = {"lhcb": "a", "*": "main"}
WHO = "ann@host 7"
HOUR = timedelta(hours=1)


@dataclass
class Free(BaseTask):
    vo: str
    n: int = 0

    size = Size.SMALL

    async def execute(self) -> int:
        return self.n


class Locked(Free):
    @property
    def execution_locks(self) -> list[MutexLock]:
        return [MutexLock("job", 7)]


class Once(Free):
    unique = Unique.until_done()


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[Nonet]:
    nonet = Nonet(plain_settings(redis_url=redis_url, namespace="main"))
    for cls in (Free, Locked, Once):
        nonet.registry.add(cls, "moved")
    async with nonet:
        document = Config(namespaces=ROUTES).document()
        for name in ("main", "a", "b"):
            parts = nonet.parts_of(name)
            await parts.stores.broker.begin()  # no one can have locks of a lost data set
            term = await parts.stores.leadership.lead("leader", 86_400, "{}")
            assert term is not None
            assert await parts.stores.routes.publish(term, ROUTES, WHO)
            about = {"source": "here", "revision": "", "who": WHO}
            await parts.stores.publication.publish(term, "1", document, **about)
            await parts.client.live_config.follow("1")
        yield nonet


@pytest.fixture
def a(app: Nonet) -> Parts:
    return app.parts_of("a")


@pytest.fixture
def b(app: Nonet) -> Parts:
    return app.parts_of("b")


async def move(app: Nonet, *, with_delayed: bool = False) -> Progress:
    return await begin(app.client, "lhcb", "b", WHO, with_delayed=with_delayed)


async def go_on(parts: Parts) -> None:
    """As the leader does."""
    await Arrivals(parts.client, parts.stores.controls).tick("")


async def fetch(parts: Parts) -> list[Delivery]:
    return (await parts.stores.broker.fetch("small-w", "small", 100))[0]


async def run(parts: Parts) -> list[str]:
    """Run what can run; return the ids."""
    found = await fetch(parts)
    for item in found:
        assert await parts.stores.broker.settle(item, "done", b"") == "OK"
    return [item.id for item in found]


async def test_what_needs_no_lock_runs_at_once(app: Nonet, a: Parts, b: Parts) -> None:
    """In the new namespace, while the old one runs what it has; the rest waits until that ended."""
    await app.submit(Locked("lhcb"), id="old")
    (old,) = await fetch(a)
    found = await move(app)
    assert (found.source, found.tasks, found.is_done) == ("a", 1, False)
    for cls in (Free, Locked, Once):
        await app.submit(cls("lhcb"), id=cls.__name__)
    await app.submit(Locked("atlas"), id="atlas")
    assert await run(b) == ["Free"]
    assert await run(app.parts_of("main")) == ["atlas"]
    await go_on(b)
    assert await run(b) == []
    assert "until namespace a has none of its tasks" in (await app.explain("Locked")).text
    assert await a.stores.broker.settle(old, "done", b"") == "OK"
    await go_on(b)
    await b.stores.broker.promote(await term_of(b))
    assert sorted(await run(b)) == ["Locked", "Once"]
    assert not await b.stores.controls.load()


async def term_of(parts: Parts) -> str:
    leader = await parts.stores.broker.client.hget(f"{parts.stores.broker.prefix}leader", "term")
    return leader.decode() if leader else ""


async def test_clients_learn_of_it(app: Nonet, a: Parts, b: Parts) -> None:
    """Also those that know the tenant elsewhere, and those of the old namespace."""
    await app.submit(Free("lhcb"), id="1")
    await move(app)
    assert [str(item) for item in await app.submit_many([Free("lhcb")])]
    await a.client.submit(Free("lhcb"), id="2")
    assert len(await run(b)) == 2
    assert await run(a) == ["1"]


async def test_known_ids_stay_known(app: Nonet, a: Parts, b: Parts) -> None:
    """A task that was submitted before the move is found, and not submitted again."""
    await app.submit(Free("lhcb"), id="live")
    await app.submit(Free("lhcb"), id="ended")
    (first, second) = await fetch(a)
    assert await a.stores.broker.settle(second, "done", b"") == "OK"
    await move(app)
    for client in (app.client, a.client, b.client):
        for id in ("live", "ended"):
            handle = await client.submit(Free("lhcb"), id=id)
            assert not handle.created
    assert await run(b) == []
    assert await a.stores.broker.settle(first, "done", b"") == "OK"


async def test_the_old_namespace_is_not_asked_for_ever(app: Nonet, a: Parts, b: Parts) -> None:
    """Once it has forgotten the ids: its master may be lost, and must not stop the tenant."""
    await move(app)
    assert await b.stores.routes.source_of("lhcb") == "a"
    assert await b.stores.routes.others() == ["a", "main"]
    await b.stores.moves.arrive("lhcb", "a", WHO, 0, [])
    assert await b.stores.routes.source_of("lhcb") == ""
    for parts in (app.parts_of("main"), a, b):
        assert await parts.stores.routes.publish(await term_of(parts), {"*": "b"}, WHO)
    assert await b.stores.routes.others() == []
    assert (await app.submit(Free("lhcb"), id="1")).created


async def test_delayed_tasks_come_with_their_ids(app: Nonet, a: Parts, b: Parts) -> None:
    """On request; with due time, locks and unique key. What was attempted stays."""
    await app.submit(Free("lhcb"), id="tried")
    (tried,) = await fetch(a)
    assert await a.stores.broker.settle(tried, "retry", b"", delay=HOUR) == "OK"
    for cls in (Free, Locked, Once):
        await app.submit(cls("lhcb"), id=cls.__name__, delay=HOUR)
    many = await app.submit_many([Free("lhcb", n) for n in range(1200)], delay=HOUR)
    due = (await app.status("Locked")).due
    found = await move(app)
    assert (found.tasks, found.moved) == (1204, 0)
    found = await move(app, with_delayed=True)
    assert (found.tasks, found.moved, found.is_done) == (1, 1203, False)
    assert {item.id async for item in a.client.results.live()} == {"tried"}
    assert len([item async for item in b.client.results.live()]) == 1203
    assert (await b.client.status("Locked")).due == due
    assert (await app.submit(Once("lhcb"), id="other")) == "Once"
    assert {load.scope: load.active for load in await a.stores.ceilings.loads()}["tenant:lhcb"] == 1
    await app.cancel(["tried"])
    await go_on(b)
    hastened = await b.stores.controls.hasten(["Free", "Locked", "Once", str(many[7])])
    assert set(hastened) == {"delayed"}
    await b.stores.broker.promote(await term_of(b))
    assert sorted(await run(b)) == sorted(["Free", "Locked", "Once", str(many[7])])


async def test_a_cut_move_of_delayed_tasks_is_finished(app: Nonet, a: Parts, b: Parts) -> None:
    """Wherever the program dies: tasks are held back, sent and deleted in this order."""
    await app.submit(Free("lhcb"), id="held", delay=HOUR)
    await app.submit(Free("lhcb"), id="sent", delay=HOUR)
    await app.submit(Free("lhcb"), id="cancelled", delay=HOUR)
    await move(app)
    page = await a.stores.moves.send_delayed("lhcb", "0", [])
    sent = [item for item in page.tasks if item.id != "held"]
    assert await b.stores.broker.submit(sent) == [True, True]
    assert await a.stores.broker.cancel(["cancelled"], "no") == ["cancelled"]
    assert await a.stores.controls.hasten(["held"]) == ["delayed"]
    await a.stores.broker.promote(await term_of(a))
    assert await run(a) == [], "it may be in both namespaces"
    found = await move(app, with_delayed=True)
    assert (found.tasks, found.is_done) == (0, True)
    assert {item.id async for item in b.client.results.live()} >= {"held", "sent"}
    assert not [item async for item in a.client.results.live()]


async def test_one_move_at_a_time(app: Nonet, a: Parts, b: Parts) -> None:
    """Back only when the old namespace has none of its tasks; to itself, or nowhere, never."""
    with pytest.raises(ConfigurationError, match="namespace typo has no scheduler"):
        await begin(app.client, "lhcb", "typo", WHO, with_delayed=False)
    with pytest.raises(ConflictError, match="lhcb belongs to namespace a already"):
        await begin(app.client, "lhcb", "a", WHO, with_delayed=False)
    await app.submit(Free("lhcb"))
    await move(app)
    with pytest.raises(ConflictError, match="still moves from a to b"):
        await begin(app.client, "lhcb", "a", WHO, with_delayed=False)
    await run(a)
    await go_on(b)
    back = await begin(app.client, "lhcb", "a", WHO, with_delayed=False)
    assert back.is_done
    await app.submit(Locked("lhcb"), id="again")
    assert await run(a) == ["again"]


async def test_the_configuration_takes_over(app: Nonet, a: Parts, b: Parts) -> None:
    """Until it says the same, the move by hand holds."""
    await move(app)
    for parts in (app.parts_of("main"), a, b):
        assert await parts.stores.routes.publish(await term_of(parts), ROUTES | {"x": "a"}, WHO)
    await app.submit(Free("lhcb"), id="1")
    assert await run(b) == ["1"]
    for parts in (app.parts_of("main"), a, b):
        assert (await parts.stores.routes.load())[1] == {"lhcb": "b"}
        assert await parts.stores.routes.publish(await term_of(parts), {"lhcb": "b"}, WHO)
        assert (await parts.stores.routes.load())[1] == {}
    await app.submit(Free("lhcb"), id="2")
    assert await run(b) == ["2"]


async def test_a_source_that_lost_its_data_is_waited_for(app: Nonet, a: Parts, b: Parts) -> None:
    """Its workers may believe for a while that they hold their locks."""
    await app.submit(Locked("lhcb"))
    await fetch(a)
    await move(app)
    for key in [key async for key in a.stores.broker.client.scan_iter("{a}:*")]:
        await a.stores.broker.client.delete(key)
    await fetch(a)  # notices the loss
    await app.submit(Locked("lhcb"), id="new")
    await go_on(b)
    assert await b.stores.controls.load()
    assert await run(b) == []
