"""What a running system exports: `watched`; and `series_names`, for tests of alerts and dashboards.

    from metrics_names import series_names

    assert used_in_my_rules <= series_names()

Real daemons run tasks that end in each way, once in each test process; that takes about 10 s. That
they export what `series_names` says is the claim of a test, so that others need not run them.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from daemons import Daemon
from metrics_rows import Base, Watched as WatchedRow
from metrics_tasks import Blocks, Crashes, Fails, GivesBack, Heavy, Holds, Succeeds
from ports import HOST, free_ports
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families as parse
from servers import RedisServer
from sqlalchemy.ext.asyncio import create_async_engine
from waits import WAIT_SECONDS, until

from nonet import Nonet
from nonet.base.errors import NonetError
from nonet.telemetry.metrics import METRICS

NAMESPACE = "watched"
_CONFIG = "common:\n  tasks:\n    Succeeds: {priority: normal}\nfairness: {by: class}\n"


def series_names() -> set[str]:
    """Names of all series of Nonet, as PromQL uses them.

    Of a histogram they are ``…_bucket``, ``…_sum`` and ``…_count``.
    """
    parts = ("_bucket", "_sum", "_count")
    return {
        metric.name + part
        for metric in METRICS.values()
        for part in (parts if metric.kind == "histogram" else ("",))
    }


@dataclass(frozen=True)
class Watched:
    """What was scraped of a system in which all is in one state for a while.

    Attributes:
        by_daemon: the families of ``worker``, ``leader``, ``standby``, ``fleet``, ``member``,
            ``rows`` and ``web``.
        desired: what the leader and the standby answer to autoscalers.
    """

    by_daemon: Mapping[str, Mapping[str, Metric]]
    desired: tuple[dict[str, int], dict[str, int]]

    def names(self) -> set[str]:
        """Of all series of all daemons."""
        return {
            sample.name
            for daemon in self.by_daemon.values()
            for family in daemon.values()
            for sample in family.samples
        }

    def value(self, daemon: str, name: str, **labels: str) -> float:
        """Of one series; fails if it is not there, or there are two."""
        (found,) = self.values(daemon, name, **labels)
        return found

    def values(self, daemon: str, name: str, **labels: str) -> list[float]:
        """Of all series that have these labels."""
        return [
            sample.value
            for family in self.by_daemon[daemon].values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]


@cache
def watched() -> Watched:
    """Run a system, once in a process, from no running loop. Its last state: see `_work`."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(RedisServer("--maxmemory", "300mb"))
        return asyncio.run(_watch(stack, server, home))


async def _watch(stack: ExitStack, server: RedisServer, home: Path) -> Watched:
    (home / "config.yaml").write_text(_CONFIG)
    environment = {
        "NONET_REDIS_URL": server.url,
        "NONET_NAMESPACE": NAMESPACE,
        "NONET_STATE_DIR": str(home / "state"),
        "NONET_TASKS": "metrics_tasks",
        "NONET_METRICS_HOST": HOST,
        "NONET_CONFIG": str(home / "config.yaml"),
        "NONET_WEB_PORT": str(free_ports(1)),
        "ROWS_DB_URL": f"sqlite:///{home}/rows.db",
    }

    daemons: dict[str, Daemon] = {}

    def start(name: str, *command: str) -> int:
        port = free_ports(2)
        daemon = Daemon(
            *command,
            *("--metrics-port", str(port)),
            environment=environment,
            log=home / f"{name}.log",
        )
        daemons[name] = stack.enter_context(daemon)
        return port

    # Who looks once lets Redis count what is submitted from then on.
    early = start("early", "task-scheduler")
    await until(lambda: "nonet_stream_depth" in _families(early), "a scheduler has looked")
    worker = start("worker", "task-worker", "--size", "small", "--concurrency", "4")
    await _make_row(environment["ROWS_DB_URL"])
    rows = start("rows", "task-worker", "--pipelines", "watched", "--tasks", "metrics_rows")
    fleet = start("fleet", "task-worker", "--size", "large", "--min", "1", "--max", "2")
    web = start("web", "task-web")
    options = {
        name.removeprefix("NONET_").lower(): text
        for name, text in environment.items()
        if name.startswith("NONET_") and not name.startswith("NONET_WEB_")
    }
    async with Nonet.from_settings(**options) as app:
        gate = await _work(app, home)
        daemons["early"].terminate()  # it has asked SQL before there was any
        await until(lambda: not daemons["early"].alive, "it leads no more")
        schedulers = [start(f"scheduler-{i}", "task-scheduler") for i in range(2)]
        await until(lambda: any(map(_leads, schedulers)), "one of them leads")
        for port in schedulers:
            await until(lambda port=port: _is_settled(port), "a scheduler has seen all")  # type: ignore[misc]
        await until(lambda: get(fleet, "/readyz")[0] == 200, "the fleet is ready")
        (member,) = json.loads(get(fleet, "/readyz")[1])["workers"]
        await until(lambda: get(member["port"], "/readyz")[0] == 200, "its worker is ready")
        leader, standby = schedulers if _leads(schedulers[0]) else reversed(schedulers)
        ports = {"worker": worker, "fleet": fleet, "member": member["port"]}
        ports |= {"leader": leader, "standby": standby, "web": web, "rows": rows}
        await until(lambda: "nonet_pipeline_processed" in _families(rows), "a row is processed")
        for port in schedulers:
            await until(
                lambda port=port: "nonet_pipeline_processes" in _families(port),  # type: ignore[misc]
                "a scheduler has seen its pipeline",
            )
            await until(
                lambda port=port: "nonet_tenant_share_due" in _families(port),  # type: ignore[misc]
                "a scheduler has seen the tenants",
            )
        await until(lambda: get(web, "/readyz")[0] == 200, "the dashboard is ready")
        get(int(environment["NONET_WEB_PORT"]), "/login")  # so that a request is counted
        desired = [json.loads(get(port, "/desired")[1]) for port in (leader, standby)]
        found = {name: _families(port) for name, port in ports.items()}
        gate.touch()
    return Watched(found, (desired[0], desired[1]))


