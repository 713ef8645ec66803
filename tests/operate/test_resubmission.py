"""Operators resubmit letters side by side and die on the way: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from acceptance.contention import scales
from hypothesis import HealthCheck, Phase, example, given, seed, settings, strategies as st
from servers import RedisServer

from nonet import BaseTask, ConflictError, Nonet, Size
from nonet.base.errors import NonetError, ServerUnreachableError
from nonet.base.messages.message import decode_envelope, encode, pack
from nonet.base.messages.repetition import Known, Progress, Repeat, Step, next_step
from nonet.operate import resubmission as dlq
from nonet.rules.letters import DeadLetter, NewDeadLetter, Status
from nonet.stores.sql.dead_letters import DeadLetters
from nonet.tasks.task import Options

NAMESPACE = "test"
WORKER = "small-a1"


class Repeated(BaseTask):
    """Names the letter that it repeats; a squatter names none."""

    letter: str = ""
    size = Size.SMALL

    async def execute(self) -> None: ...


class Operator:
    """One `resubmit`, which makes one call to a server with each `step`."""

    def __init__(self, world: World, again: bool, loses_reply: bool) -> None:
        self.again, self._loses_reply = again, loses_reply
        self._world = world
        self._go: asyncio.Future[None] | None = None
        self._stopped = asyncio.Event()
        client = _Gated(world.app.client, self._gate, recognise=self._pass, send=self._send)
        letters = _Gated(
            world.letters, self._gate, **dict.fromkeys(("claim", "dispatch", "release"), self._pass)
        )
        self.task = asyncio.create_task(dlq.resubmit(world.row, client, letters, again=again))
        self.task.add_done_callback(lambda _: self._stopped.set())

    @property
    def is_in_flight(self) -> bool:
        return not self.task.done()

    async def step(self) -> None:
        """Let it make one call; return when it wants to make the next one, or has ended."""
        self._stopped.clear()
        if self._go is not None and not self._go.done():
            self._go.set_result(None)
        if self.is_in_flight:
            await self._stopped.wait()
        if self.task.done() and not self.task.cancelled():
            error = self.task.exception()
            assert error is None or isinstance(error, NonetError), error

    async def die(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})

    async def _gate(self) -> None:
        self._go = asyncio.get_running_loop().create_future()
        self._stopped.set()
        await self._go

    async def _pass(self, call: Callable[..., Awaitable[Any]], *args: Any, **more: Any) -> Any:
        return await call(*args, **more)

    async def _send(self, call: Callable[..., Awaitable[Any]], *args: Any, **more: Any) -> Any:
        handle = await call(*args, **more)
        envelope = decode_envelope(args[0].envelope)
        if handle.created:
            self._world.accepted[envelope.args["letter"]].add(str(handle))
        if self._loses_reply:
            raise ServerUnreachableError("the reply was lost")
        return handle


class _Gated:
    """A store or client of which some calls wait at a gate."""

    def __init__(self, wrapped: Any, gate: Callable[[], Awaitable[None]], **calls: Any) -> None:
        self._wrapped, self._gate, self._calls = wrapped, gate, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if name not in self._calls:
            return found

        async def call(*args: Any, **more: Any) -> Any:
            await self._gate()
            return await self._calls[name](found, *args, **more)

        return call


def records_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter is recorded as submitted when it is claimed."""
    claim = DeadLetters.claim

    async def claim_and_dispatch(
        letters: DeadLetters, letter: DeadLetter, repeat: str, number: int
    ) -> None:
        await claim(letters, letter, repeat, number)
        await letters.dispatch(letter.id, repeat)

    monkeypatch.setattr(DeadLetters, "claim", claim_and_dispatch)


