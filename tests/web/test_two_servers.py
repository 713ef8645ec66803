"""Two operators at two servers: they share what goes on, and hear of each other."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import AsyncExitStack, ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from daemons import Daemon
from httpx import AsyncClient
from ports import free_port
from web.conftest import ClientOf, eventually, principal
from web.test_dead_letters import API, fill

from nonet import Nonet
from nonet.rules.permissions import Action, Role
from nonet.web.bulks import Bulk

STREAM = {"what": "stream:normal:small"}


def multiply_letters(file: Path, number: int) -> None:
    """Copy the only dead letter of a database, as letters of other tasks."""
    with closing(sqlite3.connect(file)) as db, db:
        names = [row[1] for row in db.execute("PRAGMA table_info(dlq_tasks)") if row[1] != "id"]
        copied = ", ".join("task_id || '-' || n" if name == "task_id" else name for name in names)
        db.execute(
            f"WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT {number - 1}) "
            f"INSERT INTO dlq_tasks ({', '.join(names)}) SELECT {copied} FROM dlq_tasks, c"
        )


async def test_a_change_begun_at_one_server_is_stopped_at_the_other(
    nonet: Nonet, redis_url: str, tmp_path: Path
) -> None:
    """Both show how far it is; the letters that it has not changed stay as they are."""
    await fill(nonet, 1)
    multiply_letters(tmp_path / "nonet.db", 2000)
    digest = hashlib.sha256(b"secret").hexdigest()
    users = tmp_path / "users.yaml"
    users.write_text(f"tokens:\n  - {{name: ops, role: operator, sha256: {digest}}}\n")
    users.chmod(0o600)
    variables = {
        "NONET_REDIS_URL": redis_url,
        "NONET_NAMESPACE": "test",
        "NONET_STATE_DIR": str(tmp_path),
        "NONET_TASKS": "web_tasks",
        "NONET_WEB_USERS": str(users),
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    async with AsyncExitStack() as clients:
        with ExitStack() as daemons:
            servers, one_and_other = [], []
            for name in ("one", "other"):
                port = free_port()
                mine = {**variables, "NONET_WEB_PORT": str(port)}
                daemon = Daemon("task-web", environment=mine, log=tmp_path / f"{name}.log")
                servers.append(daemons.enter_context(daemon))
                client = AsyncClient(
                    base_url=f"http://127.0.0.1:{port}",
                    headers={"Authorization": "Bearer secret"},
                    timeout=60,
                )
                one_and_other.append(await clients.enter_async_context(client))
            for server in servers:
                server.wait_ready()
            one, other = one_and_other
            begun = await one.post(f"{API}/resubmit", json={"all": True, "rate": 0.01})
            id = begun.json()["bulk"]["id"]
            found = (await other.get(f"{API}/bulk/{id}")).json()
            assert (found["total"], found["ended"]) == (2000, None)
            assert (await other.post(f"{API}/bulk/{id}/stop")).status_code == 200

            async def is_over() -> dict[str, Any] | None:
                (state,) = (await other.get(f"{API}/bulk")).json()["items"]
                return state if state["ended"] else None

            state = await eventually(is_over, "the change has stopped") or {}
            assert state["problem"] == "stopped by token:ops"
            assert state["done"] < 2000


def test_a_change_of_a_dead_server_is_over() -> None:
    """It is not shown as if it went on, once its server has been silent for half a minute."""
    bulk = Bulk(Action.DISCARD, "discard all", "ann", 9, done=3)
    later = datetime.now(UTC) + timedelta(seconds=31)
    assert bulk.as_of(datetime.now(UTC)).ended is None
    assert bulk.as_of(later).problem.startswith("its task-web died")


async def test_an_action_names_what_another_operator_has_just_done(client_of: ClientOf) -> None:
    """Whether it failed because of that, or crossed it."""
    ann, bob = (principal(Role.ADMIN, name) for name in ("ann", "bob"))
    async with client_of(ann) as at_one, client_of(bob) as at_other:

        async def heard(path: str, **form: str) -> str:
            await at_one.post(path, data=form)
            return (await at_other.post(path, data=form, follow_redirects=True)).text

        assert "(paused by ann" in await heard("/pauses/pause", **STREAM)
        assert "Nothing is paused (resumed by ann" in await heard("/pauses/resume", **STREAM)
        limit = {"name": "limiter:conc:job:7", "number": "3"}
        assert "(set by ann" in await heard("/limits/edit", **limit)
        text = await heard("/limits/unset", name="limiter:conc:job:7")
        assert "no limit was set by hand" in text and "(removed by ann" in text


async def test_a_page_shows_the_change_that_its_browser_made_at_another_server(
    client_of: ClientOf,
) -> None:
    """A server reads anew what it remembers, when a browser comes back from a change."""
    page = "/streams/normal/small"
    async with client_of(Role.ADMIN) as at_one, client_of(Role.ADMIN) as at_other:
        assert "has been paused" not in (await at_other.get(page)).text
        answer = await at_one.post("/pauses/pause", data=STREAM)
        after = await at_other.get(page, headers={"Cookie": answer.headers["Set-Cookie"]})
        assert "has been paused" in after.text