async def _make_row(url: str) -> None:
    """Let one row be due in a database."""
    engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(sa.insert(WatchedRow).values(id=1))
    await engine.dispose()


async def _work(app: Nonet, home: Path) -> Path:
    """Let tasks end in each way; then one runs, two wait for its lock, one is delayed, one queued.

    As many have ended of each kind as `test_metrics` says.
    """
    gate = home / "gate"
    for seconds in (0, 0, 0.3):
        at = datetime.now(UTC) + timedelta(seconds=seconds) if seconds else None
        await (await app.submit(Succeeds(), at_time=at)).result(timeout=WAIT_SECONDS)
    ends = [Fails(), Crashes(), GivesBack(str(home / "given")), Blocks(0.6)]
    handles = [await app.submit(task) for task in ends]
    for handle in handles:
        await _ended(app, handle)
    first = home / "first"
    before = [await app.submit(Holds(str(first))) for _ in range(2)]
    await _states(app, before, {"running": 1, "waiting": 1})
    first.touch()
    for handle in before:
        await handle.result(timeout=WAIT_SECONDS)
    cut = await app.submit(Holds(str(gate)))
    await _states(app, [cut], {"running": 1})
    await app.cancel([cut])
    await _ended(app, cut)
    await app.submit(Succeeds(), at_time=datetime.now(UTC) + timedelta(hours=1))
    await app.submit(Heavy())
    left = [await app.submit(Holds(str(gate))) for _ in range(3)]
    await _states(app, left, {"running": 1, "waiting": 2})
    return gate


async def _ended(app: Nonet, id: str) -> None:
    """Wait for the end of a task, whatever it is."""
    async with asyncio.timeout(WAIT_SECONDS):
        with suppress(NonetError):
            await app.result(id)


async def _states(app: Nonet, ids: list[Any], wanted: dict[str, int]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while Counter([(await app.status(id)).state for id in ids]) != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _leads(port: int) -> bool:
    return _is_one(_families(port), "nonet_scheduler_is_leader")


def _is_one(found: Mapping[str, Metric], name: str) -> bool:
    return name in found and found[name].samples[0].value == 1


def _is_settled(port: int) -> bool:
    """Whether a scheduler has seen who leads, and what that has published of the last state."""
    status, body = get(port, "/desired")
    # What the early one has published stands until the leader publishes.
    if status != 200 or not {"small", "medium"} <= {k for k, n in json.loads(body).items() if n}:
        return False
    found = _families(port)
    is_told = "nonet_config_published_info" in found and "nonet_dead_letters" in found
    return is_told and _is_one(found, "nonet_scheduler_has_leader")


def get(port: int, path: str) -> tuple[int, str]:
    """Status and body; 0 if nobody listens."""
    connection = http.client.HTTPConnection(HOST, port, timeout=WAIT_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except ConnectionRefusedError:
        return 0, ""
    finally:
        connection.close()


def _families(port: int) -> dict[str, Metric]:
    """What is exported under a port; nothing if nobody listens there yet."""
    status, text = get(port, "/metrics")
    if not status:
        return {}
    assert status == 200, text
    return {family.name: family for family in parse(text)}
