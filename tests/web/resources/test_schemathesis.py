"""Odd requests that follow, or break, the description of the API: no answer is an error of ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from httpx import AsyncClient
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from servers import RedisServer
from waits import WAIT_SECONDS
from web.resources.served import served
from web_tasks import Mail, Report

from nonet import Nonet
from nonet.web.openapi import described

pytestmark = pytest.mark.server

# What the namespace has, so that not every request is about something unknown.
KNOWN = {
    "id": ["report", "mail", "ended", "a/b"],
    "name": ["lock:mutex:job:7", "limiter:conc:job:7"],
}


async def some_work(nonet: Nonet) -> None:
    """Fill the namespace with tasks."""
    later = datetime.now(UTC) + timedelta(hours=1)
    await nonet.submit(Report(1), id="report", labels={"n": 1})
    await nonet.submit(Report(2), id="a/b")
    await nonet.submit(Mail(), id="mail", at_time=later)
    await nonet.submit(Report(3), id="ended")
    await nonet.cancel(["ended"], reason="for the history")
    await nonet.stores.controls.pause(["stream:background:small"], "ann", "to test")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a dashboard of a namespace with some work."""
    folder = tmp_path_factory.mktemp("state")
    with RedisServer() as server, served(server.url, folder, some_work) as url:
        yield url


def fuzz(address: str, examples: int) -> None:
    """Send so many requests to each operation, valid ones and others."""
    # Here, because its import and the description cost each process that collects tests a second.
    import schemathesis

    description = described()
    schema = schemathesis.openapi.from_dict(description)
    for path, operations in description["paths"].items():
        for method in operations:
            try:
                fuzz_operation(schema[path][method], address, examples)
            except BaseException as error:
                error.add_note(f"in {method.upper()} {path}")
                raise


def fuzz_operation(operation: Any, address: str, examples: int) -> None:
    """Send so many requests to one operation."""
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    conform = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
    ]
    modes = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(modes), known=st.data())
    def one(case: Any, known: st.DataObject) -> None:
        for name, values in KNOWN.items():
            if name in (case.path_parameters or {}) and known.draw(st.booleans()):
                case.path_parameters[name] = known.draw(st.sampled_from(values))
        if "wait" in (case.query or {}):  # do not wait a minute for each task that never ends
            case.query["wait"] = known.draw(st.sampled_from([0, 0.1, -1, "x", "nan"]))
        case.call_and_validate(base_url=address, checks=conform, timeout=WAIT_SECONDS)

    one()


async def test_without_redis_each_call_answers_503(tmp_path: Path) -> None:
    """A program learns when to try again; what SQL or the server knows is answered as ever."""
    known = {"name": "limiter:conc:job:7", "entry": "1-1", "priority": "normal", "size": "small"}
    known["task"] = "Report"
    paths = [
        re.sub(r"{(\w+)}", lambda found: known.get(found[1], "7"), path)
        + "?kind=cron&rule=@daily" * path.endswith("/preview")
        for path, operations in described()["paths"].items()
        if "get" in operations and not path.endswith("/openapi.json")
    ]
    with RedisServer() as server, served(server.url, tmp_path) as url:
        server.kill()
        async with AsyncClient(base_url=url, timeout=WAIT_SECONDS) as client:
            for path, answer in zip(
                paths, await asyncio.gather(*map(client.get, paths)), strict=True
            ):
                in_sql = ("/dead-letters", "/audit", "/classes")
                is_known = any(part in path for part in in_sql) and "/bulk" not in path
                right = (200, 404) if is_known else (503,)
                assert answer.status_code in right, (path, answer.text)
                assert is_known or int(answer.headers["Retry-After"]) > 0
                assert "127.0.0.1:" not in answer.text
            for name, status in (("Report", 503), ("Nothing", 422)):
                body = {"task": f"web_tasks:{name}"}
                assert (await client.post("/api/v1/tasks", json=body)).status_code == status


def test_odd_requests_get_documented_answers(address: str) -> None:
    """No 500, and each answer is as the description says."""
    fuzz(address, 3)


@pytest.mark.soak
def test_many_odd_requests_get_documented_answers(address: str) -> None:
    """The same, longer."""
    fuzz(address, 100)
