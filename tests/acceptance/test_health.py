"""What real daemons answer to probes, while Redis comes and goes."""

from __future__ import annotations

import http.client
import json
import re
from typing import Any

import pytest
from acceptance.blocking_tasks import Blocks
from acceptance.probe_tasks import Gated
from acceptance.site import Site
from daemons import Daemon
from metrics_names import get
from ports import HOST, free_port
from servers import RedisServer
from waits import WAIT_SECONDS, until, wait_until

from nonet.stores.sql.database import upgrade


def ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON; 0 if nobody listens."""
    connection = http.client.HTTPConnection(HOST, port, timeout=WAIT_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except ConnectionRefusedError:
        return 0, {}
    finally:
        connection.close()


class Probed:
    """A daemon that answers probes on a port of its own."""

    def __init__(self, site: Site, kind: str, *options: str, wait: bool = True) -> None:
        self.port = free_port()
        start = site.worker if kind == "worker" else site.scheduler
        options = (*options, "--metrics-port", str(self.port))
        self.daemon: Daemon = start(*options, wait=wait, NONET_METRICS_HOST=HOST)

    def ask(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON; 0 if nobody listens."""
        return ask(self.port, path)

    def status(self, path: str) -> int:
        return self.ask(path)[0]


@pytest.mark.parametrize("kind", ["worker", "scheduler"])
def test_ready_while_redis_answers(own_server: RedisServer, own_site: Site, kind: str) -> None:
    """200, 503 while Redis is away, 200 again; the daemon is live all the time."""
    probed = Probed(own_site, kind)
    wait_until(lambda: probed.status("/readyz") == 200, "it is ready")
    own_server.kill()
    wait_until(lambda: probed.status("/readyz") == 503, "it is not ready")
    status, body = probed.ask("/readyz")
    assert (status, body["ready"]) == (503, False)
    assert body["reasons"]
    assert probed.status("/livez") == 200
    own_server.start()
    wait_until(lambda: probed.status("/readyz") == 200, "it is ready again")
    assert (probed.status("/livez"), probed.daemon.alive) == (200, True)


@pytest.mark.parametrize("kind", ["worker", "scheduler", "fleet"])
def test_a_redis_that_refuses_is_not_silent(
    own_server: RedisServer, own_site: Site, kind: str
) -> None:
    """A password that was changed under a daemon: it says so, waits, and goes on."""
    options = ("--max", "1") if kind == "fleet" else ()
    probed = Probed(own_site, "scheduler" if kind == "scheduler" else "worker", *options)
    wait_until(lambda: probed.status("/readyz") == 200, "it is ready")
    admin = own_site.redis
    admin.config_set("requirepass", "other")
    admin.client_kill_filter(_type="normal", skipme=True)
    wait_until(lambda: any("refuses the login" in why for why in reasons(probed)), "it says so")
    assert not any("has not answered" in why for why in reasons(probed))
    admin.config_set("requirepass", "")
    wait_until(lambda: probed.status("/readyz") == 200, "it is ready again")


async def test_a_worker_tells_what_it_does(site: Site) -> None:
    """Slots and running tasks are in the answer; a worker that drains takes no more."""
    probed = Probed(site, "worker", "--concurrency", "2")
    gate = site.gate()
    async with site.app() as app:
        running = await app.submit(Gated(gate))
        await site.started(running)
        _, body = probed.ask("/readyz")
        assert (body["worker"], body["size"]) == (probed.daemon.name, "small")
        assert (body["slots"], body["running"]) == (2, 1)
        assert "nonet_draining 0.0" in get(probed.port, "/metrics")[1]
        probed.daemon.terminate()
        await until(lambda: probed.status("/readyz") == 503, "it takes no more tasks")
        assert probed.ask("/readyz")[1]["reasons"] == ["it drains"]
        assert "nonet_draining 1.0" in get(probed.port, "/metrics")[1]
        assert probed.status("/livez") == 200
        site.open(gate)
        assert probed.daemon.wait() == 0
    assert probed.status("/livez") == 0


def test_a_scheduler_tells_who_leads(site: Site) -> None:
    """A standby is ready too, and says that it is one."""
    first = Probed(site, "scheduler")
    wait_until(lambda: first.ask("/readyz")[1].get("role") == "leader", "the first one leads")
    second = Probed(site, "scheduler")
    wait_until(lambda: second.status("/readyz") == 200, "the second one is ready")
    assert second.ask("/readyz")[1]["role"] == "standby"


@pytest.mark.parametrize("kind", ["worker", "scheduler"])
def test_not_ready_without_sql_where_it_is_needed(site: Site, kind: str) -> None:
    """A daemon that could write no dead letter says so; no restart would help it."""
    site.settings["NONET_DB_URL"] = f"mysql+aiomysql://nonet@{HOST}:{free_port()}/nonet"
    probed = Probed(site, kind)
    wait_until(lambda: any(why.startswith("SQL: ") for why in reasons(probed)), "SQL is missed")
    assert (probed.status("/readyz"), probed.status("/livez")) == (503, 200)


@pytest.mark.parametrize("kind", ["worker", "scheduler"])
async def test_not_ready_without_the_tables_of_this_version(
    site: Site, mariadb_url: str, kind: str
) -> None:
    """A database that answers but was not migrated says what to run, and is asked again."""
    site.settings["NONET_DB_URL"] = mariadb_url
    probed = Probed(site, kind)
    await until(lambda: any("task-run db upgrade" in why for why in reasons(probed)), "it is told")
    assert (probed.status("/readyz"), probed.status("/livez")) == (503, 200)
    await upgrade(mariadb_url)
    await until(lambda: probed.status("/readyz") == 200, "it is ready")


async def test_a_blocked_loop_blames_nobody_else(own_site: Site) -> None:
    """Redis answers, and only the loop does not hear it: that is all that is told."""
    own_site.settings["NONET_TASKS"] = "acceptance.blocking_tasks"
    probed = Probed(own_site, "worker")
    async with own_site.app() as app:
        await app.submit(Blocks(20.0))
        told: list[str] = []

        def is_long() -> bool:
            told[:] = reasons(probed)
            blocked = [re.search(r"loop has been blocked for (\d+) s", why) for why in told]
            return any(found is not None and int(found[1]) > 7 for found in blocked)

        await until(is_long, "the loop is blocked for longer than Redis may be silent")
        assert len(told) == 1
        probed.daemon.kill()


def reasons(probed: Probed) -> list[str]:
    """Why a daemon is not ready."""
    found: list[str] = probed.ask("/readyz")[1]["reasons"]
    return found
