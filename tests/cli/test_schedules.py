"""``task-run schedules``: what is listed, who leads, and what is done by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

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
EARLY = ("--name", "early")


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
        rows = {row["name"]: row for row in ended.json["items"]}
        assert rows["early"]["state"] == "planned" and rows["early"]["next"].endswith("T03:00:00Z")
        assert (rows["late"]["state"], rows["late"]["next"]) == ("disabled", None)
        assert rows["early"]["schedule"] == "CronSchedule('0 3 * * *', 'UTC')"
        async with asyncio.timeout(WAIT_SECONDS):
            while "last tick" not in (shown := await task_run("schedules")).err:
                pass  # the leader has not reported a tick yet
        assert "early" in shown.out
        assert "leader " in shown.err and ", term " in shown.err
        leader = (await task_run("schedules", "leader", "--json")).json
        assert leader["loops"]["periodic entries"]["failures"] == 0
    assert (await task_run("schedules", "leader")).code == 4
    assert "no scheduler leads" in (await task_run("schedules", "list")).err


async def test_an_entry_is_paused_and_resumed(task_run: TaskRun) -> None:
    """A command names a class, or one of its entries; each change is an event."""
    async with scheduler(task_run):
        named = ("Nightly", *EARLY)
        ended = await task_run("schedules", "pause", *named, "--reason", "tape is down", "--json")
        assert ended.json == {"changed": ["errands:Nightly||early"], "gone": []}
        shown = (await task_run("schedules", "show", *named, "--json")).json
        assert shown["state"] == "paused" and shown["paused"].endswith(": tape is down")
        again = await task_run("schedules", "pause", "errands:Nightly")
        assert "early was paused already" in again.out and "late paused" in again.out
        resumed = await task_run("schedules", "resume", "Nightly")
        assert resumed.out.count(" resumed") == 2
        events = (await task_run("events", "--json")).json["items"][::-1]
        kinds = [event["kind"] for event in events]
        assert kinds.count("schedule-pause") == 2 and kinds.count("schedule-resume") == 1


async def test_show_says_why_an_entry_does_not_run(task_run: TaskRun) -> None:
    """A paused entry names the command that resumes it; otherwise its task is explained."""

    async def why() -> str:
        shown = (await task_run("schedules", "show", "Nightly", *EARLY, "--json")).json
        return str(shown["why"])

    async with scheduler(task_run) as app:
        await task_run("schedules", "pause", "Nightly", *EARLY, "--reason", "tape")
        said = await why()
        assert said.startswith("paused since 20") and ": tape; resume with" in said
        await task_run(*said.rpartition("'task-run ")[2].rstrip("'").split())
        assert (await why()).startswith("fires at 20")
        await fire(task_run, app)
        assert "no medium worker is live. Next: " in await why()


async def test_a_wider_pause_is_named_with_the_command_that_ends_it(task_run: TaskRun) -> None:
    """An entry is paused with everything, with its stream, or with its class."""
    show = ("schedules", "show", "Nightly", *EARLY, "--json")
    async with scheduler(task_run) as app:
        await fire(task_run, app)
        for pause in (["--all"], ["--stream", "normal:medium"], ["--task", "Nightly"]):
            await task_run("pause", *pause, "--reason", "disk full")
            resume = f": disk full; resume with 'task-run resume {' '.join(pause)}'"
            listed = await task_run("schedules", "list")
            line = next(line for line in listed.out.splitlines() if " early " in line)
            assert " paused " in line and resume in listed.err
            shown = (await task_run(*show)).json
            assert (shown["state"], shown["paused"]) == ("paused", "") and resume in shown["why"]
            await task_run("resume", *pause)


async def test_an_entry_is_run_by_hand(task_run: TaskRun) -> None:
    """The command prints the id of the task; with several entries it asks for a name."""
    async with scheduler(task_run) as app:
        several = await task_run("schedules", "run-now", "Nightly")
        assert several.code == 2 and "--name early" in several.err and "--name late" in several.err
        ended = await task_run("schedules", "run-now", "Nightly", "--name", "late")
        id = ended.out.strip()
        status = await app.status(id)
        assert (status.name, status.state) == ("errands:Nightly", "queued")
        (event,) = (await task_run("events", "--kind", "schedule-run", "--json")).json["items"]
        assert id in event["text"]


async def test_a_wrong_name_of_an_entry_is_explained(task_run: TaskRun) -> None:
    """The exit code is 4; the line says what is wrong with the class, or what comes near."""
    for name in ("Nightly", "Nightli"):
        ended = await task_run("schedules", "show", name)
        assert ended.code == 4 and "no scheduler leads, start a task-scheduler" in ended.err
    explained = await task_run("explain", "errands:Nightly")
    assert explained.code == 4 and "'task-run schedules show errands:Nightly'" in explained.err
    explained = await task_run("explain", "Add")
    assert explained.code == 4 and "'task-run list --task Add'" in explained.err
    async with scheduler(task_run):
        for command, tasks, problem in [
            ("schedules pause Nightli", "cli.errands", "Did you mean errands:Nightly?"),
            ("schedules show Nightly --vo lhcb", "cli.errands", "--name early"),
            ("schedules show Never", "cli.slips", "it has no schedule: give it `_schedule = …`"),
            ("schedules run-now Add", "cli.errands", "'task-run submit Add' submits one"),
            ("schedules show Add", "cli.errands", "'task-run submit Add' submits one"),
            ("explain Nightly", "", "'task-run schedules show Nightly'"),
        ]:
            ended = await task_run(*command.split(), NONET_TASKS=tasks)
            assert ended.code == 4 and problem in ended.err


async def test_a_schedule_is_added_and_removed(task_run: TaskRun) -> None:
    """It is planned beside the others; the name of another entry is refused, and so is no rule."""
    add = ("schedules", "add", "d-7", "Add", "--args", "[1, 2]")
    refused = await task_run(*add, "--cron", "@daily")
    assert refused.code == 2 and "set NONET_DB_URL" in refused.err
    task_run.environment["NONET_DB_URL"] = f"sqlite:///{task_run.home}/nonet.db"
    async with scheduler(task_run):
        rule = ("--cron", "0 8 * * *", "--timezone", "Europe/Zurich")
        preview = (await task_run("schedules", "preview", *rule)).out
        assert preview.count(" 08:00:00 CE") >= 10 and "+01:00" in preview and "+02:00" in preview
        assert (await task_run(*add, *rule)).out == "d-7 created\n"
        again = await task_run(*add, *rule, "--json")
        assert again.json == {"id": "d-7", "change": "unchanged"}
        key = f"{{{NAMESPACE}}}:periodic:entries"
        await until(lambda: task_run.redis.hexists(key, "errands:Add||d-7"), "it is planned")
        shown = (await task_run("schedules", "show", "Add", "--json")).json
        assert shown["origin"] == "database" and shown["next"].endswith(
            ("T06:00:00Z", "T07:00:00Z")
        )
        id = (await task_run("schedules", "run-now", "Add")).out.strip()
        status = (await task_run("status", id, "--show-args", "--json")).json
        assert status["arguments"] == {"a": 1, "b": 2}
        assert "d-7 paused" in (await task_run("schedules", "pause", "d-7")).out
        taken = await task_run("schedules", "add", "early", "Nightly", "--every", "2h")
        assert taken.code == 1 and "has an entry named 'early'" in taken.err
        wrong = await task_run(*add, "--every", "often")
        assert wrong.code == 2 and "every: " in wrong.err
        assert (await task_run(*add)).code == 2
        assert (await task_run("schedules", "remove", "d-7")).code == 0
        await until(lambda: not task_run.redis.hexists(key, "errands:Add||d-7"), "it is dropped")
        assert (await task_run("schedules", "remove", "d-7")).code == 4
