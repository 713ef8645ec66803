"""``task-run schedules``: what is listed, who leads, and what is done by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cli.terminal import NAMESPACE, TaskRun
from daemons import until

from nonet import Nonet
from nonet.service import Stop

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
        running = asyncio.create_task(app.scheduler(injector).run(stop))
        key = f"{{{NAMESPACE}}}:periodic:entries"
        try:
            await until(lambda: task_run.redis.exists(key), "the entries are planned")
            yield app
        finally:
            stop.request()
            await running


async def test_entries_are_listed_with_their_leader(task_run: TaskRun) -> None:
    """One row each, disabled ones too; who leads is told beside the table."""
    async with scheduler(task_run):
        ended = await task_run("schedules", "list", "--json")
        rows = {row["name"]: row for row in ended.json}
        assert rows["early"]["state"] == "planned" and rows["early"]["next"].endswith("T03:00:00Z")
        assert (rows["late"]["state"], rows["late"]["next"]) == ("disabled", None)
        assert rows["early"]["schedule"] == "CronSchedule('0 3 * * *', 'UTC')"
        shown = await task_run("schedules")
        assert "early" in shown.out
        assert "leader " in shown.err and ", term " in shown.err and "last tick" in shown.err
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
