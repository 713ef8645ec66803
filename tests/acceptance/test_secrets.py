"""No secret value in what is kept of a task: promise 17."""

from __future__ import annotations

import dataclasses

import pytest
from acceptance.secret_tasks import PASSWORD, Blabs, BlabsInChild, Returns
from acceptance.site import Site, failure, letters
from pydantic import SecretStr
from waits import WAIT_SECONDS

from nonet import NonetError
from nonet.stores.sql.database import upgrade

TASKS = "acceptance.secret_tasks"


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
