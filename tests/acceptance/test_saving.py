"""What a task saves for its next attempt, and what it submits with its own end."""

from __future__ import annotations

import pytest
from acceptance.saving_tasks import Counting, CountingInThread, Greedy, Mistaken, Parent, TooMuch
from acceptance.site import PROBES, Site
from servers import RedisServer
from waits import WAIT_SECONDS, until

from nonet import BrokerFullError, TaskFailed

TASKS = {"NONET_TASKS": f"{PROBES},acceptance.saving_tasks"}


def with_saving(site: Site) -> Site:
    site.settings |= TASKS
    return site


async def test_the_next_attempt_finds_what_was_saved(site: Site) -> None:
    """A retry goes on where the failed attempt saved last, in the loop and in a thread."""
    with_saving(site).worker()
    async with site.app(tasks=(PROBES, "acceptance.saving_tasks")) as app:
        counting = await app.submit(Counting(10, fails_at=4))
        threaded = await app.submit(CountingInThread(3))
        assert await counting.result(timeout=WAIT_SECONDS) == 4
        assert await threaded.result(timeout=WAIT_SECONDS) == {"at": 3}
        assert [event.details["saved"] for event in site.journal("start", id=counting)] == [None, 4]
    await site.all_ended()


async def test_a_killed_worker_leaves_what_was_saved(site: Site) -> None:
    """What a worker saved before it was killed is there for the next one."""
    first = with_saving(site).worker()
    async with site.app(tasks=(PROBES, "acceptance.saving_tasks")) as app:
        task = await app.submit(Counting(10, fails_at=4, gate=site.gate()))
        await site.until_event("trouble", id=task)
        first.kill()
        site.worker()
        assert await task.result(timeout=WAIT_SECONDS) == 4


async def test_a_checkpoint_is_bounded_and_fenced(site: Site) -> None:
    """More than a message may have is refused with the limit; nothing is left after the end."""
    with_saving(site).worker()
    async with site.app(tasks=(PROBES, "acceptance.saving_tasks")) as app:
        task = await app.submit(TooMuch())
        assert "NONET_MESSAGE_LIMIT" in await task.result(timeout=WAIT_SECONDS)
        done = await app.submit(Counting(3))
        await done.result(timeout=WAIT_SECONDS)
    assert list(site.redis.scan_iter(site.key("c:*"))) == []


async def test_a_full_redis_still_saves(own_server: RedisServer, own_site: Site) -> None:
    """At maxmemory a worker starts, and what runs saves and ends: so a backlog can drain."""
    site = with_saving(own_site)
    async with site.app(tasks=(PROBES, "acceptance.saving_tasks")) as app:
        task = await app.submit(Counting(20))
        site.redis.config_set("maxmemory", "1mb")
        with pytest.raises(BrokerFullError):
            await app.submit(Counting(1))
        site.worker()
        assert await task.result(timeout=WAIT_SECONDS) == 0
        site.redis.config_set("maxmemory", "0")


async def test_what_cannot_work_is_told(site: Site) -> None:
    """A checkpoint that would block the loop for ever, and a child that is no task, are refused."""
    with_saving(site).worker()
    async with site.app(tasks=(PROBES, "acceptance.saving_tasks")) as app:
        told = await (await app.submit(Mistaken())).result(timeout=WAIT_SECONDS)
    assert "await checkpoint()" in told[0] and "5 is not a task" in told[1]


async def test_children_start_only_after_the_commit(site: Site) -> None:
    """Attempts whose commit fails submit nothing; the one that commits submits its own, once."""
    with_saving(site).worker()
    async with site.app(tasks=(PROBES, "acceptance.saving_tasks")) as app:
        parent = await app.submit(Parent(20))
        attempts = await site.until_event("asked", 3, id=parent)
        assert site.journal("start", task="Quick") == []
        site.write("commit", "")
        ids = await parent.result(timeout=WAIT_SECONDS)
        assert ids not in [attempt.details["ids"] for attempt in attempts[:2]]
        await site.all_ended()
    assert sorted(event.id for event in site.journal("start", task="Quick")) == sorted(ids)


async def test_a_killed_parent_submits_nothing(site: Site) -> None:
    """Children that were only asked for vanish with the worker; the next attempt asks again."""
    first, gate = with_saving(site).worker(), site.gate()
    site.write("commit", "")
    async with site.app(tasks=(PROBES, "acceptance.saving_tasks")) as app:
        parent = await app.submit(Parent(5, gate=gate))
        await site.until_event("asked", id=parent)
        first.kill()
        site.open(gate)
        site.worker()
        ids = await parent.result(timeout=WAIT_SECONDS)
        await site.all_ended()
    assert sorted(event.id for event in site.journal("start", task="Quick")) == sorted(ids)


async def test_more_than_one_step_takes_is_refused(site: Site) -> None:
    """The author hears how many fit, and nothing is submitted."""
    with_saving(site).worker()
    async with site.app(tasks=(PROBES, "acceptance.saving_tasks")) as app:
        task = await app.submit(Greedy())
        try:
            await task.result(timeout=WAIT_SECONDS)
        except TaskFailed as error:
            assert "takes at most 500 tasks" in str(error)
        await site.all_ended()
    assert site.journal("start", task="Quick") == []


async def test_a_call_submits_when_it_has_returned(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`app.call` submits what the task asked for, after it returned."""
    monkeypatch.setenv("PROBE_JOURNAL", site.settings["PROBE_JOURNAL"])
    site.write("commit", "")
    async with site.app(tasks=(PROBES, "acceptance.saving_tasks")) as app:
        ids = await app.call(Parent(2))
        assert [(await app.status(id)).state for id in ids] == ["queued", "queued"]
    site.worker()
    await until(lambda: len(site.journal("start", task="Quick")) == 2, "both have run")
    await site.all_ended()
