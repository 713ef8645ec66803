"""``task-run status|list|overview`` of a task that reports its progress."""

from __future__ import annotations

from cli.errands import Prints
from cli.terminal import TaskRun, until_written


async def test_status_list_and_overview_show_the_progress(task_run: TaskRun) -> None:
    """`status` has the time of the report; control characters are escaped."""
    report = task_run.home / "report"
    async with task_run.worker() as app:
        handle = await app.submit(Prints(report), id="p")
        await until_written(report)
        assert (await anext(handle.progress())).fraction == 0.4
        found = (await task_run("status", "p", "--json")).json["progress"]
        assert (found["fraction"], found["text"]) == (0.4, "page 12\x1b of 30")
        at = found["at"].partition(".")[0].replace("T", " ")
        shown = (await task_run("status", "p")).out
        assert f"progress   40 % page 12\\x1b of 30, at {at}Z\n" in shown
        assert "40 % page 12\\x1b of 30\n" in (await task_run("list")).out
        overview = (await task_run("overview", "--json")).json
        assert [item["progress"] for item in overview["longest"]] == ["40 % page 12\x1b of 30"]
        (listed,) = (await task_run("list", "--json")).json
        assert listed["progress"] == found
