"""What the configuration and the database allow: applied live, or refused at the start."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pipelines.hosting import count, hosted, until
from row_tables import Instance, Instances, on

from nonet import Nonet
from nonet.base.errors import ConfigurationError
from nonet.config.reading import parse_config
from nonet.pipelines import Changes, RowDatabase
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.publication import Publication

pytestmark = pytest.mark.server


async def publish(nonet: Nonet, text: str) -> None:
    term = await Leadership(nonet.broker, "test").lead("a", 30, "{}") or ""
    config = parse_config(text, "c.yaml")
    version = config.fingerprint()[:12]
    publication = Publication(nonet.broker.client, "test")
    assert await publication.publish(
        term, version, config.document(), source="s", revision="", who="w"
    )


async def test_workers_interval_and_pause_are_applied_live(
    database: RowDatabase, add: Any, nonet: Nonet
) -> None:
    """A running pipeline begins more rows, or none, and rows are due after another time."""
    await add(*(Instance() for _ in range(4)))
    together = asyncio.Barrier(4)

    class Together(Instances):
        workers = 1

        async def process(self, row: Instance) -> Changes:
            await together.wait()
            return Changes(status="done")

    async with hosted(nonet, on(database, Together)) as (host, _, _):
        runner = host.runners[0]
        await until(lambda: together.n_waiting == 1)
        await publish(nonet, "pipelines: {instances: {workers: 4, interval: 0.1}}")
        await until(lambda: runner.tally.outcomes["done"] >= 12)  # each row, three times
        # With the interval: rows in process may end during the pause, and are due by what it says.
        await publish(nonet, "pipelines: {instances: {workers: 4, interval: 0.1, pause: true}}")
        await until(lambda: host._options(type(runner.pipeline)).paused and not runner.queued)
        await until(lambda: runner.running in (0, together.n_waiting))
        fetches = runner.tally.fetches
        await publish(nonet, "pipelines: {}")
        await until(lambda: runner.tally.fetches > fetches)
        await publish(nonet, "pipelines: {instances: {workers: 4, interval: 0.1}}")
        done = runner.tally.outcomes["done"]
        await until(lambda: runner.tally.outcomes["done"] > done)
    assert await count(database, Instance, status="done") == 4


async def test_a_server_that_cannot_skip_locked_rows_is_refused(
    mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = RowDatabase(mariadb_url)
    await database.check()
    monkeypatch.setattr(database.engine.dialect, "server_version_info", (10, 5, 29))
    with pytest.raises(ConfigurationError, match=r"mariadb 10\.5\.29: pipelines need 10\.6 or new"):
        await database.check()
    monkeypatch.setattr(database.engine.dialect, "is_mariadb", False)
    monkeypatch.setattr(database.engine.dialect, "server_version_info", (8, 0, 0))
    with pytest.raises(ConfigurationError, match=r"mysql 8\.0\.0: pipelines need 8\.0\.1 or newer"):
        await database.check()
    await database.close()


def test_lease_columns_are_not_values_of_changes() -> None:
    """They would be overwritten, so the error says what to call instead."""
    with pytest.raises(ValueError, match=r"write due_at themselves; call again\(\) or finish\(\)"):
        Changes(status="done", due_at=None)
