"""The routes, together with the tasks that they submit."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from test_system import add, state_of

from nonet.testing import System
from nonet_example.api import create_app
from nonet_example.files import RemoveFile
from nonet_example.requests import RemoveRequested
from nonet_example.storage import Storage, storage


@pytest.fixture
async def system(db_url: str, elements: Storage) -> AsyncIterator[System]:
    """Run a system whose durable tasks are in the database of this package."""
    async with System(overrides={storage: lambda: elements}, db_url=db_url) as opened:
        yield opened


@pytest.fixture
async def client(system: System) -> AsyncIterator[httpx.AsyncClient]:
    """Return an HTTP client of the application, which the system has opened."""
    app = create_app(system.app)
    app.state.nonet = system.app
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://example"
    ) as opened:
        yield opened


async def test_a_request_and_its_task_are_committed(
    system: System, client: httpx.AsyncClient
) -> None:
    """The response has the id of a task that ends with the removal."""
    await add(("CERN-DST", "/lhcb/a"))
    answer = await client.post("/removals", json={"vo": "lhcb", "lfns": ["/lhcb/a"]})
    assert answer.status_code == 202
    assert len(await system.result(answer.json()["task"])) == 1
    await system.run_until_idle()
    system.assert_submitted(RemoveFile, lfn="/lhcb/a", times=1)
    assert await state_of("/lhcb/a") == []


async def test_a_refused_request_leaves_nothing(system: System, client: httpx.AsyncClient) -> None:
    """A request with an unknown file creates neither a row nor a task."""
    await add(("CERN-DST", "/lhcb/a"))
    wanted = {"vo": "lhcb", "lfns": ["/lhcb/a", "/lhcb/x"]}
    answer = await client.post("/removals", json=wanted)
    assert (answer.status_code, answer.json()) == (404, {"detail": "lhcb has no /lhcb/x"})
    system.assert_not_submitted(RemoveRequested)


async def test_a_task_can_be_asked_for(system: System, client: httpx.AsyncClient) -> None:
    """The route returns the state of a known task, and 404 for an unknown id."""
    answer = await client.post("/transformations/7/cleaning")
    await system.run_until_idle()
    assert (await client.get(f"/tasks/{answer.json()['task']}")).json() == {"state": "done"}
    assert (await client.get("/tasks/unknown")).status_code == 404
