"""Results and arguments: for those who may reveal them, audited, and without secrets."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable

import pytest
from httpx import AsyncClient
from pydantic import SecretStr
from waits import WAIT_SECONDS
from web.conftest import ClientOf, Fixed, asking, principal, working
from web_tasks import Failing, Login, Report

from nonet import Nonet, TaskFailed
from nonet.base.messages.encryption import NO_KEY
from nonet.config.web_settings import WebSettings
from nonet.rules.permissions import Role
from nonet.web.app import create_app

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
    client: AsyncClient, nonet: Nonet, audit: Audit
) -> None:
    """202 until the end; then the result, and only then an entry in the audit."""
    id = await nonet.submit(Report(7), labels=SMALL)
    early = await client.get(f"{TASKS}/{id}/result", params={"wait": 0.1})
    assert (early.status_code, early.json()["state"]) == (202, "queued")
    assert audit() == []
    waiting = asyncio.create_task(client.get(f"{TASKS}/{id}/result", params={"wait": WAIT_SECONDS}))
    async with working(nonet):
        answer = await waiting
    assert answer.status_code == 200
    found = answer.json()
    assert (found["state"], found["has_result"], found["result"]) == ("done", True, 7)
    assert audit() == [f"result of task {id}"]


async def test_a_failure_has_its_error(client: AsyncClient, nonet: Nonet) -> None:
    """A task that died is answered with its error and traceback."""
    id = await nonet.submit(Failing("nothing there"), labels=SMALL)
    async with working(nonet):
        answer = await client.get(f"{TASKS}/{id}/result", params={"wait": WAIT_SECONDS})
    found = answer.json()
    assert (answer.status_code, found["state"], found["has_result"]) == (200, "dead", False)
    assert "ValueError: nothing there" in found["error"]
    assert "execute" in found["traceback"]


async def test_arguments_are_shown_without_secrets(
    client: AsyncClient, nonet: Nonet, audit: Audit
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


async def test_encrypted_data_are_shown_with_the_key_only(
    nonet: Nonet, client: AsyncClient
) -> None:
    """A dashboard without it says so, in the API and on its pages, and submits nothing again."""
    options = {
        name: getattr(nonet.settings, name)
        for name in ("redis_url", "namespace", "state_dir", "tasks")
    }
    key = f"2026:{base64.b64encode(b'k' * 32).decode()}"
    async with Nonet.from_settings(**options, encryption_keys=key, encrypt_all=True) as holder:
        done = await holder.submit(Report(4711), labels=SMALL)
        fails = await holder.submit(Failing("confided"), labels=SMALL)
        async with working(holder):
            assert await done.result(timeout=WAIT_SECONDS) == 4711
            with pytest.raises(TaskFailed, match="confided"):
                await fails.result(timeout=WAIT_SECONDS)
        waits = await holder.submit(Failing("confided"), labels=SMALL)
        app = create_app(holder, WebSettings.plain(), Fixed(principal()))
        async with asking(app) as with_key:
            found = (await with_key.get(f"{TASKS}/{waits}/arguments")).json()
            assert found["arguments"] == {"text": "confided"}
            assert (await with_key.get(f"{TASKS}/{done}/result")).json()["result"] == 4711
            assert "confided" in (await with_key.post(f"/tasks/{fails}/reveal")).text
    for id in (waits, fails):
        answer = await client.get(f"{TASKS}/{id}/arguments")
        assert (answer.status_code, "has no key for it" in answer.text) == (404, True)
        page = await client.post(f"/tasks/{id}/reveal")
        assert "has no key for it" in page.text and "confided" not in page.text
    result = (await client.get(f"{TASKS}/{done}/result")).json()
    assert (result["has_result"], result["note"]) == (False, f"its result is {NO_KEY}")
    failed = (await client.get(f"{TASKS}/{fails}/result")).json()
    assert (failed["error"], failed["traceback"]) == (f"ValueError: {NO_KEY}", NO_KEY)


async def test_a_submitter_gets_results_only(
    client_of: ClientOf, nonet: Nonet, audit: Audit
) -> None:
    """Each access is audited; an error has a type, but no text."""
    done, dead = (
        await nonet.submit(Report(7), labels=SMALL),
        await nonet.submit(Failing("hunter2"), labels=SMALL),
    )
    async with working(nonet), client_of(Role.SUBMITTER) as program:
        answers = [await program.get(f"{TASKS}/{id}/result?wait=60") for id in (done, dead)]
        assert (await program.get(f"{TASKS}/{done}/arguments")).status_code == 403
    assert [answer.json()["result"] for answer in answers] == [7, None]
    assert answers[1].json()["error"] == "ValueError" and "hunter2" not in answers[1].text
    assert audit() == [f"result of task {id}" for id in (done, dead)]
