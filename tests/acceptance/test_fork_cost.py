"""What a child process costs before its task begins."""

from __future__ import annotations

from acceptance.forked_tasks import Fresh
from acceptance.site import Site, run

TASKS = "acceptance.forked_tasks"


async def test_a_child_imports_nothing_before_its_task(site: Site) -> None:
    """The fork server has imported all that a child needs, also where a class is durable."""
    site.worker(size="large")
    async with site.app() as app:
        imported, _ = await run(app, Fresh())
    assert imported == []
