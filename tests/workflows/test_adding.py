"""Steps that steps add while they run."""

from __future__ import annotations

import pytest
from workflows.flow_site import FlowSite, submitted


async def test_added_steps_may_add_steps(flows: FlowSite) -> None:
    """To any depth; the outermost successor waits for the innermost step."""
    await submitted("- | s0")
    for depth in range(20):
        (one,) = await flows.fetch()
        assert one.id == "w:0" + depth * ".0"
        await flows.settle(one, added=flows.added_by(one))
    assert await flows.run() == ["w:0" + 20 * ".0", "w:1"]
    assert flows.leaks() == []


@pytest.mark.parametrize("outcome", ["dead", "retry", "back", "dying", "expired", "cancelled"])
async def test_only_a_done_attempt_adds_steps(flows: FlowSite, outcome: str) -> None:
    """An attempt that ends otherwise adds nothing."""
    await submitted("-")
    (first,) = await flows.fetch()
    await flows.settle(first, outcome, flows.added_by(first))
    assert [*flows.states("w")] == ["0"]


async def test_a_repeated_settle_adds_nothing(flows: FlowSite) -> None:
    """Its reply was lost; ids come from the step and the position."""
    await submitted("- | s0")
    (first,) = await flows.fetch()
    for _ in range(3):
        assert await flows.settle(first, added=flows.added_by(first, "- | -")) == "OK"
    assert await flows.run() == ["w:0.0", "w:0.1", "w:1"]
    assert set(flows.ends().values()) == {1}
    assert await flows.settle(first, added=flows.added_by(first, "- | -")) == "OK"
    assert await flows.run() == []


# What the added steps depend on; which fail; a handler of the adding step; states; the workflow.
FAILURES: dict[str, tuple[str, str, str, str, str]] = {
    "one fails": ("-", "0.0", "s", "cancelled", "failed"),
    "a chain fails": ("- | s0.0", "0.0", "s", "cancelled", "failed"),
    "among themselves taken over": ("- | f0.0", "0.0", "s", "done", "done"),
    "their handler fails": ("- | f0.0", "0.0 0.1", "s", "cancelled", "failed"),
    "taken over by the handler of the adding step": ("-", "0.0", "f", "done", "done"),
    "that handler is not needed": ("-", "", "f", "cancelled", "done"),
    "always": ("-", "0.0", "a", "done", "failed"),
}


@pytest.mark.parametrize("case", FAILURES)
async def test_a_failed_added_step_fails_the_step_that_added_it(flows: FlowSite, case: str) -> None:
    """They fail the step that added them, and an edge on its failure takes them over."""
    added, fails, letter, state, ended = FAILURES[case]
    run = await submitted(f"- | {letter}0")
    (first,) = await flows.fetch()
    await flows.settle(first, added=flows.added_by(first, added))
    await flows.run(fails)
    assert (flows.states("w")["1"], (await run.status()).state) == (state, ended)
    assert flows.leaks() == []


async def test_at_most_500_steps_are_added(flows: FlowSite) -> None:
    """A step that adds 500 is settled in one script; one more is refused with what to do."""
    await submitted("- | s0")
    (first,) = await flows.fetch()
    with pytest.raises(Exception, match=r"at most 500 tasks .* let a step that it adds add"):
        flows.added_by(first, 501 * [()])
    await flows.settle(first, added=flows.added_by(first, 500 * [()]))
    assert len(await flows.run()) == 501
    assert (await flows.app.workflow("w").status()).state == "done"
