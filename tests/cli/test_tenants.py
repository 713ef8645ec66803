"""``task-run tenants``: what it prints, and what it refuses."""

from __future__ import annotations

from cli.terminal import TaskRun


async def test_without_tenants_the_list_is_empty(task_run: TaskRun) -> None:
    """The line names the field that tells tenants apart."""
    found = await task_run("tenants")
    assert (found.code, found.out) == (0, "")
    assert "no tenant has tasks, by vo" in found.err
    assert (await task_run("tenants", "--json")).json["items"] == []


async def test_an_unknown_order_is_refused(task_run: TaskRun) -> None:
    """The line names the orders."""
    found = await task_run("tenants", "--sort", "size")
    assert found.code == 2
    assert "--sort size: must be one of tasks, name" in found.err
