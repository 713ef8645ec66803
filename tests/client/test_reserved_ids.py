"""The ids that Nonet makes belong to it: no caller can take one, and so suppress its task."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from nonet import BaseTask, InvalidArgumentsError, Nonet, context
from nonet.base.ids import new_id
from nonet.base.messages.repetition import (
    Identity,
    repeat_of_end,
    repeat_of_entry,
    repeat_of_live,
    repeat_of_request,
)
from nonet.config.settings import plain_settings
from nonet.rules.pipelines import row_letter_id
from nonet.scheduler.periodic.periodic_loop import occurrence_id
from nonet.stores.queue.groups import callback_id, child_id, failure_id, group_id
from nonet.stores.queue.workflows import step_id
from nonet.testing import run_inline


class Add(BaseTask):
    a: int

    async def execute(self) -> None:
        if self.a < 0:
            context().after_commit(Add(1), id=OCCURRENCE)


OCCURRENCE = occurrence_id("sums:Add||default", datetime(2026, 7, 1, tzinfo=UTC))
GROUP = group_id("parent", 1)
MADE = [
    OCCURRENCE,
    Identity("test", "first", 1).repeat(0).id,
    repeat_of_entry("test", "1767225600000-0").id,
    repeat_of_end("test", "first", "1767225600000000").id,
    repeat_of_live("test", "first", "request").id,
    repeat_of_request("test", "token:ci", "order-7", 0, b"{}").id,
    row_letter_id("volumes", "a", 1),
    *(child_id(GROUP, 7), callback_id(GROUP), failure_id(GROUP)),
    *(step_id(GROUP, "0"), step_id(GROUP, "3.0")),
]
OWN = [
    "order-7",
    "copy-b",
    "key-7",
    "p-1",
    "q-1",
    "2026-07-01T10:30",
    "2026-07-01",
    "a.0",
    "1767225600000-0",
    "sums:Add",
    new_id(),
    GROUP,
]


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[Nonet]:
    made = Nonet(plain_settings(redis_url=redis_url, namespace="test"), load_tasks=False)
    made.registry.add(Add, "sums")
    async with made as opened:
        yield opened


async def test_an_id_that_nonet_makes_is_refused_to_callers(app: Nonet) -> None:
    """However it is given, and in every form that Nonet makes; other ids are free."""
    for id in MADE:
        with pytest.raises(InvalidArgumentsError, match="sums:Add: id"):
            await app.submit(Add(1), id=id)
        with pytest.raises(InvalidArgumentsError, match="sums:Add: id"):
            await app.submit_many([Add(1).with_options(id=id)])
    assert [item async for item in app.live()] == []
    for id in OWN:
        assert (await app.submit(Add(1), id=id)).created, id


async def test_a_running_task_cannot_take_such_an_id_either() -> None:
    run = await run_inline(Add(-1), check=False)
    assert "looks like an id of Nonet's own" in str(run.error)
