"""Cancelling a workflow: nothing starts any more, and every step ends once."""

from __future__ import annotations

from typing import Any

import pytest
from workflows.flow_site import FlowSite, submitted, workflow_of
from workflows.flow_tasks import Noop

from nonet import ConflictError, NotFoundError
from nonet.client import workflows
from nonet.stores.queue import workflows as stored


async def test_a_cancellation_ends_all_steps(flows: FlowSite) -> None:
    """Blocked, queued and delayed ones at once, a running one when its worker ends it."""
    flow = workflow_of("- | - | s0 | a2")
    flow.step(Noop(), delay=60)
    run = await flow.submit(id="w")
    first, second = await flows.fetch()
    await flows.settle(second, "retry")
    assert await run.cancel("enough") == "running"
    assert flows.states("w") == {"0": "ready", **dict.fromkeys("1234", "cancelled")}
    assert flows.record("w:0")["cancel"]
    await flows.settle(first, "cancelled")
    status = await run.status()
    assert status.state == "cancelled" and status.reason.endswith("enough")
    assert set(flows.ends().values()) == {1}
    assert flows.leaks() == []


@pytest.mark.parametrize("outcome", ["done", "dead", "retry", "back"])
async def test_nothing_follows_a_step_that_ends_after_the_cancellation(
    flows: FlowSite, outcome: str
) -> None:
    """However it ends: nothing follows it, it adds no steps, and nothing is tried again."""
    run = await submitted("- | s0 | f0 | a0")
    (first,) = await flows.fetch()
    await run.cancel()
    await flows.settle(first, outcome, flows.added_by(first, "- | -"))
    await flows.app.broker.promote()
    assert await flows.fetch() == []
    assert [*flows.states("w")] == [*"0123"]
    assert (await run.status()).state == "cancelled"
    assert flows.leaks() == []


async def test_another_process_finishes_a_cancellation(flows: FlowSite) -> None:
    """The caller died after the mark: no step starts, and the leader finishes the rest."""
    run = await submitted("- | s0 | -")
    first, second = await flows.fetch()
    await flows.app.stores.workflows.mark_cancelled("w", "by a test")
    await flows.settle(first)
    await flows.walk()
    assert flows.states("w") == {"0": "done", "1": "waiting", "2": "ready"}
    assert await flows.app.stores.workflows.unfinished() == ["w"]
    await workflows.go_on(flows.app.client, "w")
    await flows.settle(second)
    assert (await run.status()).state == "cancelled"
    assert await flows.app.stores.workflows.unfinished() == []


async def test_a_cancelled_workflow_leaves_no_keys(flows: FlowSite) -> None:
    """Of steps that failed before, were blocked, or had added others: nothing runs again."""
    run = await submitted("- | - | s0 | s1 s2 | a3")
    failed, adds = await flows.fetch()
    await flows.settle(failed, "dead")
    await flows.settle(adds, "done", flows.added_by(adds, "- | -"))
    first, *others = sorted(await flows.fetch(), key=lambda item: item.id)
    assert first.id == "w:1.0"
    await flows.settle(first, "dead")
    assert flows.keys("s:*") and flows.keys("k:*")
    await run.cancel()
    for item in others:
        await flows.settle(item, "cancelled")
    assert (await run.status()).state == "cancelled"
    assert flows.keys("[jkmns]:*") == []


async def test_a_workflow_is_cancelled_while_it_is_submitted(
    flows: FlowSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program still submits: nothing of that is created, and nothing runs."""
    monkeypatch.setattr(stored, "_MOST", 2)
    scripts = flows.app.broker.scripts
    run_confirmed = scripts.run_confirmed

    async def then_cancel(name: str, *args: Any) -> Any:
        answer = await run_confirmed(name, *args)
        if (await flows.app.workflow("w").status()).state == "building":
            await flows.app.workflow("w").cancel("too much")
        return answer

    monkeypatch.setattr(scripts, "run_confirmed", then_cancel)
    run = await submitted("- | - | - | s0 | s3")
    assert (await run.status()).state == "cancelled"
    assert await flows.fetch() == []
    assert set(flows.states("w").values()) == {"cancelled"}
    assert flows.leaks() == []


async def test_a_workflow_is_cancelled_while_it_is_resumed(flows: FlowSite) -> None:
    """What was not created again stays as it was."""
    run = await submitted("- | s0")
    await flows.run(fails="0")
    store = flows.app.stores.workflows
    await store.begin_to_resume("w", [])
    await run.cancel()
    assert (await run.status()).state == "cancelled"
    await store.resume("w")  # by a process that was slow
    assert flows.states("w") == {"0": "dead", "1": "cancelled"}
    assert await flows.fetch() == []
    assert flows.leaks() == []


async def test_an_ended_workflow_is_not_cancelled(flows: FlowSite) -> None:
    """The caller learns how it ended, and that an unknown one is unknown."""
    run = await submitted("-")
    await flows.run()
    with pytest.raises(ConflictError, match="workflow w is done and can no longer be cancelled"):
        await run.cancel()
    with pytest.raises(NotFoundError, match="workflow 'x' is unknown"):
        await flows.app.workflow("x").cancel()
