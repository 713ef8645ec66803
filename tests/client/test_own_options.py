"""Many tasks are submitted together, each with options of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import records
import sqlalchemy as sa

from nonet import PREVIOUS, BaseTask, Nonet, Size, Unique, Workflow, chain
from nonet.config.settings import plain_settings
from nonet.stores.sql import database as sql
from nonet.stores.sql.outbox import outbox_tasks
from nonet.tasks.task import Options


class Number(BaseTask):
    n: int
    size = Size.SMALL

    async def execute(self) -> int:
        return self.n


class Kept(Number):
    durable = True


class Single(Number):
    unique = Unique.until_done()


@pytest.fixture
async def app(redis_url: str, tmp_path: Path) -> AsyncIterator[Nonet]:
    database = f"sqlite:///{tmp_path}/nonet.db"
    settings = plain_settings(redis_url=redis_url, namespace="test", db_url=database)
    nonet = Nonet(settings)
    nonet.registry.add(Number, "own")
    nonet.registry.add(Kept, "own")
    nonet.registry.add(Single, "own")
    async with nonet:
        yield nonet


async def test_each_task_has_its_own_options(app: Nonet) -> None:
    """Id, delay and stream are those of the task."""
    one = Number(1).with_options(id="one", delay=3600)
    two = Number(2).with_options(id="two", labels={"priority": "realtime"})
    assert repr(one) == "Number(n=1).with_options(id='one', delay=3600)"
    handles = await app.submit_many([one, two, Number(3)])
    for again in (await one.schedule(), await app.submit(one)):
        assert (again, again.created) == ("one", False)
    assert handles[:2] == ["one", "two"]
    first, second, third = [await handle.status() for handle in handles]
    assert (first.state, second.state, third.state) == ("delayed", "queued", "queued")
    assert (second.stream, third.stream) == ("realtime:small", "normal:small")


async def test_options_of_the_call_are_the_defaults(app: Nonet) -> None:
    """An option of the task goes first; its own time replaces that of the call."""
    hour = datetime.now(UTC) + timedelta(hours=1)
    tasks = [Number(1).with_options(delay=0, labels={"a": 1}), Number(2).with_options(id="mine")]
    now, later = await app.submit_many(tasks, at_time=hour, labels={"a": 2})
    assert ((await now.status()).state, (await later.status()).state) == ("queued", "delayed")
    found = (await app.list_tasks(labels={"a": 1})).rows
    assert [item.id for item in found] == [now]


async def test_a_known_id_among_many_is_the_same_task(app: Nonet) -> None:
    """Of a durable class, too, whose rows are written in one statement."""
    await Kept(1).schedule(id="known")
    tasks = [Kept(1).with_options(id="known"), Kept(2).with_options(id="new"), Kept(3)]
    assert [handle.created for handle in await app.submit_many(tasks)] == [False, True, True]


async def test_tasks_in_a_transaction_keep_their_options(app: Nonet) -> None:
    """The transaction is that of the call."""
    url = app.settings.sql_url()
    engine = sql.open_engine(url)
    async with engine.begin() as connection:
        tasks = [Kept(1).with_options(id="later", delay=3600), Kept(2).with_options(id="now")]
        await app.submit_many(tasks, transaction=connection)
    async with engine.begin() as connection:
        query = sa.select(outbox_tasks.c.task_id, outbox_tasks.c.due_us)
        due = {row.task_id: row.due_us for row in await connection.execute(query)}
    await engine.dispose()
    assert due.keys() == {"later", "now"}
    assert due["now"] == 0
    assert 3000 < due["later"] / 1e6 - datetime.now(UTC).timestamp() <= 3600


async def test_tasks_of_groups_and_workflows_have_their_options(app: Nonet) -> None:
    """Children, the callback, and parts of a workflow."""
    late = {"delay": 3600, "labels": {"priority": "realtime"}}
    group = await app.client.spawn_with_callback([Number(1).with_options(**late)], Number(2))
    assert await chain(Single(1).with_options(unique=None)).submit()
    fired = await app.client.spawn_with_callback([], Number(3).with_options(**late))
    given = Number.given(n=PREVIOUS).with_options(start_by=60)
    run = await chain(Number(4).with_options(**late), given).submit()
    for id in (f"{group}.0", f"{fired}.callback", f"{run}:0"):
        found = await app.status(id)
        assert (found.state, found.stream) == ("delayed", "realtime:small")
    terms = await records.hget(app.broker.client, f"{{test}}:t:{run}:1", "terms")
    assert b"start_by|+60000000|" in (terms or b"")


@pytest.mark.parametrize("options", [{"id": "mine"}, {"transaction": 1}])
async def test_steps_and_children_refuse_what_is_made_for_them(
    app: Nonet, options: dict[str, Any]
) -> None:
    """The error names the option."""
    (name,) = options
    with pytest.raises(TypeError, match=rf"takes no {name}"):
        Workflow().step(Number(1), **options)
    with pytest.raises(TypeError, match="takes no id"):
        await app.client.spawn_with_callback([Number(1).with_options(id="mine")], Number(2))


@pytest.mark.parametrize("options", [{"transaction": 1}, {"idd": "x"}])
def test_invalid_own_options_are_refused(options: dict[str, Any]) -> None:
    """The error is raised where they are written."""
    with pytest.raises(TypeError, match=r"with_options\(\)|idd"):
        Number(1).with_options(**options)


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("countdown", r"there is no option 'countdown' of a submission. Write delay=…"),
        ("priority", r"Write labels=\{\"priority\": \"realtime\"\}"),
        ("label", r"there is no option 'label' of a submission. Did you mean labels\?"),
        ("color", r"There are at_time, delay, id, labels, start_by, transaction, unique"),
    ],
)
def test_an_unknown_option_is_refused(option: str, problem: str) -> None:
    """The error says what to write instead, also for the names of other systems."""
    with pytest.raises(TypeError, match=problem):
        Options.from_mapping({option: 5})
