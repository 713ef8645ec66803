"""Steps without code, which wait for an event."""

from __future__ import annotations

from datetime import timedelta

import pytest
import records
from workflows.flow_site import FlowSite, P, walk_later
from workflows.flow_tasks import Add, Late, Noop

from nonet import Workflow, WorkflowRun, chain, failed
from nonet.base.errors import ConflictError, InvalidArgumentsError, NotFoundError


async def approval(timeout: timedelta | None = None) -> WorkflowRun:
    """A step, the event after it, a step with its payload, and one if it fails."""
    flow = Workflow()
    approved = flow.event("approved", timeout=timeout, after=flow.step(Noop()))
    flow.step(Add.given(approved, 1))
    flow.step(Noop(), after=failed(approved))
    return await flow.submit(id="w")


async def test_an_event_ends_its_step_once(flows: FlowSite) -> None:
    """Its payload is the result; a repetition gives the same answer, another payload none."""
    run = await approval()
    assert await flows.run() == ["w:0"]
    assert flows.states("w") == dict(zip("0123", ("done", *["waiting"] * 3), strict=True))
    first = await flows.app.signal(run, "approved", 41)
    assert (first.step, first.event, first.workflow) == ("w:1", "approved", "w")
    assert await flows.app.signal("w", "approved", 41) == first
    with pytest.raises(ConflictError, match=rf"with another payload: {first.by} sent it at"):
        await flows.app.signal("w", "approved", 42)
    assert flows.states("w")["1"] == "done"
    assert await flows.app.step_result("w", "1") == 41
    assert await flows.run() == ["w:2"]
    assert (await run.wait(timeout=0)).state == "done"
    assert [event.kind for event in await flows.app.stores.events.last(9)] == ["event-signalled"]


async def test_an_event_may_come_before_its_step(flows: FlowSite) -> None:
    """It counts when the steps before it have ended, not earlier."""
    await approval()
    await flows.app.signal("w", "approved", {"by": "ann"})
    assert flows.states("w")["1"] == "waiting"
    (delivery,) = await flows.fetch()
    await flows.settle(delivery)
    assert flows.states("w")["1"] == "done"
    assert await flows.app.step_result("w", "1") == {"by": "ann"}


async def test_a_timeout_fails_the_step(flows: FlowSite) -> None:
    """It counts from the end of the steps before; the event is too late then, until a resume."""
    run = await approval(timedelta(days=3))
    assert flows.redis.zcard(f"{P}deadlines") == 0
    assert await flows.run() == ["w:0"]
    found = await flows.app.explain("w:1")
    assert "waiting for event approved: a program" in found.text
    assert "Without it the step fails in " in found.text
    assert found.next == "task-run workflows signal w approved"
    await walk_later(flows)  # a sweep changes nothing
    problems = (await flows.app.doctor(wait=0)).problems
    assert [one for one in problems if one.kind != "worker"] == []  # none is registered here
    assert flows.states("w")["1"] == "waiting"
    records.hset(flows.redis, f"{P}t:w:1", "start_by", "1|")
    flows.redis.zadd(f"{P}deadlines", {"w:1": 1})
    await flows.app.broker.promote()
    assert flows.states("w") == {"0": "done", "1": "expired", "2": "cancelled", "3": "ready"}
    (step,) = [step for step in await run.steps() if step.place == "1"]
    assert step.error.startswith("event approved has not come within ")
    with pytest.raises(ConflictError, match="no longer waits for this event: step w:1 is expired"):
        await flows.app.signal("w", "approved")


async def test_a_resumed_workflow_waits_for_its_event_again(flows: FlowSite) -> None:
    """An event whose time was over may come then."""
    flow = Workflow()
    flow.step(Noop(), after=flow.event("go", timeout=60))
    run = await flow.submit(id="w")
    records.hset(flows.redis, f"{P}t:w:0", "start_by", "1|")
    flows.redis.zadd(f"{P}deadlines", {"w:0": 1})
    await flows.app.broker.promote()
    assert (await run.status()).state == "failed"
    assert await run.resume() == 2
    assert flows.states("w") == {"0": "waiting", "1": "waiting"}
    await flows.app.signal("w", "go")
    assert await flows.run() == ["w:1"]
    assert (await run.status()).state == "done"


async def test_a_cancelled_event_does_not_come(flows: FlowSite) -> None:
    run = await approval()
    await run.cancel()
    with pytest.raises(ConflictError, match=r"the workflow is cancelled|step w:1 is cancelled"):
        await flows.app.signal("w", "approved")
    assert flows.leaks() == []


async def test_unknown_events_and_payloads_are_refused(flows: FlowSite) -> None:
    """The error names the events that the workflow has."""
    await approval()
    with pytest.raises(NotFoundError, match="has no event 'aproved': it has approved"):
        await flows.app.signal("w", "aproved")
    with pytest.raises(NotFoundError, match="workflow 'x' is unknown"):
        await flows.app.signal("x", "approved")
    with pytest.raises(InvalidArgumentsError, match=r"its payload of .* exceeds the limit"):
        await flows.app.signal("w", "approved", "x" * 300_000)
    with pytest.raises(InvalidArgumentsError, match="its payload cannot be stored"):
        await flows.app.signal("w", "approved", object())


def test_events_are_parts_of_workflows() -> None:
    """A copy in another workflow is an event, too; a name is there once, and plain."""
    flow = Workflow()
    flow.step(Late(), after=flow.event("go", timeout=5))
    assert [str(step) for step in chain(Noop(), flow).steps] == [
        "<step 0: Noop>",
        "<step 1: event go>",
        "<step 2: Late>",
    ]
    with pytest.raises(ValueError, match="already has an event go"):
        flow.event("go")
    with pytest.raises(ValueError, match="must be 1 to 40 letters"):
        flow.event("a b")
    with pytest.raises(ValueError, match="timeout: must be seconds"):
        flow.event("later", timeout=0)
