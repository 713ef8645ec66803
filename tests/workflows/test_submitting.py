"""Submitting workflows: once per id, all steps or none, and none before all are there."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from unittest.mock import Mock

import pytest
import records
from stores.beats import beat
from workflows.flow_site import WORKER, FlowSite, P, submitted, workflow_of
from workflows.flow_tasks import Add, Guarded, Late, Noop, Only

from nonet import ConflictError, InvalidArgumentsError, Workflow, chain, group
from nonet.stores.queue import workflows as stored
from nonet.stores.queue.submissions import Submission
from nonet.tasks.workflows import step_terms


async def test_an_id_is_submitted_once(flows: FlowSite) -> None:
    """Also with other steps, while it runs and after its end."""
    run = await submitted("- | s0")
    before = flows.keys()
    again = await submitted("- | - | -")
    assert (again, run.created, again.created) == (run, True, False)
    assert flows.keys() == before
    assert await flows.run() == ["w:0", "w:1"]
    assert await submitted("- | - | -") == run
    assert await flows.fetch() == []


async def test_programs_may_submit_the_same_workflow_at_a_time(
    flows: FlowSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their calls mix, and each step exists once."""
    monkeypatch.setattr(stored, "_MOST", 3)
    graph = [[("s", str(each)) for each in range(n) if (n - each) in (1, 3)] for n in range(12)]
    await asyncio.gather(*(submitted(graph) for _ in range(4)))
    assert len(await flows.run()) == 12
    assert set(flows.ends().values()) == {1}
    assert (await flows.app.workflow("w").status()).state == "done"
    assert flows.leaks() == []


