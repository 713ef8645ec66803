"""Single tasks, without any server but the web site."""

from __future__ import annotations

import os
import time

import httpx
from conftest import Site, png

from nonet import ChildResult
from nonet.testing import run_inline
from shelf.pictures import read
from shelf.store import Store
from shelf.tasks import Fetch, Put, ReadPage, RemoveUnused, Report, Shrink


async def test_a_page_has_three_steps_for_each_picture(files: Store, site: Site) -> None:
    """They fetch it, shrink it and put it on the shelf."""
    page = site.add_page(2)
    run = await run_inline(ReadPage(page, "ann"), inputs=[])
    assert run.result == 2
    assert len(run.submitted) == 6
    assert run.submitted[0].task == Fetch(f"{site.url}/0.png")


async def test_a_picture_is_fetched_and_shrunk(files: Store, site: Site) -> None:
    """Both results are names in the store; a second run gives the same."""
    site.files["/a.png"] = png(500, 7)
    fetched = [(await run_inline(Fetch(f"{site.url}/a.png"))).result for _ in range(2)]
    assert fetched[0] == fetched[1]
    small = (await run_inline(Shrink(fetched[0]))).result
    assert read(files.path(small).read_bytes()).width <= 128


async def test_a_busy_host_is_asked_again(files: Store, site: Site) -> None:
    """After 2 and 4 seconds; but not for what it does not have."""
    site.files["/a.png"] = png(1, 7)
    site.failures["/a.png"] = 2
    run = await run_inline(Fetch(f"{site.url}/a.png"), retry=True)
    assert [round(wait.total_seconds()) for wait in run.waits] == [2, 4]
    missing = await run_inline(Fetch(f"{site.url}/b.png"), retry=True, check=False)
    assert missing.attempts == 1
    assert isinstance(missing.error, httpx.HTTPStatusError)


def test_locks() -> None:
    """One limit for all that ask a host, and a mutex for each user."""
    read_page, fetch = ReadPage("http://a.org/x", "ann"), Fetch("http://a.org/b.png")
    keys = [task.execution_locks[-1].redis_key for task in (read_page, fetch, Put("ann", "", ""))]
    assert keys == ["limiter:rate:host:a.org", "limiter:rate:host:a.org", "lock:mutex:user:ann"]


async def test_unused_pictures_are_removed(files: Store) -> None:
    """Those that are a day old and on no shelf."""
    used, old, new = (files.save(png(1, value)) for value in (1, 2, 3))
    files.put("ann", "http://a.org/1.png", used)
    for name in (used, old):
        os.utime(files.path(name), (time.time() - 100_000,) * 2)
    assert (await run_inline(RemoveUnused())).result == 1
    assert [files.path(name).exists() for name in (used, old, new)] == [True, False, True]


async def test_a_failure_is_reported(files: Store) -> None:
    """With the error of the page."""
    page = ChildResult("1", "dead", None, "404 Not Found")
    assert (await run_inline(Report("ann"), inputs=[page])).result == "ann: 404 Not Found"
