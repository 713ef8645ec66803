"""Submitting all failures of the history again: dead letters too, at most once, part by part."""

from __future__ import annotations

from typing import Any

from operate.conftest import run_worker

from nonet import BaseTask, Nonet, NoRetry
from nonet.config.settings import Settings
from nonet.operate.history import EndedQuery, Resubmitted, preview_resubmit, resubmit_all
from nonet.stores.namespace.history import FAILED, EndedFilter


class Plain(BaseTask):
    """Fails, and is in the history only."""

    number: int
    retry_policy = NoRetry()

    async def execute(self) -> None:
        raise ValueError(f"number {self.number}")


class Letter(Plain):
    """Fails, and is in SQL, too."""

    dlq_eligible = True


TASKS = (Plain, Letter)


async def run_all(nonet: Nonet) -> None:
    """Run a worker until no task is live."""
    await run_worker(nonet, Plain.size, [task.id async for task in nonet.live()])


async def again(nonet: Nonet, selection: EndedFilter, **options: Any) -> Resubmitted:
    return await resubmit_all(nonet.client, selection, **options)


async def test_all_failures_are_submitted_once(nonet: Nonet) -> None:
    """Failures and dead letters become new tasks; a second call submits none of them."""
    await nonet.submit_many([Plain(1), Plain(2), Letter(3)])
    await run_all(nonet)
    found = await preview_resubmit(nonet.client, EndedFilter(FAILED))
    assert (found.classes, found.is_exact) == ({"test:Plain": 2, "test:Letter": 1}, True)
    selection = EndedFilter(FAILED, until=found.moment)
    first = await again(nonet, selection)
    assert (first.number, first.refused, first.cursor) == (3, 0, "")
    (row,) = await (await nonet.dead_letters()).list()
    assert row.status == "DISPATCHED"
    await run_all(nonet)  # they fail once more, after the moment
    second = await again(nonet, selection)
    assert (second.number, second.refused) == (0, 3)
    assert any("submitted again already" in problem for problem in second.problems)


def test_a_search_examines_all_that_is_kept() -> None:
    """By default: so each page but the last one is full."""
    most = Settings().history
    assert EndedQuery(label=("a=b",)).budget >= 2 * most + 2 * most // 10


async def test_a_call_ends_in_time_and_is_continued(nonet: Nonet) -> None:
    """Its cursor leads to the failures that are left."""
    await nonet.submit_many([Plain(number) for number in range(5)])
    await run_all(nonet)
    selection, cursor, numbers = EndedFilter(FAILED), "", []
    while not numbers or cursor:
        part = await again(nonet, selection, cursor=cursor, seconds=0.0)
        cursor = part.cursor
        numbers.append(part.number)
    assert sum(numbers) == 5 and max(numbers) == 1
