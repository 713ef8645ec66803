"""Every failure can be read: in the log of the worker, and with the task."""

from __future__ import annotations

import json
from typing import Any

import pytest
from acceptance.failing_tasks import (
    PASSWORD,
    FailsInChild,
    FailsInLoop,
    FailsInThread,
    HandsItselfBack,
    WaitsForRetry,
)
from acceptance.site import Site
from daemons import Daemon
from pydantic import SecretStr
from waits import WAIT_SECONDS, until

from nonet import TaskFailed

MODULE = "acceptance.failing_tasks"


def told(worker: Daemon, id: str) -> list[dict[str, Any]]:
    """The lines of a worker about the failures of a task."""
    lines = [json.loads(line) for line in worker.log.splitlines()]
    return [line for line in lines if line.get("task_id") == id and "failed in" in line["event"]]


@pytest.mark.parametrize("kind", [FailsInLoop, FailsInThread, FailsInChild])
async def test_a_failure_has_its_traceback_in_log_and_status(
    site: Site, kind: type[FailsInLoop]
) -> None:
    """One line an attempt, a warning before the retry and an error at the end, wherever it ran."""
    site.settings["NONET_TASKS"] = MODULE
    worker = site.worker(NONET_LOG_FORMAT="json")
    async with site.app() as app:
        handle = await app.submit(kind(SecretStr(PASSWORD)))
        with pytest.raises(TaskFailed) as failed:
            await handle.result(timeout=WAIT_SECONDS)
        status = await handle.status()
    first, second = told(worker, handle)
    assert [first["level"], second["level"]] == ["warning", "error"]
    assert "failed in attempt 1, retry: LookupError: no user has ***" in first["event"]
    assert "failed in attempt 2, dead: LookupError: no user has ***" in second["event"]
    for text in (first["exception"], second["exception"], status.traceback, failed.value.traceback):
        assert text.startswith("Traceback (most recent call last):\n  File ")
        assert ", in look_up\n    users[password]\nKeyError: '***'\n\nThe above" in text
        assert ", in execute\n" in text
        assert text.endswith(
            ', in look_up\n    raise LookupError(f"no user has {password}") '
            "from error\nLookupError: no user has ***"
        )
    assert str(failed.value).endswith("LookupError: no user has ***")
    assert PASSWORD not in worker.log + repr(status) + status.traceback


async def test_a_task_that_waits_for_its_retry_has_the_traceback(site: Site) -> None:
    """The last error is not only known once the task has ended."""
    site.settings["NONET_TASKS"] = MODULE
    site.worker()
    async with site.app() as app:
        handle = await app.submit(WaitsForRetry(SecretStr(PASSWORD)))
        await until(
            lambda: site.redis.hget(site.key(f"t:{handle}"), "state") == "delayed",
            "it waits for its retry",
        )
        status = await handle.status()
        assert (status.state, status.error) == ("delayed", "LookupError: no user has ***")
        assert status.traceback.endswith("\nLookupError: no user has ***")
        assert PASSWORD not in status.traceback
        await handle.cancel()


async def test_a_hand_back_is_no_failure(site: Site) -> None:
    """It is one line of information, without a traceback."""
    site.settings["NONET_TASKS"] = MODULE
    worker = site.worker(NONET_LOG_FORMAT="json")
    async with site.app() as app:
        handle = await app.submit(HandsItselfBack())
        await handle.result(timeout=WAIT_SECONDS)
    (line,) = told(worker, handle)
    assert line["level"] == "info" and "exception" not in line