async def test_nothing_starts_before_all_is_there(
    flows: FlowSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of many calls starts the steps without predecessors."""
    monkeypatch.setattr(stored, "_MOST", 3)
    scripts = flows.app.broker.scripts
    plain, early = scripts.run_confirmed, []

    async def fetch_before(name: str, *args: object) -> object:
        early.extend(await flows.fetch())
        return await plain(name, *args)

    monkeypatch.setattr(scripts, "run_confirmed", fetch_before)
    await submitted("- | -" + 10 * " | s0 a1")
    assert early == []
    assert len(await flows.run()) == 12


async def test_many_workflows_are_submitted_in_few_calls(
    flows: FlowSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once; of large ones a call has a part. A clash stops at the workflow that has it."""
    monkeypatch.setattr(stored, "_MOST", 8)
    calls = Mock(wraps=flows.app.broker.scripts.run_confirmed)
    monkeypatch.setattr(flows.app.broker.scripts, "run_confirmed", calls)
    graphs = {"a": "-", "b": "- | s0 | s1", "c": "- | s0 | s0 | s1 s2 | s3", "d": "-", "e": "-"}
    await submitted("-", "d")
    runs = await flows.app.submit_workflows({id: workflow_of(to) for id, to in graphs.items()})
    assert [(run, run.created) for run in runs] == [(id, id != "d") for id in graphs]
    assert 3 <= calls.call_count <= 5
    assert len(await flows.run()) == 11
    assert set(flows.ends().values()) == {1}
    await Noop().schedule(id="y:0")
    with pytest.raises(ConflictError, match="workflow y was not submitted"):
        await flows.app.submit_workflows({id: workflow_of("-") for id in "xyz"})
    assert flows.keys("f:[xyz]") == ["f:x"]
    first, second = await flows.app.submit_workflows([chain(Noop()), chain(Noop())])
    assert first != second


@pytest.mark.parametrize("id", ["", "a b", "x" * 91, "a\n", "ä", 7, "a:live", "a:graph", "a:0"])
async def test_invalid_ids_are_refused(flows: FlowSite, id: str) -> None:
    """With what an id must be."""
    with pytest.raises(InvalidArgumentsError, match=r"id .* must"):
        await submitted("-", id)


@pytest.mark.parametrize("id", ["w", "w:1"])
async def test_the_id_of_a_task_is_refused(flows: FlowSite, id: str) -> None:
    """The error names the id that a task has; nothing of the workflow is left."""
    await Noop().schedule(id=id)
    with pytest.raises(ConflictError, match=f"another task has the id {id};"):
        await submitted("- | s0")
    assert flows.keys("*w:[0-9]*") + flows.keys("[fm]:*") == ([f"t:{id}"] * (id != "w"))
    assert flows.redis.zcard(f"{P}workflows:building") == 0


async def test_a_task_cannot_take_the_id_of_a_workflow(flows: FlowSite) -> None:
    """Nor that of a step, before and after its end; other tasks of the call are refused, too."""
    await submitted("- | s0")
    for who in ("a workflow", "a step of workflow w"):
        id = "w" if who == "a workflow" else "w:0"
        with pytest.raises(ConflictError, match=f"task {id} was not submitted: {who} has this id"):
            await flows.app.submit_many([Noop(), Noop().with_options(id=id)])
    assert await flows.run() == ["w:0", "w:1"]
    for id in ("w", "w:1"):
        with pytest.raises(ConflictError):
            await Noop().schedule(id=id)
    assert (await Noop().schedule(id="w:2")).created


async def test_a_step_that_waits_for_a_lock_of_its_workflow(
    flows: FlowSite, redis_url: str
) -> None:
    """The operator is not told to cancel the holder: the workflow would fail with it."""
    flow = Workflow()
    for _ in range(2):
        flow.step(Guarded(7))
    await flow.submit(id="w")
    beat(redis_url, worker=WORKER)
    (holder,) = await flows.fetch()
    found = await flows.app.explain("w:1")
    assert (found.cause, found.next) == ("lock", f"task-run explain {holder.id}")
    await flows.settle(holder)


async def test_a_unique_class_is_refused(flows: FlowSite) -> None:
    """It could be merged with a task for which the workflow does not wait; the error says so."""
    with pytest.raises(InvalidArgumentsError, match=r"workflow waits for its own tasks.*unique"):
        await group(Noop(), Only(1)).submit()
    flow = Workflow()
    number = flow.step(Add(1, 2))
    flow.step(Only.given(number=number))
    with pytest.raises(InvalidArgumentsError, match=r"workflow waits for its own tasks.*unique"):
        await flow.submit()
    assert flows.keys("[ftbu]:*") == []


async def test_a_delay_counts_from_the_release(flows: FlowSite) -> None:
    """A step waits after its predecessors have ended, not after the submission."""
    flow = Workflow()
    first = flow.step(Noop())
    flow.step(Noop(), after=first, delay=timedelta(seconds=50))
    await flow.submit(id="w")
    (delivery,) = await flows.fetch()
    now = flows.app.broker.logical_now
    earliest = (await now()).timestamp() + 50
    await flows.settle(delivery)
    due = flows.redis.zscore(f"{P}tasks:delayed", "w:1")
    assert earliest <= due / 1e6 <= (await now()).timestamp() + 50
    assert flows.record("w:1")["state"] == "delayed"


async def test_a_deadline_counts_from_the_release(flows: FlowSite) -> None:
    """While a step is blocked it cannot be late; an expired one fails its successors."""
    flow = Workflow()
    first = flow.step(Noop())
    late = flow.step(Late(), after=first)
    flow.step(Noop(), after=late)
    run = await flow.submit(id="w")
    assert flows.redis.zcard(f"{P}deadlines") == 0
    (delivery,) = await flows.fetch()
    now = flows.app.broker.logical_now
    earliest = (await now()).timestamp() + Late.start_by
    await flows.settle(delivery)
    deadline = flows.redis.zscore(f"{P}deadlines", "w:1")
    assert earliest <= deadline / 1e6 <= (await now()).timestamp() + Late.start_by
    records.hset(flows.redis, f"{P}t:w:1", "start_by", "1|")
    flows.redis.zadd(f"{P}deadlines", {"w:1": 1})
    await flows.app.broker.promote()
    assert flows.states("w") == {"0": "done", "1": "expired", "2": "cancelled"}
    assert (await run.status()).state == "failed"


async def test_a_step_counts_as_an_unfinished_task(flows: FlowSite) -> None:
    """Ceilings and lists see blocked steps; when all have ended nothing is counted."""
    await submitted("- | s0 | f0")
    field = "normal:small|flow_tasks:Noop"
    assert flows.redis.hget(f"{P}active", field) == "3"
    await flows.walk()
    assert flows.redis.hget(f"{P}active", field) == "3"
    await flows.run()
    assert flows.redis.hgetall(f"{P}active") == {}


def test_a_large_workflow_is_submitted_in_small_calls() -> None:
    """No call has more than so many steps and edges; only the last one starts the workflow."""
    wide = [[("s", str(number)) for number in range(1201)]]
    flow = workflow_of([(), *([("s", "0")] for _ in range(1200)), *wide])
    terms = step_terms("w", flow.steps)
    sent = [Submission(f"w:{n}", "m:T", "normal:small", b"e", terms=t) for n, t in enumerate(terms)]
    calls = [*stored._calls(sent)]
    assert all(2 * len(rows) + len(some) <= stored._MOST + 2 for rows, some, _ in calls)
    assert [is_last for *_, is_last in calls] == [False] * (len(calls) - 1) + [True]
    assert [row for rows, *_ in calls for row in rows] == sent
    apart = [("s", edge.step.place, "1201") for edge in flow.steps[-1].after]
    assert [edge for _, some, _ in calls for edge in some] == apart


async def test_an_id_is_used_again_after_its_workflow(flows: FlowSite) -> None:
    """What is left of the steps of the earlier one changes nothing."""
    run = await submitted("- | s0")
    (first,) = await flows.fetch()
    await flows.settle(first, "done", flows.added_by(first))
    await run.cancel()
    for key in flows.keys("f:*") + flows.keys("r:w"):
        flows.redis.delete(P + key)  # they have expired
    flows.redis.hset(f"{P}k:w:0", "failed", "0.0")
    flows.redis.rpush(f"{P}n:w:1", "s0")
    flows.redis.set(f"{P}r:w:1", "done|1|")
    run = await submitted("- | s0")
    (first,) = await flows.fetch()
    await flows.settle(first, "done", flows.added_by(first))
    assert await flows.run() == ["w:0.0", "w:1"]
    assert (await run.status()).state == "done"
