"""Workflows with a real worker and scheduler: inputs, locks, parents, children, time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from waits import WAIT_SECONDS
from workflows import flow_tasks
from workflows.flow_tasks import (
    Add,
    Buried,
    Fail,
    Guarded,
    Large,
    Noop,
    Note,
    Parent,
    Spread,
    Sum,
    Tree,
    Values,
)

from nonet import PREVIOUS, ConflictError, Size, Workflow, chain, ended
from nonet.tasks.runs import WorkflowRun
from nonet.testing import System


@pytest.fixture
async def system(redis_url: str) -> AsyncIterator[System]:
    """A system with a small worker."""
    async with System(tasks=[flow_tasks], sizes=[Size.SMALL], redis_url=redis_url) as opened:
        yield opened


async def ran(system: System, flow: Workflow, state: str = "done") -> WorkflowRun:
    """Run a workflow to its end."""
    run = await flow.submit()
    await system.run_until_idle()
    status = await run.status()
    assert (status.state, status.left) == (state, 0)
    return run


async def test_results_are_arguments(system: System) -> None:
    """Whole ones, inside of lists and mappings, and those of added steps."""
    flow = Workflow()
    one, two, three = flow.step(Add(1, 1)), flow.step(Add(2, 2)), flow.step(Spread(3))
    values = flow.step(Values.given(one, [two, 7, {"x": one}], others=three.added))
    nothing = flow.step(Sum.given(numbers=flow.step(Spread(0)).added))
    run = await ran(system, flow)
    assert await run.result(values, timeout=0) == [2, [4, 7, {"x": 2}], [0, 2, 4]]
    assert await run.result(nothing, timeout=0) == 0


async def test_results_of_added_steps_are_those_of_the_done_ones(system: System) -> None:
    """A failure that another added step took over has none, nor has a step that was not needed."""
    flow = Workflow()
    tree = flow.step(Tree(["fails", "handles 0", "adds", "handles 2"]))
    values = flow.step(Values.given(0, [], others=tree.added))
    run = await ran(system, flow)
    assert await run.result(values, timeout=0) == [0, [], ["handled", "added"]]


async def test_inputs_are_in_the_order_of_edges(system: System) -> None:
    """With states and errors; a step without predecessors has none."""
    flow = Workflow()
    one, two = flow.step(Fail("broken")), flow.step(Add(1, 1))
    note = flow.step(Note(), after=[two, ended(one)])
    first = flow.step(Note())
    run = await ran(system, flow, "failed")
    assert await run.result(note, timeout=0) == ["done ", "dead ValueError: broken"]
    assert await run.result(first, timeout=0) == []


@pytest.mark.parametrize("seconds", [0, 1])
async def test_results_are_kept_until_the_workflow_has_ended(redis_url: str, seconds: int) -> None:
    """A step runs long after the results before it have expired elsewhere."""
    options = {"result_ttl": seconds, "redis_url": redis_url}
    async with System(tasks=[flow_tasks], sizes=[Size.SMALL], **options) as system:
        flow = Workflow()
        one, added = flow.step(Add(1, 1)), flow.step(Spread(3))
        late = flow.step(Sum.given(numbers=[one]), delay=3600)
        values = flow.step(Values.given(one, [late], added.added), delay=3600)
        run = await flow.submit(id="w")
        await system.run_until_idle()
        redis = system.app.broker.client
        for key in await redis.keys("{test}:r:*"):
            await redis.delete(key)  # as if the results had expired
        for _ in range(2):
            await system.advance(3600)
            await system.run_until_idle()
        assert (await run.status()).state == "done"
        assert await run.result(values, timeout=0) == [2, [2], [0, 2, 4]]
        assert await run.result(one, timeout=0) == 2


async def test_a_result_is_passed_by_reference(system: System) -> None:
    """A large result is in Redis once, however many steps get it."""
    flow = Workflow()
    large = flow.step(Large(200_000))
    for _ in range(20):
        flow.step(Values.given(0, [large]))
    await flow.submit()
    redis = system.app.broker.client
    kept = await redis.keys("{test}:[bt]:*")
    assert len(kept) >= 20  # the worker may have ended the first step
    assert max([await redis.strlen(key) for key in kept]) < 800


async def test_a_result_of_a_wrong_type_fails_the_step(system: System) -> None:
    """Arguments that are results are validated when they are known."""
    run = await ran(system, chain(Large(3), Sum.given(numbers=PREVIOUS)), "failed")
    (step,) = [step for step in await run.steps() if step.place == "1"]
    assert step.state == "dead" and "numbers" in step.error


async def test_locks_that_depend_on_a_result_are_held(system: System) -> None:
    """The worker computes them when it knows the result; two steps of one key run in turn."""
    flow = Workflow()
    keys = [flow.step(Add(n % 2, 0)) for n in range(8)]
    for key in keys:
        flow.step(Guarded.given(key))
    Guarded.most.clear()
    await ran(system, flow)
    assert Guarded.most == {0: 1, 1: 1}
    assert await system.app.broker.client.keys("{test}:lock:*") == []


async def test_a_parent_finds_its_run_again(system: System) -> None:
    """A task that submits workflows and is tried again submits them once."""
    Parent.runs.clear()
    handle = await Parent().schedule()
    await system.run_until_idle()
    runs = await handle.result(timeout=0)
    assert len(Parent.runs) == 6 and runs == Parent.runs[4:] == Parent.runs[2:4] == Parent.runs[:2]
    for id in runs:
        status = await system.app.workflow(id).status()
        assert (status.state, status.parent) == ("done", handle)
    assert len(await system.app.workflows()) == 2


async def test_a_step_may_submit_workflows(system: System) -> None:
    """The names of the inner ones follow from the step."""
    Parent.runs.clear()
    flow = Workflow()
    parent = flow.step(Parent())
    run = await ran(system, flow)
    inner = await run.result(parent, timeout=0)
    assert [(await system.app.workflow(id).status()).parent for id in inner] == [f"{run}:0"] * 2


async def test_the_leader_finishes_an_interrupted_cancel(system: System) -> None:
    """The program that marked the workflow is gone; the scheduler cancels its steps."""
    flow = Workflow()
    flow.step(Noop(), after=flow.step(Noop(), delay=3600))
    run = await flow.submit(id="w")
    await system.app.stores.workflows.mark_cancelled("w", "by a test")
    async with asyncio.timeout(WAIT_SECONDS):
        while (await run.status()).state != "cancelled":
            await system.advance(0.01)  # the scheduler does not rest


async def test_dead_letters_are_withdrawn(redis_url: str, sqlite_url: str) -> None:
    """A resumed step has no letter of its earlier end; one that was submitted again forbids it."""
    options = {"redis_url": redis_url, "db_url": sqlite_url}
    async with System(tasks=[flow_tasks], sizes=[Size.SMALL], **options) as system:
        run = await ran(system, chain(Buried(), Noop()), "failed")
        (letter,) = await system.dead_letters()
        assert letter.task_id == f"{run}:0"
        assert await run.resume() == 2
        await system.run_until_idle()
        (again,) = await system.dead_letters()
        assert again.id != letter.id and again.task_id == f"{run}:0"
        assert (await run.status()).state == "failed"
        await system.app.resubmit(again.id)
        with pytest.raises(ConflictError, match="discard it first"):
            await run.resume()
        assert (await run.status()).state == "failed"


async def test_steps_run_in_child_processes(redis_url: str) -> None:
    """From there they read their inputs and add steps."""
    sizes = [Size.SMALL, Size.MEDIUM]
    async with System(tasks=[flow_tasks], sizes=sizes, redis_url=redis_url) as system:
        flow, labels = Workflow(), {"size": "medium"}
        spread = flow.step(Spread(3), labels=labels)
        note = flow.step(Note(), after=spread, labels=labels)
        values = flow.step(Values.given(spread, [], others=spread.added), labels=labels)
        run = await ran(system, flow)
        assert await run.result(note, timeout=0) == ["done "]
        assert await run.result(values, timeout=0) == [3, [], [0, 2, 4]]
