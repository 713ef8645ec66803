"""What tasks and a start cost, counted: commands, bytes, calls, modules.

    python tests/budget/measure.py              # measured against budget
    python tests/budget/measure.py --write      # make what was measured the budget

A guard, not a benchmark: the same on a slow machine and on a fast one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS)]

import redis  # noqa: E402
from budget.budget_tasks import Contended, Locked, Noop  # noqa: E402
from budget.lua import LuaMeter  # noqa: E402
from daemons import Daemon  # noqa: E402
from servers import RedisServer  # noqa: E402
from waits import until  # noqa: E402

from nonet import BaseTask, Nonet, Size  # noqa: E402
from nonet.config.entries import Entry  # noqa: E402
from nonet.daemon.service import Stop  # noqa: E402
from nonet.scheduler.periodic.memory import Memory  # noqa: E402
from nonet.scheduler.periodic.periodic_loop import PeriodicLoop  # noqa: E402
from nonet.stores.connection.lane import Lane  # noqa: E402
from nonet.stores.namespace.leadership import Leadership  # noqa: E402
from nonet.stores.namespace.periodic import Periodic  # noqa: E402
from nonet.stores.queue.broker import Broker  # noqa: E402
from nonet.tasks.schedules import CronSchedule  # noqa: E402

BUDGETS = Path(__file__).with_name("budgets.json")
MODULE = "budget.budget_tasks"
STREAM = "{nonet}:tasks:normal:small"
DELAYED = "{nonet}:tasks:delayed"
NUMBER = 2000
# A cost may grow by a tenth, and by so much where batches differ from run to run.
GROWTH, SLACK = 1.1, {"commands": 0.2, "scripts": 0.05, "trips": 0.05, "bytes": 15.0, "memory": 5.0}
SLACK |= {"commands per second": 6.0, "trips per second": 2.0, "calls if unchanged": 10.0}
SLACK |= {"garbage": 0.5}
IDLE_SECONDS = 5.0
KINDS = {"plain": Noop, "with a mutex": Locked}
# Below this share of the budget, the budget is no guard any more.
SHRUNK = 0.75

Costs = dict[str, float]


class Meter:
    """Counts what a server does between `start` and `costs`.

    Attributes:
        raw: a client of its own, whose own commands `polled` takes away.
    """

    def __init__(self, raw: redis.Redis) -> None:
        self.raw = raw
        self._polls = 0
        self.start()

    def start(self) -> None:
        """Count from now on."""
        self._polls = 0
        self._before = self._counts()

    def left(self) -> int:
        """How many tasks are queued or running."""
        self._polls += 1
        return int(self.raw.xlen(STREAM))

    def costs(self, number: int, *names: str) -> Costs:
        """By task, of `number` tasks; the `names` that are asked for."""
        now = self._counts()
        spent = {name: value - self._before[name] for name, value in now.items()}
        spent["commands"] -= self._polls
        spent["trips"] -= self._polls + 3  # the questions themselves
        return {name: round(max(0.0, spent[name]) / number, 3) for name in names}

    def _counts(self) -> Costs:
        stats = self.raw.info("commandstats")
        net = self.raw.info("stats")
        calls = {name.removeprefix("cmdstat_"): item["calls"] for name, item in stats.items()}
        scripts = sum(calls.get(name, 0) for name in ("evalsha", "eval", "fcall"))
        return {
            "commands": sum(calls.values()) - calls.get("info", 0),
            "scripts": scripts,
            "trips": net["total_reads_processed"],
            "bytes": net["total_net_input_bytes"] + net["total_net_output_bytes"],
            "memory": self.raw.info("memory")["used_memory"],
        }


class Bench:
    """One server, and what is needed to let tasks run on it."""

    def __init__(self, server: RedisServer, home: Path) -> None:
        self.meter = Meter(server.client())
        self.resp2 = server.client(protocol=2)  # as scripts speak
        self._url = server.url
        self._home = home
        self._workers = 0
        self.is_warm = False

    def app(self) -> Nonet:
        """The application of this process, not yet open."""
        return Nonet.from_settings(redis_url=self._url, tasks=(MODULE,), state_dir=self._home)

    def environment(self, result_ttl: int) -> dict[str, str]:
        """The settings of a worker."""
        return {
            "NONET_REDIS_URL": self._url,
            "NONET_STATE_DIR": str(self._home),
            "NONET_RESULT_TTL": str(result_ttl),
            "NONET_TASKS": MODULE,
        }

    @contextmanager
    def worker(self, result_ttl: int = 0) -> Iterator[Daemon]:
        """A worker with 100 slots."""
        self._workers += 1
        environment = self.environment(result_ttl)
        log = self._home / f"worker-{self._workers}.log"
        with Daemon("task-worker", "--size", "small", environment=environment, log=log) as daemon:
            yield daemon
            daemon.terminate()
            daemon.wait()

    def forget(self) -> None:
        """An empty server that rests no locks."""
        self.meter.raw.flushall()
        self.meter.raw.hset(
            "{nonet}:epoch", mapping={"since": 1, "seq": 1, "withheld": 0, "layout": 1}
        )


ALL = ("commands", "scripts", "trips", "bytes")


async def submit_one_by_one(bench: Bench) -> Costs:
    """One `schedule` after the other; calls are the Python functions of the client."""
    async with bench.app():
        await Noop(0).schedule()
        bench.meter.start()
        with counting_calls() as counted:
            for number in range(300):
                await Noop(number).schedule()
        return {**bench.meter.costs(300, *ALL), "calls": round(counted[0] / 300, 1)}


async def submit_by_fifty(bench: Bench) -> Costs:
    """Fifty callers at the same time."""
    async with bench.app() as app:
        await app.submit(Noop(0))
        bench.meter.start()
        for _ in range(20):
            await asyncio.gather(*(app.submit(Noop(number)) for number in range(50)))
        return bench.meter.costs(1000, *ALL)


async def submit_in_bulk(bench: Bench) -> Costs:
    """`submit_many`; memory is what a task takes that is queued."""
    async with bench.app() as app:
        await app.submit(Noop(0))
        bench.meter.start()
        await app.submit_many(map(Noop, range(NUMBER)))
        return bench.meter.costs(NUMBER, *ALL, "memory")


async def drain(bench: Bench, make: Callable[[int], BaseTask], number: int, ttl: int = 0) -> Costs:
    """From the start of a worker until nothing is queued, so with all that it does once."""
    async with bench.app() as app:
        await app.submit_many(map(make, range(number)))
        bench.meter.start()
        left = bench.meter.left  # asked twice, as a woken task joins its stream meanwhile
        with bench.worker(ttl):
            await until(lambda: not any((left(), live(bench), left())), "all has ended")
            costs = bench.meter.costs(number, *ALL)
    if ttl == 0:
        costs["left"] = float(len(of_tasks(bench)))
    return costs


def live(bench: Bench) -> int:
    """How many tasks wait for locks."""
    bench.meter._polls += 1
    return int(bench.meter.raw.zcard(DELAYED))


def of_tasks(bench: Bench) -> list[str]:
    """Keys that tasks leave behind without a lifetime."""
    keys = [str(key) for key in bench.meter.raw.scan_iter(count=1000)]
    kinds = ("t:", "b:", "l:", "queue:", "writers:", "lock:")
    ours = [key for key in keys if key.removeprefix("{nonet}:").startswith(kinds)]
    return [key for key in ours if bench.meter.raw.ttl(key) == -1]


async def promote(bench: Bench) -> Costs:
    """Delayed tasks, from due to queued."""
    async with bench.app() as app:
        due = datetime.now(UTC) + timedelta(hours=1)
        await app.submit_many(map(Noop, range(1000)), at_time=due)
        delayed = bench.meter.raw.zrange(DELAYED, 0, -1)
        bench.meter.raw.zadd(DELAYED, dict.fromkeys(delayed, due.timestamp() * 1e6 - 2 * 3600e6))
        bench.meter.start()
        while bench.meter.left() < 1000:
            await app.broker.promote()
        return bench.meter.costs(1000, *ALL)


async def idle(bench: Bench) -> Costs:
    """Ten workers that have nothing to do, by second."""
    with ExitStack() as stack:
        workers = [stack.enter_context(bench.worker()) for _ in range(10)]
        await asyncio.gather(*(asyncio.to_thread(worker.wait_ready) for worker in workers))
        await asyncio.sleep(1)  # what they do once is over
        bench.meter.start()
        await asyncio.sleep(IDLE_SECONDS)
        costs = bench.meter.costs(1, "commands", "trips")
    return {f"{name} per second": round(cost / IDLE_SECONDS, 1) for name, cost in costs.items()}


async def work_of_scripts(bench: Bench) -> Costs:
    """What the scripts do in Lua for a task: instructions, and bytes that they allocate."""
    costs, meter, number = dict[str, float](), LuaMeter(bench.resp2), 200

    def note(what: str) -> None:
        costs.update({f"{n} to {what}": round(c / number) for n, c in meter.costs.items()})
        meter.costs.clear()

    with mock.patch.object(Lane, "call", meter.call):
        async with bench.app() as app:
            for kind, make in KINDS.items():
                for one in range(number):
                    await app.submit(make(one))
                note(f"submit {kind}")
                for _ in range(4):
                    deliveries, _ = await app.broker.fetch("small-a", "small", number // 4)
                    await asyncio.gather(*(app.broker.settle(each, "done") for each in deliveries))
                note(f"fetch and settle {kind}")
    return costs


@contextmanager
def counting_calls() -> Iterator[list[int]]:
    """Count the Python functions that this thread calls, in the only item."""
    counted = [0]

    def count(frame: object, event: str, arg: object) -> None:
        counted[0] += event == "call"

    sys.setprofile(count)
    try:
        yield counted
    finally:
        sys.setprofile(None)


async def calls_in_python(bench: Bench) -> Costs:
    """Python functions that a worker calls for a task, and objects in cycles that it leaves."""
    async with bench.app() as app, app.injector() as injector:
        await app.submit_many(map(Noop, range(NUMBER)))
        worker, stop = app.worker(Size.SMALL, injector), Stop()
        gc.collect()
        gc.disable()
        try:
            with counting_calls() as counted:
                running = asyncio.create_task(worker.run(stop))
                await until(lambda: not bench.meter.left(), "all has ended")
            stop.request()
            await running
            garbage = gc.collect()
        finally:
            gc.enable()
    return {"calls": round(counted[0] / NUMBER, 1), "garbage": round(garbage / NUMBER, 1)}


async def at_noon(_: Broker) -> datetime:
    """The same Wednesday in each run."""
    return datetime(2026, 11, 25, 12, tzinfo=UTC)


async def plan_cron_entries(bench: Bench) -> Costs:
    """Python functions that the scheduler calls for a cron entry, in its first and next plan."""
    name = f"{MODULE}:Noop"
    async with bench.app() as app:
        store, number = Periodic(app.broker, "nonet"), 1000
        memory = Memory(app.stores.mirror, app.settings.may_have_sql)
        loop = PeriodicLoop(app.client, store, memory, timedelta(seconds=60))
        term = await Leadership(app.broker, "nonet").lead("budget", 3600, "{}") or ""
        counts = []
        for _ in range(2):
            entries = [
                Entry(f"{name}||{n}", name, None, str(n), CronSchedule(f"{n % 60} 3 * * 1"), {})
                for n in range(number)
            ]
            loop.adopt(entries)
            # How long the search for the next occurrence takes depends on the day and the hour.
            with mock.patch.object(Broker, "now", at_noon), counting_calls() as counted:
                await loop.tick(term, may_fire=False)
            counts.append(round(counted[0] / number, 1))
    return {"calls": counts[0], "calls if unchanged": counts[1]}


# What takes a worker's time and memory, and is imported by who needs it.
UNWANTED = ("alembic", "better_exceptions", "click", "fastapi", "http.server", "jinja2", "pydantic")
UNWANTED += ("pydantic_core", "pygments", "prometheus_client", "rich", "sqlalchemy", "starlette")
UNWANTED += ("structlog", "typer", "uvicorn", "yaml", "croniter", "dateutil", "nonet.scheduler")
_STARTED = """
import atexit, json, os, sys
def tell():
    modules = dict(sys.modules)
    ours = (vars(module) for name, module in modules.items() if name.startswith("nonet"))
    made = {one for names in ours for one in names.values() if isinstance(one, type)
            and one.__module__.startswith("nonet") and "__dataclass_fields__" in vars(one)}
    found = {"modules": list(modules), "dataclasses": len(made)}
    open(os.environ["PROBE_MODULES"], "w").write(json.dumps(found))
