"""`Rig`: a site on servers of its own, what is done to it, and a verdict on what came of it.

A test submits through the rig, breaks something, and ends with `Rig.judge`, which holds the
promises against three witnesses: the journal that the tasks write themselves, the settlements
that Redis announces, and what is left in Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import redis
from acceptance.site import PREFIX, Event, Site
from daemons import Daemon
from faults.fault_tasks import Timed
from faults.proxy import Proxy
from faults.verdicts import Verdict
from redis.backoff import NoBackoff
from redis.retry import Retry
from servers import RedisServer
from waits import WAIT_SECONDS, until

from nonet import BaseTask, Nonet, NonetError
from nonet.stores.sql.dead_letters import DeadLetters

TASKS = "acceptance.probe_tasks,faults.fault_tasks"
# Leases of the scaled runs; the full ones that measure recovery use those of production.
PRODUCTION = {"NONET_LEASE": "45", "NONET_LOCK_TTL": "30", "NONET_WORKER_TTL": "30"}
# A sleeping worker looks again after 2 s; a leader is replaced after its lease of 1 s; a delivery
# that was lost with a reply comes back after its lease of 2 s and a sweep.
RECOVERY = 10.0
_OWNED_BY_NOBODY = ("lock:*", "limiter:conc:*", "queue:*", "writers:*", "[tbeh]:*", "awaits:*")
_BATCH = 500
# A replaced master may continue for a while, and announce to its listeners.
_LOOK_SECONDS = 0.2
_FEW = 2000
# What its Redis must be started with: it forgets a setting that is made later.
ANNOUNCING = ("--notify-keyspace-events", "K$")


class Rig:
    """One namespace with servers and daemons of its own, to be broken.

    Attributes:
        server: its Redis, which no other test uses.
        proxy: what daemons and clients go through, if the rig has one.
        site: daemons, journal and keys.
        settled: which tasks have ended, and when.
        owed: ids that were accepted and not forgotten since: each must end.
    """

    def __init__(
        self, scenario: str, home: Path, server: RedisServer, proxy: Proxy | None, *, alone: bool
    ) -> None:
        self.server, self.proxy = server, proxy
        self.site = Site(server, home)
        self.site.settings["NONET_TASKS"] = TASKS
        if proxy:
            self.site.settings["NONET_REDIS_URL"] = proxy.url
        self.settled = Settled(server)
        self.owed: set[str] = set()
        self._verdict: Verdict | None = None
        self._of_workers: dict[str, str] = {}
        self._scenario, self._alone = scenario, alone
        self._tasks = self._forgotten = 0

    def close(self) -> None:
        if self.proxy:
            self.proxy.restore()
        self.site.close()
        self.settled.close()

    async def submit(self, app: Nonet, tasks: Iterable[BaseTask]) -> list[str]:
        """Submit tasks that are owed from now on; their ids."""
        ids = [str(handle) for handle in await app.submit_many(list(tasks))]
        self.accepted(ids)
        return ids

    def accepted(self, ids: Collection[str]) -> None:
        """These were accepted: each must end, once."""
        self._tasks += len(ids)
        self.owed.update(ids)

    def wiped(self, keeping: Collection[str] = ()) -> None:
        """Redis has lost its data but for `keeping`: what had not ended is owed no longer."""
        ended = self.settled.ids() | set(keeping)
        self._forgotten += len(self.owed - ended)
        self.owed &= ended

    def workers(self, count: int, *, slots: int, **environment: str) -> Fleet:
        """So many workers, ready."""
        self._of_workers = environment
        return Fleet(self, count, slots, environment)

    async def settles(self, ids: Collection[str], seconds: float = WAIT_SECONDS) -> None:
        """Wait until all of these have ended."""
        wanted = set(ids)
        await until(
            lambda: self.settled.includes(wanted),
            f"all {len(wanted)} tasks have ended",
            seconds=seconds,
        )

    async def judge(
        self,
        faults: str,
        *,
        dead: Collection[str] = (),
        rows: Sequence[str] | None = None,
        recovery: float | None = None,
        within: float | None = None,
        may_end_again: Collection[str] = (),
        may_lose: bool = False,
        seconds: float = WAIT_SECONDS,
    ) -> None:
        """Wait until nothing lives any more, and hold the promises against the witnesses.

        Args:
            faults: what was done, for the table.
            dead: ids that must have ended ``dead``; all others must be ``done``.
            rows: the task ids of all rows in SQL, if `dead` must be there, once each.
            recovery: seconds that were measured, and `within` how many it must be in a soak run,
                which has a machine for itself.
            may_end_again: ids of which an older copy of the data did not know the end.
            may_lose: what two masters at a time have lost and doubled is counted, but no problem.
            seconds: how long the last task may take.
        """
        problems = []
        try:
            await self.site.all_ended(seconds)
        except AssertionError as error:
            problems.append(f"not all has ended: {error}")
        self.settled.includes(self.owed)
        counts = self.settled.counts()
        lost = self.owed - self.settled.ids()
        excused = set(may_end_again)
        twice = {id: n for id, n in counts.items() if n > 1 and id not in excused}
        problems += [f"lost: {sorted(lost)[:5]} …"] if lost and not may_lose else []
        if twice and not may_lose:
            few = dict(itertools.islice(twice.items(), 5))
            problems.append(f"{len(twice)} settled more than once: {few} …")
        problems += self._wrong_ends(set(dead))
        problems += self._leftovers()
        problems += await self._doctor()
        callbacks, overlaps = self._callbacks_twice(), self._overlaps()
        problems += [f"callback twice: {callbacks}"] if callbacks and not may_lose else []
        if overlaps and not may_lose:
            problems.append(f"two at a time under a mutex: {overlaps}")
        kept = Counter(rows or ())
        if rows is not None:
            problems += [f"{id}: {kept[id]} rows" for id in {*kept, *dead} if kept[id] != 1]
        if within is not None and self._alone and (recovery is None or recovery > within):
            problems.append(f"recovery took {recovery} s, allowed are {within:g} s")
        doubled = sum(twice.values()) - len(twice) + len(callbacks) + len(overlaps)
        doubled += sum(count - 1 for count in kept.values())
        self._verdict = Verdict(
            scenario=self._scenario,
            faults=faults + (f"; {self._forgotten} wiped" if self._forgotten else ""),
            tasks=self._tasks,
            executions=len(self.site.journal("start")),
            lost=len(lost),
            doubled=doubled,
            recovery=recovery,
            problems=problems,
        )
        assert not problems, "\n".join(problems)

    async def families_reported(self) -> None:
        """Wait until every group that an owed parent has spawned was called back."""
        events = self.site.journal("start", task="Family")
        parents = {event.id for event in events} & self.owed
        await until(
            lambda: len(self.names_reported()) >= len(parents),
            f"the callbacks of {len(parents)} groups have run",
        )

    def names_reported(self) -> set[str]:
        return {event.details["name"] for event in self.site.journal("start", task="Report")}

    def report(self) -> Verdict:
        """The verdict; that of a scenario which was never judged is a bad one."""
        never = Verdict(self._scenario, "", self._tasks, 0, 0, 0, problems=["never judged"])
        return self._verdict or never

    def kill_clients(self) -> None:
        """Let every server drop all connections."""
        for server in self.server.nodes:
            with server.client() as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "normal")

    def states(self, ids: Iterable[str]) -> dict[str, str]:
        """In which state each task ended; empty: its result is gone."""
        ids, found = list(ids), {}
        for start in range(0, len(ids), _BATCH):
            batch = ids[start : start + _BATCH]
            with self.site.redis.pipeline(transaction=False) as pipe:
                for id in batch:
                    pipe.getrange(f"{PREFIX}r:{id}", 0, 10)
                values = [str(value).partition("|")[0] for value in pipe.execute()]
            found.update(zip(batch, values, strict=True))
        return found

    def _wrong_ends(self, dead: set[str]) -> list[str]:
        states = self.states(self.owed)
        wrong = {
            id: state
            for id, state in states.items()
            if state and state != ("dead" if id in dead else "done")
        }
        return [f"ended otherwise than they should: {wrong}"] if wrong else []

    def _leftovers(self) -> list[str]:
        """Whatever an idle namespace must not have."""
        client = self.site.redis
        return [
            f"left in Redis: {key}"
            for pattern in _OWNED_BY_NOBODY
            for key in client.scan_iter(self.site.key(pattern), count=1000)
            if client.exists(key)
        ]

    async def _doctor(self) -> list[str]:
        """What ``task-run doctor`` finds; through no proxy."""
        settings = {**self.site.settings, **self._of_workers}
        times = {n: float(settings[f"NONET_{n.upper()}"]) for n in ("lease", "lock_ttl")}
        async with self.site.app(redis_url=self.server.url_for("task-run"), **times) as app:
            # Two walks put a count right, and each takes 0.1 s per 150 keys, results included.
            found = (await app.doctor(wait=2 * WAIT_SECONDS)).problems
        return [f"doctor: {item.kind} {item.what} {item.problem}" for item in found]

    def _callbacks_twice(self) -> dict[str, int]:
        """Callbacks of one group under more than one id."""
        ids: dict[str, set[str]] = defaultdict(set)
        for event in self.site.journal("start", task="Report"):
            ids[event.details["name"]].add(event.id)
        return {name: len(found) for name, found in ids.items() if len(found) > 1}

    def _overlaps(self) -> list[str]:
        """Executions that began under a mutex before another one, which was never told that it
        had lost it, ended."""
        events = self.site.journal()
        ends = {(event.id, event.fence): event.at for event in events if event.event == "end"}
        held: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            if event.event == "start" and event.details.get("lock"):
                held[event.details["lock"]].append(event)
        found = []
        for lock, starts in held.items():
            latest = 0.0
            for event in sorted(starts, key=lambda start: start.at):
                if event.at < latest:
                    found.append(f"{event.id} on {lock}")
                latest = max(latest, ends.get((event.id, event.fence), 0.0))
        return found


@dataclass(frozen=True)
class Death:
    """A worker that was killed.

    Attributes:
        at: Unix seconds.
        held: ids that it was executing.
    """

    at: float
    held: frozenset[str]


class Fleet:
    """Workers, of which a test kills one now and then."""

    def __init__(self, rig: Rig, count: int, slots: int, environment: dict[str, str]) -> None:
        self.slots = slots
        self.deaths: list[Death] = []
        self._rig = rig
        self._environment = environment
        self._random = random.Random(4)
        self.daemons = [self.hire() for _ in range(count)]
        for daemon in self.daemons:
            daemon.wait_ready()

    def hire(self) -> Daemon:
        """Start one more, without waiting until it is ready."""
        options = ("--concurrency", str(self.slots))
        return self._rig.site.worker(*options, wait=False, **self._environment)

    def kill_one(self) -> None:
        """Kill one at random and put another in its place, without waiting until that is ready."""
        place = self._random.randrange(len(self.daemons))
        victim = self.daemons[place]
        victim.kill()
        at = time.time()
        self.daemons[place] = self.hire()
        self.deaths.append(Death(at, self.held_by(victim.pid)))

    async def kill_every(self, seconds: float, until_true: Callable[[], bool]) -> None:
        """Kill one every so many seconds, until a condition holds."""
        due = time.monotonic()
        while not until_true():
            due += seconds
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await asyncio.to_thread(self.kill_one)

    def held_by(self, pid: int) -> frozenset[str]:
        """What a process had begun and not ended."""
        events = self._rig.site.journal(pid=pid)
        ended = {(event.id, event.fence) for event in events if event.event != "start"}
        return frozenset(
            event.id
            for event in events
            if event.event == "start" and (event.id, event.fence) not in ended
        )

    def recovery(self, death: Death) -> float:
        """Seconds from a death until the last task of the dead had ended; 0 if it held none."""
        settled = self._rig.settled
        return max((settled.last(id) - death.at for id in death.held), default=0.0)


@dataclass
class Load:
    """Clients that submit tasks for as long as a fault lasts.

    An id that was not accepted is submitted again until it is: the client of promise 3.

    Attributes:
        later: by how many seconds each task is delayed, by its number.
        accepted: ids, in this order.
        refusals: how often a submit failed.
    """

    rig: Rig
    app: Nonet
    make: Callable[[int], BaseTask]
    pause: float = 0.1
    clients: int = 20
    later: Callable[[int], float] = lambda number: 0.0
    accepted: list[str] = field(default_factory=list, init=False)
    refusals: int = field(default=0, init=False)
    _under_way: set[str] = field(default_factory=set, init=False)
    _not_owed: set[str] = field(default_factory=set, init=False)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        stop, numbers = asyncio.Event(), itertools.count()
        clients = [asyncio.create_task(self._run(stop, numbers)) for _ in range(self.clients)]
        try:
            yield self
        finally:
            stop.set()
            await asyncio.gather(*clients)

    def wiped(self, keeping: Collection[str] = ()) -> None:
        """Redis has just lost its data, but for that of `keeping`."""
        self.rig.wiped(keeping)
        # They may have been accepted before; their clients do not know yet.
        self._not_owed |= self._under_way

    async def _run(self, stop: asyncio.Event, numbers: Iterator[int]) -> None:
        while not stop.is_set():
            number = next(numbers)
            id = f"load-{number}"
            self._under_way.add(id)
            later = self.later(number)
            due = datetime.now(UTC) + timedelta(seconds=later) if later else None
            await self._submit(id, self.make(number), due)
            self._under_way.discard(id)
            await asyncio.sleep(self.pause)

    async def _submit(self, id: str, task: BaseTask, due: datetime | None) -> None:
        while True:
            try:
                await self.app.submit(task, id=id, at_time=due)
            except NonetError:
                self.refusals += 1
                await asyncio.sleep(0.1)
            else:
                break
        if id not in self._not_owed:
            self.accepted.append(id)
            self.rig.accepted([id])


class Settled:
    """Which tasks have ended and when, as Redis announces it: a settle writes the result once.

    It listens in threads, outlives restarts of the servers, and remembers across a flush.
    """

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._client = server.client()
        self._at: dict[str, list[float]] = defaultdict(list)
        self._marks = 0
        leads = getattr(server, "leads", lambda port: True)
        self._listeners = [_Listener(connect, leads, self._note) for connect in server.announcers]
        for listener in self._listeners:
            assert listener.listening.wait(WAIT_SECONDS), "no server announces settlements"

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._client.close()

    def ids(self) -> set[str]:
        """Those that have ended, perhaps not all that did so in this moment."""
        return set(self._at.copy())

    def includes(self, wanted: set[str]) -> bool:
        """Whether all these have ended. The few that are missing are looked up in Redis: what
        ends before the threads have come back to a new server is not announced."""
        missing = sorted(wanted - self.ids())
        if 0 < len(missing) <= _FEW:
            self._catch_up()
            with self._client.pipeline(transaction=False) as pipe:
                for id in missing:
                    pipe.exists(f"{PREFIX}r:{id}")
                ended = [id for id, found in zip(missing, pipe.execute(), strict=True) if found]
            self._catch_up()
            for id in set(ended) - self.ids():
                self._at[id].append(time.time())
        return wanted <= self.ids()

    def counts(self) -> dict[str, int]:
        self._catch_up()
        return {id: len(times) for id, times in self._at.copy().items()}

    def last(self, id: str) -> float:
        """When it ended (Unix seconds), the last time if it did so more than once."""
        return self._at[id][-1]

    def first(self, id: str) -> float:
        """When it ended (Unix seconds), the first time if it did so more than once."""
        return self._at[id][0]

    def _catch_up(self) -> None:
        """Wait until everything announced so far has been heard."""
        self._marks += 1
        mark = self._marks
        deadline = time.monotonic() + WAIT_SECONDS
        while any(listener.seen < mark for listener in self._listeners):
            assert time.monotonic() < deadline, "the announcements have stopped"
            # As if it were announced; a full Redis would refuse to make a key.
            self._client.publish(f"__keyspace@0__:{PREFIX}r:mark-{mark}", "set")
            time.sleep(0.02)

    def _note(self, id: str) -> None:
        self._at[id].append(time.time())


class _Listener:
    """A thread that hears what one server announces, as long as it `leads`."""

    def __init__(
        self,
        connect: Callable[..., redis.Redis],
        leads: Callable[[int], bool],
        note: Callable[[str], None],
    ) -> None:
        self._leads = leads
        self.seen = -1
        self.listening = threading.Event()
        self._connect, self._note = connect, note
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="settled", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping = True
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stopping:
            with contextlib.suppress(redis.RedisError, OSError):
                self._listen()
            self.listening.clear()
            time.sleep(0.005)

    def _listen(self) -> None:
        # A new connection each time, and only when the data is loaded: what Redis reads back from
        # its own log it announces once more.
        with self._connect(retry=Retry(NoBackoff(), 0)) as client:
            client.ping()
            pubsub = client.pubsub(ignore_subscribe_messages=True)
            pubsub.psubscribe(f"__keyspace@0__:{PREFIX}r:*")
            pubsub.get_message(timeout=1)
            self.listening.set()
            looked = time.monotonic()
            while not self._stopping:
                if time.monotonic() > looked + _LOOK_SECONDS:
                    if not self._leads(pubsub.connection.port):
                        break
                    looked = time.monotonic()
                message = pubsub.get_message(timeout=_LOOK_SECONDS)
                if message and message["data"] == "set":
                    self._hear(message["channel"].partition(":r:")[2])
            pubsub.close()

    def _hear(self, id: str) -> None:
        if id.startswith("mark-"):
            self.seen = max(self.seen, int(id.removeprefix("mark-")))
        else:
            self._note(id)


async def rows_of(url: str) -> list[str]:
    """The task id of each dead letter in a database."""
    store = DeadLetters(url, "")
    try:
        return [row.task_id for row in await store.list(limit=1_000_000, every_namespace=True)]
    finally:
        await store.close()


@contextlib.contextmanager
def same_processes(*daemons: Daemon) -> Iterator[None]:
    """Fail if one of them has ended when the block has."""
    yield
    for daemon in daemons:
        assert daemon.alive, f"a daemon ended:\n{daemon.log[-3000:]}"


@dataclass
class Crew:
    """Two workers, a scheduler and clients that submit all the time.

    Attributes:
        recoveries: seconds from the end of each fault until tasks ended again.
        terms: of `Rig.judge`, as a test has given them to `judged`.
        unsure: ids of which an older copy of the data did not know the end.
    """

    rig: Rig
    fleet: Fleet
    scheduler: Daemon
    load: Load
    recoveries: list[float] = field(default_factory=list)
    terms: dict[str, Any] = field(default_factory=dict)
    unsure: Callable[[], set[str]] = set

    async def is_busy(self) -> None:
        """Submit more than all slots can take, and wait until some of it is executed."""
        load = [Timed(0.3, f"stock-{n}" if n % 2 else "") for n in range(40)]
        ids = await self.rig.submit(self.load.app, load)
        await until(lambda: set(ids) & self.rig.settled.ids(), "some of the stock has ended")

    async def until_it_serves(self, since: float | None = None) -> None:
        """Wait until something that was submitted from now on has ended."""
        since, before = since or time.time(), len(self.load.accepted)
        await until(
            # Not the first: they may have been on their way before.
            lambda: self.rig.settled.ids() & set(self.load.accepted[before + self.load.clients :]),
            "tasks that are submitted now end",
        )
        self.recoveries.append(time.time() - since)

    def judged(self, faults: str, **terms: Any) -> None:
        """With which words and terms the promises are checked at the end."""
        self.terms = {"faults": faults, **terms}


def held(n: int) -> Timed:
    """A short task, every other one under a mutex."""
    return Timed(0.05, f"lock-{n % 7}" if n % 2 else "")


@contextlib.asynccontextmanager
async def under_load(
    rig: Rig, make: Callable[[int], BaseTask] = held, *, keeps: bool = True, **options: Any
) -> AsyncIterator[Crew]:
    """Run daemons and clients while the block breaks something, then check the promises.

    Args:
        make: makes the n-th task.
        keeps: the daemons must be the same processes at the end.
        options: of the application, and `later` of `Load`.
    """
    later = options.pop("later", Load.later)
    async with rig.site.app(**options) as app:
        load = Load(rig, app, make, later=later)
        crew = Crew(rig, rig.workers(2, slots=10), rig.site.scheduler(), load)
        with same_processes(*((*crew.fleet.daemons, crew.scheduler) if keeps else ())):
            async with load.running():
                yield crew
            if not crew.terms.get("may_lose"):
                await rig.settles(rig.owed)
                await rig.families_reported()
            await rig.judge(
                **{
                    "recovery": max(crew.recoveries),
                    "within": RECOVERY,
                    "may_end_again": crew.unsure(),
                    **crew.terms,
                }
            )
