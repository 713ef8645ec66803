"""An id that is used again: nothing of its earlier task is taken for the later one's."""

from __future__ import annotations

from typing import Any

import pytest
from operate.conftest import run_worker

from nonet import BaseTask, Nonet, NoRetry, Size
from nonet.operate import history, tasks
from nonet.operate.task_details import TaskReport


class Succeeds(BaseTask):
    number: int
    size = Size.SMALL
    retry_policy = NoRetry()

    async def execute(self) -> None: ...


class Fails(Succeeds):
    async def execute(self) -> None:
        raise ValueError(f"number {self.number}")


class Buried(Fails):
    dlq_eligible = True


TASKS = (Succeeds, Fails, Buried)


async def run(nonet: Nonet, task: BaseTask, *, remembered: bool = False) -> None:
    """Run a task under the id ``x``; then let Redis forget the id, unless it is remembered."""
    await nonet.submit(task, id="x")
    await run_worker(nonet, Size.SMALL, ["x"])
    if not remembered:
        await nonet.broker.client.delete("{test}:r:x")


async def report(nonet: Nonet, id: str = "x") -> TaskReport:
    return await tasks.details(nonet.client, id)


def said(found: TaskReport) -> tuple[Any, Any, bool]:
    """The class and the arguments of a report, and whether it has a dead letter."""
    return (
        found.status.name.removeprefix("test:"),
        found.envelope and found.envelope.args,
        found.letter is not None,
    )


@pytest.mark.parametrize("remembered", [True, False], ids=["remembered", "forgotten"])
async def test_a_report_shows_the_last_task_of_an_id(nonet: Nonet, *, remembered: bool) -> None:
    """Neither the letter of another class nor that of an earlier life has its arguments."""
    await run(nonet, Buried(1), remembered=True)
    assert said(await report(nonet)) == ("Buried", {"number": 1}, True)
    await nonet.broker.client.delete("{test}:r:x")
    await run(nonet, Fails(2), remembered=remembered)
    assert said(await report(nonet)) == ("Fails", {"number": 2}, False)


async def test_a_letter_belongs_to_one_life_of_an_id(nonet: Nonet) -> None:
    """Without its own letter, a task does not get that of an earlier one of its class."""
    await run(nonet, Buried(1))
    await run(nonet, Buried(2))
    letters = await nonet.dead_letters()
    await letters.discard((await letters.list(limit=1))[0].id)
    assert said(await report(nonet)) == ("Buried", {"number": 2}, False)
    again = await history.resubmit(nonet.client, "x")
    assert said(await report(nonet, again)) == ("Buried", {"number": 2}, False)


async def test_an_older_end_in_the_history_is_not_the_last_one(nonet: Nonet) -> None:
    """Successes have their own list, and may be pushed out of it before an earlier failure is."""
    await run(nonet, Fails(1))
    await run(nonet, Succeeds(2), remembered=True)
    await nonet.broker.client.delete("{test}:ended:done")
    found = await report(nonet)
    assert (found.status.state, *said(found)) == ("done", "Succeeds", None, False)
    assert found.status.finished is not None
