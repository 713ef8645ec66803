"""``task-run schedules``: what is listed, who leads, and what is done by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from cli.terminal import NAMESPACE, TaskRun
from waits import WAIT_SECONDS, until

from nonet import Nonet
from nonet.daemon.service import Stop
from nonet.stores.queue.submissions import Submission

CONFIG = """
vos: [lhcb, gridpp]
common:
  periodic-tasks:
    errands:Nightly: [{name: early, args: {}}, {name: late, enabled: false}]
"""


@asynccontextmanager
async def scheduler(task_run: TaskRun) -> AsyncIterator[Nonet]:
    """A scheduler that leads, in this process."""
    file = task_run.home / "config.yaml"
    file.write_text(CONFIG)
    task_run.environment["NONET_CONFIG"] = str(file)
    async with task_run.app() as app, app.injector() as injector:
        stop = Stop()
        # Modules of other tests may have registered start-up hooks in this process.
        running = asyncio.create_task(app.scheduler(injector, hooks={}).run(stop))
        key = f"{{{NAMESPACE}}}:periodic:entries"
        try:
            await until(lambda: task_run.redis.exists(key), "the entries are planned")
            yield app
        finally:
            stop.request()
            await running


async def fire(task_run: TaskRun, app: Nonet) -> None:
    """Let the entry ``early`` have an occurrence that waits, task p-1."""
    leader = await app.leader()
    assert leader is not None
    task = Submission("p-1", "errands:Nightly", "normal:medium", b"e")
    early = "errands:Nightly||early"
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    answer = await app.stores.periodic.fire(
        leader.term, early, datetime.now(UTC), task, following=tomorrow
    )
    assert answer == "FIRED"


async def test_entries_are_listed_with_their_leader(task_run: TaskRun) -> None:
    """One row each, disabled ones too; who leads is told beside the table."""
    async with scheduler(task_run):
        ended = await task_run("schedules", "list", "--json")
        rows = {row["name"]: row for row in ended.json}
        assert rows["early"]["state"] == "planned" and rows["early"]["next"].endswith("T03:00:00Z")
        assert (rows["late"]["state"], rows["late"]["next"]) == ("disabled", None)
        assert rows["early"]["schedule"] == "CronSchedule('0 3 * * *', 'UTC')"
        async with asyncio.timeout(WAIT_SECONDS):
            while "last tick" not in (shown := await task_run("schedules")).err:
                pass  # it leads, and has not told of a tick yet
        assert "early" in shown.out
        assert "leader " in shown.err and ", term " in shown.err
        leader = (await task_run("schedules", "leader", "--json")).json
        assert leader["role"] == "leader" and leader["loops"]["periodic entries"]["failures"] == 0
        assert leader["config"] == {"version": leader["config"]["version"], "problem": ""}
    assert (await task_run("schedules", "leader")).code == 4
    assert "no scheduler leads" in (await task_run("schedules", "list")).err


async def test_an_entry_is_paused_and_resumed(task_run: TaskRun) -> None:
    """By class, or one by its name; twice changes nothing, and the event stream tells of it."""
    async with scheduler(task_run):
        named = ("Nightly", "--name", "early")
        ended = await task_run("schedules", "pause", *named, "--reason", "tape is down", "--json")
        assert ended.json == [{"entry": "errands:Nightly||early", "changed": True}]
        shown = (await task_run("schedules", "show", *named, "--json")).json[0]
        assert shown["state"] == "paused" and shown["paused"].endswith(": tape is down")
        again = await task_run("schedules", "pause", "errands:Nightly")
        assert "early was paused already" in again.out and "late paused" in again.out
        resumed = await task_run("schedules", "resume", "Nightly")
        assert resumed.out.count(" resumed") == 2
        events = (await task_run("events", "--json")).json
        kinds = [event["kind"] for event in events]
        assert kinds.count("schedule-pause") == 2 and kinds.count("schedule-resume") == 1


async def test_who_asks_why_an_entry_does_not_run_is_told(task_run: TaskRun) -> None:
    """`show` has one answer: when it fires, who disabled or paused it, what its task waits for."""

    async def why(name: str = "early") -> str:
        (shown,) = (await task_run("schedules", "show", "Nightly", "--name", name, "--json")).json
        return f"{shown['state']}: {shown['why']}"

    async with scheduler(task_run) as app:
        assert (await why()).startswith("planned: fires at 20")
        origin = "common.periodic-tasks.errands:Nightly"
        assert await why("late") == f"disabled: disabled by {origin}"
        await task_run("schedules", "pause", "Nightly", "--name", "early", "--reason", "tape")
        said = await why()
        assert said.startswith("paused: paused since 20") and ": tape; resume with" in said
        await task_run(*said.rpartition("'task-run ")[2].rstrip("'").split())
        assert (await why()).startswith("planned")
        await fire(task_run, app)
        assert "no medium worker is live. Next: " in await why()
        assert (await why()).startswith("waiting: task p-1: queued")
    await task_run("pause", "--all")
    await task_run("resume", "--all")
    assert (await why()).startswith("waiting: task p-1")
    task_run.redis.delete(f"{{{NAMESPACE}}}:t:p-1")
    assert await why() == "planned: nothing fires: no scheduler leads, start a task-scheduler"


@pytest.mark.parametrize(
    "pause", [["--all"], ["--stream", "normal:medium"], ["--task", "Nightly"]], ids=str
)
async def test_a_pause_of_more_than_the_entry_is_told(task_run: TaskRun, pause: list[str]) -> None:
    """Of everything, of the stream it waits in, or of its class: with the command that ends it."""
    async with scheduler(task_run) as app:
        await fire(task_run, app)
        await task_run("pause", *pause, "--reason", "disk full")
        listed = await task_run("schedules", "list")
        line = next(line for line in listed.out.splitlines() if " early " in line)
        assert " paused " in line
        assert f": disk full; resume with 'task-run resume {' '.join(pause)}'" in listed.err
        (shown,) = (
            await task_run("schedules", "show", "Nightly", "--name", "early", "--json")
        ).json
        assert (shown["state"], shown["paused"]) == ("paused", "")
        assert f": disk full; resume with 'task-run resume {' '.join(pause)}'" in shown["why"]


async def test_a_class_is_no_task_but_its_entries_can_be_explained(task_run: TaskRun) -> None:
    """`explain CLASS` points to the command that answers, planned here or only registered."""
    for name in ("Nightly", "errands:Nightly"):
        ended = await task_run("explain", name)
        assert ended.code == 4 and f"'task-run schedules show {name}'" in ended.err
    async with scheduler(task_run):
        ended = await task_run("explain", "Nightly", NONET_TASKS="")
        assert ended.code == 4 and "'task-run schedules show Nightly'" in ended.err
    ended = await task_run("explain", "Add")
    assert ended.code == 4 and "'task-run list --task Add'" in ended.err


async def test_an_entry_is_run_by_hand(task_run: TaskRun) -> None:
    """Its task is submitted once, with the arguments of the entry; the id is printed."""
    async with scheduler(task_run) as app:
        several = await task_run("schedules", "run-now", "Nightly")
        assert several.code == 2 and "--name early" in several.err and "--name late" in several.err
        ended = await task_run("schedules", "run-now", "Nightly", "--name", "late")
        assert ended.code == 0
        status = await app.status(ended.out.strip())
        assert (status.name, status.state) == ("errands:Nightly", "queued")
        events = (await task_run("events", "--json")).json
        assert [ended.out.strip() in event["text"] for event in events if event["kind"] ==
                "schedule-run"] == [True]  # fmt: skip


async def test_who_means_no_entry_is_told_the_nearest(task_run: TaskRun) -> None:
    """Exit code 4, with the class that comes nearest or the entries that there are."""
    async with scheduler(task_run):
        wrong = await task_run("schedules", "pause", "Nightli")
        assert wrong.code == 4 and "Did you mean errands:Nightly?" in wrong.err
        wrong = await task_run("schedules", "show", "Nightly", "--vo", "lhcb")
        assert wrong.code == 4 and "--name early" in wrong.err


async def test_without_a_plan_the_reason_is_told(task_run: TaskRun) -> None:
    """A class that is registered or not, and nobody who would plan it."""
    for name in ("Nightly", "Nightli"):
        ended = await task_run("schedules", "show", name)
        assert ended.code == 4 and "no scheduler leads, start a task-scheduler" in ended.err


async def test_a_class_without_a_schedule_says_so(task_run: TaskRun) -> None:
    """The leading scheduler has its code, and still no entry."""
    async with scheduler(task_run):
        ended = await task_run("schedules", "show", "Never", NONET_TASKS="cli.slips")
    assert ended.code == 4
    assert "no entry of Never is planned: it has no schedule: give it `_schedule = …`" in ended.err


async def test_a_class_that_is_not_periodic(task_run: TaskRun) -> None:
    """It has no entry to show or to run; the command that submits it is named."""
    async with scheduler(task_run):
        for command in ("run-now", "show", "pause"):
            ended = await task_run("schedules", command, "Add")
            assert ended.code == 4
            assert "Add is not periodic: 'task-run submit Add' submits one" in ended.err
