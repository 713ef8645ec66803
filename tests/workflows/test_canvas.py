"""What fails in the canvas of Celery, each with a real worker and scheduler."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from workflows import flow_tasks
from workflows.flow_tasks import Add, Fail, Note, Spread, Sum, Total

from nonet import PREVIOUS, Size, TaskFailed, Workflow, chain, chord, ended, failed, group
from nonet.tasks.runs import WorkflowRun
from nonet.testing import System

SUM = Sum.given(numbers=PREVIOUS)


@pytest.fixture
async def system(redis_url: str) -> AsyncIterator[System]:
    """A system with a small worker."""
    async with System(tasks=[flow_tasks], sizes=[Size.SMALL], redis_url=redis_url) as opened:
        yield opened


async def last(system: System, flow: Workflow) -> object:
    """Run a workflow to its end; the result of its last step."""
    run = await flow.submit()
    await system.run_until_idle()
    status = await run.status()
    assert (status.state, status.left) == ("done", 0)
    return await run.result(flow.steps[-1], timeout=0)


async def errors(run: WorkflowRun) -> dict[str, str]:
    """The state of each step."""
    return {step.place: step.state for step in await run.steps()}


async def test_a_chord_whose_part_raises_fails_at_once(system: System) -> None:
    """The body does not run, and whoever waits for it learns which part has failed."""
    flow = chord([Add(1, 1), Fail("broken")], SUM)
    run = await flow.submit(id="w")
    await system.run_until_idle()
    assert await errors(run) == {"0": "done", "1": "dead", "2": "cancelled"}
    assert (await run.status()).failed == "w:1"
    with pytest.raises(TaskFailed, match="broken"):
        await run.result(flow.steps[1], timeout=0)


async def test_nested_chords(system: System) -> None:
    """A chord in a chain in a chord in a group: each body gets the results of its own parts."""
    inner = chain(Add(1, 1), chord([Add.given(PREVIOUS, 1), Add.given(PREVIOUS, 2)], SUM))
    middle = chain(chord([inner, Add(10, 0)], SUM), Add.given(PREVIOUS, 100))
    assert await last(system, chord([group(middle, Add(1000, 0)), inner], SUM)) == 1124


async def test_the_handler_of_a_chain_runs(system: System) -> None:
    """An edge on the failure of the last part takes over the failure of any part."""
    for place in range(3):
        flow = chain(*(Fail(str(n)) if n == place else Add(n, n) for n in range(3)))
        flow.step(Note(), after=failed(flow.last[0]))
        flow.step(Note(), after=ended(flow.steps[2]))
        run = await flow.submit()
        await system.run_until_idle()
        assert (await run.status()).state == "done", place
        assert (await errors(run))["3"] == "done"


@pytest.mark.parametrize("seconds", [0, 1])
async def test_results_are_kept_until_the_workflow_has_ended(redis_url: str, seconds: int) -> None:
    """The body of a chord runs long after the results of its parts have expired elsewhere."""
    options = {"result_ttl": seconds, "redis_url": redis_url}
    async with System(tasks=[flow_tasks], sizes=[Size.SMALL], **options) as system:
        flow = Workflow()
        one, two = flow.step(Add(1, 1)), flow.step(Spread(3))
        late = flow.step(Sum.given(numbers=[one]), delay=3600)
        total = flow.step(Total.given([one, late], two.added), delay=3600)
        run = await flow.submit(id="w")
        await system.run_until_idle()
        for key in (redis := system.app.broker.client) and await redis.keys("{test}:r:*"):
            await redis.delete(key)  # as if the results had expired
        await system.advance(3600)
        await system.run_until_idle()
        await system.advance(3600)
        await system.run_until_idle()
        assert (await run.status()).state == "done"
        assert await run.result(total, timeout=0) == [[2, 2], [0, 2, 4]]
        assert await run.result(one, timeout=0) == 2


async def test_a_result_is_read_by_reference(system: System) -> None:
    """A large result stands once in Redis, however many steps get it."""
    flow = Workflow()
    large = flow.step(flow_tasks.Large(200_000))
    for _ in range(20):
        flow.step(flow_tasks.Length.given(large))
    run = await flow.submit(id="w")
    envelopes = await system.app.broker.client.keys("{test}:b:w:*")
    assert len(envelopes) >= 20
    for key in envelopes:
        assert await system.app.broker.client.strlen(key) < 500
    await system.run_until_idle()
    assert await run.result(flow.steps[-1], timeout=0) == 200_000
