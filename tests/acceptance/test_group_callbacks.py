"""A group fires exactly once: promise 12."""

from __future__ import annotations

from acceptance.probe_tasks import Parent
from acceptance.site import Site, run


async def test_a_failed_child_fires_the_failure_callback_once(site: Site) -> None:
    """The policies of a group are a table in `stores/queue/test_groups.py`."""
    site.worker()
    async with site.app() as app:
        group = await run(app, Parent(5, failing=2, with_failure=True))
        await site.until_event("start", task="Report")
        await site.all_ended()
        status = await app.stores.groups.status(group)
        children = await app.client.group_results(group)
    (fired,) = site.journal("start", task="Report")
    assert fired.details["name"] == "failure"
    assert (status.outcome, status.failed, status.pending) == ("failed", 1, 0)
    assert [child.state for child in children] == ["done", "done", "dead", "done", "done"]
    assert "the one that fails" in children[2].error
