"""Fleets: workers that come with the work, end with it, and are replaced."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from acceptance.fleet_tasks import FreshThread
from acceptance.probe_tasks import Gated, GatedMutex, Quick
from acceptance.site import PROBES, Site, stop, submit_all
from acceptance.test_health import ask
from daemons import Daemon, lives
from ports import HOST, free_ports
from servers import RedisServer
from waits import WAIT_SECONDS, until

from nonet import Nonet
from nonet.base.actor import process_name

TASKS = f"{PROBES},acceptance.fleet_tasks"


def fleet(site: Site, least: int, most: int, *options: str, **environment: str) -> Daemon:
    """A fleet of workers with one slot."""
    bounds = ("--min", str(least), "--max", str(most), "--concurrency", "1")
    return site.worker(*bounds, *options, **environment)


def started(daemon: Daemon) -> list[int]:
    """Process ids of all workers that a fleet has started so far."""
    return [int(pid) for pid in re.findall(r"started worker: pid=(\d+)", daemon.log)]


def registered(site: Site) -> set[str]:
    """The workers that Redis knows."""
    return set(site.redis.zrange(site.key("workers"), 0, -1))


def living(daemon: Daemon) -> list[int]:
    return [pid for pid in started(daemon) if lives(pid)]


async def until_registered(site: Site, count: int) -> set[str]:
    await until(lambda: len(registered(site)) == count, f"{count} workers")
    return registered(site)


async def hold_all(app: Nonet, site: Site, count: int) -> tuple[str, list[str]]:
    """Tasks that run until their gate is opened: the gate and their ids."""
    gate = site.gate()
    return gate, await submit_all(app, [Gated(gate) for _ in range(count)])


async def test_workers_come_with_the_work_and_go_with_it(site: Site) -> None:
    """More than one worker can take starts others, up to the bound; idle ones end with 0."""
    daemon = fleet(site, 1, 3, "--idle-exit", "1")
    await until_registered(site, 1)
    async with site.app() as app:
        gate, ids = await hold_all(app, site, 6)
        await until_registered(site, 3)
        await site.until_event("start", 3)
        assert len(started(daemon)) == 3
        site.open(gate)
        await site.all_ended()
        await until_registered(site, 1)
    await until(lambda: daemon.log.count("ended: exit_code=0") == 2, "two have ended")
    assert (len(started(daemon)), len(living(daemon))) == (3, 1)
    assert "crashed: " not in daemon.log
    assert {item.id for item in site.journal("end")} == set(ids)


async def test_a_worker_alone_ends_when_it_is_idle(site: Site) -> None:
    """Without a fleet, too: after its last task, with 0, and off every list."""
    gate = site.gate()
    async with site.app() as app:
        handle = await app.submit(Gated(gate))  # first: it would end before a task that is late
        worker = site.worker("--idle-exit", "0.5")
        await site.started(handle)
        site.open(gate)
        assert worker.wait() == 0
    assert "draining: idle_seconds=" in worker.log
    assert not registered(site)


def until_looked(site: Site, times: int) -> None:
    """Wait until a fleet or a leader has polled the demand so often."""
    deadline = time.monotonic() + WAIT_SECONDS
    with site.redis.monitor() as seen:
        for item in seen.listen():
            assert time.monotonic() < deadline, "the demand was not polled"
            times -= bool(re.search(r" small \d+ 64$", item["command"]))
            if times == 0:
                return


async def test_a_machine_that_has_no_more_gets_no_more_workers(site: Site) -> None:
    """While a worker takes nothing for lack of memory, others beside it would not help."""
    daemon = fleet(site, 1, 5, NONET_MEMORY_FLOOR=str(10**15))
    async with site.app() as app:
        await until_registered(site, 1)
        (worker,) = registered(site)
        await until(lambda: site.redis.hget(site.key(f"w:{worker}"), "off"), "it takes nothing")
        handle = await app.submit(Quick(1))
        await asyncio.to_thread(until_looked, site, 4)
        assert len(started(daemon)) == 1
        assert stop(daemon) == [0]
        site.worker()
        assert await handle.result(timeout=WAIT_SECONDS) == 1


async def test_the_place_of_a_worker_that_an_operator_drains_stays_empty(site: Site) -> None:
    """An operator who drains a worker through Redis wants one less, until SIGHUP."""
    daemon = fleet(site, 2, 2)
    first, _ = sorted(await until_registered(site, 2))
    async with site.app() as app:
        await app.stores.results.drain([first], "alice")
        await until(lambda: "ended as ordered" in daemon.log, "it ends")
        await asyncio.to_thread(until_looked, site, 3)
        assert len(started(daemon)) == 2 and len(living(daemon)) == 1
        os.kill(daemon.pid, signal.SIGHUP)
        await until(lambda: len(registered(site) - {first}) == 2, "both places are filled")


async def test_a_fleet_outlives_redis(own_server: RedisServer, own_site: Site) -> None:
    """No worker is killed for the silence of Redis, nor for what Redis has forgotten."""
    site = own_site
    daemon = fleet(site, 2, 2)
    before = await until_registered(site, 2)
    # A worker that loses Redis while it starts ends, and is started again.
    await until(lambda: daemon.log.count("slots, event loop of") == 2, "both are ready")
    own_server.kill()
    await until(lambda: "Redis is unavailable" in daemon.log, "the fleet has noticed")
    own_server.start()
    await until(lambda: registered(site) == before, "its workers are there again")
    await asyncio.to_thread(until_looked, site, 3)
    assert len(living(daemon)) == len(started(daemon)) == 2


async def test_what_a_dead_worker_held_is_handed_on_at_once(site: Site) -> None:
    """Its locks, too, long before a lease or a lock ends; another worker follows after a pause."""
    daemon = fleet(site, 1, 1)
    (worker,) = await until_registered(site, 1)
    async with site.app() as app:
        (id,) = await submit_all(app, [GatedMutex(gate := site.gate())])
        await site.started(id)
        os.kill(pid := started(daemon)[0], signal.SIGKILL)
        await site.started(id, 2)
        assert re.search(rf"worker {pid}@\S+ crashed: signal=9 restart_in=1.0s", daemon.log)
        (event,) = await app.stores.events.last(1, kind="worker-lost")
        assert event.text == f"{process_name(pid)} died with 1 task: {id}"
        await until(lambda: worker not in registered(site), "the dead worker is forgotten")
        site.open(gate)
        await site.all_ended()


async def test_nothing_is_handed_on_while_a_child_process_lives(site: Site) -> None:
    """Its fork server is frozen, so that the child outlives its worker for a while."""
    daemon = fleet(site, 1, 1)
    await until_registered(site, 1)
    async with site.app() as app:
        gate = site.gate()
        (id,) = await submit_all(app, [FreshThread(gate)])
        (first,) = await site.started(id)
        fork_server = psutil.Process(first.pid).ppid()
        os.kill(fork_server, signal.SIGSTOP)
        os.kill(started(daemon)[0], signal.SIGKILL)
        await until(lambda: len(started(daemon)) == 2, "there is another worker")
        assert lives(first.pid)
        assert await app.stores.events.last(1, kind="worker-lost") == []
        os.kill(fork_server, signal.SIGCONT)
        await site.started(id, 2)
        assert not lives(first.pid)
        site.open(gate)
        await site.all_ended()


def test_a_fleet_that_cannot_start_ends(site: Site) -> None:
    """If the very first workers are refused their configuration, the code is theirs."""
    daemon = fleet(site, 2, 2, NONET_TASKS="no.such.module")
    assert daemon.wait() == 2
    assert "cannot start, the fleet ends: exit_code=2" in daemon.log


ROLLED = """
from nonet import BaseTask
class Own(BaseTask):
    async def execute(self) -> None: ...
