"""``task-run delayed list|cancel|now``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cli.errands import Add, Describe
from cli.terminal import TaskRun
from waits import WAIT_SECONDS

from nonet import TaskCancelled


def in_hours(hours: float) -> datetime:
    return datetime.now(UTC) + timedelta(hours=hours)


async def test_list_has_the_soonest_first(task_run: TaskRun) -> None:
    """Only delayed tasks are listed."""
    async with task_run.app() as app:
        await app.submit(Add(1), id="late", at_time=in_hours(2))
        await app.submit(Describe(), id="soon", at_time=in_hours(1))
        await app.submit(Add(1), id="now")
        rows = (await task_run("delayed", "list", "--json")).json["items"]
        assert [(row["id"], row["name"]) for row in rows] == [
            ("soon", "errands:Describe"),
            ("late", "errands:Add"),
        ]
        assert rows[0]["due"] < rows[1]["due"]
        only = await task_run("delayed", "list", "--task", "Add")
        assert "late" in only.out and "soon" not in only.out
        one = await task_run("delayed", "list", "--limit", "1", "--json")
        assert len(one.json["items"]) == 1 and one.json["cursor"]


async def test_cancel_ends_named_tasks_only_if_they_are_delayed(task_run: TaskRun) -> None:
    """The command reports the state of each other one."""
    async with task_run.app() as app:
        delayed = await app.submit(Add(1), id="d", at_time=in_hours(1))
        await app.submit(Add(1), id="q")
        ended = await task_run("delayed", "cancel", "d", "--reason", "not needed")
        assert (ended.code, ended.out) == (0, "d cancelled\n")
        with pytest.raises(
            TaskCancelled, match=r"task d \(.*\) was cancelled by \S+@.*: not needed"
        ):
            await delayed.result(timeout=WAIT_SECONDS)
        assert (await delayed.status()).state == "cancelled"
        explained = await task_run("explain", "d")
        assert explained.out.startswith("cancelled: by ")
        again = await task_run("delayed", "cancel", "q", "x", "--json")
        assert again.code == 1
        assert again.json == {"changed": [], "states": {"q": "queued", "x": ""}}
        assert "task q is queued, not delayed" in again.err and "task x is unknown" in again.err
        assert (await task_run("delayed", "cancel", "x")).code == 4
        waited = await task_run(
            "submit", "Add", "--args", "[1]", "--id", "d", "--wait", WAIT_SECONDS
        )
        assert waited.code == 1 and "was cancelled by" in waited.err
        events = (await task_run("events", "--kind", "tasks-cancelled", "--json")).json["items"]
        assert [item["text"] for item in events] == ["1 task (d): not needed"]


async def test_cancel_by_class_and_labels_spares_tasks_that_are_not_delayed(
    task_run: TaskRun,
) -> None:
    """A dry run changes nothing."""
    async with task_run.app() as app:
        for n in range(3):
            labels = {"run": n, "vo": "lhcb"}
            await app.submit(Add(n), id=f"a{n}", at_time=in_hours(1), labels=labels)
        await app.submit(Describe(), id="other", at_time=in_hours(1), labels={"vo": "lhcb"})
        await app.submit(Add(1), id="q", labels={"vo": "lhcb"})
        command = ["delayed", "cancel", "--task", "errands:Add", "--label", "vo=lhcb"]
        dry = await task_run(*command, "--dry-run", "--json")
        assert dry.json == {"found": 3, "cancelled": 0}
        one = await task_run(*command, "--label", "run=1")
        assert one.out == "1 task cancelled\n"
        assert (await task_run(*command, "--json")).json == {"found": 2, "cancelled": 2}
        assert (await task_run("delayed", "cancel", "--all", "--json")).json["cancelled"] == 1
        assert (await app.status("q")).state == "queued"
        assert (await app.status("a2")).state == "cancelled"


async def test_now_runs_a_delayed_task_at_once(task_run: TaskRun) -> None:
    """The command reports a task that is not delayed."""
    async with task_run.worker() as app:
        handle = await app.submit(Add(1, 2), id="d", at_time=in_hours(1))
        ended = await task_run("delayed", "now", "d")
        assert (ended.code, ended.out) == (0, "d due now\n")
        assert await handle.result(timeout=WAIT_SECONDS) == 3
        again = await task_run("delayed", "now", "d", "x")
        assert again.code == 1 and "task d is done, not delayed" in again.err
        assert (await task_run("delayed", "now", "x")).code == 4

        events = (await task_run("events", "--kind", "tasks-hastened", "--json")).json["items"]
        assert [item["text"] for item in events] == ["task d"]
