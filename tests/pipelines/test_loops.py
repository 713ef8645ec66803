"""The loops of a process keep going, and miss nothing: fetch, renewal and workers."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from pipelines.hosting import PAST, are_done, count, hosted, until
from pipelines.test_leasing import fetch, leasing_of
from row_tables import Instance, Instances, on

from nonet import Nonet
from nonet.pipelines import Changes, RowDatabase
from nonet.pipelines.heartbeat import Heartbeat
from nonet.pipelines.lease import Held
from nonet.pipelines.leasing import Leasing

pytestmark = pytest.mark.server


async def test_d02_a_fetch_does_not_wait_for_locked_rows(database: RowDatabase, add: Any) -> None:
    if database.url.startswith("sqlite"):
        pytest.skip("it has no locks of rows")
    locked, *others = await add(Instance(), Instance(), Instance())
    leasing = leasing_of(database, Instances)
    async with database.sessions.begin() as session:
        await session.execute(sa.select(Instance).where(Instance.id == locked).with_for_update())
        assert [lease.key for lease in await fetch(leasing)] == others


async def test_d04_a_full_queue_issues_no_select(
    database: RowDatabase, add: Any, nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(*(Instance() for _ in range(9)))
    limits: list[int] = []
    select = Leasing.fetch

    async def noted(self: Leasing, limit: int, since: float) -> Any:
        limits.append(limit)
        return await select(self, limit, since)

    monkeypatch.setattr(Leasing, "fetch", noted)

    class Slow(Instances):
        workers = 2

        async def process(self, row: Instance) -> Changes:
            return Changes(status="done").finish()

    async with hosted(nonet, on(database, Slow)):
        await until(lambda: are_done(database, 9))
    # A queue of four. A fetch follows as soon as it is empty.
    assert set(limits) == {4}


@pytest.mark.usefixtures("only_hints")
async def test_d06_a_hint_during_a_fetch_causes_another_one(
    database: RowDatabase, nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row may have become due after the fetch had read it."""
    fetches = 0
    select, hints = Leasing.fetch, list[Any]()

    async def hinted(self: Leasing, limit: int, since: float) -> Any:
        nonlocal fetches
        found = await select(self, limit, since)
        fetches += 1
        if fetches == 1:
            await until(lambda: hints)
            hints[0].set()
        return found

    monkeypatch.setattr(Leasing, "fetch", hinted)
    async with hosted(nonet, on(database, Instances)) as (host, _, _):
        hints.append(host.runners[0].hinted)
        await until(lambda: fetches == 2)


async def test_d12_a_late_end_does_not_end_the_renewal_of_a_newer_lease(
    database: RowDatabase, add: Any
) -> None:
    """Both are leases of one row; only the newer one is that of the database."""
    held = {"lease_token": "new", "lease_owner": "instances", "lease_expires_at": PAST}
    [key] = await add(Instance(**held))
    heartbeat = Heartbeat(database)
    heartbeat.start()
    lost: list[str] = []
    try:
        now = time.monotonic()
        old, _ = (
            heartbeat.hold(
                [Held(Instance.__table__, (key,), token, "instances")],
                *(60.0, now - 30),  # half of it is over, so it is due
                lambda reason, token=token: lost.append(token),
            )
            for token in ("old", "new")
        )
        heartbeat.drop(old)

        async def is_renewed() -> bool:
            async with database.sessions() as session:
                row = await session.get_one(Instance, key)
            return row.lease_expires_at is not None and row.lease_expires_at > datetime.now(UTC)

        await until(is_renewed)
    finally:
        heartbeat.stop()
    assert lost == []


async def test_d20_an_unexpected_error_leaves_the_lease_and_the_worker_lives(
    database: RowDatabase, add: Any, nonet: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease ends by itself, and then the row is tried again."""
    broken, fine = await add(Instance(), Instance())
    apply, failures = Leasing.apply, list[int]()

    async def failing(self: Leasing, lease: Any, *arguments: Any, **options: Any) -> None:
        if lease.key == broken and not failures:
            failures.append(broken)
            raise RuntimeError("a bug")
        await apply(self, lease, *arguments, **options)

    async def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("another bug")

    monkeypatch.setattr(Leasing, "apply", failing)
    monkeypatch.setattr(Leasing, "fail", fail)

    async with hosted(nonet, on(database, Instances, workers=1, lease=6.0)):
        await until(lambda: count(database, Instance, id=fine, status="done"))
        row = Instance.lease_token.is_not(None)
        async with database.sessions() as session:
            leased = (await session.scalars(sa.select(Instance.id).where(row))).all()
        assert list(leased) == [broken]
        await until(lambda: count(database, Instance, id=broken, status="done"))