atexit.register(tell)
sys.argv = ["task-worker", "--size", "small"]
from nonet_worker import main
main()
"""


async def start(bench: Bench) -> Costs:
    """What a worker has imported when it has run its first task: modules, and dataclasses in them.

    Making one dataclass takes as long as making fifty structs of msgspec.
    """
    found = bench._home / "modules.json"
    environment = {name: value for name, value in os.environ.items() if name[:6] != "NONET_"}
    environment |= bench.environment(0) | {"PROBE_MODULES": str(found)}
    environment["PYTHONPATH"] = str(TESTS)
    async with bench.app() as app:
        await app.submit(Noop(0))
        with subprocess.Popen(  # noqa: ASYNC220  # it is started at once
            [sys.executable, "-c", _STARTED], env=environment, stderr=subprocess.DEVNULL
        ) as worker:
            await until(lambda: not bench.meter.left() or worker.poll(), "its first task has run")
            worker.terminate()
            assert await asyncio.to_thread(worker.wait) == 0
    told = json.loads(found.read_text())
    # redis-py imports OpenTelemetry where it is installed, as it is for tests.
    packages = [name for name in told["modules"] if not name.startswith("opentelemetry")]
    unwanted = [name for name in UNWANTED if name in packages]
    assert not unwanted, f"a worker imports {unwanted}; see python -X importtime"
    ours = [name for name in packages if name.startswith("nonet")]
    return {"modules": len(packages), "of nonet": len(ours), "dataclasses": told["dataclasses"]}


SCENARIOS: dict[str, Callable[[Bench], Awaitable[Costs]]] = {
    "submit one by one": submit_one_by_one,
    "submit by 50 at once": submit_by_fifty,
    "submit in bulk": submit_in_bulk,
    "drain": lambda bench: drain(bench, Noop, NUMBER),
    "drain with results": lambda bench: drain(bench, Noop, NUMBER, 60),
    "drain with a mutex": lambda bench: drain(bench, Locked, NUMBER),
    "drain with a contended mutex": lambda bench: drain(bench, Contended, 500),
    "promote": promote,
    "ten idle workers": idle,
    "work of scripts": work_of_scripts,
    "worker in Python": calls_in_python,
    "plan of cron entries": plan_cron_entries,
    "worker start": start,
}


def measure(scenario: str, bench: Bench) -> Costs:
    """The costs of a scenario, by task."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        if not bench.is_warm:  # the text of each script travels once
            bench.forget()
            runner.run(drain(bench, Contended, 100))
            bench.is_warm = True
        bench.forget()
        return runner.run(_awaited(SCENARIOS[scenario](bench)))


