"""How a step and its workflow end, by the edges before and behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from workflows.flow_site import Edges, FlowSite, P, submitted
from workflows.flow_tasks import Noop

from nonet.tasks.runs import WorkflowRun

# The edges of each step; the steps that fail; the states of all steps, and of the workflow.
CASES: dict[str, tuple[Sequence[Edges], str, str, str]] = {
    "alone": ([()], "", "done", "done"),
    "alone, fails": ([()], "0", "dead", "failed"),
    "chain": ([(), [("s", "0")]], "", "done done", "done"),
    "chain, first fails": (
        [(), [("s", "0")], [("s", "1")]],
        "0",
        "dead cancelled cancelled",
        "failed",
    ),
    "handler of a success": ([(), [("f", "0")]], "", "done cancelled", "done"),
    "handler of a failure": ([(), [("f", "0")]], "0", "dead done", "done"),
    "handler fails": ([(), [("f", "0")]], "0 1", "dead dead", "failed"),
    "always": ([(), [("a", "0")]], "0", "dead done", "failed"),
    "always, behind a handler": (
        [(), [("f", "0")], [("a", "1")]],
        "",
        "done cancelled done",
        "done",
    ),
    "success and failure": ([(), [("s", "0")], [("f", "0")]], "0", "dead cancelled done", "done"),
    "handler of what could not run": (
        [(), [("s", "0")], [("f", "1")]],
        "0",
        "dead cancelled done",
        "done",
    ),
    "handler of one of two": ([(), (), [("f", "0"), ("f", "1")]], "1", "done dead done", "done"),
    "handler of none of two": (
        [(), (), [("f", "0"), ("f", "1")]],
        "",
        "done done cancelled",
        "done",
    ),
    "handler that needs another": (
        [(), (), [("f", "0"), ("s", "1")]],
        "0",
        "dead done done",
        "done",
    ),
    "handler that lacks another": (
        [(), (), [("f", "0"), ("s", "1")]],
        "0 1",
        "dead dead cancelled",
        "failed",
    ),
    "behind what is not needed": (
        [(), [("f", "0")], [("s", "1")], [("a", "2")]],
        "",
        "done cancelled cancelled done",
        "done",
    ),
    "one not needed, one failed": (
        [(), (), [("f", "0")], [("s", "2"), ("s", "1")]],
        "1",
        "done dead cancelled cancelled",
        "failed",
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_edges(flows: FlowSite, case: str) -> None:
    """What can run runs, what cannot is cancelled; a failure counts unless it is taken over."""
    graph, fails, states, state = CASES[case]
    run = await submitted(graph)
    await flows.run(fails=fails.split())
    assert " ".join(flows.states("w").values()) == states
    assert (await run.status()).state == state
    assert flows.leaks() == []


@pytest.mark.parametrize("outcome", ["dead", "expired", "cancelled"])
async def test_however_a_step_fails_its_handler_runs(flows: FlowSite, outcome: str) -> None:
    """Dead, expired and cancelled are failures."""
    run = await submitted([(), [("f", "0")], [("s", "0")]])
    (first,) = await flows.fetch()
    await flows.settle(first, outcome)
    assert flows.states("w") == {"0": outcome, "1": "ready", "2": "cancelled"}
    await flows.run()
    assert (await run.status()).state == "done"


async def _errors(run: WorkflowRun, places: Iterable[str]) -> list[str]:
    found = {step.place: step.error for step in await run.steps()}
    return [found[place] for place in places]


async def test_a_cancelled_step_names_its_cause(flows: FlowSite) -> None:
    """Its error says which step failed first, also in a second run, or why it is not needed."""
    chain = [(), [("s", "0")], [("s", "1")], [("s", "2")]]
    run = await submitted([*chain, [("f", "3")], (), [("f", "5")]])
    await flows.run(fails=["0"])
    assert await _errors(run, "123") == ["cancelled: step w:0 failed"] * 3
    assert await _errors(run, "6") == ["cancelled: not needed after w:5"]
    run = await submitted([*chain, ()], "again")
    await flows.run(fails=["0", "4"])
    await run.resume()
    await flows.run(fails=["1"])
    assert await _errors(run, "23") == ["cancelled: step again:1 failed"] * 2


async def test_edges_that_are_followed_later_know_the_cause(flows: FlowSite) -> None:
    """The promoter names the same step as the script that left the edges to it."""
    many: list[Edges] = [[("s", "1")]] * 300
    run = await submitted([(), [("s", "0")], *many])
    await flows.run(fails=["0"])
    assert "ready" not in flows.states("w").values()
    assert "waiting" in flows.states("w").values()
    while flows.redis.exists(f"{P}edges"):
        await flows.app.broker.promote()
    assert (await run.status()).state == "failed"
    assert await _errors(run, [f"{1 + len(many)}"]) == ["cancelled: step w:0 failed"]


async def test_the_cause_may_be_a_step_that_was_added(flows: FlowSite) -> None:
    """It names that one, not the step that added it or the last one that was added."""
    run = await submitted([(), [("s", "0")], [("s", "1")]])
    (first,) = await flows.fetch()
    await flows.settle(first, added=flows.added_by(first, [(), [("s", "0.0")]], Noop()))
    await flows.run(fails=["0.0"])
    assert await _errors(run, ["0.1", "1", "2"]) == ["cancelled: step w:0.0 failed"] * 3


async def test_a_retry_releases_nothing(flows: FlowSite) -> None:
    """Only the end of a step counts; a failed attempt with a retry left is none."""
    await submitted([(), [("s", "0")], [("f", "0")]])
    for outcome in ("retry", "back", "crash"):
        (delivery,) = await flows.fetch()
        await flows.settle(delivery, outcome)
        assert flows.states("w") == {"0": "ready", "1": "waiting", "2": "waiting"}


async def test_a_step_is_buried_before_its_handler_runs(flows: FlowSite) -> None:
    """While it is dying it has not failed yet."""
    await submitted([(), [("f", "0")]])
    (delivery,) = await flows.fetch()
    await flows.settle(delivery, "dying")
    assert flows.states("w")["1"] == "waiting"
    await flows.settle(delivery, "dead")
    assert flows.states("w")["1"] == "ready"


async def test_blocked_steps_are_in_one_place(flows: FlowSite) -> None:
    """In the delayed set, with a time that never comes; a promotion leaves them there."""
    await submitted([(), [("s", "0")]])
    due = flows.redis.zscore(f"{P}tasks:delayed", "w:1")
    assert due is not None and due > 7e15
    assert flows.redis.zscore(f"{P}tasks:delayed", "w:0") is None
    await flows.app.broker.promote()
    assert flows.states("w") == {"0": "ready", "1": "waiting"}
