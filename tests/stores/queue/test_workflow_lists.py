"""How workflows are listed, and what is read of their steps, on a real server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from stores.beats import beat

from nonet.base.errors import NotFoundError
from nonet.stores.namespace.explaining import TaskFacts
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.results import Results
from nonet.stores.queue.submissions import Submission
from nonet.stores.queue.workflow_steps import read_steps
from nonet.stores.queue.workflows import STATES, NewWorkflow, Workflows

CHAIN = ("step {} s - -", "step {} s - - s0", "step {} - - - s1")


def step(id: str, terms: str) -> Submission:
    return Submission(id, "p:T", "normal:small", b"e", terms=terms)


@pytest.fixture
def workflows(broker: Broker) -> Workflows:
    return Workflows(broker)


async def submit(workflows: Workflows, id: str, title: str = "") -> None:
    """A chain of three steps."""
    steps = [step(f"{id}:{place}", term.format(id)) for place, term in enumerate(CHAIN)]
    await workflows.submit([NewWorkflow(id, title, "", steps, True)], 600)


async def settle(broker: Broker, outcome: str, submissions: Sequence[Submission] = ()) -> None:
    """End the next step."""
    (delivery,), _ = await broker.fetch("small-a", "small", 1)
    await broker.settle(delivery, outcome, b"", submissions=submissions)


async def listed(workflows: Workflows, *states: str) -> list[str]:
    return [item.id for item in (await workflows.page(states)).rows]


async def test_the_last_changed_workflow_comes_first(broker: Broker, workflows: Workflows) -> None:
    """A workflow that ends moves to the front, and is in the list of its state."""
    for id in "abc":
        await submit(workflows, id)
    assert await listed(workflows) == ["c", "b", "a"]
    await settle(broker, "dead")
    assert await listed(workflows) == ["a", "c", "b"]
    assert (await listed(workflows, "failed"), await listed(workflows, "running")) == (
        ["a"],
        ["c", "b"],
    )


async def test_each_workflow_is_on_one_page(workflows: Workflows) -> None:
    """Also when two have changed in the same microsecond."""
    ids = [f"w{number}" for number in range(7)]
    for id in ids:
        await submit(workflows, id)
    index = "{test}:workflows:running"
    await workflows._client.zadd(index, {"w3": 5, "w4": 5, "w5": 5})
    found, cursor = [], ""
    while True:
        page = await workflows.page(limit=2, cursor=cursor)
        found += [item.id for item in page.rows]
        cursor = page.cursor
        if not cursor:
            break
    assert found == ["w6", "w2", "w1", "w0", "w5", "w4", "w3"]


async def test_a_workflow_is_in_the_list_of_its_state(broker: Broker, workflows: Workflows) -> None:
    """And in no other, from its beginning to its resume."""
    lists = [f"{{test}}:workflows:{state}" for state in STATES]

    async def where() -> list[str]:
        return [key[17:] for key in lists if await broker.client.zscore(key, "w") is not None]

    await submit(workflows, "w")
    assert await where() == ["running"]
    await settle(broker, "dead")
    assert await where() == ["failed"]
    await workflows.begin_to_resume("w", [])
    assert await where() == ["resuming"]
    await workflows.resume("w")
    assert await where() == ["running"]
    await workflows.mark_cancelled("w", "by me")
    assert (await workflows.status("w")).state == "running"
    await broker.cancel(["w:0", "w:1", "w:2"], "by me")
    assert await where() == ["cancelled"]


async def test_expired_workflows_leave_the_list(broker: Broker, workflows: Workflows) -> None:
    """A page passes over them, and the walk drops them."""
    for number in range(30):
        await submit(workflows, f"w{number}")
    await broker.client.delete(*(f"{{test}}:f:w{number}" for number in range(10, 30)))
    page = await workflows.page(limit=3)
    assert [item.id for item in page.rows] == ["w9", "w8", "w7"]
    assert page.cursor
    while (await broker.mend(timedelta(0)))[1]:
        pass
    assert await broker.client.zcard("{test}:workflows:running") == 10


async def test_an_end_forgets_old_ends(broker: Broker, workflows: Workflows) -> None:
    """Those that ended longer ago than they are kept."""
    await broker.client.zadd("{test}:workflows:failed", {"old": 1})
    await submit(workflows, "w")
    await settle(broker, "dead")
    assert await broker.client.zrange("{test}:workflows:failed", 0, -1) == [b"w"]


async def test_a_started_workflow_stays_until_it_ends(broker: Broker, workflows: Workflows) -> None:
    """It may run for longer than its parts may take to arrive."""
    await submit(workflows, "w")
    assert await broker.client.pttl("{test}:f:w") == -1


async def test_released_steps_wake_idle_workers(broker: Broker, workflows: Workflows) -> None:
    """One for each step, also at the start of the workflow."""
    for name in ("small-a", "small-b", "small-c"):
        beat(broker.url, worker=name)
        assert await broker.fetch(name, "small", 1) == ([], False)
    await workflows.submit(
        [NewWorkflow("w", "", "", [step(f"w:{n}", "step w - - -") for n in "01"], True)], 600
    )
    assert await broker.client.zrange("{test}:idle:small", 0, -1) == [b"small-a"]


async def test_an_unknown_state_is_refused(workflows: Workflows) -> None:
    """The error names the states."""
    with pytest.raises(ValueError, match=r"'odd' must be one of .*'building'"):
        await workflows.page(["odd"])
    with pytest.raises(ValueError, match="limit=0 must be at least 1"):
        await workflows.page(limit=0)


async def test_steps_have_a_state(broker: Broker, workflows: Workflows, results: Results) -> None:
    """Ended, live, blocked and lost steps, each with its class and what it comes after."""
    await submit(workflows, "w")
    assert await workflows.states("w", ["0", "1", "2"]) == ["queued", "blocked", "blocked"]
    await settle(broker, "done")
    await broker.client.delete("{test}:t:w:2")
    assert await workflows.states("w", ["0", "1", "2"]) == ["done", "queued", "lost"]
    graph = await workflows.graph("w")
    found = await read_steps(workflows, results, "w", graph, ["2", "0", "1"])
    assert [(item.place, item.after, item.task.name, item.task.state) for item in found] == [
        ("2", ("s1",), "p:T", "lost"),
        ("0", (), "p:T", "done"),
        ("1", ("s0",), "p:T", "queued"),
    ]


async def test_a_step_names_its_workflow(broker: Broker, workflows: Workflows) -> None:
    """Also after its end; other tasks have none."""
    await submit(workflows, "w")
    await settle(broker, "done")
    await broker.submit([Submission("w:9", "p:T", "normal:small", b"e")])
    found = [await workflows.workflow_of(id) for id in ("w:0", "w:1", "w:9", "a", "w")]
    assert found == ["w", "w", "", "", ""]


async def test_a_step_waits_for_an_added_step(broker: Broker, workflows: Workflows) -> None:
    """The explanation names the added step, which runs although its author has ended."""
    await submit(workflows, "w")
    await settle(broker, "done", [step("w:0.0", "step w - - -")])
    blocked = (await TaskFacts(broker.client, "test").read("w:2")).blocked
    assert blocked is not None and blocked.before is not None and blocked.root is not None
    assert (blocked.missing, blocked.before.id, blocked.root.id) == (1, "w:1", "w:0.0")
    assert blocked.root.state == "queued"
    before = (await TaskFacts(broker.client, "test").read("w:1")).blocked
    assert before is not None and before.before is not None
    assert (before.before.id, before.before.state) == ("w:0", "done")


async def test_a_step_waits_for_a_lost_step(broker: Broker, workflows: Workflows) -> None:
    """The explanation says so: only the walk over all records ends the wait."""
    await submit(workflows, "w")
    await broker.client.delete("{test}:t:w:0")
    blocked = (await TaskFacts(broker.client, "test").read("w:1")).blocked
    assert blocked is not None and blocked.before is not None
    assert (blocked.before.id, blocked.before.name, blocked.before.state) == ("w:0", "p:T", "lost")


async def test_a_workflow_is_not_a_task(broker: Broker, workflows: Workflows) -> None:
    """The error names the command that shows it."""
    await submit(workflows, "w")
    with pytest.raises(NotFoundError, match="task-run workflows show w"):
        await TaskFacts(broker.client, "test").read("w")
