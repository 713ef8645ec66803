"""Every failure can be read, in the log of the worker and with the task, and shows no secret."""

from __future__ import annotations

import dataclasses
import json

import pytest
from acceptance.failing_tasks import (
    PASSWORD,
    Blabs,
    BlabsInChild,
    FailsInChild,
    FailsInLoop,
    FailsInThread,
    Returns,
    WaitsForRetry,
)
from acceptance.site import Site, failure, letters
from pydantic import SecretStr
from waits import WAIT_SECONDS, until

from nonet import NonetError
from nonet.stores.sql.database import upgrade

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


async def test_what_is_kept_of_an_error_shows_no_secret(site: Site, mariadb_url: str) -> None:
    """Result, status, explanation, dead letter and log have the values masked."""
    await upgrade(mariadb_url)
    site.settings["NONET_DB_URL"] = mariadb_url
    worker = site.worker(size="medium")
    async with site.app() as app:
        handle = await app.submit(BlabsInChild(SecretStr(PASSWORD)))
        failed = await failure(app, handle)
        await site.all_ended()
        status, told = await handle.status(), (await app.explain(handle)).text
    masked = "bad *** for https://me:***@db.example/x"
    assert masked in str(failed)
    (letter,) = await letters(mariadb_url)
    assert letter.error_message == masked
    assert [entry["error"] for entry in letter.history] == [f"ValueError: {masked}"] * 2
    kept = dataclasses.replace(letter, task_args=b"")  # which are for its next submission
    for shown in (str(failed), repr(status), told, repr(kept), worker.log):
        assert PASSWORD not in shown and "s3cret-url" not in shown


async def test_what_is_cut_shows_no_part_of_a_secret(site: Site) -> None:
    """An error's text of which only the start is kept ends before a password that was cut."""
    site.worker()
    async with site.app() as app:
        handle = await app.submit(Blabs(SecretStr(PASSWORD), lead=10_000 - len("bad hunter")))
        failed = await failure(app, handle)
        await site.all_ended()
    assert "ValueError: ...." in str(failed) and "hunter" not in str(failed)


async def test_a_result_that_cannot_be_stored_shows_no_secret(site: Site) -> None:
    """Why a result is not stored names the place in it, which may be a secret."""
    site.worker()
    async with site.app() as app:
        handle = await app.submit(Returns(SecretStr(PASSWORD)))
        with pytest.raises(NonetError, match="which cannot be serialised") as refused:
            await handle.result(timeout=WAIT_SECONDS)
        await site.all_ended()
    assert "***" in str(refused.value) and PASSWORD not in str(refused.value)
