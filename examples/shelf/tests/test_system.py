"""The whole service: routes, workers and a scheduler with a real Redis and a test clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from conftest import Site

from nonet.testing import System
from shelf import tasks
from shelf.api import create_app
from shelf.store import Store
from shelf.tasks import Fetch, Put, RemoveUnused, collect

CONFIG = Path(__file__).parents[1] / "nonet.yaml"


@pytest.fixture
def nonet_tasks() -> list[object]:
    """The tasks of the systems below."""
    return [tasks]


@pytest.fixture
async def client(nonet_system: System) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of the application, on the system of the test."""
    app = create_app(nonet_system.app)
    app.state.nonet = nonet_system.app
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shelf") as opened:
        yield opened


async def test_a_page_is_collected(
    nonet_system: System, client: httpx.AsyncClient, files: Store, site: Site
) -> None:
    """From the request to the thumbnails, which can be downloaded."""
    answer = await client.post("/shelves/ann/pages", json={"address": site.add_page(3)})
    assert answer.status_code == 202
    run = answer.json()["run"]
    while (await client.get(f"/runs/{run}")).json()["state"] == "running":
        await nonet_system.run_until_idle()
        await nonet_system.advance(1)  # when more may be fetched from this host
    assert (await client.get(f"/runs/{run}")).json() == {"state": "done", "steps": 11, "left": 0}
    shelf = (await client.get("/shelves/ann")).json()
    assert sorted(shelf) == [f"{site.url}/{number}.png" for number in range(3)]
    thumbnail = await client.get(shelf[f"{site.url}/0.png"])
    assert thumbnail.content.startswith(b"\x89PNG")


async def test_one_bad_picture_spoils_no_other(
    nonet_system: System, files: Store, site: Site
) -> None:
    """Its steps fail, the others end, and the user is told."""
    page = site.add_page(3)
    site.files["/1.png"] = b"no picture"
    workflow = collect("ann", page)
    run = await workflow.submit()
    await nonet_system.run_until_idle()
    assert (await run.status()).state == "failed"
    report = await run.result(workflow.steps[-1])
    assert report.startswith("ann: ")
    assert len(files.shelf("ann")) == 2


async def test_a_missing_page_is_reported(nonet_system: System, files: Store, site: Site) -> None:
    """Nothing is fetched from it."""
    workflow = collect("ann", f"{site.url}/page")
    run = await workflow.submit()
    await nonet_system.run_until_idle()
    assert "404" in await run.result(workflow.steps[-1])
    nonet_system.assert_not_submitted(Fetch)


async def test_users_and_runs_that_do_not_exist(client: httpx.AsyncClient, files: Store) -> None:
    """A shelf is empty, a run unknown, and a name that is no name refused."""
    assert (await client.get("/shelves/bob")).json() == {}
    assert (await client.get("/runs/unknown")).status_code == 404
    assert (await client.get("/shelves/B%40b")).status_code == 422
    assert (await client.get(f"/thumbnails/{'0' * 32}.png")).status_code == 404


async def test_a_shelf_is_changed_by_one_task_at_a_time(nonet_system: System, files: Store) -> None:
    """All of these read it, add to it and write it; none is lost."""
    for number in range(20):
        await Put("ann", f"http://a.org/{number}.png", "x.png").schedule()
    await nonet_system.run_until_idle()
    assert len(files.shelf("ann")) == 20


@pytest.mark.nonet(config=CONFIG, now=datetime(2030, 1, 1, 2, 59, tzinfo=UTC))
async def test_unused_pictures_are_removed_at_night(nonet_system: System, files: Store) -> None:
    """At four in Zurich, as the configuration says."""
    await nonet_system.advance(120)
    await nonet_system.run_until_idle()
    nonet_system.assert_submitted(RemoveUnused, times=1)
