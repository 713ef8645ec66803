"""A group fires exactly once: promise 12."""

from __future__ import annotations

from acceptance.probe_tasks import Parent
from acceptance.site import SHORT, Site, run
from waits import until


async def test_a_failed_child_fires_the_failure_callback_once(site: Site) -> None:
    """The policies of a group are a table in `stores/queue/test_groups.py`."""
    site.worker()
    async with site.app() as app:
        group = await run(app, Parent(5, failing=2, with_failure=True))
        await site.until_event("start", task="Report")
        await site.all_ended()
        status = await app.client.groups.status(group)
        children = await app.client.group_results(group)
    (fired,) = site.journal("start", task="Report")
    assert fired.details["name"] == "failure"
    assert (status.outcome, status.failed, status.pending) == ("failed", 1, 0)
    assert [child.state for child in children] == ["done", "done", "dead", "done", "done"]
    assert "the one that fails" in children[2].error


async def test_a_group_fires_once_though_a_worker_is_killed(site: Site) -> None:
    """A worker killed while the children run: the callback fires once, with every result."""
    site.settings |= SHORT
    settles = site.settles()
    victim = site.worker("--concurrency", "4")
    async with site.app() as app:
        await app.submit(Parent(50))
        await until(lambda: len(site.journal("start", task="MayFail")) >= 10, "10 children ran")
        victim.kill()
        site.worker("--concurrency", "4")
        await until(lambda: site.journal("start", task="Report"), "the callback has run")
        await site.all_ended()
    (fired,) = site.journal("start", task="Report")
    assert fired.details["children"] == [["done", n] for n in range(50)]
    assert set(settles().values()) == {1}
