"""What operators have paused stays so, although Redis forgets it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from nonet import Nonet
from nonet.base.errors import ConfigurationError, ServerUnreachableError
from nonet.scheduler.pauses import PauseMemory
from nonet.stores.namespace.leadership import DeposedError, Leadership
from nonet.stores.sql.mirror import Mirror

STREAM, TASK, ENTRY = "stream:normal:small", "task:Audit", "files:Sweep||a"


Copy = dict[bytes, bytes]


class Rig:
    """Schedulers of one namespace."""

    def __init__(self, app: Nonet) -> None:
        self.app = app
        self.leadership = Leadership(app.broker, "test")
        self.term = ""

    async def lead(self, owner: str = "a") -> None:
        self.term = await self.leadership.lead(owner, 3600, "{}") or self.term

    def memory(self, mirror: Callable[[], Awaitable[Mirror]] | None = None) -> PauseMemory:
        """That of a process that has just started."""
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
        await app.stores.controls.pause([STREAM, TASK], "me", "why")
        await app.stores.periodic.pause([ENTRY], "me", "why")
        yield made


async def use_sql(rig: Rig) -> None:
    await (await rig.app.stores.mirror()).save("other", {"x": "1"})  # makes the SQLite file


async def test_a_scheduler_that_lives_on_puts_pauses_back(rig: Rig) -> None:
    """In the new epoch everything is paused as before, by whom and why it was."""
    memory = rig.memory()
    await memory.tick(rig.term)
    assert memory.is_current
    before = (await rig.app.stores.controls.look()).pauses
    await rig.lose_everything()
    assert not memory.is_current and await rig.paused() == set()
    await memory.tick(rig.term)
    assert memory.is_current and (await rig.app.stores.controls.look()).pauses == before != {}


@pytest.mark.parametrize("has_sql", [True, False])
async def test_one_that_starts_after_a_wipe_asks_sql(rig: Rig, has_sql: bool) -> None:
    """With a database nothing is forgotten."""
    if has_sql:
        await use_sql(rig)
    await rig.memory().tick(rig.term)
    await rig.lose_everything()
    await rig.memory().tick(rig.term)
    assert await rig.paused() == ({STREAM, TASK, f"entry:{ENTRY}"} if has_sql else set())


async def test_what_was_resumed_stays_resumed(rig: Rig) -> None:
    """Also if nobody led when it was, and SQL does not know of it: Redis has not lost anything."""
    await use_sql(rig)
    await rig.memory().tick(rig.term)
    await rig.app.stores.controls.resume([STREAM], "me")
    await rig.memory().tick(rig.term)
    assert await rig.paused() == {TASK, f"entry:{ENTRY}"}
    await rig.lose_everything()
    await rig.memory().tick(rig.term)
    assert await rig.paused() == {TASK, f"entry:{ENTRY}"}


async def test_who_stood_by_has_forgotten(rig: Rig) -> None:
    """What was paused while another one led is what counts."""
    memory = rig.memory()
    await memory.tick(rig.term)
    memory.stand_by()
    await rig.app.stores.controls.resume([STREAM, TASK], "me")
    await rig.lose_everything()
    await memory.tick(rig.term)
    assert await rig.paused() == set()


async def test_who_was_deposed_puts_nothing_back(rig: Rig) -> None:
    """Its tick says so."""
    memory = rig.memory()
    await memory.tick(rig.term)
    before = rig.term
    await rig.lose_everything()
    await rig.leadership.resign("a", rig.term)
    with pytest.raises(DeposedError):
        await memory.tick(before)
    assert await rig.paused() == set()


@pytest.mark.parametrize("lives_on", [True, False])
async def test_older_data_revive_no_pause(rig: Rig, lives_on: bool) -> None:
    """What was resumed since stays so, what was paused since is; by who lived on, or by SQL."""
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
    assert await rig.paused() == {STREAM, TASK, f"entry:{ENTRY}"}
    # And what is paused before the leader looks is lost no more than anything else.
    await rig.app.stores.controls.pause(["task:Early"], "me")
    await rig.app.stores.periodic.pause(["files:Early||a"], "me", "")
    await (memory if lives_on else rig.memory()).tick(rig.term)
    expected = {TASK, "all", "task:Early", "entry:files:Early||a"}
    assert await rig.paused() == await rig.in_sql() == expected


@pytest.mark.parametrize("is_older", [True, False])
async def test_a_loss_that_nobody_has_noticed_is_not_believed(rig: Rig, is_older: bool) -> None:
    """Between the loss and the lease that tells of it nothing is forgotten, here and in SQL."""
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


async def test_without_sql_one_waits_for_it(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """SQL is away for a while: nothing is current, and nothing overwritten."""
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


async def test_sql_is_not_asked_for_what_redis_has(rig: Rig) -> None:
    """Where nothing was lost, a new leader goes on although SQL is away, and saves it later."""
    await rig.memory().tick(rig.term)

    async def away() -> Mirror:
        raise ServerUnreachableError("database is away")

    await use_sql(rig)
    memory = rig.memory(away)
    with pytest.raises(ServerUnreachableError):  # when it saves
        await memory.tick(rig.term)
    assert memory.is_current and await rig.paused() == {STREAM, TASK, f"entry:{ENTRY}"}


async def test_sql_that_was_never_used_remembers_nothing(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """Without tables, or a driver, there is nothing to wait for; that is told once."""

    async def unusable() -> Mirror:
        raise ConfigurationError("no such driver")

    await use_sql(rig)
    memory = rig.memory(unusable)
    with pytest.raises(ConfigurationError):  # when it saves
        await memory.tick(rig.term)
    assert memory.is_current
    assert len([line for line in caplog.messages if "no such driver" in line]) == 1


async def test_pauses_of_pipelines_are_put_back(rig: Rig) -> None:
    """A pipeline that was paused before a wipe does not process rows after it."""
    await rig.app.stores.controls.pause(["pipeline:volumes"], "me")
    memory = rig.memory()
    await memory.tick(rig.term)
    await rig.lose_everything()
    await memory.tick(rig.term)
    assert "pipeline:volumes" in await rig.paused()
