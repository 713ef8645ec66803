"""``task-run overview`` where nothing runs, beside a damaged key, and when it watches."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

from cli.terminal import TaskRun
from waits import WAIT_SECONDS


async def findings(task_run: TaskRun) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await task_run("overview", "--json")).json["findings"]
    return found


async def test_an_empty_namespace_lacks_only_a_scheduler(task_run: TaskRun) -> None:
    """The overview names the first step after the installation and nothing else."""
    (finding,) = await findings(task_run)
    assert (finding["what"], finding["hint"]) == ("leader", "task-scheduler")
    ended = await task_run("overview")
    first, second, *_ = ended.out.splitlines()
    assert (ended.code, second) == (0, "tasks: none")
    assert first.endswith(": 1 finding, worst first")


async def test_a_damaged_key_is_a_finding(task_run: TaskRun) -> None:
    """All other parts are shown."""
    task_run.redis.set("{cli}:watch", "garbage")
    found = {item["what"]: item for item in await findings(task_run)}
    assert found.keys() == {"leader", "locks"}
    assert found["locks"]["hint"] == "task-run doctor"


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
