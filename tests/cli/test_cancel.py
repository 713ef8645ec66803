"""``task-run cancel``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cli.errands import Add, Describe, Obstinate, OfVo, Sleeper
from cli.terminal import TaskRun, until_written
from waits import WAIT_SECONDS

from nonet import TaskCancelled


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


async def test_cancel_ends_named_tasks_in_any_state(task_run: TaskRun) -> None:
    """The command waits for running tasks."""
    report = task_run.home / "report"
    async with task_run.worker() as app:
        running = await app.submit(Sleeper(report), id="r")
        await until_written(report)
        await app.submit(Add(1), id="d", at_time=in_an_hour())
        await app.submit(Add(1), id="q", labels={"size": "large"})
        ended = await task_run("cancel", "r", "d", "q", "r", "--reason", "enough")
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.splitlines() == ["r cancelled", "d cancelled", "q cancelled"]
        with pytest.raises(TaskCancelled, match=r"task r \(.*\) was cancelled by \S+@.*: enough"):
            await running.result(timeout=WAIT_SECONDS)
        events = (await task_run("events", "--kind", "tasks-cancelled", "--json")).json["items"]
        assert [item["text"] for item in events] == ["3 tasks (r, d, q): enough"]
        again = await task_run("cancel", "r", "--json")
        assert (again.code, again.json) == (0, [{"id": "r", "state": "cancelled"}])


async def test_cancel_reports_tasks_that_did_not_end_as_cancelled(task_run: TaskRun) -> None:
    """The exit code is 1, or 4 if no id is known."""
    report, gate = task_run.home / "report", task_run.home / "gate"
    async with task_run.worker() as app:
        done = await app.submit(Add(1), id="done")
        assert await done.result(timeout=WAIT_SECONDS) == 1
        await app.submit(Obstinate(report, gate), id="o")
        await until_written(report)
        ended = await task_run("cancel", "done", "nobody", "--json")
        assert ended.code == 1
        assert ended.json == [{"id": "done", "state": "done"}, {"id": "nobody", "state": None}]
        assert "task done is done" in ended.err and "task nobody is unknown" in ended.err
        unknown = await task_run("cancel", "nobody")
        assert (unknown.code, unknown.out) == (4, "")
        late = await task_run("cancel", "o", "--wait", "0", "--json")
        assert (late.code, late.json) == (1, [{"id": "o", "state": "cancelling"}])
        assert "task o has not ended yet" in late.err
        explained = await task_run("explain", "o", "--json")
        assert explained.json["cause"] == "cancelling"
        assert "cancelled by" in explained.json["text"]
        gate.touch()
        finished = await task_run("cancel", "o", "--wait", WAIT_SECONDS)
        assert finished.code == 1 and "task o is done" in finished.err


async def test_cancel_by_class_and_labels(task_run: TaskRun) -> None:
    """Running tasks end, too; a mistyped class is not found."""
    report = task_run.home / "report"
    async with task_run.worker() as app:
        await app.submit(Sleeper(report), labels={"run": 1})
        await until_written(report)
        await app.submit(Sleeper(report), at_time=in_an_hour(), labels={"run": 2})
        other = await app.submit(Describe(), at_time=in_an_hour(), labels={"run": 2})
        one = await task_run("cancel", "--task", "Sleeper", "--label", "run=2", "--yes", "--json")
        assert (one.code, one.json) == (0, {"cancelled": 1, "others": []})
        rest = await task_run("cancel", "--task", "Sleeper", "--yes")
        assert (rest.code, rest.out) == (0, "1 task cancelled\n")
        nothing = await task_run("cancel", "--task", "Sleper", "--yes")
        assert (nothing.code, nothing.out) == (4, "")
        assert "'Sleper' is not registered here, and no task has it. Did you mean" in nothing.err
        none_left = await task_run("cancel", "--task", "Sleeper", "--yes", "--json")
        assert (none_left.code, none_left.json) == (0, {"cancelled": 0, "others": []})
        assert (await other.status()).state == "delayed"
        assert (await task_run("cancel", "--label", "run=2", "--yes")).out == "1 task cancelled\n"


async def test_a_tenant_is_listed_and_cancelled(task_run: TaskRun) -> None:
    """Also if its tasks have it as an attribute and not as a label."""
    async with task_run.app() as app:
        mine = await app.submit(OfVo("lhcb"), at_time=in_an_hour())
        other = await app.submit(OfVo("cms"), at_time=in_an_hour())
        found = await task_run("list", "--tenant", "lhcb", "--json")
        assert [row["id"] for row in found.json["items"]] == [mine]
        done = await task_run("cancel", "--tenant", "lhcb", "--yes")
        assert (done.code, done.out) == (0, "1 task cancelled\n"), done.err
        assert (await mine.status()).state == "cancelled"
        assert (await other.status()).state == "delayed"


async def test_cancel_ends_the_children_of_a_group(task_run: TaskRun) -> None:
    """The task that the group submits then is no child and runs."""
    async with task_run.worker() as app:
        children = [Add(1), *[Describe()] * 2]
        await app.stores.controls.pause(["task:Describe"], "ann@host 7")
        group = await app.client.spawn_with_callback(children, Add(2), on_failure=Add(3))
        await app.result(f"{group}.0", timeout=WAIT_SECONDS)
        ended = await task_run("cancel", "--group", group, "--json")
        assert ended.code == 0
        assert {row["id"] for row in ended.json} == {f"{group}.1", f"{group}.2"}
        assert await app.result(f"{group}.failure", timeout=WAIT_SECONDS) == 3
        again = await task_run("cancel", "--group", group)
        assert again.code == 1 and "have ended: it is fired" in again.err
        assert (await task_run("cancel", "--group", "nobody")).code == 4
