"""How a step and its workflow end, by the edges before and behind it."""

from __future__ import annotations

import pytest
from workflows.flow_site import FlowSite, P, submitted

from nonet import TaskCancelled
from nonet.tasks.runs import WorkflowRun

# The edges of each step; the steps that fail; the states of all steps, and of the workflow.
CASES: dict[str, tuple[str, str, str, str]] = {
    "alone": ("-", "", "done", "done"),
    "alone, fails": ("-", "0", "dead", "failed"),
    "chain": ("- | s0", "", "done done", "done"),
    "chain, first fails": ("- | s0 | s1", "0", "dead cancelled cancelled", "failed"),
    "handler of a success": ("- | f0", "", "done cancelled", "done"),
    "handler of a failure": ("- | f0", "0", "dead done", "done"),
    "handler fails": ("- | f0", "0 1", "dead dead", "failed"),
    "always": ("- | a0", "0", "dead done", "failed"),
    "always, behind a handler": ("- | f0 | a1", "", "done cancelled done", "done"),
    "success and failure": ("- | s0 | f0", "0", "dead cancelled done", "done"),
    "handler of what could not run": ("- | s0 | f1", "0", "dead cancelled done", "done"),
    "handler of one of two": ("- | - | f0 f1", "1", "done dead done", "done"),
    "handler of none of two": ("- | - | f0 f1", "", "done done cancelled", "done"),
    "handler that needs another": ("- | - | f0 s1", "0", "dead done done", "done"),
    "handler that lacks another": ("- | - | f0 s1", "0 1", "dead dead cancelled", "failed"),
    "behind what is not needed": ("- | f0 | s1 | a2", "", "done cancelled cancelled done", "done"),
    "one not needed, one failed": (
        "- | - | f0 | s2 s1",
        "1",
        "done dead cancelled cancelled",
        "failed",
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_step_ends_as_its_edges_say(flows: FlowSite, case: str) -> None:
    """What can run runs, what cannot is cancelled; a failure counts unless it is taken over."""
    graph, fails, states, state = CASES[case]
    run = await submitted(graph)
    await flows.run(fails)
    assert " ".join(flows.states("w").values()) == states
    assert (await run.status()).state == state
    assert flows.leaks() == []


async def errors(run: WorkflowRun) -> dict[str, str]:
    return {step.place: step.error for step in await run.steps()}


async def test_a_cancelled_step_names_its_cause(flows: FlowSite) -> None:
    """Its error says which step failed first, in this run, or why it is not needed."""
    chain = "- | s0 | s1 | s2"
    run = await submitted(f"{chain} | f3 | - | f5")
    await flows.run(fails="0")
    found = await errors(run)
    assert {found[place] for place in "123"} == {"cancelled: step w:0 failed"}
    assert found["6"] == "cancelled: not needed after w:5"
    with pytest.raises(TaskCancelled, match="step w:0 failed: 'task-run explain w:0' shows why"):
        await run._client.step_result(run, "2", 0)
    run = await submitted(f"{chain} | -", "again")
    await flows.run(fails="0 4")
    await run.resume()
    await flows.run(fails="1")
    found = await errors(run)
    assert {found[place] for place in "23"} == {"cancelled: step again:1 failed"}


async def test_edges_that_are_followed_later_know_the_cause(flows: FlowSite) -> None:
    """The promoter names the same step as the script that left the edges to it."""
    run = await submitted("- | s0" + 300 * " | s1")
    await flows.run(fails="0")
    assert {"cancelled", "waiting"} <= set(flows.states("w").values())
    assert "ready" not in flows.states("w").values()
    while flows.redis.exists(f"{P}edges"):
        await flows.app.broker.promote()
    assert (await run.status()).state == "failed"
    assert (await errors(run))["301"] == "cancelled: step w:0 failed"


async def test_the_cause_may_be_a_step_that_was_added(flows: FlowSite) -> None:
    """The error names that step, not the one that added it or the last one that was added."""
    run = await submitted("- | s0 | s1")
    (first,) = await flows.fetch()
    await flows.settle(first, added=flows.added_by(first, "- | s0.0"))
    await flows.run(fails="0.0")
    found = await errors(run)
    assert {found[place] for place in ("0.1", "1", "2")} == {"cancelled: step w:0.0 failed"}


async def test_a_long_chain_that_cannot_run_ends_without_recursion(flows: FlowSite) -> None:
    """Two thousand steps, one behind the other; the handler of the last one runs."""
    length = 2000
    chain = "".join(f" | s{number}" for number in range(length))
    run = await submitted(f"-{chain} | f{length}")
    await flows.run(fails="0")
    while not (ran := await flows.run()):
        await flows.app.broker.promote()
    assert ran == [f"w:{length + 1}"]
    assert (await run.status()).state == "done"
