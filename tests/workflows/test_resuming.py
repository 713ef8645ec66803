"""Resuming a failed workflow: what failed runs again, once, and what was taken over does not."""

from __future__ import annotations

import asyncio

import pytest
from waits import WAIT_SECONDS
from workflows.flow_site import FlowSite, P, submitted, walk_later

from nonet import ConflictError, NotFoundError
from nonet.client import workflows
from nonet.rules.resuming import runs_again

# Edges of each step; which fail; the steps that run after the resume, in their order.
CASES: dict[str, tuple[str, str, str]] = {
    "alone": ("-", "0", "0"),
    "what was cancelled because of it": ("- | s0 | s1", "0", "0 1 2"),
    "not what is done": ("- | s0 | s1", "1", "1 2"),
    "not what ran after the failure": ("- | a0 | s0", "0", "0 2"),
    "not what is not needed": ("- | - | f1 | s2", "0", "0"),
    "not a failure that was taken over": ("- | f0 | -", "0 2", "2"),
    "not one that was taken over later": ("- | s0 | f1 | -", "0 3", "3"),
    "one that was taken over on one way only": ("- | s0 | f1 | s0", "0", "0 3"),
    "a handler that failed": ("- | f0", "0 1", "1"),
    "a handler that fired and lacked another": ("- | - | f0 s1 | s2", "0 1", "1 2 3"),
}


@pytest.mark.parametrize("case", CASES)
async def test_what_runs_again(flows: FlowSite, case: str) -> None:
    """The steps whose failures reached the end of the workflow, and what they held up."""
    graph, fails, again = CASES[case]
    run = await submitted(graph)
    await flows.run(fails)
    assert await run.resume() == len(again.split())
    assert await flows.run() == [f"w:{place}" for place in again.split()]
    status = await run.status()
    assert (status.state, status.runs, status.left) == ("done", 1, 0)
    assert flows.leaks() == []


async def test_a_step_that_is_not_needed_stays_so(flows: FlowSite) -> None:
    """A step that a failure has cancelled knows later what its other predecessors meant for it."""
    run = await submitted("- | - | f0 | s1 s2")
    first, second = await flows.fetch()
    await flows.settle(second, "dead")
    await flows.settle(first)
    assert (await run.status()).state == "failed"
    assert await run.resume() == 2
    assert await flows.run() == ["w:1"]
    assert flows.states("w")["3"] == "cancelled"
    assert (await run.status()).state == "done"


async def test_a_resumed_workflow_can_fail_again(flows: FlowSite) -> None:
    """Each time only what failed runs again, with a new generation."""
    run = await submitted("- | s0")
    gens = set()
    for number in range(1, 4):
        (delivery,) = await flows.fetch()
        gens.add(delivery.gen)
        await flows.settle(delivery, "dead")
        assert await run.resume() == 2
        assert (await run.status()).runs == number
        assert await flows.settle(delivery) == "STALE"
    assert len(gens) == 3
    assert await flows.run() == ["w:0", "w:1"]
    assert flows.ends() == {"w:0": 4, "w:1": 4}


async def test_deeply_added_steps_run_again(flows: FlowSite) -> None:
    """However deep they are, each step above waits for them again."""
    run = await submitted("- | s0")
    for _ in range(3):
        (one,) = await flows.fetch()
        await flows.settle(one, "done", flows.added_by(one))
    await flows.run(fails="0.0.0.0")
    assert await run.resume() == 2
    assert flows.states("w")["1"] == "waiting"
    assert await flows.run() == ["w:0.0.0.0", "w:1"]
    assert (await run.status()).state == "done"


