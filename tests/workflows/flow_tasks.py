"""Tasks of the tests of workflows."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import field
from typing import Any, ClassVar

from nonet import (
    PREVIOUS,
    BaseTask,
    ExponentialBackoff,
    MutexLock,
    RateLimiter,
    Size,
    Step,
    Unique,
    chain,
    chord,
    context,
    failed,
)
from nonet.tasks.locks import BaseLock


class Small(BaseTask):
    size = Size.SMALL


class Add(Small):
    a: int
    b: int

    async def execute(self) -> int:
        return self.a + self.b


class Sum(Small):
    numbers: list[int]

    async def execute(self) -> int:
        return sum(self.numbers)


class Fail(Small):
    text: str = "no"

    async def execute(self) -> None:
        raise ValueError(self.text)


class Large(Small):
    bytes: int

    async def execute(self) -> str:
        return self.bytes * "x"


class Note(Small):
    async def execute(self) -> list[str]:
        return [f"{one.state} {one.error}" for one in await context().inputs()]


class Spread(Small):
    number: int

    async def execute(self) -> int:
        for n in range(self.number):
            context().add_step(Add(n, n))
        return self.number


class Noop(Small):
    async def execute(self) -> None: ...


class Late(Noop):
    start_by = 3600


class Only(Noop):
    number: int
    unique = Unique.until_done()


class Rated(Small):
    items: int

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [RateLimiter("job", "rated", limit=1, window_seconds=1, n_items=self.items)]

    async def execute(self) -> None: ...


class Values(Small):
    one: int
    several: list[Any]
    others: list[Any] = field(default_factory=list)

    async def execute(self) -> list[Any]:
        return [self.one, self.several, self.others]


class Leaf(Small):
    what: str

    async def execute(self) -> str:
        if self.what == "fails":
            raise ValueError("as told")
        return self.what


class Tree(Small):
    """Adds a step for each word: it fails, is added, or handles the failure of another one."""

    words: list[str]

    async def execute(self) -> None:
        steps: list[Step[Any]] = []
        for word in self.words:
            what, _, number = word.partition(" ")
            after = failed(steps[int(number)]) if number else ()
            text = {"handles": "handled", "adds": "added"}.get(what, what)
            steps.append(context().add_step(Leaf(text), after=after))


class Guarded(Small):
    """Holds a mutex of its key, and writes down how many did so at a time."""

    key: int
    now: ClassVar[Counter[int]] = Counter()
    most: ClassVar[Counter[int]] = Counter()

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MutexLock("job", self.key)]

    async def execute(self) -> None:
        self.now[self.key] += 1
        self.most[self.key] = max(self.most[self.key], self.now[self.key])
        await asyncio.sleep(0.01)
        self.now[self.key] -= 1


class Parent(Small):
    """Submits two workflows, and fails twice."""

    retry_policy = ExponentialBackoff(base_delay_seconds=0, max_retries=3)
    runs: ClassVar[list[str]] = []

    async def execute(self) -> list[str]:
        found = [str(await chain(Noop(), Noop()).submit()) for _ in range(2)]
        self.runs.extend(found)
        if context().attempt < 3:
            raise ValueError("again")
        return found


class Buried(Small):
    dlq_eligible = True

    async def execute(self) -> None:
        raise ValueError("for good")


class Link(Small):
    left: int
    name: str

    async def execute(self) -> None:
        if self.left > 1:
            context().after_commit(Link(self.left - 1, self.name))


class Spreads(Small):
    """Submits a chord from a thread, and fails once after that."""

    parts: int
    retry_policy = ExponentialBackoff(base_delay_seconds=0.1, max_retries=1)

    def execute(self) -> str:
        parts = [Add(number, number) for number in range(self.parts)]
        run = chord(parts, Sum.given(numbers=PREVIOUS)).submit_sync()
        if context().attempt == 1:
            raise ConnectionError("after the submission")
        return str(run)
