"""``task-run workflows``, and what other commands say of workflows and their steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cli.errands import Add, Fail, Guarded
from cli.terminal import TaskRun, until_written
from waits import WAIT_SECONDS

from nonet import Nonet, Workflow, chain, ended, failed

ID = "nightly-2026-11-25"


@pytest.fixture
async def app(task_run: TaskRun) -> AsyncIterator[Nonet]:
    """The namespace of the commands with one workflow, without a worker."""
    async with task_run.app() as opened:
        await submitted(task_run.home / "gate")
        yield opened


async def submitted(gate: Path) -> None:
    """A workflow of four steps whose second one fails until a file exists."""
    workflow = Workflow("nightly import")
    first = workflow.step(Add(1, 2))
    second = workflow.step(Fail(gate))
    third = workflow.step(Add.given(first, 3), after=second)
    workflow.step(Add(1), after=[third, ended(first)])
    await workflow.submit(id=ID)


async def run_to_the_end(task_run: TaskRun) -> str:
    """Let a worker run the workflow; return its state."""
    async with task_run.worker() as nonet:
        return (await nonet.workflow(ID).wait(timeout=WAIT_SECONDS)).state


async def test_list(task_run: TaskRun, app: Nonet) -> None:
    """A row has the state and the ended steps; the workflow that changed last comes first."""
    await chain(Add(1), Add(2), title="later").submit(id="later")
    listed = await task_run("workflows", COLUMNS="80")
    assert [line.split()[:5] for line in listed.out.splitlines()[1:]] == [
        ["later", "running", "0", "of", "2"],
        [ID, "running", "0", "of", "4"],
    ]
    assert all(len(line) <= 80 for line in listed.out.splitlines())
    (one,) = (await task_run("workflows", "--limit", 1, "--json")).json["items"]
    assert (one["id"], one["total"], one["left"]) == ("later", 2, 2)
    assert (await task_run("workflows", "--state", "failed", "--json")).json["items"] == []


async def test_show_a_waiting_workflow(task_run: TaskRun, app: Nonet) -> None:
    """It names what the first step waits for, and what each step comes after."""
    shown = await task_run("workflows", "show", ID, COLUMNS="80")
    assert "steps      2 queued, 2 blocked" in shown.out
    assert f"waits_for  step {ID}:0 is queued: no small worker is live" in shown.out
    assert "next: task-worker --size small" in shown.out
    steps = [line.split() for line in shown.out.splitlines()[-4:]]
    assert steps[2] == ["2", "errands:Add", "blocked", "0", "1,", "0"]
    assert steps[3] == ["3", "errands:Add", "blocked", "0", "2,", "ended(0)"]
    found = (await task_run("workflows", "steps", ID, "--state", "blocked", "--json")).json
    assert [step["place"] for step in found["items"]] == ["2", "3"]
    paged = await task_run("workflows", "steps", ID, "--limit", 1)
    assert "errands:Add" in paged.out.splitlines()[-1] and "--cursor" in paged.err
    found = (await task_run("workflows", "show", ID, "--json")).json
    assert found["counts"] == {"queued": 2, "blocked": 2}
    explained = await task_run("explain", f"{ID}:3")
    assert explained.out == (
        f"waiting: it comes after {ID}:2 (errands:Add, waiting) and 1 other. What they wait for "
        f"first is {ID}:1 (errands:Fail, queued)\nnext: task-run explain {ID}:1\n"
    )
    assert (await task_run("explain", f"{ID}:2", "--json")).json["cause"] == "step"


async def test_a_failed_workflow_names_its_step_and_is_resumed(
    task_run: TaskRun, app: Nonet
) -> None:
    """`show` and the overview name the step that failed first; a resume withdraws its letter."""
    assert await run_to_the_end(task_run) == "failed"
    shown = await task_run("workflows", "show", ID)
    assert "1 done, 1 dead, 2 cancelled" in shown.out
    assert f"failed_at  {ID}:1 (errands:Fail): FileNotFoundError: " in shown.out
    assert f"next: task-run workflows resume {ID}" in shown.out
    assert f"cancelled: step {ID}:1 failed" in shown.out
    assert (await task_run("workflows", "show", ID, "--json")).json["failed"] == f"{ID}:1"
    findings = (await task_run("overview", "--json")).json["findings"]
    (finding,) = [item for item in findings if item["kind"] == "workflow"]
    assert 'workflow "nightly import" failed' in finding["problem"]
    assert f"at step {ID}:1 of errands:Fail: FileNotFoundError" in finding["problem"]
    assert finding["command"] == f"task-run workflows resume {ID}"
    (task_run.home / "gate").touch()
    refused = await task_run("workflows", "resume", ID)
    assert refused.code == 2 and "Add --yes to resume it" in refused.err
    resumed = await task_run("workflows", "resume", ID, "--yes")
    assert resumed.out == f"{ID} resumed: 3 steps run again\n"
    assert await run_to_the_end(task_run) == "done"
    assert (await task_run("dlq", "list", "--json")).json["items"] == []
    (event,) = (await task_run("events", "--kind", "workflow-resumed", "--json")).json["items"]
    assert event["text"] == f"{ID}: 3 steps"
    again = await task_run("workflows", "resume", ID, "--yes", "--json")
    assert again.code == 1
    assert "is done: only a failed workflow can be resumed" in again.err


async def test_the_overview_names_a_workflow_that_is_not_submitted_to_its_end(
    task_run: TaskRun,
) -> None:
    """The finding says how many steps have arrived, and how to cancel it."""
    fields = {"state": "building", "since": 1, "opened": 1, "total": 9, "title": "", "parent": ""}
    task_run.redis.hset("{cli}:f:stuck", mapping=fields)
    task_run.redis.zadd("{cli}:workflows:building", {"stuck": 1})
    findings = (await task_run("overview", "--json")).json["findings"]
    (finding,) = [item for item in findings if item["kind"] == "workflow"]
    assert "0 of 9 steps have arrived" in finding["problem"]
    assert finding["command"] == "task-run workflows show stuck"


async def test_cancel(task_run: TaskRun, app: Nonet) -> None:
    """All of its steps end; the reason is shown, and one event records it."""
    refused = await task_run("workflows", "cancel", ID)
    assert refused.code == 2 and "Add --yes to cancel it" in refused.err
    done = await task_run("workflows", "cancel", ID, "--yes", "--reason", "wrong input")
    assert (done.code, done.out) == (0, f"{ID} cancelled\n")
    shown = await task_run("workflows", "show", ID)
    assert "4 cancelled" in shown.out
    assert ": with its workflow: wrong input" in shown.out
    events = (await task_run("events", "--json")).json["items"][::-1]
    assert [(event["kind"], event["text"]) for event in events] == [
        ("workflow-cancelled", f"{ID}: wrong input")
    ]
    again = await task_run("workflows", "cancel", ID, "--yes")
    assert again.code == 1
    assert "is cancelled and can no longer be cancelled" in again.err


async def test_cancel_waits_for_running_steps(task_run: TaskRun) -> None:
    """The command ends when they have ended."""
    async with task_run.worker():
        workflow = Workflow()
        step = workflow.step(
            Guarded(task_run.home / "report", task_run.home / "gate"), labels={"size": "small"}
        )
        workflow.step(Add(1), after=failed(step))
        run = await workflow.submit()
        await until_written(task_run.home / "report")
        done = await task_run("workflows", "cancel", run, "--yes", "--json")
    assert (done.code, done.json["state"]) == (0, "cancelled")


async def test_commands_of_tasks_name_those_of_workflows(task_run: TaskRun, app: Nonet) -> None:
    """They do not find the id of a workflow, neither before nor after its end."""
    said = f"{ID} is a workflow, not a task: 'task-run workflows"
    cancelled = await task_run("cancel", ID)
    assert (cancelled.code, f"{said} cancel {ID}'" in cancelled.err) == (4, True)
    for is_ended in (False, True):
        if is_ended:
            await app.workflow(ID).cancel()
        for command in ("explain", "status", "result"):
            found = await task_run(command, ID)
            assert (found.code, f"{said} show {ID}' shows it" in found.err) == (4, True)


async def test_blocked_steps_are_waiting(task_run: TaskRun, app: Nonet) -> None:
    """They are no delayed tasks and have no due time."""
    assert (await task_run("delayed", "list", "--json")).json["items"] == []
    queues = (await task_run("queues", "--json")).json
    assert (queues["waiting"], queues["delayed"]) == (2, 0)
    rows = (await task_run("list", "--state", "waiting", "--json")).json["items"]
    assert [(row["id"], row["blocker"], row["due"]) for row in rows] == [
        (f"{ID}:2", "after 1, 0", None),
        (f"{ID}:3", "after 2, ended(0)", None),
    ]
    status = (await task_run("status", f"{ID}:3", "--json")).json
    assert (status["workflow"], status["due"]) == (ID, None)
    assert status["waits_since"] == status["submitted"]
    hastened = await task_run("delayed", "now", f"{ID}:3")
    assert f"task {ID}:3 is waiting, not delayed" in hastened.err
