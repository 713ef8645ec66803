"""A group fires exactly once: promise 12."""

from __future__ import annotations

import pytest
from acceptance.probe_tasks import Parent
from acceptance.site import Event, Site
from waits import WAIT_SECONDS, until


def _fired(site: Site) -> list[Event]:
    return site.journal("start", task="Report")


@pytest.mark.parametrize(
    ("policy", "with_failure", "expected", "outcome"),
    [
        ("all_success", True, ["failure"], "failed"),
        ("all_success", False, [], "failed"),
        ("all_done", True, ["callback"], "partial"),
        ("all_done", False, ["callback"], "partial"),
    ],
)
async def test_failing_child(
    site: Site, policy: str, with_failure: bool, expected: list[str], outcome: str
) -> None:
    """One failing child: one of callback and on_failure by policy, or else the group shows it."""
    site.worker()
    async with site.app() as app:
        parent = Parent(5, failing=2, policy=policy, with_failure=with_failure)
        group = await (await app.submit(parent)).result(timeout=WAIT_SECONDS)
        key = site.key(f"g:{group}")
        await until(lambda: site.redis.hget(key, "state") == "fired", "the group has fired")
        await site.all_ended()
        status = await app.client.groups.status(group)
        children = await app.client.group_results(group)
    assert [event.details["name"] for event in _fired(site)] == expected
    assert (status.outcome, status.failed, status.pending) == (outcome, 1, 0)
    assert [child.state for child in children] == ["done", "done", "dead", "done", "done"]
    assert "the one that fails" in children[2].error


async def test_worker_killed_amid_a_group(site: Site) -> None:
    """A worker killed while the children run: the callback fires once, with every result."""
    settles = site.settles()
    victim = site.worker("--concurrency", "4")
    async with site.app() as app:
        await app.submit(Parent(50))
        await until(lambda: len(site.journal("start", task="MayFail")) >= 10, "10 children ran")
        victim.kill()
        site.worker("--concurrency", "4")
        await until(lambda: _fired(site), "the callback has run")
        await site.all_ended()
    (fired,) = _fired(site)
    assert fired.details["children"] == [["done", n] for n in range(50)]
    assert set(settles().values()) == {1}
