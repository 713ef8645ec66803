"""A group fires exactly once: promise 12."""

from __future__ import annotations

import pytest
from acceptance.probe_tasks import Parent, ParentCutOff
from acceptance.site import Event, Site
from daemons import until


def _fired(site: Site) -> list[Event]:
    return site.journal("start", task="Report")


@pytest.mark.parametrize("count", [0, 1, 50])
async def test_callback_gets_the_results_in_order(site: Site, count: int) -> None:
    """With 0, 1 and 50 children the callback runs once, with their results in child order."""
    site.worker()
    async with site.app() as app:
        group = await (await app.submit(Parent(count))).result(timeout=10)
        await until(lambda: _fired(site), "the callback has run")
        await site.all_ended()
        status = await app.client.groups.status(group)
    (fired,) = _fired(site)
    assert fired.details["name"] == "callback"
    assert fired.details["children"] == [["done", n] for n in range(count)]
    assert (status.state, status.outcome, status.failed) == ("fired", "done", 0)


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
        group = await (await app.submit(parent)).result(timeout=10)
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


async def test_parent_that_is_retried_spawns_once(site: Site) -> None:
    """A parent that fails after spawning and is retried means the same group and children."""
    site.worker()
    async with site.app() as app:
        parent = await app.submit(Parent(10, fail_first=True))
        group = await parent.result(timeout=10)
        await until(lambda: _fired(site), "the callback has run")
        await site.all_ended()
        assert len(await app.client.group_results(group)) == 10
    assert [event.attempt for event in site.journal("start", id=parent)] == [1, 2]
    assert len(site.journal("start", task="MayFail")) == 10
    assert len(_fired(site)) == 1


@pytest.mark.parametrize(("with_failure", "expected"), [(True, ["failure"]), (False, [])])
async def test_parent_that_ends_before_the_seal(
    site: Site, with_failure: bool, expected: list[str]
) -> None:
    """A parent that ends before it sealed its group fails the group, even under ``all_done``."""
    site.worker()
    async with site.app() as app:
        parent = await app.submit(ParentCutOff(with_failure))
        await until(lambda: len(site.journal("start", task="MayFail")) == 2, "the children ran")
        await site.all_ended()
        (group,) = await app.client.groups.list(10)
        assert (await parent.status()).state == "dead"
    assert (group.state, group.outcome) == ("fired", "failed")
    assert "before it had spawned" in group.error
    assert [event.details["name"] for event in _fired(site)] == expected