@pytest.mark.parametrize("calls", range(1, 8))
async def test_an_interrupted_resume_is_continued(
    flows: FlowSite, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Wherever its caller dies: a repeated call, or the leader, does the rest once."""
    run = await submitted("- | s0 | s1 | - | f3 | -")
    await flows.run(fails="0 3 5")
    scripts, made = flows.app.broker.scripts, 0
    plain = scripts.run

    async def fails_soon(name: str, *args: object) -> object:
        nonlocal made
        made += name == "workflow_resume"
        if name == "workflow_resume" and made >= calls:
            raise OSError("the program died")
        return await plain(name, *args)

    monkeypatch.setattr(scripts, "run", fails_soon)
    try:
        await run.resume()
    except OSError:
        monkeypatch.undo()
        for id in await flows.app.stores.workflows.unfinished():
            await workflows.go_on(flows.app.client, id)
        if (await run.status()).state == "failed":
            await run.resume()
    assert await flows.run() == ["w:0", "w:5", "w:1", "w:2"]
    status = await run.status()
    assert (status.state, status.runs) == ("done", 1)
    assert await flows.app.stores.workflows.unfinished() == []
    assert flows.leaks() == []


async def test_two_resumes_at_a_time_are_one(flows: FlowSite) -> None:
    """Both find the same work; each step runs once."""
    run = await submitted("- | s0 | s1")
    await flows.run(fails="0")
    await asyncio.gather(*(run.resume() for _ in range(5)), return_exceptions=True)
    assert await flows.run() == ["w:0", "w:1", "w:2"]
    assert (await run.status()).runs == 1


@pytest.mark.parametrize("state", ["done", "running", "cancelled"])
async def test_only_a_failed_workflow_is_resumed(flows: FlowSite, state: str) -> None:
    """The caller learns in which state it is."""
    run = await submitted("-")
    if state == "cancelled":
        await run.cancel()
    elif state == "done":
        await flows.run()
    with pytest.raises(ConflictError, match=f"workflow w is {state}: only a failed workflow"):
        await run.resume()


async def test_a_failed_workflow_is_kept_for_a_week(flows: FlowSite) -> None:
    """Then it is forgotten with all that it kept; an unknown one is refused."""
    run = await submitted("- | s0")
    await flows.run(fails="0")
    for key in flows.keys("f:*"):
        assert 6.9 * 86400 < flows.redis.ttl(P + key) <= 7 * 86400, key
    assert {"s:w:0", "s:w:1", "n:w:0"} <= {*flows.keys("[sn]:*")}
    for key in flows.keys("f:*"):
        flows.redis.delete(P + key)
    await flows.walk()
    assert all(0 < flows.redis.ttl(P + key) <= 86400 for key in flows.keys("[snk]:*"))
    assert flows.leaks() == []
    with pytest.raises(NotFoundError):
        await run.resume()


async def test_a_resumed_workflow_does_not_expire(flows: FlowSite) -> None:
    """Its keys last until it has ended again."""
    run = await submitted("- | s0")
    await flows.run(fails="1")
    await run.resume()
    assert {flows.redis.ttl(P + key) for key in flows.keys("f:*")} == {-1}
    await flows.run()
    assert -1 not in {flows.redis.ttl(P + key) for key in flows.keys("f:*")}


def test_a_long_chain_is_resumed_without_recursion() -> None:
    """Ten thousand steps that failed one after the other run again."""
    after = {str(n): [f"s{n - 1}"] if n else [] for n in range(10_000)}
    assert runs_again({*after}, after) == {*after}


async def test_a_lost_step_cannot_run_again(flows: FlowSite) -> None:
    """Its arguments are gone: the resume is refused before it changes anything."""
    run = await submitted("- | s0")
    await flows.fetch()
    flows.redis.delete(f"{P}t:w:0")
    await walk_later(flows)
    assert (await run.status()).state == "failed"
    with pytest.raises(ConflictError, match="step w:0 of workflow w was lost by Redis and cannot"):
        await run.resume()
    assert (await run.status()).state == "failed"


async def test_edges_of_the_failed_run_are_forgotten(flows: FlowSite) -> None:
    """What the promoter had yet to follow must not end steps that wait again."""
    run = await submitted("- | -" + 300 * " | s0 s1")
    first, second = await flows.fetch()
    await flows.settle(first, "dead")
    while flows.redis.exists(f"{P}edges"):
        await flows.app.broker.promote()
    await flows.settle(second, "dead")
    assert flows.redis.exists(f"{P}edges") and (await run.status()).state == "failed"
    await run.resume()
    for _ in range(3):
        await flows.app.broker.promote()
    assert "cancelled" not in flows.states("w").values()


async def test_a_wait_ends_although_the_workflow_is_resumed(flows: FlowSite) -> None:
    """Also if the mark of the end is gone, or the workflow is resumed at once."""
    run = await submitted("-")
    await flows.run(fails="0")
    flows.redis.delete(f"{P}r:w")
    assert (await run.wait(timeout=WAIT_SECONDS)).state == "failed"
    await run.resume()
    waiting = asyncio.create_task(run.wait(timeout=WAIT_SECONDS))
    await flows.run(fails="0")
    await run.resume()
    await flows.run()
    assert (await waiting).state in ("failed", "done")
