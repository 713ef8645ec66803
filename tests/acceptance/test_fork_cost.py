"""What a child process costs before its task begins."""

from __future__ import annotations

import statistics

import pytest
from acceptance.forked_tasks import Fresh
from acceptance.site import Site, run

TASKS = "acceptance.forked_tasks"


async def test_a_child_imports_nothing_before_its_task(site: Site) -> None:
    """The fork server has imported all that a child needs, also where a class is durable."""
    site.worker(size="large")
    async with site.app() as app:
        imported, _ = await run(app, Fresh())
    assert imported == []


@pytest.mark.soak
async def test_a_child_costs_little_before_its_task(site: Site) -> None:
    """At most 0.04 s of CPU time from the fork to `execute`, with SQLite and a durable class."""
    site.worker(size="large")
    async with site.app() as app:
        spent = [(await run(app, Fresh()))[1] for _ in range(21)]
    print(f"\nfrom the fork to execute: median {statistics.median(spent):.3f} s of CPU time")
    assert statistics.median(spent) <= 0.04
