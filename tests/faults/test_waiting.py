"""Workflows that wait for an event while daemons, SQL or Redis are lost."""

from __future__ import annotations

import asyncio

import pytest
from acceptance.site import eventually
from faults.fault_tasks import Timed
from faults.rig import Rig, same_processes
from waits import WAIT_SECONDS

from nonet import Nonet, Workflow, WorkflowRun, failed
from nonet.base.errors import ConflictError, NotFoundError
from nonet.tasks.runs import Signalled


async def approval(app: Nonet) -> WorkflowRun:
    """Submit a step, the event after it, and a step after that; wait until the event is awaited."""
    flow = Workflow()
    go = flow.event("go", after=flow.step(Timed(0.01)))
    flow.step(Timed(0.01), after=go)
    run = await flow.submit(id="w")

    async def is_awaited() -> bool:
        return "waiting for event go" in (await app.explain("w:1")).text

    await eventually(is_awaited)
    return run


async def test_an_event_comes_while_no_daemon_lives_and_sql_is_away(rig: Rig) -> None:
    """It counts once though two send it; one that does not come fails its step all the same."""
    site = rig.site
    site.settings["NONET_DB_URL"] = "mysql://nonet@127.0.0.1:1/nonet"
    fleet, scheduler = rig.workers(1, slots=10), site.scheduler()
    async with site.app() as app:
        run, flow = await approval(app), Workflow()
        flow.step(Timed(0.01), after=failed(flow.event("never", timeout=1)))
        unheard = await flow.submit(id="unheard")
        scheduler.kill()
        await asyncio.to_thread(fleet.kill_one)  # another one starts in its place
        sent = [app.signal("w", "go", payload) for payload in "ab"]
        answers = await asyncio.gather(*sent, return_exceptions=True)
        assert {type(answer) for answer in answers} == {Signalled, ConflictError}
        site.scheduler()
        for each in (run, unheard):
            assert (await each.wait(timeout=WAIT_SECONDS)).state == "done"
        counted = "a" if isinstance(answers[0], Signalled) else "b"
        assert await app.step_result(run, "1") == counted
        assert [step.state for step in await unheard.steps()] == ["expired", "done"]
    rig.accepted(["w:0", "w:1", "w:2", "unheard:1"])
    await rig.judge("SIGKILL of worker and scheduler, SQL away, 2 signals at once")


async def test_redis_is_flushed_while_a_workflow_waits(rig: Rig) -> None:
    """The workflow is unknown from then on, and its id can be submitted again."""
    fleet, scheduler = rig.workers(1, slots=10), rig.site.scheduler()
    async with rig.site.app() as app:
        with same_processes(*fleet.daemons, scheduler):
            run = await approval(app)
            waiting = asyncio.create_task(run.wait(timeout=WAIT_SECONDS))
            rig.site.redis.flushall()
            with pytest.raises(NotFoundError, match="workflow 'w' is unknown"):
                await app.signal("w", "go", 1)
            with pytest.raises(NotFoundError):
                await waiting
            again = await approval(app)
            assert again.created
            await app.signal("w", "go", 2)
            assert (await again.wait(timeout=WAIT_SECONDS)).state == "done"
            assert await app.step_result("w", "1") == 2
    await rig.judge("FLUSHALL while an event is awaited", may_end_again=["w:0"])
