"""Arguments arrive as they were given, whichever way a task takes: promise 17."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from acceptance.probe_tasks import EVERYTHING, Everything, SpawnEverything
from acceptance.site import Site
from daemons import until


async def test_arguments_arrive_equal(site: Site) -> None:
    """Every kind of argument arrives equal: at once, delayed, retried; so does the result."""
    site.worker()
    soon = datetime.now(UTC) + timedelta(seconds=0.5)
    async with site.app() as app:
        at_once = await app.submit(Everything(**EVERYTHING))
        delayed = await app.submit(Everything(**EVERYTHING), at_time=soon)
        retried = await app.submit(Everything(**EVERYTHING, fail_first=True))
        for handle, attempts in ((at_once, [1]), (delayed, [1]), (retried, [1, 2])):
            result: dict[str, Any] = await handle.result(timeout=10)
            starts = site.journal("start", id=handle)
            assert [event.attempt for event in starts] == attempts
            for event in starts:
                assert event.details["equal"], event.details["arrived"]
            for name in ("when", "amount", "uid", "data", "big", "huge", "path", "pause"):
                assert result[name] == EVERYTHING[name]
                assert type(result[name]) is type(EVERYTHING[name])
    assert site.journal("start", id=delayed)[0].at >= soon.timestamp()


async def test_arguments_of_a_child_arrive_equal(site: Site) -> None:
    """The same arguments arrive equal in a child of a group."""
    site.worker()
    async with site.app() as app:
        await app.submit(SpawnEverything())
        await until(lambda: site.journal("start", task="Report"), "the callback has run")
        await site.all_ended()
    (child,) = site.journal("start", task="Everything")
    assert child.details["equal"], child.details["arrived"]
