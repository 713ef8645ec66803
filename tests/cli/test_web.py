"""``task-run web``: lines for the file of users, links to log in, and the audit."""

from __future__ import annotations

import asyncio
import re
import signal
from datetime import UTC, datetime

import httpx
from cli.terminal import TaskRun
from ports import free_port
from waits import WAIT_SECONDS

from nonet.stores.sql.audit import AuditEntry
from nonet.web.access.users import Users


async def test_printed_lines_are_a_file_of_users(task_run: TaskRun) -> None:
    """They have users and tokens, and no secret is on stdout."""
    user = await task_run("web", "password", "alice", "--role", "admin", input="correct horse\n")
    scope = ("--role", "operator", "--namespace", "a", "--namespace", "b")
    token = await task_run("web", "token", "ci", *scope, "--expires", "90d")
    simple = await task_run("web", "token", "watch")
    assert [item.code for item in (user, token, simple)] == [0, 0, 0], user.err
    file = task_run.home / "users.yaml"
    file.write_text(f"users:\n{user.out}tokens:\n{token.out}{simple.out}")
    file.chmod(0o600)
    users = Users(file)
    alice = users.user("alice")
    assert alice is not None and alice.role == "admin"
    assert alice.hash.fits("correct horse") and not alice.hash.fits("correct horses")
    (secret,) = re.findall(r"nonet_[\w-]{43}", token.err)
    assert secret not in token.out and "correct" not in user.out + user.err
    found = users.token(secret)
    assert found is not None and found.role == "operator"
    assert found.namespaces == ("a", "b")
    assert found.expires is not None and 88 < (found.expires - datetime.now(UTC)).days < 91


async def test_the_audit_is_shown(task_run: TaskRun) -> None:
    """The newest entry comes first; filters are those of the page."""
    async with task_run.app() as nonet:
        now = datetime.now(UTC)
        for name in ("alice", "bob"):
            entry = AuditEntry(now, name, "cancel", f"task of {name}", "127.0.0.1", "ok")
            await (await nonet.stores.audit()).add([entry])
    rows = (await task_run("audit", "--json")).json["items"]
    assert [row["who"] for row in rows] == ["bob", "alice"]
    ended = await task_run("audit", "--who", "bob", "--since", "1h", "--json")
    assert [row["what"] for row in ended.json["items"]] == ["task of bob"]


async def test_task_web_starts_with_a_link(task_run: TaskRun) -> None:
    """Without users it logs a link for one login; `task-run web link` makes another one."""
    port = free_port()
    address = {"NONET_WEB_PORT": str(port)}
    daemon = await task_run.start(script="task-web", **address)
    assert daemon.stderr is not None
    url = f"http://127.0.0.1:{port}"
    async with asyncio.timeout(WAIT_SECONDS):
        while not (found := re.search(rb"code=([\w-]+)", await daemon.stderr.readline())):
            pass
    made = await task_run("web", "link", **address)
    assert made.out.startswith(f"{url}/login?code=")
    for code in (found[1].decode(), made.out.strip().partition("code=")[2]):
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_SECONDS) as client:
            form = {"code": code}
            answer = await client.post("/login/link", data=form, headers={"Origin": url})
            assert answer.status_code == 303
            assert (await client.get("/api/v1/overview")).status_code == 200
    daemon.send_signal(signal.SIGTERM)
    assert await daemon.wait() == 0
    rows = (await task_run("audit", "--json")).json["items"]
    assert [row["action"] for row in rows] == ["login", "login"]
    assert rows[1]["who"] == "link:task-web" and "@" in rows[0]["who"]


async def test_task_web_refuses_others_without_users(task_run: TaskRun) -> None:
    """An address that other hosts reach needs users."""
    ended = await task_run("--host", "0.0.0.0", script="task-web")
    assert ended.code == 2 and "NONET_WEB_USERS" in ended.err


async def test_a_link_needs_the_secret(task_run: TaskRun) -> None:
    """Without the secret of task-web, and where links are off, the command says what to do."""
    refused = await task_run("web", "link")
    assert refused.code == 2 and "NONET_WEB_SECRET" in refused.err
    off = await task_run("web", "link", NONET_WEB_LINKS="0")
    assert off.code == 2 and "NONET_WEB_LINKS" in off.err
    made = await task_run("web", "link", NONET_WEB_SECRET="s" * 32)
    assert made.code == 0 and "/login?code=" in made.out
