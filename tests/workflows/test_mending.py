"""What the walk over all records does about workflows that lost keys."""

from __future__ import annotations

import pytest
from waits import WAIT_SECONDS
from workflows.flow_site import FlowSite, P, submitted, walk_later

from nonet import TaskCancelled
from nonet.stores.queue import workflows as stored

CHAIN = "- | s0"


async def test_a_sound_workflow_is_left_alone(flows: FlowSite) -> None:
    """Walks change no key of a workflow in which everything is where it should be."""
    await submitted("- | - | s0 | f1")
    first, _ = await flows.fetch()
    await flows.settle(first, "done", flows.added_by(first, "- | s0.0"))

    def seen() -> dict[str, bytes | None]:
        return {key: flows.redis.dump(P + key) for key in flows.keys("[tblfmnjks]:*")}

    before = seen()
    await walk_later(flows)
    assert seen() == before


async def test_a_blocked_step_goes_back_to_its_place(flows: FlowSite) -> None:
    """The delayed set was deleted: the step waits there again, and does not run."""
    await submitted(CHAIN)
    due = flows.redis.zscore(f"{P}tasks:delayed", "w:1")
    flows.redis.delete(f"{P}tasks:delayed")
    await flows.walk()
    assert flows.redis.zscore(f"{P}tasks:delayed", "w:1") == due
    await flows.app.broker.promote()
    assert await flows.run() == ["w:0", "w:1"]


@pytest.mark.parametrize("end", ["done", "dead"])
async def test_a_step_finds_its_lost_predecessors_again(flows: FlowSite, end: str) -> None:
    """It waits for its predecessors again, and then does what their ends mean."""
    run = await submitted("- | - | s0 s1")
    first, second = await flows.fetch()
    flows.redis.delete(f"{P}m:w:2", f"{P}n:w:0")
    await flows.settle(first, end)
    await walk_later(flows)
    if end == "done":
        assert flows.states("w")["2"] == "waiting"
        await flows.settle(second)
        assert await flows.run() == ["w:2"]
    else:
        assert flows.states("w")["2"] == "cancelled"
        await flows.settle(second)
    assert (await run.status()).state == ("done" if end == "done" else "failed")


@pytest.mark.parametrize(
    ("end", "letter", "state"),
    [
        ("done", "s", "ready"),
        ("done", "a", "ready"),
        ("dead", "s", "cancelled"),
        ("dead", "a", "ready"),
        ("dead", "f", "ready"),
        ("done", "f", "cancelled"),
    ],
)
async def test_lost_edges_are_followed_after_three_leases(
    flows: FlowSite, end: str, letter: str, state: str
) -> None:
    """The list of edges was lost: after three leases the successors learn how the step ended."""
    await submitted(f"- | {letter}0")
    flows.redis.delete(f"{P}n:w:0")
    (first,) = await flows.fetch()
    await flows.settle(first, end)
    assert flows.states("w")["1"] == "waiting"
    await flows.walk()
    assert flows.states("w")["1"] == "waiting"
    await walk_later(flows)
    assert flows.states("w")["1"] == state


@pytest.mark.parametrize("id", ["w", "etl:daily", "a:live:", "x:y:z"])
async def test_a_step_without_a_record_counts_as_dead(flows: FlowSite, id: str) -> None:
    """Its handler runs; what follows a colon in the name of a workflow is no key of it."""
    run = await submitted("- | s0 | f0", id)
    await flows.fetch()
    flows.redis.delete(f"{P}t:{id}:0")
    await walk_later(flows)
    assert flows.states(id) == {"0": "dead", "1": "cancelled", "2": "ready"}
    assert await flows.run() == [f"{id}:2"]
    assert (await run.status()).state == "done"
    assert flows.leaks() == []


async def test_the_steps_of_a_lost_workflow_end(flows: FlowSite) -> None:
    """Its blocked steps end, callers that wait for them get an error, and its keys expire."""
    await submitted("- | s0 | f1")
    (first,) = await flows.fetch()
    flows.redis.delete(f"{P}f:w")
    await flows.walk()
    await flows.settle(first, "done", flows.added_by(first))
    assert flows.keys("t:*") == []
    with pytest.raises(TaskCancelled, match="its workflow is gone from Redis"):
        await flows.app.result("w:1", timeout=WAIT_SECONDS)
    await flows.walk()
    assert flows.leaks() == []


async def test_a_half_submitted_workflow_never_starts_and_expires(
    flows: FlowSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has run; a day later the workflow expires, and the walk ends its steps."""
    monkeypatch.setattr(stored, "_MOST", 2)
    scripts = flows.app.broker.scripts
    plain, calls = scripts.run_confirmed, []

    async def dies(name: str, *args: object) -> object:
        calls.append(name)
        if len(calls) > 2:
            raise OSError("the program died")
        return await plain(name, *args)

    monkeypatch.setattr(scripts, "run_confirmed", dies)
    with pytest.raises(OSError, match="died"):
        await submitted("- | - | - | s0 | s3")
    await flows.app.broker.promote()
    await flows.walk()
    assert await flows.fetch() == []
    assert 86_000 < flows.redis.ttl(f"{P}f:w") <= 86_400
    flows.redis.delete(f"{P}f:w")  # a day later
    await flows.walk()
    assert flows.keys("t:*") == [] and await flows.fetch() == []
    await flows.walk()
    assert flows.leaks() == []


async def test_a_lost_step_of_a_large_workflow_is_found(flows: FlowSite) -> None:
    """Each walk reads another page of the steps."""
    await submitted("-" + "".join(f" | s{number}" for number in range(700)))
    flows.redis.delete(f"{P}t:w:600")
    for _ in range(5):
        await walk_later(flows)
        if end := flows.redis.hget(f"{P}f:w:results", "600"):
            break
    assert end.startswith("dead|")
