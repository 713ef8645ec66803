"""Redis, or its parent, loses a callback group while the children are submitted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from nonet import BaseTask, Nonet, NonetError, spawn_with_callback
from nonet.base.errors import LeaseLostError
from nonet.config.settings import plain_settings
from nonet.stores.queue.groups import group_id
from nonet.tasks.execution import TaskContext, enter_context


class Child(BaseTask):
    async def execute(self) -> None: ...


class Report(BaseTask):
    async def execute(self) -> None: ...


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[Nonet]:
    nonet = Nonet(plain_settings(redis_url=redis_url, namespace="test"))
    nonet.registry.add(Child, "lost")
    nonet.registry.add(Report, "lost")
    async with nonet:
        yield nonet


def lose_data(app: Nonet, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let Redis forget all so many times, each time before children come."""
    left, submit = [times], app.broker.submit

    async def after_a_loss(*args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            await app.broker.client.flushdb()
        return await submit(*args)

    monkeypatch.setattr(app.broker, "submit", after_a_loss)


async def test_a_lost_group_is_opened_again(app: Nonet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spawn that notices the loss opens it anew: it waits for all children."""
    lose_data(app, monkeypatch, 2)
    group = await spawn_with_callback([Child(), Child()], Report())
    status = await app.stores.groups.status(group)
    assert (status.state, status.total, status.pending) == ("sealed", 2, 2)


async def test_a_group_that_is_lost_again_and_again_is_an_error(
    app: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Redis that loses it again and again is an error."""
    lose_data(app, monkeypatch, 3)
    with pytest.raises(NonetError, match="Redis lost it 3 times while 2 children were submitted"):
        await spawn_with_callback([Child(), Child()], Report())


async def test_an_attempt_that_lost_its_lease_meanwhile_seals_no_group(
    app: Nonet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt that has the lease by then does."""
    parent = await Child().schedule()
    attempt = TaskContext(str(parent), "lost:Child", 1, 1, {})
    enter_context(attempt)
    submit = app.broker.submit

    async def too_slowly(*args: Any) -> Any:
        answer = await submit(*args)
        attempt.lose_lease("it ended")
        return answer

    monkeypatch.setattr(app.broker, "submit", too_slowly)
    with pytest.raises(LeaseLostError):
        await spawn_with_callback([Child()], Report())
    assert (await app.stores.groups.status(group_id(parent, 1))).state == "building"
