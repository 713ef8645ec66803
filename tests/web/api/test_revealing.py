"""Results and arguments: for those who may reveal them, audited, and without secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest
from pydantic import SecretStr
from web.conftest import ClientOf
from web.test_workers import working
from web_tasks import Failing, Login, Report

from nonet import Nonet
from nonet.rules.permissions import Role

TASKS = "/api/v1/tasks"
SMALL = {"size": "small"}
Audit = Callable[[], list[str]]


@pytest.fixture
def audit(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was revealed so far, as the log has it."""
    caplog.set_level("INFO", "nonet.web.auditing")

    def reveals() -> list[str]:
        args = [line.args for line in caplog.records if line.msg.startswith("audit: ")]
        return [str(each[2]) for each in args if isinstance(each, tuple) and each[1] == "reveal"]

    return reveals


async def test_a_result_is_waited_for_and_audited(
    client: httpx.AsyncClient, nonet: Nonet, audit: Audit
) -> None:
    """202 until the end; then the result, and only then an entry in the audit."""
    id = await nonet.submit(Report(7), labels=SMALL)
    early = await client.get(f"{TASKS}/{id}/result", params={"wait": 0.1})
    assert (early.status_code, early.json()["state"]) == (202, "queued")
    assert audit() == []
    waiting = asyncio.create_task(client.get(f"{TASKS}/{id}/result", params={"wait": 30}))
    async with working(nonet):
        answer = await waiting
    assert answer.status_code == 200
    found = answer.json()
    assert (found["state"], found["has_result"], found["result"]) == ("done", True, 7)
    assert audit() == [f"result of task {id}"]


async def test_a_failure_has_its_error(client: httpx.AsyncClient, nonet: Nonet) -> None:
    """A task that died is answered with its error and traceback."""
    id = await nonet.submit(Failing("nothing there"), labels=SMALL)
    async with working(nonet):
        answer = await client.get(f"{TASKS}/{id}/result", params={"wait": 30})
    found = answer.json()
    assert (answer.status_code, found["state"], found["has_result"]) == (200, "dead", False)
    assert "ValueError: nothing there" in found["error"]
    assert "execute" in found["traceback"]


async def test_arguments_are_shown_without_secrets(
    client: httpx.AsyncClient, nonet: Nonet, audit: Audit
) -> None:
    """Secrets are masked for an admin, too; each reveal is audited."""
    id = await nonet.submit(
        Login("me", password=SecretStr("hunter2")), labels={"token": "hunter3", "n": 1}
    )
    answer = await client.get(f"{TASKS}/{id}/arguments")
    assert answer.status_code == 200
    assert "hunter" not in answer.text
    assert answer.json()["is_masked"] is True
    assert answer.json()["labels"]["n"] == 1
    assert audit() == [f"arguments of task {id}"]


async def test_only_an_admin_reveals(client_of: ClientOf, nonet: Nonet, audit: Audit) -> None:
    """Operators and viewers get 403, whether or not there is a result."""
    id = await nonet.submit(Report(7))
    for role in (Role.OPERATOR, Role.VIEWER):
        async with client_of(role) as caller:
            for path in ("result", "arguments"):
                assert (await caller.get(f"{TASKS}/{id}/{path}")).status_code == 403
    assert audit() == []
