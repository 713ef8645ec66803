"""What real daemons answer to probes, while Redis comes and goes."""

from __future__ import annotations

import http.client
import json
import re
from typing import Any

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
    """Status and JSON; 0 if the port is closed."""
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
        """Status and JSON; 0 if the port is closed."""
        return ask(self.port, path)

    def status(self, path: str) -> int:
        return self.ask(path)[0]

    def reasons(self) -> list[str]:
        """Why the daemon is not ready."""
        return list(self.ask("/readyz")[1].get("reasons", ()))

    def wait_for(self, ready: int) -> None:
        """Wait for a status of the readiness probe."""
        wait_until(lambda: self.status("/readyz") == ready, f"/readyz answers {ready}")

    def wait_for_reason(self, text: str) -> None:
        """Wait until a reason why it is not ready has this text."""
        wait_until(lambda: any(text in why for why in self.reasons()), f"it says {text!r}")


def test_a_redis_that_refuses_is_not_called_silent(own_server: RedisServer, own_site: Site) -> None:
    """A password that was changed under a daemon: it says so, waits, and recovers."""
    probed = [
        Probed(own_site, *how) for how in (("worker",), ("scheduler",), ("worker", "--max=1"))
    ]
    for each in probed:
        each.wait_for(200)
    admin = own_site.redis
    admin.config_set("requirepass", "other")
    admin.client_kill_filter(_type="normal", skipme=True)
    for each in probed:
        each.wait_for_reason("refuses the login")
        assert not any("has not answered" in why for why in each.reasons())
    admin.config_set("requirepass", "")
    for each in probed:
        each.wait_for(200)


async def test_a_worker_reports_its_slots_and_that_it_drains(site: Site) -> None:
    """Slots and running tasks are in the answer; a worker that drains takes no more."""
    probed = Probed(site, "worker", "--concurrency", "2")
    gate = site.gate()
    async with site.app() as app:
        await site.begin(app, Gated(gate))
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


def test_a_scheduler_reports_whether_it_leads(site: Site) -> None:
    """A standby is ready too, and says that it is one."""
    first = Probed(site, "scheduler")
    wait_until(lambda: first.ask("/readyz")[1].get("role") == "leader", "the first one leads")
    second = Probed(site, "scheduler")
    wait_until(lambda: second.status("/readyz") == 200, "the second one is ready")
    assert second.ask("/readyz")[1]["role"] == "standby"


async def test_daemons_are_not_ready_without_the_tables_of_this_version(
    site: Site, mariadb_url: str
) -> None:
    """A database that answers but was not migrated says what to run, and is asked again."""
    site.settings["NONET_DB_URL"] = mariadb_url
    probed = [Probed(site, kind) for kind in ("worker", "scheduler")]
    for each in probed:
        each.wait_for_reason("task-run db upgrade")
        assert (each.status("/readyz"), each.status("/livez")) == (503, 200)
    await upgrade(mariadb_url)
    for each in probed:
        each.wait_for(200)


def metric(probed: Probed, name: str) -> float:
    """The value of a series; 0 if it is not there."""
    status, text = get(probed.port, "/metrics")
    assert status == 200
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)
    return float(found[1]) if found else 0.0


def blocked_for_long(probed: Probed) -> list[str]:
    """Its reasons, once the block is longer than Redis may be silent."""
    reasons = probed.reasons()
    return reasons if re.search(r"loop has been blocked for (?:[6-9]|\d\d)", str(reasons)) else []


async def test_a_blocked_loop_blames_no_other_and_hides_no_metrics(site: Site) -> None:
    """The blocked loop is the only reason that is given, and the metrics name the class."""
    site.settings["NONET_TASKS"] = "acceptance.blocking_tasks"
    probed = Probed(site, "worker")
    async with site.app() as app:
        handle = await app.submit(Blocks(9.0))
        lag = "nonet_event_loop_lag_seconds"
        await until(lambda: metric(probed, lag) > 1, "the lag is told")
        reasons = await until(lambda: blocked_for_long(probed), "it is blocked for long")
        assert len(reasons) == 1
        await handle.result(timeout=WAIT_SECONDS)
        name = 'nonet_event_loop_blocked_total{task="blocking_tasks:Blocks"}'
        await until(lambda: metric(probed, name) == 1, "it is counted")
