"""Tasks that raise what is hard on a worker, at every place where it calls their code."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from acceptance.probe_tasks import Small, Unprintable, note

from nonet import Depends, RetryPolicyBase, context
from nonet.tasks.locks import BaseLock

MIB = 1024 * 1024


class Huge(Exception):
    def __str__(self) -> str:
        return "x" * (20 * MIB)


class NoText(Exception):
    def __str__(self) -> Any:
        return None


class ExitsAsText(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)


def _recurse() -> None:
    _recurse()


KINDS: dict[str, Any] = {
    "SystemExit": lambda: SystemExit(7),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": lambda: StopIteration(1),
    "StopAsyncIteration": StopAsyncIteration,
    "RecursionError": _recurse,
    "MemoryError": MemoryError,
    "ExceptionGroup": lambda: ExceptionGroup("g", [ExceptionGroup("g", [ValueError()])]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("g", [KeyboardInterrupt()]),
    "Surrogates": lambda: ValueError("\udcff\x00\x1b[2J"),
    "Endless": type("E" * MIB, (Exception,), {}),
    **{kind.__name__: kind for kind in (Unprintable, Huge, NoText, ExitsAsText)},
}


def raise_odd(name: str) -> None:
    """Raise one of them; an empty name raises nothing."""
    if name:
        raise KINDS[name]()


_IN_WORKER = "PROBE_JOURNAL" in os.environ


@dataclass
class _Raising(Small):
    name: str

    async def execute(self) -> None:
        note("start")


class InExecute(_Raising):
    async def execute(self) -> None:
        note("start")
        raise_odd(self.name)


class InThread(_Raising):
    def execute(self) -> None:  # type: ignore[override]
        note("start")
        raise_odd(self.name)


class InTaskOfItsOwn(_Raising):
    """The loop itself would stop for SystemExit and KeyboardInterrupt."""

    async def execute(self) -> None:
        note("start")

        async def part() -> None:
            await asyncio.sleep(0)
            raise_odd(self.name)

        await asyncio.gather(part(), asyncio.sleep(0.01))


@dataclass
class InConstructor(_Raising):
    def __post_init__(self) -> None:
        if _IN_WORKER:
            raise_odd(self.name)


class InLocks(_Raising):
    @property
    def execution_locks(self) -> list[BaseLock]:
        if _IN_WORKER:
            raise_odd(self.name)
        return super().execution_locks


def _name() -> str:
    return str(context().labels["name"])


async def set_up() -> AsyncIterator[None]:
    raise_odd(_name())
    yield


async def tear_down() -> AsyncIterator[None]:
    yield
    raise_odd(_name())


def set_up_in_thread() -> Iterator[None]:
    raise_odd(_name())
    yield


def tear_down_in_thread() -> Iterator[None]:
    yield
    raise_odd(_name())


class InSetUp(_Raising):
    async def execute(self, _: Annotated[None, Depends(set_up)]) -> None:  # type: ignore[override]
        note("start")


class InTearDown(_Raising):
    async def execute(self, _: Annotated[None, Depends(tear_down)]) -> None:  # type: ignore[override]
        note("start")


class InSetUpInThread(_Raising):
    async def execute(self, _: Annotated[None, Depends(set_up_in_thread)]) -> None:  # type: ignore[override]
        note("start")


class InTearDownInThread(_Raising):
    async def execute(self, _: Annotated[None, Depends(tear_down_in_thread)]) -> None:  # type: ignore[override]
        note("start")


class _Policy(RetryPolicyBase):
    def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
        raise_odd(str(exception))
        return None


class InPolicy(_Raising):
    retry_policy = _Policy()

    async def execute(self) -> None:
        note("start")
        raise ValueError(self.name)


class OddNumber(Decimal):
    name = ""

    def __str__(self) -> str:
        raise_odd(self.name)
        return ""


class InResult(_Raising):
    async def execute(self) -> Decimal:  # type: ignore[override]
        note("start")
        made = OddNumber(1)
        made.name = self.name
        return made


@dataclass
class InLetter(_Raising):
    """Its constructor and its attributes raise when its dead letter is written."""

    dlq_eligible = True

    def __post_init__(self) -> None:
        self.built = True

    @property
    def vo(self) -> str:
        raise_odd(self.name if _IN_WORKER else "")
        return ""

    async def execute(self) -> None:
        note("start")
        raise ValueError("no")


PLACES: list[type[_Raising]] = [
    *(InExecute, InThread, InTaskOfItsOwn, InConstructor, InLocks, InSetUp, InTearDown),
    *(InSetUpInThread, InTearDownInThread, InPolicy, InResult, InLetter),
]
