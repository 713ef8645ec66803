"""Redis vanishes, stands still or refuses, and locks are taken away: promise 14."""

from __future__ import annotations

import os
import re
import signal

from acceptance.probe_tasks import Alone, Gated, GatedMutex, Quick
from acceptance.site import SHORT, Site, run, stop
from daemons import Daemon
from metrics_names import get
from ports import free_port
from servers import RedisServer
from waits import WAIT_SECONDS, until


async def test_a_flush_cancels_the_holder_of_a_lost_lock(site: Site) -> None:
    """A FLUSHALL takes the lock away: the attempt is cancelled before another one may start."""
    gate = site.gate()
    site.settings |= SHORT
    worker = site.worker()
    async with site.app() as app:
        lost = await site.begin(app, GatedMutex(gate))
        site.redis.flushall()
        await until(lambda: site.journal("cancelled"), "the holder of the lost lock is cancelled")
        assert await run(app, Alone()) == worker.pid
    assert site.journal("end", id=lost) == []
    assert worker.alive


async def test_a_full_worker_notices_a_loss_long_before_its_next_beat(site: Site) -> None:
    """Its slots are all in use, and it beats every 160 s."""
    site.settings["NONET_WORKER_TTL"] = "500"
    site.worker("--concurrency", "1")
    async with site.app() as app:
        await site.begin(app, GatedMutex(site.gate()))
        site.redis.flushall()
        await site.until_event("cancelled")


WAITS = "Redis is unavailable: "


async def test_daemons_that_start_before_redis_wait_for_it(
    own_server: RedisServer, own_site: Site
) -> None:
    """Daemons that start before their Redis live, are not ready, and work when it is there.

    One that waits for it can be stopped.
    """
    site = own_site
    own_server.kill()
    ports = {name: free_port() for name in ("worker", "fleet", "scheduler")}
    daemons = {
        "worker": site.worker("--metrics-port", str(ports["worker"]), wait=False),
        "fleet": site.worker("--max", "1", "--metrics-port", str(ports["fleet"]), wait=False),
        "scheduler": site.scheduler("--metrics-port", str(ports["scheduler"]), wait=False),
    }
    for name, daemon in daemons.items():
        await until(lambda daemon=daemon: WAITS in daemon.log, f"the {name} waits")
        assert get(ports[name], "/livez")[0] == 200
        assert get(ports[name], "/readyz")[0] == 503 or name == "fleet"
    stopped = [site.worker(wait=False), site.worker("--max", "1", wait=False)]
    stopped.append(site.scheduler(wait=False))
    for daemon in stopped:
        await until(lambda daemon=daemon: WAITS in daemon.log, "it waits")
        assert stop(daemon) == [0]
    own_server.start()
    async with site.app() as app:
        assert await run(app, Quick(1)) == 1
    for daemon in daemons.values():
        daemon.wait_ready()
        assert "Traceback" not in daemon.log
    await until(lambda: get(ports["scheduler"], "/readyz")[0] == 200, "the scheduler is ready")


async def test_an_outage_is_two_lines_of_each_process(
    own_server: RedisServer, own_site: Site
) -> None:
    """All parts of a worker, a scheduler and a fleet speak with one voice; nothing else warns."""
    site = own_site
    site.settings |= SHORT
    gate = site.gate()
    port = str(free_port())
    daemons = [
        site.worker("--concurrency", "5"),
        site.scheduler("--metrics-port", port),
        site.worker("--max", "1"),
    ]
    async with site.app() as app:
        handles = await app.submit_many([Quick(n) for n in range(50)])
        for handle in handles:
            await handle.result(timeout=WAIT_SECONDS)
        await site.begin(app, Gated(gate))
        before = [len(daemon.log) for daemon in daemons]
        own_server.kill()
        for daemon in daemons:
            await until(lambda daemon=daemon: "Redis is unavailable: " in daemon.log, "it says so")
        await until(lambda: site.journal("cancelled"), "what runs is cancelled")
        await until(lambda: get(int(port), "/readyz")[0] == 503, "it is not ready")
        assert get(int(port), "/livez")[0] == 200
        await until(lambda: leads(port) == 0, "no scheduler claims to lead")
        own_server.start()
        for daemon in daemons:
            await until(lambda daemon=daemon: _is_back(daemon), "all that were away are back")
        assert await run(app, Quick(1)) == 1
    # The supervisor and the worker of a fleet share a log.
    for daemon, start, processes in zip(daemons, before, (1, 1, 2), strict=True):
        log = daemon.log[start:]
        assert log.count("Redis is unavailable: ") <= processes, log
        # What an outage that outlasts a lease takes away is told, too.
        losses = "Redis has lost|lease lost|leader lease lost|registration lost"
        losses += r"|requeued|reclaimed|task \w+: (?:attempt voided|not settled)"
        told = re.compile(rf"Redis is |{losses}")
        loud = re.findall(r"^\S+ (?:WARNING|ERROR) \S+ (.*)$", log, re.MULTILINE)
        assert [line for line in loud if not told.match(line)] == [], log


def leads(port: str) -> float | None:
    """What the metrics of a scheduler say of it."""
    found = re.search(r"^nonet_scheduler_is_leader (\S+)$", get(int(port), "/metrics")[1], re.M)
    return float(found[1]) if found else None


def _is_back(daemon: Daemon) -> bool:
    return daemon.log.count("Redis is unavailable: ") == daemon.log.count("Redis is back after ")


async def test_a_frozen_redis_counts_no_death(own_server: RedisServer, own_site: Site) -> None:
    """After a freeze that outlasts a lease the voided task runs again as the same attempt."""
    site, gate = own_site, own_site.gate()
    site.settings |= SHORT
    worker = site.worker()
    async with site.app() as app:
        handle = await site.begin(app, GatedMutex(gate))
        os.kill(own_server.pid, signal.SIGSTOP)
        try:
            await until(lambda: site.journal("cancelled"), "the attempt is voided")
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        first, second = await site.started(handle, 2)
        assert (await handle.status()).worker_deaths == 0
        site.open(gate)
        assert await handle.result(timeout=WAIT_SECONDS) == worker.pid
        await site.all_ended()
    assert (first.attempt, second.attempt) == (1, 1)
    assert (first.pid, second.pid) == (worker.pid, worker.pid)
    assert len(site.journal("end")) == 1