def submits_what_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeat that Redis does not know counts as never submitted."""

    def careless(at: Progress, repeat: Repeat, known: Known | None, *, again: bool) -> Step:
        step = next_step(at, repeat, known, again=again)
        return Step.SUBMIT if step is Step.UNSURE else step

    monkeypatch.setattr(dlq, "next_step", careless)


@dataclass
class World:
    """A table with one letter at a time, a namespace, operators, and what came of it.

    Attributes:
        accepted: name of a letter → ids under which Redis accepted its repeats.
        executed: id → how often a repeat ran.
    """

    app: Nonet
    letters: DeadLetters
    server: RedisServer
    letter: DeadLetter = field(init=False)
    operators: list[Operator] = field(default_factory=list)
    accepted: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    executed: Counter[str] = field(default_factory=Counter)
    names: int = 0

    @property
    def row(self) -> int:
        return self.letter.id

    async def truncate(self) -> None:
        """Empty the table, so that numbers are given again, and add another letter."""
        database = self.letters._database
        await database.migrate_sqlite()
        async with database.transaction() as connection:
            for table in ("dlq_tasks", "sqlite_sequence"):
                await connection.execute(sa.text(f"DELETE FROM {table}"))
        self.names += 1
        row = await self.letters.add(
            NewDeadLetter(
                task_id=f"letter-{self.names}",
                generation=1,
                task_class="repeats:Repeated",
                task_args=encode(pack({"letter": f"letter-{self.names}"})),
                submitted_at=datetime(2026, 1, 1, tzinfo=UTC),
                reason="retries",
            )
        )
        self.letter = await self.letters.get(row)

    async def start(self, again: bool, loses_reply: bool, calls: int = 0) -> None:
        now = await self.letters.get(self.row)
        # `again` claims that the task never ran, which is true only if it was never accepted.
        is_begun = now.status is Status.PENDING and now.resubmitted_as
        again = again and not (is_begun and now.resubmitted_as in self.accepted[now.task_id])
        operator = Operator(self, again, loses_reply)
        self.operators.append(operator)
        for _ in range(1 + calls):
            await operator.step()

    async def squat(self) -> None:
        now = await self.letters.get(self.row)
        repeat = now.identity.repeat(now.resubmissions)
        prepare = self.app.client.envelopes.prepare
        await self.app.broker.submit([prepare(Repeated(), Options(id=repeat.id), is_step=True)])

    async def work(self, outcome: str) -> None:
        deliveries, _ = await self.app.broker.fetch(WORKER, "small", 10)
        for each in deliveries:
            envelope = decode_envelope(each.envelope)
            self.executed[each.id] += bool(envelope.args["letter"])
            if outcome == "dead" and envelope.resubmitted_from:
                await self.letters.mark_failed(envelope.resubmitted_from, each.id)
            assert await self.app.broker.settle(each, outcome) == "OK"

    async def cancel(self) -> None:
        ids = [status.id async for status in self.app.stores.results.live(state="queued")]
        await self.app.client.cancel_not_running(ids)

    def forget(self, *, everything: bool) -> None:
        """Time passes, or Redis is emptied; not while an operator with `again` is in flight."""
        is_amid = any(each.is_in_flight for each in self.operators)
        if is_amid and any(each.again for each in self.operators):
            return
        with self.server.client() as redis:
            found = [] if everything else list(redis.scan_iter(f"{{{NAMESPACE}}}:r:*"))
            if everything:
                redis.flushdb()
            elif found:
                redis.delete(*found)

    async def check(self) -> None:
        for letter in await self.letters.list():
            if letter.status is not Status.PENDING:
                assert letter.resubmitted_as in self.accepted[letter.task_id], letter
        assert [id for id, times in self.executed.items() if times > 1] == []

    async def act(self, action: tuple[Any, ...]) -> None:
        match action:
            case ("start", again, loses_reply, calls):
                await self.start(again, loses_reply, calls)
            case ("step" | "die" as what, which):
                if live := [each for each in self.operators if each.is_in_flight]:
                    await getattr(live[which % len(live)], what)()
            case ("truncate",):
                await self.truncate()
            case ("squat",):
                await self.squat()
            case ("work", outcome):
                await self.work(outcome)
            case ("cancel",):
                await self.cancel()
            case ("forget", everything):
                self.forget(everything=everything)
        await self.check()

    async def close(self) -> None:
        """Let all come to their end; then the next operator submits a letter that is free."""
        for operator in self.operators:
            while operator.is_in_flight:
                await operator.step()
        await self.work("done")
        await self.check()
        self.forget(everything=True)
        now = await self.letters.get(self.row)
        if now.status is Status.PENDING and not now.resubmitted_as:
            await self.start(False, False)
            while self.operators[-1].is_in_flight:
                await self.operators[-1].step()
            assert (await self.letters.get(self.row)).status is Status.DISPATCHED
        await self.check()


STEP = st.tuples(st.just("step"), st.integers(0, 3))
# With how many calls: most come to their end before others begin.
START = st.tuples(st.just("start"), st.booleans(), st.booleans(), st.sampled_from([0, 2, 5, 5]))
ACTION = st.one_of(
    START,
    START,
    STEP,
    STEP,
    st.just(("work", "done")),
    st.tuples(st.just("die"), st.integers(0, 3)),
    st.tuples(st.just("work"), st.sampled_from(["done", "dead"])),
    st.sampled_from([("truncate",), ("squat",), ("cancel",)]),
    st.tuples(st.just("forget"), st.booleans()),
)


# The reply of a submission is lost, its task runs, and Redis forgets that: chance takes long.
FORGOTTEN: list[tuple[Any, ...]] = [
    ("start", False, True, 5),
    ("work", "done"),
    ("forget", False),
    ("start", False, False, 5),
    ("work", "done"),
]


def play(server: RedisServer, home: Path, examples: int) -> None:
    """Random histories in one application."""
    with asyncio.Runner() as runner:
        app = Nonet.from_settings(
            redis_url=server.url,
            namespace=NAMESPACE,
            db_url=f"sqlite+aiosqlite:///{home}/nonet.db",
            state_dir=home,
        )
        app.registry.add(Repeated, "repeats")
        runner.run(app.__aenter__())

        @seed(1)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @example(FORGOTTEN)
        @given(st.lists(ACTION, min_size=10, max_size=40))
        def history(actions: list[tuple[Any, ...]]) -> None:
            runner.run(one(app, server, actions))

        try:
            history()
        finally:
            runner.run(app.__aexit__(None, None, None))


async def one(app: Nonet, server: RedisServer, actions: list[tuple[Any, ...]]) -> None:
    with server.client() as redis:
        redis.flushdb()
    world = World(app, await app.dead_letters(), server)
    try:
        await world.truncate()
        for action in actions:
            await world.act(action)
        await world.close()
    finally:
        for operator in world.operators:
            with suppress(ConflictError, asyncio.CancelledError):
                await operator.die()
            if operator.task.done() and not operator.task.cancelled():
                operator.task.exception()


@scales(12, 400)
def test_a_letter_is_lost_in_no_history(
    redis_server: RedisServer, tmp_path: Path, scale: int
) -> None:
    """A dispatched letter was submitted, and nothing runs twice for one resubmission count."""
    play(redis_server, tmp_path, scale)


@pytest.mark.parametrize("fault", [records_first, submits_what_is_unknown])
def test_a_deliberate_fault_is_caught(
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """The histories notice the fault."""
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        play(redis_server, tmp_path, 500)
