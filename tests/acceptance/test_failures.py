"""Every failure can be read: in the log of the worker, and with the task."""

from __future__ import annotations

import json

import pytest
from acceptance.failing_tasks import (
    PASSWORD,
    FailsInChild,
    FailsInLoop,
    FailsInThread,
    WaitsForRetry,
)
from acceptance.site import Site, failure
from pydantic import SecretStr
from waits import until

TASKS = "acceptance.failing_tasks"


@pytest.mark.parametrize("kind", [FailsInLoop, FailsInThread, FailsInChild])
async def test_a_failure_has_its_traceback_in_log_and_status(
    site: Site, kind: type[FailsInLoop]
) -> None:
    """One line an attempt, a warning before the retry and an error at the end, wherever it ran."""
    worker = site.worker(NONET_LOG_FORMAT="json")
    async with site.app() as app:
        handle = await app.submit(kind(SecretStr(PASSWORD)))
        failed = await failure(app, handle)
        status = await handle.status()
    lines = [json.loads(line) for line in worker.log.splitlines()]
    first, second = [line for line in lines if "failed in" in line["event"]]
    assert (first["level"], second["level"]) == ("warning", "error")
    assert first["task_id"] == second["task_id"] == handle
    assert "failed in attempt 1, retry: LookupError: no user has ***" in first["event"]
    assert "failed in attempt 2, dead: LookupError: no user has ***" in second["event"]
    for text in (first["exception"], second["exception"], status.traceback, failed.traceback):
        assert text.startswith("Traceback (most recent call last):\n  File ")
        assert ", in look_up\n    users[password]\nKeyError: '***'\n\nThe above" in text
        assert ", in execute\n" in text
        assert text.endswith(
            ', in look_up\n    raise LookupError(f"no user has {password}") '
            "from error\nLookupError: no user has ***"
        )
    assert str(failed).endswith("LookupError: no user has ***")
    assert PASSWORD not in worker.log + repr(status) + status.traceback


async def test_a_task_that_waits_for_its_retry_has_the_traceback(site: Site) -> None:
    """The last error is not only known once the task has ended."""
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