"""


async def test_a_refused_replacement_does_not_end_a_fleet(site: Site) -> None:
    """A worker stays if its replacement cannot start: the roll is given up."""
    module = site.write("rolled.py", ROLLED)
    daemon = fleet(site, 1, 1, NONET_TASKS="rolled", PYTHONPATH=os.path.dirname(module))
    (worker,) = await until_registered(site, 1)
    site.write("rolled.py", "raise ImportError('half deployed')")
    os.kill(daemon.pid, signal.SIGHUP)
    await until(lambda: "stopped replacing workers" in daemon.log, "the roll is given up")
    assert registered(site) == {worker} and daemon.alive


async def test_sighup_does_not_end_a_fleet_that_starts(site: Site) -> None:
    """From the first line of the entry point on; there is nothing to replace yet."""
    start = ("python", "-c", "from nonet_worker import main; main()")
    daemon = site.program(*start, "--size=small", "--min=1", "--max=1", "--concurrency=1")
    status = Path(f"/proc/{daemon.pid}/status")

    def is_deaf() -> bool:
        ignored = re.search(r"^SigIgn:\s*(\w+)", status.read_text(), re.MULTILINE)
        return bool(ignored and int(ignored[1], 16) >> (signal.SIGHUP - 1) & 1)

    def hears() -> bool:
        os.kill(daemon.pid, signal.SIGHUP)
        assert daemon.alive, daemon.log
        return "fleet-small-" in daemon.log and " ready: " in daemon.log

    await until(is_deaf, "it ignores SIGHUP")
    await until(hears, "it is ready")
    await until_registered(site, 1)  # also after the last signal, which came when it was ready


async def test_sighup_replaces_workers_one_by_one(site: Site) -> None:
    """New ones are registered before old ones drain, and what runs is finished."""
    daemon = fleet(site, 2, 2, "--grace", "30")
    before = await until_registered(site, 2)
    old = started(daemon)
    fewest = 2
    async with site.app() as app:
        gate, (id,) = await hold_all(app, site, 1)
        await site.started(id)
        os.kill(daemon.pid, signal.SIGHUP)

        def is_rolled() -> bool:
            nonlocal fewest
            fewest = min(fewest, len(registered(site)))
            if "a new worker replaces it" in daemon.log:
                site.open(gate)
            return len(registered(site)) == 2 and not registered(site) & before

        await until(is_rolled, "all are replaced")
        assert (await app.status(id)).state == "done"
    assert fewest == 2
    assert len(started(daemon)) == 4
    await until(lambda: not any(map(lives, old)), "the old ones have ended")
    told = re.findall(r"started worker|a new worker replaces it", daemon.log)
    assert told == [told[0]] * 2 + [told[0], "a new worker replaces it"] * 2


async def test_workers_beyond_their_lifetime_are_replaced(site: Site) -> None:
    """--max-lifetime: in a fleet another one comes first."""
    daemon = fleet(site, 1, 1, "--max-lifetime", "2")
    (worker,) = await until_registered(site, 1)
    await until(lambda: worker not in registered(site), "it is gone")
    assert registered(site)  # perhaps already one that follows the other one
    assert "replaces worker" in daemon.log


def test_a_worker_alone_drains_after_its_lifetime(site: Site) -> None:
    """--max-lifetime without a fleet: exit code 0, and the platform starts another one."""
    worker = site.worker("--max-lifetime", "1")
    assert worker.wait() == 0
    assert "draining: maximum lifetime reached" in worker.log


async def test_a_frozen_worker_is_replaced(site: Site) -> None:
    """A worker without a beat for twice the worker TTL is killed; its task runs again."""
    site.settings["NONET_WORKER_TTL"] = "3"
    daemon = fleet(site, 1, 1)
    await until_registered(site, 1)
    (frozen,) = started(daemon)
    async with site.app() as app:
        gate, (id,) = await hold_all(app, site, 1)
        await site.started(id)
        os.kill(frozen, signal.SIGSTOP)
        await until(lambda: not lives(frozen), "the frozen one is killed")
        await site.started(id, 2)
        site.open(gate)
        await site.all_ended()
    assert "not registered in time" in daemon.log
    assert len(started(daemon)) == 2


@pytest.mark.parametrize(("grace", "signals", "code"), [("30", 1, 0), ("600", 2, 143)])
async def test_a_signal_drains_all(site: Site, grace: str, signals: int, code: int) -> None:
    """SIGTERM: what runs may end within the grace; the exit code is the largest."""
    daemon = fleet(site, 2, 2, "--grace", grace)
    await until_registered(site, 2)
    async with site.app() as app:
        gate, (id,) = await hold_all(app, site, 1)
        await site.started(id)
        daemon.terminate()
        await until(lambda: daemon.log.count("draining 1 tasks") == 1, "its worker drains")
        if signals == 2:
            daemon.terminate()
        elif code == 0:
            site.open(gate)
        assert daemon.wait() == code
        assert (await app.status(id)).state == ("done" if code == 0 else "queued")
        assert not living(daemon) and not registered(site)
        if code:
            site.open(gate)
            site.worker()
            await site.all_ended()


async def test_a_killed_supervisor_leaves_no_orphans(site: Site) -> None:
    """Its workers notice at once, let their tasks end and drain."""
    daemon = fleet(site, 2, 2, "--grace", "30")
    await until_registered(site, 2)
    workers = started(daemon)
    async with site.app() as app:
        gate, (id,) = await hold_all(app, site, 1)
        await site.started(id)
        daemon.kill()
        await until(lambda: sum(map(lives, workers)) == 1, "the idle one has ended")
        site.open(gate)
        await until(lambda: not any(map(lives, workers)), "the other one too")
        assert (await app.status(id)).state == "done"
    assert not registered(site)


async def test_the_probe_of_a_fleet_lists_each_worker(site: Site) -> None:
    """The supervisor answers for all; its workers take the next ports that are free."""
    port = free_ports(4)
    with socket.create_server((HOST, port + 1)):
        daemon = fleet(site, 2, 4, NONET_METRICS_HOST=HOST, NONET_METRICS_PORT=str(port))
        await until(lambda: ask(port, "/readyz")[0] == 200, "the fleet is ready")
    assert all(item["port"] > port + 1 for item in ask(port, "/readyz")[1]["workers"])
    async with site.app() as app:
        gate, (id,) = await hold_all(app, site, 1)
        await site.started(id)
        await until(
            lambda: (
                sorted(item["running"] for item in ask(port, "/readyz")[1]["workers"]) == [0, 1]
            ),
            "the probe tells who is busy",
        )
        _, body = ask(port, "/readyz")
        assert (body["size"], body["min"], body["max"]) == ("small", 2, 4)
        async with site.app() as app:
            names = {item.name for item in await app.stores.results.workers()}
        assert {item["worker"] for item in body["workers"]} == names
        assert {item["state"] for item in body["workers"]} == {"ready"}
        assert [item["slots"] for item in body["workers"]] == [1, 1]
        for pid in started(daemon):
            os.kill(pid, signal.SIGKILL)
        await until(lambda: ask(port, "/readyz")[0] == 503, "it has too few workers")
        await until(lambda: ask(port, "/readyz")[0] == 200, "they are replaced")
        site.open(gate)
        await site.all_ended()


REFUSED = {
    "--size small --min 3 --max 2": "is less than --min 3",
    "--size small --max 0": "--max",
    "--size small --idle-exit 0": "--idle-exit",
    "": "name a size, or --pipelines",
    "--size small --pipelines ,": "names no pipeline",
    "--pipelines rows --idle-exit 1": "leave out --min, --max and --idle-exit",
    "--pipelines rows --max 2": "leave out --min, --max and --idle-exit",
}


def test_options_that_make_no_sense_are_refused(site: Site) -> None:
    """Exit code 2, with the reason."""
    daemons = {options: site.program("task-worker", *options.split()) for options in REFUSED}
    for options, daemon in daemons.items():
        assert daemon.wait() == 2, options
        assert REFUSED[options] in daemon.log, options


def calls(site: Site) -> list[dict[str, Any]]:
    """What overflow hooks received."""
    path = Path(site.settings["PROBE_JOURNAL"] + ".overflow")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def published(site: Site) -> dict[str, str]:
    found: dict[str, str] = site.redis.hgetall(site.key("desired"))
    return found


async def test_a_hook_is_called_once_for_each_need(site: Site) -> None:
    """It receives size, missing and desired; again only for another need."""
    site.scheduler(NONET_ON_OVERFLOW="acceptance.overflow_hooks:note_later")
    async with site.app() as app:
        gate, _ = await hold_all(app, site, 250)
        await until(lambda: calls(site), "the hook is called")
        await asyncio.to_thread(until_looked, site, 4)
        assert calls(site) == [{"size": "small", "missing": 3, "desired": 3}]
        worker = site.worker("--concurrency", "300")
        await until(lambda: published(site)["small"] == "1", "one worker takes all")
        site.open(gate)
        await site.all_ended()
        assert stop(worker) == [0]
        assert len(calls(site)) == 1
        await app.submit(Quick(1))
        await until(lambda: len(calls(site)) == 2, "another need is reported")
        assert calls(site)[1] == {"size": "small", "missing": 1, "desired": 1}
        site.worker()
        await site.all_ended()


async def test_a_failing_hook_costs_no_task(site: Site) -> None:
    """Whatever it raises is logged and counted; the task stays queued."""
    scheduler = site.scheduler(NONET_ON_OVERFLOW="acceptance.overflow_hooks:fails")
    async with site.app() as app:
        handle = await app.submit(Quick(1))
        counter = site.key("counters")
        await until(lambda: site.redis.hget(counter, "overflow:failed") == "1", "it is counted")
        assert (await handle.status()).state == "queued"
        assert "error=SystemExit: the platform is away" in scheduler.log
        texts = [event.text for event in await app.stores.events.last(9, kind="overflow-hook")]
        assert len(texts) == 2 and texts[0].endswith("fails: 1 more small workers, 1 in all")
        site.worker()
        assert await handle.result(timeout=WAIT_SECONDS) == 1


async def test_a_hook_that_hangs_holds_up_no_scheduler(site: Site) -> None:
    """Delays are promoted meanwhile, and the scheduler ends at SIGTERM."""
    scheduler = site.scheduler(NONET_ON_OVERFLOW="acceptance.overflow_hooks:hangs")
    async with site.app() as app:
        await app.submit(Quick(1))
        await until(lambda: calls(site), "the hook is called")
        at = published(site)
        await app.submit(Gated(site.gate()), labels={"size": "large"})
        await until(lambda: published(site) != at, "the numbers go on")
        assert stop(scheduler) == [0]
        for key in site.redis.scan_iter(site.key("*")):
            site.redis.delete(key)
