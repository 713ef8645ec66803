"""What Nonet refuses has its status code in an application of FastAPI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from waits import WAIT_SECONDS

from nonet import BaseTask, Nonet, Size, TaskExpired, TaskFailed, TaskStatus, Usage
from nonet.base.errors import RowsBusy
from nonet.base.messages.message import ResultDocument, encode
from nonet.config.settings import plain_settings
from nonet.contrib.fastapi import NonetApp, install, lifespan


@dataclass
class Add(BaseTask):
    a: int

    size = Size.SMALL

    async def execute(self) -> int:
        return self.a


@pytest.fixture
async def web(redis_url: str, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Routes that do not catch the errors of Nonet."""
    nonet = Nonet(
        plain_settings(redis_url=redis_url, namespace="test", state_dir=tmp_path), load_tasks=False
    )
    nonet.registry.add(Add, "sums")
    app = FastAPI()
    install(app)

    @app.post("/tasks")
    async def submit(a: str, nonet: NonetApp, id: str | None = None) -> str:
        given: Any = int(a) if a.isdigit() else a
        return await nonet.submit(Add(given), id=id)

    @app.delete("/tasks/{id}")
    async def cancel(id: str, nonet: NonetApp) -> str:
        handle = await nonet.submit(Add(1), id=id)
        await handle.cancel()
        raise TaskExpired(f"task {id} was not started in time")

    @app.delete("/failed/{id}")
    async def fail(id: str) -> str:
        raise TaskFailed(f"task {id} is dead", error_type="OSError", reason="retries")

    @app.put("/rows/{key}")
    async def write(key: int) -> str:
        raise RowsBusy("secret_table", key)

    @app.get("/results/{id}")
    async def result(id: str, nonet: NonetApp) -> Any:
        return await nonet.result(id, timeout=WAIT_SECONDS)

    @app.get("/plain/{id}")
    async def plain(id: str, nonet: NonetApp):  # type: ignore[no-untyped-def]  # many routes are so
        return await nonet.status(id)

    @app.get("/tasks/{id}")
    async def status(id: str, nonet: NonetApp) -> TaskStatus:
        return await nonet.status(id)

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        lifespan(nonet)(app),
        httpx.AsyncClient(transport=transport, base_url="http://web") as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"a": "x"}, "a: Input should be a valid integer, unable to parse string as an integer"),
        ({"a": "1", "id": "a b"}, "id 'a b' must be 1 to 128 printable ASCII characters"),
    ],
)
async def test_invalid_arguments_are_422(
    web: httpx.AsyncClient, given: dict[str, str], reason: str
) -> None:
    """The reasons have the form of FastAPI's own."""
    answer = await web.post("/tasks", params=given)
    (problem,) = answer.json()["detail"]
    assert answer.status_code == 422
    assert problem["msg"].startswith(reason)


@pytest.mark.parametrize("route", ["tasks", "plain"])
async def test_a_route_may_return_a_status(
    web: httpx.AsyncClient, redis_server: Any, route: str
) -> None:
    """It has the usage of the attempt, whether the route is annotated or not."""
    end = ResultDocument("sums:Add", 1, 0.0, 1, usage=Usage(1.5, None, 2**20))
    with redis_server.client() as client:
        client.set("{test}:r:one", b"done|1|" + encode(end))
    answer = await web.get(f"/{route}/one")
    assert answer.status_code == 200
    assert answer.json()["usage"] == {"wall": 1.5, "cpu": None, "rss": 2**20}


async def test_each_error_has_its_status_code(web: httpx.AsyncClient, redis_server: Any) -> None:
    """A failed task is no mistake of the client, and its error is not shown."""
    unknown = await web.get("/results/nope")
    assert (unknown.status_code, unknown.json()) == (404, {"detail": "this id has no result"})
    expired = await web.delete("/tasks/one")
    assert (expired.status_code, "not started in time" in expired.text) == (409, True)
    cancelled = await web.get("/results/one")
    assert (cancelled.status_code, "cancelled" in cancelled.text) == (409, True)
    await web.post("/tasks", params={"a": "1", "id": "two"})
    with redis_server.client() as client:
        client.delete("{test}:t:two")
        client.set("{test}:r:two", b"done|1|")
    ended = await web.delete("/tasks/two")
    assert (ended.status_code, "current state" in ended.text) == (409, True)
    failed = await web.delete("/failed/one")
    assert (failed.status_code, "dead" in failed.text) == (500, False)


async def test_a_busy_row_is_409_with_the_time_to_wait(web: httpx.AsyncClient) -> None:
    """The answer does not name the table."""
    answer = await web.put("/rows/7")
    assert (answer.status_code, answer.headers["Retry-After"]) == (409, "5")
    assert answer.json() == {"detail": "another process is working on this: try again later"}
