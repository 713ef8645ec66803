"""Tasks of the tests of workflows."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass, field
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


@dataclass
class Add(BaseTask):
    a: int
    b: int
    size = Size.SMALL

    async def execute(self) -> int:
        return self.a + self.b


@dataclass
class Sum(BaseTask):
    numbers: list[int]
    size = Size.SMALL

    async def execute(self) -> int:
        return sum(self.numbers)


@dataclass
class Fail(BaseTask):
    text: str = "no"
    size = Size.SMALL

    async def execute(self) -> None:
        raise ValueError(self.text)


@dataclass
class Total(BaseTask):
    one: list[int]
    two: list[int]
    size = Size.SMALL

    async def execute(self) -> list[list[int]]:
        return [self.one, self.two]


@dataclass
class Large(BaseTask):
    bytes: int
    size = Size.SMALL

    async def execute(self) -> str:
        return self.bytes * "x"


@dataclass
class Length(BaseTask):
    text: str
    size = Size.SMALL

    async def execute(self) -> int:
        return len(self.text)


@dataclass
class Flaky(BaseTask):
    """Fails in its first attempts; it has three retries."""

    failures: int
    value: int
    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=0, max_retries=3)

    async def execute(self) -> int:
        if context().attempt <= self.failures:
            raise ValueError(f"attempt {context().attempt}")
        return self.value


@dataclass
class Note(BaseTask):
    size = Size.SMALL

    async def execute(self) -> list[str]:
        return [f"{one.state} {one.error}" for one in await context().inputs()]


@dataclass
class Spread(BaseTask):
    number: int
    size = Size.SMALL

    async def execute(self) -> int:
        for n in range(self.number):
            context().add_step(Add(n, n))
        return self.number


@dataclass
class Noop(BaseTask):
    size = Size.SMALL

    async def execute(self) -> None:
        return None


@dataclass
class Late(BaseTask):
    size = Size.SMALL
    start_by = 20

    async def execute(self) -> None:
        return None


@dataclass
class Only(BaseTask):
    number: int
    size = Size.SMALL
    unique = Unique.until_done()

    async def execute(self) -> None:
        return None


@dataclass
class Rated(BaseTask):
    items: int
    size = Size.SMALL

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [RateLimiter("job", "rated", limit=1, window_seconds=1, n_items=self.items)]

    async def execute(self) -> None:
        return None


@dataclass
class Values(BaseTask):
    one: int
    several: list[Any]
    others: list[Any] = field(default_factory=list)
    size = Size.SMALL

    async def execute(self) -> list[Any]:
        return [self.one, self.several, self.others]


@dataclass
class Leaf(BaseTask):
    what: str
    size = Size.SMALL

    async def execute(self) -> str:
        if self.what == "fails":
            raise ValueError("as told")
        return self.what


@dataclass
class Tree(BaseTask):
    """Adds a step for each word: it fails, is added, or handles the failure of another one."""

    words: list[str]
    size = Size.SMALL

    async def execute(self) -> None:
        steps: list[Step[Any]] = []
        for word in self.words:
            what, _, number = word.partition(" ")
            after = failed(steps[int(number)]) if number else ()
            text = {"handles": "handled", "adds": "added"}.get(what, what)
            steps.append(context().add_step(Leaf(text), after=after))


@dataclass
class Guarded(BaseTask):
    """Holds a mutex of its key, and writes down how many did so at a time."""

    key: int
    size = Size.SMALL
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


@dataclass
class Parent(BaseTask):
    """Submits two workflows, and fails twice."""

    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=0, max_retries=3)
    runs: ClassVar[list[str]] = []

    async def execute(self) -> list[str]:
        found = [str(await chain(Noop(), Noop()).submit()) for _ in range(2)]
        self.runs.extend(found)
        if context().attempt < 3:
            raise ValueError("again")
        return found


@dataclass
class Buried(BaseTask):
    size = Size.SMALL
    dlq_eligible = True

    async def execute(self) -> None:
        raise ValueError("for good")


@dataclass
class Isolated(BaseTask):
    """Runs in a child process, reads its inputs there and adds steps."""

    text: str
    size = Size.MEDIUM

    async def execute(self) -> str:
        (before,) = await context().inputs()
        assert before.value == self.text
        context().add_step(Isolated2(os.getpid()))
        return self.text + "!!"


@dataclass
class Isolated2(BaseTask):
    pid: int
    size = Size.LARGE

    def execute(self) -> list[int]:
        return [self.pid, os.getpid()]


@dataclass
class Link(BaseTask):
    left: int
    name: str
    size = Size.SMALL

    async def execute(self) -> None:
        if self.left > 1:
            context().after_commit(Link(self.left - 1, self.name))


@dataclass
class Spreads(BaseTask):
    """Submits a chord from a thread, and fails once after that."""

    parts: int
    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=0.1, max_retries=1)

    def execute(self) -> str:
        parts = [Add(number, number) for number in range(self.parts)]
        run = chord(parts, Sum.given(numbers=PREVIOUS)).submit_sync()
        if context().attempt == 1:
            raise ConnectionError("after the submission")
        return str(run)
