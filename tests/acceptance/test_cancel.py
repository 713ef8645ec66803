"""Running tasks that somebody cancels, and tasks that nobody starts in time, with real daemons."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from acceptance.cancel_tasks import (
    Endless,
    EndlessChild,
    EndlessThread,
    EndlessWithMutex,
    Finishes,
    RaisesWhenCancelled,
    Swallows,
    Urgent,
    UrgentDurable,
    UrgentKept,
)
from acceptance.probe_tasks import Quick
from acceptance.site import Site
from acceptance.test_durable import transaction
from daemons import frozen
from waits import WAIT_SECONDS, until

from nonet import BaseTask, InvalidArgumentsError, Nonet, TaskCancelled, TaskExpired
from nonet.base.errors import ConflictError
from nonet.client.client import Handle
from nonet.stores.queue.groups import GroupStatus

TASKS = ("acceptance.cancel_tasks", "acceptance.probe_tasks")


@pytest.fixture(autouse=True)
def _tasks(site: Site) -> None:
    site.settings["NONET_TASKS"] = ",".join(TASKS)


def opened(site: Site) -> Nonet:
    return site.app(tasks=TASKS)


async def started(site: Site, task: BaseTask) -> Handle:
    handle: Handle = await task.schedule()
    await site.started(handle)
    return handle


async def is_cancelled(site: Site, app: Nonet, handle: Handle) -> None:
    """It ended so, was executed once, and one event tells of it."""
    with pytest.raises(TaskCancelled, match=r"was cancelled by \S+@\S+ \d+: enough"):
        await handle.result(timeout=WAIT_SECONDS)
    status = await handle.status()
    assert (status.state, status.attempt, status.reason) == ("cancelled", 1, "cancelled")
    assert len(site.journal("start", id=str(handle))) == 1
    (event,) = await app.stores.events.last(10, kind="tasks-cancelled")
    assert event.text == f"1 task ({handle}): enough"
    await site.all_ended()


class TestRunning:
    async def test_a_coroutine(self, site: Site) -> None:
        """It is told where it waits, its dependencies roll back, and it is not retried."""
        async with opened(site) as app:
            site.worker()
            handle = await started(site, Endless(site.gate()))
            assert await handle.cancel("enough") == "cancelling"
            await is_cancelled(site, app, handle)
            assert [event.event for event in site.journal()] == ["start", "told", "rolled back"]

    async def test_a_thread(self, site: Site) -> None:
        """A plain function learns of it when it asks; its task has ended before that returns."""
        gate = site.gate()
        async with opened(site) as app:
            site.worker()
            handle = await started(site, EndlessThread(gate))
            assert await app.cancel([handle], reason="enough") == {handle: "cancelling"}
            await is_cancelled(site, app, handle)
            (told,) = await site.until_event("told")
            assert "cancelled by" in told.details["why"]
            site.open(gate)

    async def test_in_a_child_process(self, site: Site) -> None:
        """Child processes are told as well, and the next task finds a child."""
        async with opened(site) as app:
            site.worker(size="medium")
            handle = await started(site, EndlessChild(site.gate()))
            assert await handle.cancel("enough") == "cancelling"
            await is_cancelled(site, app, handle)
            assert len(site.journal("rolled back")) == 1

    async def test_one_that_fails_when_it_is_told(self, site: Site) -> None:
        """Whatever it raises then: no policy is asked."""
        async with opened(site) as app:
            site.worker()
            handle = await started(site, RaisesWhenCancelled(site.gate()))
            await handle.cancel("enough")
            await is_cancelled(site, app, handle)

    async def test_one_that_goes_on_until_its_hard_timeout(self, site: Site) -> None:
        """It is left alone then, and has ended cancelled: no policy is asked."""
        gate = site.gate()
        async with opened(site) as app:
            site.worker("--concurrency", "1")
            handle = await started(site, Swallows(gate))
            await handle.cancel("enough")
            await is_cancelled(site, app, handle)
            assert await (await Quick(3).schedule()).result(timeout=WAIT_SECONDS) == 3
            site.open(gate)

    async def test_one_that_succeeds_nevertheless(self, site: Site) -> None:
        """What came to its end has ended so: the cancellation came too late."""
        async with opened(site):
            site.worker()
            handle = await started(site, Finishes(site.gate()))
            assert await handle.cancel() == "cancelling"
            assert await handle.result(timeout=WAIT_SECONDS) == "done nevertheless"
            with pytest.raises(ConflictError, match="is done"):
                await handle.cancel()
            await site.all_ended()

    async def test_five_children_of_a_group(self, site: Site) -> None:
        """All end cancelled, and the group ends by its policy, once."""
        gate = site.gate()
        async with opened(site) as app:
            site.worker("--concurrency", "2", size="medium")
            site.worker("--concurrency", "3")
            children = [EndlessChild(gate), EndlessChild(gate), *[Endless(gate)] * 3]
            group = await app.client.spawn_with_callback(
                children, Quick(1), on_failure=Quick(2), policy="all_success"
            )
            await site.until_event("start", 5)
            states = await app.client.cancel_group(group, reason="enough")
            assert sorted(states.values()) == ["cancelling"] * 5
            found = await until_fired(site, app, group)
            assert (found.pending, found.failed, found.outcome) == (0, 5, "failed")
            assert await app.result(f"{group}.failure", timeout=WAIT_SECONDS) == 2
            ended = await app.client.group_results(group)
            assert [child.state for child in ended] == ["cancelled"] * 5
            assert len(site.journal("told")) == 5
            (event,) = await app.stores.events.last(10, kind="tasks-cancelled")
            assert event.text.startswith("5 tasks (")
            assert len(site.journal("start")) == 6
            await site.all_ended()

    async def test_its_worker_is_killed(self, site: Site) -> None:
        """One that died before it could obey: the task ends when its lease does, and stays so."""
        async with opened(site) as app:
            worker = site.worker()
            handle = await started(site, EndlessWithMutex(site.gate()))
            with frozen(worker):
                assert await handle.cancel("enough") == "cancelling"
                explained = await app.explain(handle)
                assert explained.cause == "cancelling" and "cancelled by" in explained.text
                worker.kill()
            site.worker()
            await is_cancelled(site, app, handle)
            (other,) = [await started(site, EndlessWithMutex(gate := site.gate()))]
            site.open(gate)
            assert await other.result(timeout=WAIT_SECONDS) == "passed"

    async def test_its_worker_drains(self, site: Site) -> None:
        """A worker that stops obeys while it lets others finish."""
        gate = site.gate()
        async with opened(site) as app:
            worker = site.worker()
            handle = await started(site, Endless(gate))
            other = await started(site, Endless(gate))
            worker.terminate()
            await until(lambda: "draining" in worker.log, "it drains")
            await handle.cancel("enough")
            with pytest.raises(TaskCancelled):
                await handle.result(timeout=WAIT_SECONDS)
            assert (await other.status()).state == "running"
            site.open(gate)
            assert await other.result(timeout=WAIT_SECONDS) == "passed"
            worker.wait()
            await is_cancelled(site, app, handle)


async def until_fired(site: Site, app: Nonet, group: str) -> GroupStatus:
    key = site.key(f"g:{group}")
    await until(lambda: site.redis.hget(key, "state") == "fired", "the group has fired")
    return await app.client.groups.status(group)


class TestStartBy:
    async def test_nobody_starts_it(self, site: Site) -> None:
        """Without a worker of its size it expires all the same, and a later worker leaves it."""
        async with opened(site) as app:
            site.scheduler()
            handle = await Urgent().schedule()
            with pytest.raises(TaskExpired, match=r"was not started within 0\.5 s \(start_by\)"):
                await handle.result(timeout=WAIT_SECONDS)
            status = await handle.status()
            assert (status.state, status.reason) == ("expired", "capacity")
            assert (await app.explain(handle)).text.startswith("expired: not started")
            site.worker()
            await site.all_ended()
            assert site.journal() == []

    async def test_it_is_started_in_time(self, site: Site) -> None:
        """One that runs has no deadline any more, however long it takes; None means none."""
        gate = site.gate()
        async with opened(site):
            site.worker("--concurrency", "1")
            long = await Endless(gate).schedule(start_by=20)
            await site.started(long)
            late = await Urgent().schedule(start_by=None)
            missed = await Urgent().schedule()
            with pytest.raises(TaskExpired):
                await missed.result(timeout=WAIT_SECONDS)
            site.open(gate)
            assert await long.result(timeout=WAIT_SECONDS) == "passed"
            assert await late.result(timeout=WAIT_SECONDS) == "in time"
            await site.all_ended()

    async def test_operators_hear_of_it(self, site: Site) -> None:
        """A class that is eligible gets a row with the reason, and ends expired."""
        async with opened(site) as app:
            site.worker()
            await app.stores.controls.pause(["task:UrgentKept"], "ann@host 7")
            handle = await UrgentKept().schedule()
            with pytest.raises(TaskExpired, match="not started within"):
                await handle.result(timeout=WAIT_SECONDS)
            (letter,) = await (await app.dead_letters()).list()
            assert (letter.task_id, letter.reason) == (handle, "capacity")
            assert letter.error_type == "TaskExpired"
            assert (await handle.status()).attempt == 0
            assert site.journal() == []
            await app.stores.controls.resume(["task:UrgentKept"], "ann@host 7")
            again = await app.resubmit(letter.id)
            assert await again.result(timeout=WAIT_SECONDS) == "in time"
            await site.all_ended()

    async def test_a_durable_one_that_is_handed_over_too_late(self, site: Site) -> None:
        """It counts from the submission, not from the hand-over; its row goes."""
        async with opened(site) as app:
            await (await app.stores.outbox()).prepare()
            async with transaction(app.settings.sql_url()) as connection:
                late = await UrgentDurable().schedule(transaction=connection)
                fine = await UrgentDurable().schedule(transaction=connection, start_by=3600)
            kept = await app.client.status(late)
            due = datetime.now(UTC) + timedelta(seconds=0.6)
            assert kept.submitted is not None and due > kept.submitted
            await until(lambda: datetime.now(UTC) > due, "its time is over")
            site.scheduler()
            with pytest.raises(TaskExpired):
                await late.result(timeout=WAIT_SECONDS)
            site.worker()
            assert await fine.result(timeout=WAIT_SECONDS) == "in time"
            assert len(site.journal("start")) == 1

    async def test_what_makes_no_sense_is_refused(self, site: Site) -> None:
        """A deadline that is none, or ends before the task is due."""
        async with opened(site):
            hour = datetime.now(UTC) + timedelta(hours=1)
            for start_by in (0, -1, float("nan"), timedelta(0), "soon", True):
                with pytest.raises(InvalidArgumentsError, match="start_by: must be"):
                    await Quick(1).schedule(start_by=start_by)
            with pytest.raises(InvalidArgumentsError, match="ends before at_time"):
                await Urgent().schedule(at_time=hour)
            with pytest.raises(InvalidArgumentsError, match="ends before at_time"):
                await Quick(1).schedule(at_time=hour, start_by=hour - timedelta(minutes=1))
            with pytest.raises(InvalidArgumentsError, match="ends before delay"):
                await Quick(1).schedule(delay=60, start_by=timedelta(minutes=1))
            with pytest.raises(InvalidArgumentsError, match="ends before delay"):
                await Quick(1).schedule(delay=timedelta(hours=2), start_by=hour)
            fine = await Urgent().schedule(at_time=hour, start_by=hour + timedelta(minutes=1))
            await fine.cancel()
