"""What real daemons answer to probes, while Redis comes and goes."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

import pytest
from acceptance.probe_tasks import Gated
from acceptance.site import Site
from daemons import Daemon, until, wait_until
from servers import RedisServer

HOST = "127.0.0.1"


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port


class Probed:
    """A daemon that answers probes on a port of its own."""

    def __init__(self, site: Site, kind: str, *options: str, wait: bool = True) -> None:
        self.port = free_port()
        start = site.worker if kind == "worker" else site.scheduler
        options = (*options, "--metrics-port", str(self.port))
        self.daemon: Daemon = start(*options, wait=wait, NONET_METRICS_HOST=HOST)

    def ask(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON; 0 if nobody listens."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except ConnectionRefusedError:
            return 0, {}
        finally:
            connection.close()

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


async def test_a_worker_tells_what_it_does(site: Site) -> None:
    """Slots and running tasks are in the answer; a worker that drains takes no more."""
    probed = Probed(site, "worker", "--concurrency", "2")
    gate = site.gate()
    async with site.app() as app:
        running = await app.submit(Gated(gate))
        await site.started(running)
        _, body = probed.ask("/readyz")
        assert (body["worker"], body["size"]) == (probed.daemon.incarnation, "small")
        assert (body["slots"], body["running"]) == (2, 1)
        probed.daemon.terminate()
        await until(lambda: probed.status("/readyz") == 503, "it takes no more tasks")
        assert probed.ask("/readyz")[1]["reasons"] == ["it drains"]
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
def test_a_port_in_use_ends_the_daemon(site: Site, kind: str) -> None:
    """With exit code 2 and the port in the message: nobody believes it to be watched."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        settings = {"NONET_METRICS_HOST": HOST, "NONET_METRICS_PORT": str(port)}
        start = site.worker if kind == "worker" else site.scheduler
        daemon = start(wait=False, **settings)
        assert daemon.wait() == 2
    assert f"cannot listen on {HOST} port {port}" in daemon.log


@pytest.mark.parametrize("kind", ["worker", "scheduler"])
def test_not_ready_without_sql_where_it_is_needed(site: Site, kind: str) -> None:
    """A daemon that could write no dead letter says so; no restart would help it."""
    site.settings["NONET_DB_URL"] = f"mysql+aiomysql://nonet@{HOST}:{free_port()}/nonet"
    probed = Probed(site, kind)
    wait_until(lambda: any(why.startswith("SQL: ") for why in reasons(probed)), "SQL is missed")
    assert (probed.status("/readyz"), probed.status("/livez")) == (503, 200)


def reasons(probed: Probed) -> list[str]:
    """Why a daemon is not ready."""
    found: list[str] = probed.ask("/readyz")[1]["reasons"]
    return found
