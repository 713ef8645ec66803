"""Every failure can be read, in the log of the worker and with the task, and shows no secret."""

from __future__ import annotations

import dataclasses
import json

import pytest
import records
from acceptance.failing_tasks import (
    PASSWORD,
    Blabs,
    BlabsInChild,
    DeclinesInChild,
    DeclinesInLoop,
    FailsInChild,
    FailsInLoop,
    FailsInThread,
    Returns,
    WaitsForRetry,
)
from acceptance.site import Site, eventually, failure, letters, run
from pydantic import SecretStr
from waits import until

from nonet import NonetError
from nonet.rules.figures import Figures
from nonet.stores.sql.database import upgrade

TASKS = "acceptance.failing_tasks"


async def test_a_failure_has_its_traceback_in_log_and_status(site: Site) -> None:
    """One line an attempt, a warning before the retry and an error at the end, wherever it ran."""
    worker = site.worker(NONET_LOG_FORMAT="json")
    async with site.app() as app:
        for kind in (FailsInLoop, FailsInThread, FailsInChild):
            handle = await app.submit(kind(SecretStr(PASSWORD)))
            failed = await failure(app, handle)
            status = await handle.status()
            first, second = [
                line
                for line in map(json.loads, worker.log.splitlines())
                if "failed in" in line["event"] and line["task_id"] == handle
            ]
            assert (first["level"], second["level"]) == ("warning", "error")
            assert "failed in attempt 1, retry: LookupError: no user has ***" in first["event"]
            assert "failed in attempt 2, dead: LookupError: no user has ***" in second["event"]
            texts = first["exception"], second["exception"], status.traceback, failed.traceback
            for text in texts:
                assert text.startswith("Traceback (most recent call last):\n  File ")
                assert ", in look_up\n    users[password]\nKeyError: '***'\n\nThe above" in text
                assert ", in execute\n" in text
                assert text.endswith("from error\nLookupError: no user has ***")
            assert str(failed).endswith("LookupError: no user has ***")
            assert PASSWORD not in worker.log + repr(status) + status.traceback


async def test_an_expected_error_is_one_line(site: Site, mariadb_url: str) -> None:
    """It has no traceback in the log, counts apart from failures, and its letter says so."""
    site.settings |= {"NONET_DB_URL": mariadb_url, "NONET_LEASE": "9", "NONET_LOCK_TTL": "6"}
    await upgrade(mariadb_url)
    worker = site.worker(NONET_LOG_FORMAT="json")
    async with site.app() as app:
        for kind in (DeclinesInLoop, DeclinesInChild):
            handle = await app.submit(kind(SecretStr(PASSWORD)))
            failed = await failure(app, handle)
            assert failed.reason == (await handle.status()).reason == "expected"
            assert failed.traceback
            (letter,) = [one for one in await letters(mariadb_url) if one.task_id == handle]
            assert [attempt["reason"] for attempt in letter.history] == ["expected"] * 2
            about = [
                line for line in map(json.loads, worker.log.splitlines()) if handle in line["event"]
            ]
            failures = [line for line in about if "failed as expected in" in line["event"]]
            assert [line["level"] for line in failures] == ["info", "info"]
            assert not [line for line in about if "exception" in line]
            name = f"failing_tasks:{kind.__name__}"

            async def counted(name: str = name) -> Figures | None:
                found = await app.client.stores.counts.figures(name=name)
                return next((one.total for one in found if one.total.ended), None)

            total = await eventually(counted)
            assert (total.failed, total.expected, total.retried) == (0, 1, 1)


async def test_a_task_that_waits_for_its_retry_has_the_traceback(site: Site) -> None:
    """The last error is not only known once the task has ended."""
    site.worker()
    async with site.app() as app:
        handle = await app.submit(WaitsForRetry(SecretStr(PASSWORD)))
        await until(
            lambda: records.hget(site.redis, site.key(f"t:{handle}"), "state") == "delayed",
            "it waits for its retry",
        )
        status = await handle.status()
        assert (status.state, status.error) == ("delayed", "LookupError: no user has ***")
        assert status.traceback.endswith("\nLookupError: no user has ***")
        assert PASSWORD not in status.traceback
        await handle.cancel()


async def test_what_is_kept_of_an_error_shows_no_secret(site: Site, mariadb_url: str) -> None:
    """Result, status, explanation, dead letter and log have the values masked.

    Nor does a text that was cut in a password, or the reason why a result is not stored.
    """
    await upgrade(mariadb_url)
    site.settings["NONET_DB_URL"] = mariadb_url
    workers = [site.worker(), site.worker(size="medium")]
    async with site.app() as app:
        handle = await app.submit(BlabsInChild(SecretStr(PASSWORD)))
        failed = await failure(app, handle)
        cut = await failure(app, Blabs(SecretStr(PASSWORD), lead=10_000 - len("bad hunter")))
        with pytest.raises(NonetError, match="which cannot be serialised") as refused:
            await run(app, Returns(SecretStr(PASSWORD)))
        await site.all_ended()
        status, told = await handle.status(), (await app.explain(handle)).text
    masked = "bad *** for https://me:***@db.example/x"
    assert masked in str(failed)
    (letter,) = [one for one in await letters(mariadb_url) if one.task_id == handle]
    assert letter.error_message == masked
    assert [entry["error"] for entry in letter.history] == [f"ValueError: {masked}"] * 2
    kept = dataclasses.replace(letter, task_args=b"")  # which are for its next submission
    logs = [worker.log for worker in workers]
    for shown in (str(failed), repr(status), told, repr(kept), *logs):
        assert PASSWORD not in shown and "s3cret-url" not in shown
    assert "ValueError: ...." in str(cut) and "hunter" not in str(cut)
    assert "***" in str(refused.value) and PASSWORD not in str(refused.value)
