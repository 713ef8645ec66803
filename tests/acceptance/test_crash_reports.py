"""What people are told of an attempt whose process ended under it."""

from __future__ import annotations

import pytest
from acceptance import isolated_tasks as tasks
from acceptance.site import Site
from waits import WAIT_SECONDS

from nonet import TaskFailed
from nonet.stores.sql.database import upgrade


@pytest.fixture
def isolated(site: Site) -> Site:
    """A site whose daemons know these tasks."""
    site.settings["NONET_TASKS"] = "acceptance.isolated_tasks"
    return site


async def test_a_dead_letter_tells_what_each_attempt_took(isolated: Site, mariadb_url: str) -> None:
    """Time and memory of every crash are in its history, the last one in the status too."""
    await upgrade(mariadb_url)
    isolated.worker(size="medium", NONET_DB_URL=mariadb_url)
    async with isolated.app(db_url=mariadb_url) as app:
        handle = await app.submit(tasks.Hogs())
        with pytest.raises(TaskFailed):
            await handle.result(timeout=WAIT_SECONDS)
        (letter,) = await (await app.dead_letters()).list()
        found = await handle.status()
    assert [attempt["attempt"] for attempt in letter.history] == [1, 2, 3]
    for attempt in letter.history:
        assert attempt["error"].startswith("MemoryLimitExceeded: ")
        assert attempt["wall"] > 0 and attempt["rss"] > tasks.MEMORY / 2
    assert (found.reason, found.crashes, found.attempt) == ("crash", 3, 3)
    assert found.usage is not None and found.usage.rss == letter.history[-1]["rss"]
