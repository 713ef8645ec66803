"""What operators have paused stays so, although Redis forgets it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nonet import Nonet
from nonet.scheduler.pauses import PauseMemory
from nonet.stores.leadership import DeposedError, Leadership

STREAM, TASK, ENTRY = "stream:normal:small", "task:Audit", "files:Sweep||a"


class Rig:
    """Schedulers of one namespace."""

    def __init__(self, app: Nonet) -> None:
        self.app = app
        self.leadership = Leadership(app.broker, "test")
        self.term = ""

    async def lead(self, owner: str = "a") -> None:
        self.term = await self.leadership.lead(owner, 3600, "{}") or self.term

    def memory(self) -> PauseMemory:
        """That of a process that has just started."""
        broker = self.app.broker
        may_have_sql = self.app.settings.may_have_sql
        return PauseMemory(self.app.controls, broker.epoch, self.app.mirror, may_have_sql)

    async def paused(self) -> set[str]:
        return set(await self.app.controls.kept())

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
        await app.controls.pause([STREAM, TASK], "me", "why")
        await app.periodic.pause([ENTRY], "me", "why")
        yield made


async def use_sql(rig: Rig) -> None:
    await (await rig.app.mirror()).save("other", {"x": "1"})  # makes the SQLite file


async def test_a_scheduler_that_lives_on_puts_pauses_back(rig: Rig) -> None:
    """In the new epoch everything is paused as before, by whom and why it was."""
    memory = rig.memory()
    await memory.tick(rig.term)
    assert memory.is_current
    before = await rig.app.controls.kept()
    await rig.lose_everything()
    assert not memory.is_current and await rig.paused() == set()
    await memory.tick(rig.term)
    assert memory.is_current and await rig.app.controls.kept() == before != {}


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
    await rig.app.controls.resume([STREAM], "me")
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
    await rig.app.controls.resume([STREAM, TASK], "me")
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
