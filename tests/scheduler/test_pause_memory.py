"""What operators have paused stays so, although Redis forgets it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from nonet import Nonet
from nonet.base.errors import ConfigurationError, ServerUnreachableError
from nonet.scheduler.pauses import PauseMemory
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.sql.mirror import Mirror

STREAM, TASK, ENTRY = "stream:normal:small", "task:Audit", "files:Sweep||a"
PIPELINE = "pipeline:volumes"


Copy = dict[bytes, bytes]


class Rig:
    def __init__(self, app: Nonet) -> None:
        self.app = app
        self.leadership = Leadership(app.broker, "test")
        self.term = ""

    async def lead(self, owner: str = "a") -> None:
        self.term = await self.leadership.lead(owner, 3600, "{}") or self.term

    def memory(self, mirror: Callable[[], Awaitable[Mirror]] | None = None) -> PauseMemory:
        epoch, may_have_sql = self.app.broker.epoch, self.app.settings.may_have_sql
        return PauseMemory(
            self.app.stores.controls, epoch, mirror or self.app.stores.mirror, may_have_sql
        )

    async def paused(self) -> set[str]:
        return set((await self.app.stores.controls.look()).pauses)

    async def in_sql(self) -> set[str]:
        return set(await (await self.app.stores.mirror()).load("pauses")) - {"looked"}

    async def save(self) -> Copy:
        """The data of Redis, for `come_back_with`."""
        client = self.app.broker.client
        return {key: await client.dump(key) async for key in client.scan_iter()}

    async def come_back_with(self, copy: Copy) -> None:
        """Redis starts again from an older copy, which the leader finds out."""
        client, epoch = self.app.broker.client, self.app.broker.epoch.since
        await client.flushall()
        for key, value in copy.items():
            await client.restore(key, 0, value)
        await self.lead()
        assert self.app.broker.epoch.since > epoch

    async def lose_everything(self) -> None:
        await self.app.broker.client.flushall()
        await self.lead()


@pytest.fixture
async def rig(redis_url: str, tmp_path: Path) -> AsyncIterator[Rig]:
    async with Nonet.from_settings(
        redis_url=redis_url, namespace="test", state_dir=tmp_path
    ) as app:
        made = Rig(app)
        await made.lead()
        await app.stores.controls.pause([STREAM, TASK, PIPELINE], "me", "why")
        await app.stores.periodic.pause([ENTRY], "me", "why")
        yield made


async def use_sql(rig: Rig) -> None:
    await (await rig.app.stores.mirror()).save("other", {"x": "1"})  # makes the SQLite file


async def test_a_live_scheduler_restores_pauses_after_a_loss(rig: Rig) -> None:
    memory = rig.memory()
    await memory.tick(rig.term)
    assert memory.is_current
    before = (await rig.app.stores.controls.look()).pauses
    await rig.lose_everything()
    assert not memory.is_current and await rig.paused() == set()
    await memory.tick(rig.term)
    assert memory.is_current and (await rig.app.stores.controls.look()).pauses == before != {}


@pytest.mark.parametrize("has_sql", [True, False])
async def test_a_scheduler_that_starts_after_a_loss_restores_pauses_from_sql(
    rig: Rig, has_sql: bool
) -> None:
    if has_sql:
        await use_sql(rig)
    await rig.memory().tick(rig.term)
    await rig.lose_everything()
    await rig.memory().tick(rig.term)
    assert await rig.paused() == ({STREAM, TASK, PIPELINE, f"entry:{ENTRY}"} if has_sql else set())


async def test_a_resumed_pause_is_not_restored(rig: Rig) -> None:
    """Also if SQL does not know of it, as no scheduler led at the time."""
    await use_sql(rig)
    await rig.memory().tick(rig.term)
    await rig.app.stores.controls.resume([STREAM], "me")
    await rig.memory().tick(rig.term)
    assert await rig.paused() == {TASK, PIPELINE, f"entry:{ENTRY}"}
    await rig.lose_everything()
    await rig.memory().tick(rig.term)
    assert await rig.paused() == {TASK, PIPELINE, f"entry:{ENTRY}"}


async def test_a_standby_forgets_its_pauses(rig: Rig) -> None:
    memory = rig.memory()
    await memory.tick(rig.term)
    memory.stand_by()
    await rig.app.stores.controls.resume([STREAM, TASK, PIPELINE], "me")
    await rig.lose_everything()
    await memory.tick(rig.term)
    assert await rig.paused() == set()


@pytest.mark.parametrize("lives_on", [True, False])
async def test_older_data_of_redis_revive_no_pause(rig: Rig, lives_on: bool) -> None:
    """Pauses since the copy hold, whether a live scheduler or SQL remembers them."""
    await use_sql(rig)
    memory = rig.memory()
    await memory.tick(rig.term)
    copy = await rig.save()
    await rig.lead()
    await rig.app.stores.controls.resume([STREAM], "me")
    await rig.app.stores.periodic.resume([ENTRY], "me")
    await rig.app.stores.controls.pause(["all"], "me")
    await memory.tick(rig.term)
    await rig.come_back_with(copy)
    assert await rig.paused() == {STREAM, TASK, PIPELINE, f"entry:{ENTRY}"}
    # And what is paused before the leader looks is lost no more than anything else.
    await rig.app.stores.controls.pause(["task:Early"], "me")
    await rig.app.stores.periodic.pause(["files:Early||a"], "me", "")
    await (memory if lives_on else rig.memory()).tick(rig.term)
    expected = {TASK, PIPELINE, "all", "task:Early", "entry:files:Early||a"}
    assert await rig.paused() == await rig.in_sql() == expected


@pytest.mark.parametrize("is_older", [True, False])
async def test_pauses_that_vanish_before_the_loss_is_known_are_kept(
    rig: Rig, is_older: bool
) -> None:
    await use_sql(rig)
    memory = rig.memory()
    await memory.tick(rig.term)
    copy = await rig.save()
    await rig.lead()
    await rig.app.stores.controls.pause(["all"], "me")
    await memory.tick(rig.term)
    everything = await rig.paused()
    client = rig.app.broker.client
    await client.flushall()
    for key, value in copy.items() if is_older else ():
        await client.restore(key, 0, value)
    await memory.tick(rig.term)
    assert await rig.in_sql() == everything
    await rig.lead()
    await memory.tick(rig.term)
    assert await rig.paused() == everything


async def test_a_scheduler_waits_for_unavailable_sql(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await use_sql(rig)
    await rig.memory().tick(rig.term)
    everything = await rig.paused()
    await rig.lose_everything()

    async def away() -> Mirror:
        if is_away:
            raise ServerUnreachableError("database is away")
        return await rig.app.stores.mirror()

    is_away, memory = True, rig.memory(away)
    for _ in range(3):
        with pytest.raises(ServerUnreachableError):
            await memory.tick(rig.term)
    assert not memory.is_current and "database is away" in memory.reason
    assert await rig.paused() == set() and await rig.in_sql() == everything
    is_away = False
    await memory.tick(rig.term)
    assert memory.is_current and memory.reason == ""
    assert await rig.paused() == await rig.in_sql() == everything


async def test_unavailable_sql_does_not_matter_while_redis_has_the_pauses(rig: Rig) -> None:
    await rig.memory().tick(rig.term)

    async def away() -> Mirror:
        raise ServerUnreachableError("database is away")

    await use_sql(rig)
    memory = rig.memory(away)
    with pytest.raises(ServerUnreachableError):  # when it saves
        await memory.tick(rig.term)
    assert memory.is_current and await rig.paused() == {STREAM, TASK, PIPELINE, f"entry:{ENTRY}"}


async def test_unusable_sql_is_not_waited_for(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    async def unusable() -> Mirror:
        raise ConfigurationError("no such driver")

    await use_sql(rig)
    memory = rig.memory(unusable)
    with pytest.raises(ConfigurationError):  # when it saves
        await memory.tick(rig.term)
    assert memory.is_current
    assert len([line for line in caplog.messages if "no such driver" in line]) == 1
