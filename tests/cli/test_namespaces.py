"""Commands on several namespaces."""

from __future__ import annotations

import json

from cli.errands import Add
from cli.terminal import TaskRun

NAMES = "cli,a"


async def test_each_namespace_is_shown(task_run: TaskRun) -> None:
    """Under a heading, or as a line of JSON; --namespace chooses one."""
    task_run.environment["NONET_NAMESPACES"] = NAMES
    async with task_run.app() as app:
        await app.submit(Add(1), id="here")
        await app.parts_of("a").client.submit(Add(2), id="there")
        shown = await task_run("list")
        lines = (await task_run("list", "--json")).out.splitlines()
        one = await task_run("list", "--namespace", "a", "--json")
    assert shown.code == 0
    first, second = shown.out.split("namespace a")
    assert first.startswith("namespace cli") and "here" in first and "there" in second
    found = {
        row["namespace"]: [task["id"] for task in row["found"]] for row in map(json.loads, lines)
    }
    assert found == {"cli": ["here"], "a": ["there"]}
    assert [task["id"] for task in one.json] == ["there"]


async def test_a_task_is_found_in_any(task_run: TaskRun) -> None:
    """By commands that act on an id."""
    task_run.environment["NONET_NAMESPACES"] = NAMES
    async with task_run.app() as app:
        await app.parts_of("a").client.submit(Add(2), id="there")
    assert "queued" in (await task_run("status", "there")).out
    assert "queued" in (await task_run("explain", "there")).out
    assert (await task_run("cancel", "there")).code == 0
    assert "cancelled" in (await task_run("status", "there")).out


async def test_only_one_can_be_watched(task_run: TaskRun) -> None:
    """A command that never ends would never come to the second."""
    ended = await task_run("overview", "--watch", "--namespaces", NAMES)
    assert ended.code == 2 and "--namespace cli" in ended.err
