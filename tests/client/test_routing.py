"""Tasks go to the namespace of their tenant, and are found there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import records
import sqlalchemy as sa

from nonet import BaseTask, InvalidArgumentsError, Nonet, NotFoundError, Size, Workflow, chain
from nonet.client.client import Client
from nonet.config.models import Config
from nonet.config.settings import plain_settings
from nonet.stores.queue.broker import Presence
from nonet.stores.sql import database as sql
from nonet.stores.sql.outbox import outbox_tasks

KEYS = "2026:" + "a2V5" * 10 + "a2U="
ROUTES = {"lhcb": "a", "atlas": "b", "*": "main"}


class Work(BaseTask):
    vo: str
    n: int = 0
    size = Size.SMALL

    async def execute(self) -> int:
        return self.n


class Kept(Work):
    durable = True


class Confiding(Work):
    encrypted = True


@pytest.fixture
async def app(redis_url: str, tmp_path: Path) -> AsyncIterator[Nonet]:
    """Of namespace main, of which a and b are kept apart."""
    settings = plain_settings(
        redis_url=redis_url,
        namespace="main",
        db_url=f"sqlite:///{tmp_path}/nonet.db",
        signing_keys=KEYS,
        encryption_keys=KEYS,
    )
    nonet = Nonet(settings)
    for cls in (Work, Kept, Confiding):
        nonet.registry.add(cls, "routed")
    async with nonet:
        await route(nonet, ROUTES)
        yield nonet


async def route(app: Nonet, routes: dict[str, str]) -> None:
    """Publish the routes as the leader of each namespace does."""
    document = Config(namespaces=routes).document()
    for name in ("main", "a", "b"):
        client = app.client_of(name)
        term = await client.stores.leadership.lead("leader", 86_400, "{}")
        assert term is not None
        version = f"{sorted(routes.items())}"
        about = {"source": "here", "revision": "", "who": "ann@host 7"}
        await client.stores.publication.publish(term, version, document, **about)
        await client.live_config.follow(version)


async def ids_in(client: Client) -> set[str]:
    return {item.id async for item in client.stores.results.live()}


async def test_each_task_goes_to_the_namespace_of_its_tenant(app: Nonet) -> None:
    """Alone or in a batch."""
    first = await app.submit(Work("lhcb"), id="1")
    many = await app.submit_many(Work(vo, n) for n, vo in enumerate(["atlas", "cms", "lhcb"]))
    again = await app.submit(Work("lhcb"), id="1")
    assert (first.created, again.created) == (True, False)
    assert await ids_in(app.client_of("a")) == {"1", many[2]}
    assert await ids_in(app.client_of("b")) == {many[0]}
    assert await ids_in(app.client_of("main")) == {many[1]}


async def test_a_message_is_signed_and_encrypted_for_its_namespace(app: Nonet) -> None:
    """Signed and encrypted for the other namespace."""
    (handle,) = await app.submit_many([Confiding("lhcb", 7)])
    there = app.client_of("a")
    data = await records.hget(there.stores.broker.client, f"{{a}}:t:{handle}", "envelope")
    envelope = there.envelopes.decrypted(there.envelopes.read(handle, data))
    assert envelope.args == {"vo": "lhcb", "n": 7}


async def test_a_task_is_found_wherever_it_is(app: Nonet) -> None:
    """By its handle, and by its id alone."""
    handle = await app.submit(Work("lhcb"))
    for found in (await handle.status(), await app.status(str(handle))):
        assert found.state == "queued"
    assert "queued" in (await app.explain(str(handle))).text
    with pytest.raises(TimeoutError):
        await app.result(str(handle), timeout=0)
    assert await app.cancel([str(handle), "nobody"]) == {handle: "cancelled", "nobody": ""}
    with pytest.raises(NotFoundError, match="nobody"):
        await app.status("nobody")


async def test_a_durable_task_is_kept_for_its_namespace(app: Nonet) -> None:
    """Its row has that namespace, in a transaction of the caller, too."""
    first = await app.submit(Kept("lhcb"))
    engine = sql.open_engine(app.settings.sql_url())
    async with engine.begin() as connection:
        second = await app.submit(Kept("atlas"), transaction=connection)
    async with engine.begin() as connection:
        query = sa.select(outbox_tasks.c.task_id, outbox_tasks.c.namespace)
        rows = {row.task_id: row.namespace for row in await connection.execute(query)}
    await engine.dispose()
    assert rows == {first: "a", second: "b"}
    assert await ids_in(app.client_of("a")) == {first}
    assert (await app.status(second)).state == "delayed"


async def test_a_group_goes_where_all_of_its_tasks_belong(app: Nonet) -> None:
    """One in two namespaces is refused, and none of its tasks exist."""
    group = await app.client.spawn_with_callback([Work("lhcb"), Work("lhcb")], Work("lhcb"))
    assert len(await ids_in(app.client_of("a"))) == 2
    await app.client.cancel_group(group)
    assert await ids_in(app.client_of("a")) == set()
    with pytest.raises(InvalidArgumentsError, match="group would be in the namespaces a and main"):
        await app.client.spawn_with_callback([Work("lhcb"), Work("cms")], Work("cms"))
    assert await ids_in(app.client_of("main")) == set()


async def test_a_workflow_goes_where_all_of_its_steps_belong(app: Nonet) -> None:
    """One in two namespaces is refused."""
    run = await app.submit_workflow(chain(Work("lhcb"), Work("lhcb")), id="nightly")
    assert (await run.status()).state == "running"
    assert (await app.workflow("nightly").status()).state == "running"
    assert len(await app.workflow("nightly").steps()) == 2
    both = Workflow()
    both.step(Work("lhcb"))
    both.step(Work("atlas"))
    with pytest.raises(InvalidArgumentsError, match="workflow would be in the namespaces a and b"):
        await app.submit_workflow(both)


async def test_a_task_without_a_route_stays_in_the_own_namespace(app: Nonet) -> None:
    """Tasks go where they are submitted when the configuration changes."""
    await app.submit(Work("lhcb"))
    await route(app, {})
    handle = await app.submit(Work("lhcb"))
    _, states = await app.broker.presence([handle])
    assert states == [Presence.LIVE]
