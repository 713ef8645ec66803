"""Functions that are tasks, in real daemons."""

from __future__ import annotations

from acceptance.site import Site
from tasks.function_tasks import add, between, resize, shout

MODULE = "tasks.function_tasks"


async def test_functions_run_like_classes(site: Site) -> None:
    """In the loop, in a thread and in a child process, found by the module or by name."""
    site.settings["NONET_TASKS"] = MODULE
    async with site.app():
        handles = [
            await add(1, b=5).schedule(),
            await shout("a").schedule(),
            await between(1, last=2).schedule(),  # type: ignore[call-arg]  # it is injected
            await resize("/a.png", 640).schedule(),
        ]
        site.worker()
        found = [await handle.result(timeout=30) for handle in handles]
    expected = [6, ["A by function_tasks:shout"], [1, "Database", False, 2, 1], 640]
    assert found == expected
