"""``task-run overview`` and ``tenants``, and the progress that commands show."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

from cli.errands import Prints
from cli.terminal import TaskRun, until_written
from waits import WAIT_SECONDS


async def findings(task_run: TaskRun) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await task_run("overview", "--json")).json["findings"]
    return found


async def test_an_empty_namespace_lacks_only_a_scheduler(task_run: TaskRun) -> None:
    """The overview names the first step after the installation and nothing else."""
    (finding,) = await findings(task_run)
    assert (finding["what"], finding["command"]) == ("leader", "task-scheduler")
    ended = await task_run("overview")
    first, second, *_ = ended.out.splitlines()
    assert (ended.code, second) == (0, "tasks: none")
    assert first.endswith(": 1 finding, worst first")


async def test_a_damaged_key_is_a_finding(task_run: TaskRun) -> None:
    """All other parts are shown."""
    task_run.redis.set("{cli}:watch", "garbage")
    found = {item["what"]: item for item in await findings(task_run)}
    assert found.keys() == {"leader", "locks"}
    assert found["locks"]["command"] == "task-run doctor"


async def test_watch_shows_changes_until_a_signal(task_run: TaskRun) -> None:
    """Ctrl-C is no error."""
    process = await task_run.start("overview", "--watch", "--json")
    assert process.stdout is not None

    async def next_findings() -> set[str]:
        assert process.stdout is not None
        line = await process.stdout.readline()
        return {item["what"] for item in json.loads(line)["findings"]}

    async with asyncio.timeout(WAIT_SECONDS):
        assert await next_findings() == {"leader"}
        assert (await task_run("pause", "--task", "Add")).code == 0
        while "task:Add" not in await next_findings():
            pass
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 0


async def test_without_tenants_the_list_is_empty(task_run: TaskRun) -> None:
    """`tenants` names the field that tells them apart."""
    found = await task_run("tenants")
    assert (found.code, found.out) == (0, "")
    assert "no tenant has tasks, by vo" in found.err
    assert (await task_run("tenants", "--json")).json["items"] == []


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
        (listed,) = (await task_run("list", "--json")).json["items"]
        assert listed["progress"] == found
        await app.cancel(["p"])


async def test_a_finding_is_marked_as_seen(task_run: TaskRun) -> None:
    """The overview says who has seen it; an unknown finding is refused."""
    done = await task_run("seen", "scheduler", "leader", "--for", "8h")
    assert done.code == 0 and done.out.startswith("scheduler leader: seen until ")
    (finding,) = await findings(task_run)
    assert "@" in finding["seen"]["who"]
    shown = (await task_run("overview")).out
    assert "critical: no scheduler leads" in shown and "(seen by " in shown
    assert (await task_run("seen", "worker", "leader", "--for", "8h")).code == 4
    assert (await task_run("seen", "scheduler", "leader", "--for", "0s")).out.endswith("not seen\n")