async def _awaited(costs: Awaitable[Costs]) -> Costs:
    return await costs


SLACKS = {
    # How many tasks are woken, fetched and settled at a time depends on how busy the machine is.
    "drain with a contended mutex": {"scripts": 0.2, "trips": 0.2, "commands": 6.0}
}


def problems(scenario: str, costs: Costs, budget: Costs) -> list[str]:
    """What is dearer than its budget, or so much cheaper that the budget guards nothing.

    A cost that has no budget may be 0. A cost per second may be small: a busy machine does less.
    """
    found = []
    for name, cost in costs.items():
        allowed = budget.get(name, 0.0)
        slack = SLACKS.get(scenario, SLACK).get(name, SLACK.get(name, 0.0))
        if cost > max(allowed * GROWTH, allowed + slack):
            found.append(f"{scenario}: {cost} {name}, the budget is {allowed}")
        elif not name.endswith(" per second") and cost < min(allowed * SHRUNK, allowed - slack):
            found.append(f"{scenario}: {cost} {name}: lower the budget, which is {allowed}")
    return found


def read_budgets() -> dict[str, Costs]:
    """What each scenario may cost."""
    return dict(json.loads(BUDGETS.read_text()))


def main() -> None:
    """Print what was measured beside its budget; with ``--write`` it is the budget from now on."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="make this the budget")
    wants_write = parser.parse_args().write
    budgets = read_budgets() if BUDGETS.exists() else {}
    found: dict[str, Costs] = {}
    with RedisServer() as server, tempfile.TemporaryDirectory() as home:
        bench = Bench(server, Path(home))
        for scenario in SCENARIOS:
            found[scenario] = measure(scenario, bench)
            for name, cost in found[scenario].items():
                allowed = budgets.get(scenario, {}).get(name)
                print(f"{scenario:30} {name:10} {cost:10.3f}   budget {allowed}")
    if wants_write:
        BUDGETS.write_text(json.dumps(found, indent=2) + "\n")
        return
    wrong = [text for name in found for text in problems(name, found[name], budgets.get(name, {}))]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
