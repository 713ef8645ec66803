"""Log lines of daemons: which task they are about, what they hide, and that none ends a worker."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from acceptance.logging_tasks import (
    PASSWORD,
    DiesTalking,
    LogsIn,
    LogsInFromChild,
    Says,
    SaysAtGate,
    SaysInChild,
    SaysInThread,
    SaysNothing,
    SaysSecretly,
)
from acceptance.shipping_tasks import Fails, FailsInChild
from acceptance.site import SHORT, Site, eventually, failure, letters, run
from daemons import Daemon
from pydantic import SecretStr
from waits import WAIT_SECONDS, until

from nonet import BaseTask
from nonet.operate import logs
from nonet.stores.sql.database import upgrade

TASKS = "acceptance.logging_tasks"


def lines(daemon: Daemon) -> list[dict[str, Any]]:
    """All lines of a daemon, each of which is an object."""
    return [json.loads(line) for line in daemon.log.splitlines()]


async def test_a_json_line_of_a_task_names_it(site: Site) -> None:
    """What its author logs in a coroutine, a thread or a child has id, class and attempt.

    In a pod it is JSON unless it is said otherwise.
    """
    worker = site.worker(KUBERNETES_SERVICE_HOST="10.0.0.1")
    async with site.app() as app:
        ids = {}
        for task in (Says(), SaysInThread(), SaysInChild()):
            handle = await app.submit(task)
            ids[type(task).__name__] = str(handle)
            await handle.result(timeout=WAIT_SECONDS)
    said = [line for line in lines(worker) if line["logger"] == "author"]
    assert [(line["event"], line["task_id"], line["task"], line["attempt"]) for line in said] == [
        ("said by logging", ids["Says"], "logging_tasks:Says", 1),
        ("said by structlog", ids["Says"], "logging_tasks:Says", 1),
        ("said in a thread", ids["SaysInThread"], "logging_tasks:SaysInThread", 1),
        ("said in a child", ids["SaysInChild"], "logging_tasks:SaysInChild", 1),
    ]
    assert [line.get("pages") for line in said] == [3, 4, None, None]
    for line in said:
        assert line["level"] == "info"
        assert line["namespace"] == "acceptance"
        assert (line["size"], line["worker"]) == ("small", worker.name)
        assert line["timestamp"].endswith("Z") and datetime.fromisoformat(line["timestamp"])
    assert "task_id" not in lines(worker)[0]


async def test_the_lines_of_a_task_are_kept_with_it(site: Site) -> None:
    """From wherever its code logs, masked, and encrypted if its class is."""
    keys = f"2026:{base64.b64encode(bytes(32)).decode()}"
    site.worker(NONET_ENCRYPTION_KEYS=keys)
    expected: dict[type[BaseTask], str] = {
        Says: "INFO author: said by logging pages=3|INFO author: said by structlog pages=4",
        SaysInThread: "INFO author: said in a thread",
        SaysInChild: "INFO author: said in a child",
        SaysSecretly: "INFO author: said secretly",
        SaysNothing: "",
    }
    async with site.app(encryption_keys=keys) as app:
        for kind, lines in expected.items():
            handle = await app.submit(kind())
            await handle.result(timeout=WAIT_SECONDS)
            found = await logs.get(app.client, handle)
            text = "".join(item.log for item in found.attempts)
            assert "|".join(line.split(" ", 1)[1] for line in text.splitlines()) == lines
            assert await app.logs(handle) == {item.attempt: item.log for item in found.attempts}
            raw = "".join((await app.client.stores.broker.logs(handle)).values())
            assert raw.startswith("nonet-encrypted:") == (kind is SaysSecretly)
        handle = await app.submit(LogsIn(SecretStr(PASSWORD)))
        await failure(app, handle)
        (attempt,) = (await logs.get(app.client, handle)).attempts
        assert "login with *** at https://me:***@db.example/x" in attempt.log
        assert "ValueError: ***" in attempt.log and "failed in attempt" not in attempt.log


async def test_lines_are_kept_of_a_process_that_dies(site: Site, mariadb_url: str) -> None:
    """They are shown while it runs, and remain in the dead letter."""
    site.settings["NONET_DB_URL"] = mariadb_url
    await upgrade(mariadb_url)
    site.worker()
    async with site.app() as app:
        handle = await app.submit(DiesTalking(gate := site.gate()))
        await eventually(lambda: app.client.stores.broker.logs(handle))
        shown = await site.type(f"task-run logs {handle}")
        assert shown.startswith("… 1 earlier lines were dropped\n")
        assert shown.endswith("INFO author: step 200\n")
        following = asyncio.create_task(site.type(f"task-run logs {handle} --follow"))
        await asyncio.to_thread(Path(gate).touch)
        assert await following == shown
        assert (await failure(app, handle)).error_type == "TaskCrashed"
        (letter,) = await letters(mariadb_url)
        assert letter.history[0]["log"].endswith("INFO author: step 200")


async def test_lines_outlive_the_worker_and_those_of_the_next_run_replace_them(site: Site) -> None:
    """The death of a worker uses no attempt: what runs then is the same attempt again."""
    site.settings |= SHORT
    first = site.worker()
    async with site.app() as app:
        handle = await app.submit(SaysAtGate(gate := site.gate()))
        await eventually(lambda: app.client.stores.broker.logs(handle))
        first.kill()
        assert (await site.type(f"task-run logs {handle}")).endswith(f"process {first.pid}\n")
        second = site.worker()
        site.open(gate)
        await app.result(handle, timeout=WAIT_SECONDS)
        (attempt,) = (await logs.get(app.client, handle)).attempts
    assert f"process {first.pid}" not in attempt.log
    assert [line.split(" author: ")[1].split(",")[0] for line in attempt.log.splitlines()] == [
        "before",
        "after",
    ]
    assert second.alive


@pytest.mark.parametrize("form", ["json", "console"])
async def test_no_line_shows_a_secret(site: Site, form: str) -> None:
    """Secret arguments and passwords in URLs are masked in texts, tracebacks and failures."""
    worker = site.worker(NONET_LOG_FORMAT=form)
    async with site.app() as app:
        for kind in (LogsIn, LogsInFromChild):
            await failure(app, kind(SecretStr(PASSWORD)))
    await until(lambda: worker.log.count("failed in attempt 1") == 2, "the failures are told")
    log = worker.log
    for masked in (
        "login with *** at https://me:***@db.example/x",
        "refused",
        "failed in attempt 1, dead: ValueError: *** is wrong",
        "log line cannot be formatted: at=logging_tasks.py",
    ):
        assert log.count(masked) == 2
    assert "Traceback" in log
    assert "\nValueError: ***" in log.replace("\\n", "\n").replace("\n  ", "\n")
    assert not [shown for shown in ("hunter", "s3cret-url") if shown in log]
    if form == "json":  # the worker tells of the child's failure, and names the task, too
        told = [line for line in lines(worker) if "failed in attempt 1" in line["event"]]
        assert [line["task"] for line in told] == [
            "logging_tasks:LogsIn",
            "logging_tasks:LogsInFromChild",
        ]


async def test_lines_for_people_name_the_task_once(site: Site) -> None:
    """Text has the task where the line does not name it, and is the default outside of pods."""
    worker = site.worker()
    async with site.app() as app:
        handle = await app.submit(Says())
        await handle.result(timeout=WAIT_SECONDS)
    named = f"task_id={handle} task=logging_tasks:Says attempt=1"
    assert f" INFO author: said by logging pages=3 {named}\n" in worker.log


async def test_a_level_keeps_the_rest_out(site: Site) -> None:
    """Lines below the level are not written, whichever logger they come from."""
    worker = site.worker(NONET_LOG_LEVEL="Warning", wait=False)
    async with site.app() as app:
        await run(app, Says())
    assert worker.log == ""


async def test_logging_of_an_application_neither_ends_daemons_nor_hides_their_lines(
    site: Site,
) -> None:
    """Its handler raises and it removes ours: tasks end as ever, and each failure is a line."""
    site.settings["NONET_TASKS"] = "acceptance.shipping_tasks"
    worker, scheduler = site.worker(), site.scheduler()
    async with site.app() as app:
        for task in (Fails(), FailsInChild()):
            assert (await failure(app, task)).reason == "retries"
    for daemon in (worker, scheduler):
        daemon.terminate()
        assert daemon.wait() == 0, daemon.log
    assert worker.log.count("dead: ValueError: ordinary failure") == 2
    assert worker.log.count("\n  ValueError: ordinary failure") == 2
    for daemon in (worker, scheduler):
        assert "log handler raises, its lines are lost: handler=Shipper" in daemon.log
        assert " restored the log lines of this process" in daemon.log
        assert "stop requested" in daemon.log
