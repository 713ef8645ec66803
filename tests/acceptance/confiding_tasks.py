"""Tasks that put a secret wherever something of a task is kept: `encrypted_tasks` encrypts them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from nonet import (
    BaseTask,
    CallbackSpawner,
    ExponentialBackoff,
    Size,
    UnableToAcquireLockError,
    context,
)

AGAIN = ExponentialBackoff(base_delay_seconds=0, max_retries=1)


@dataclass
class Confiding(BaseTask):
    """Is given a secret; a result, an error or another task repeats it."""

    data: Any
    size = Size.SMALL


class Echo(Confiding):
    """Returns it."""

    async def execute(self) -> Any:
        return {"found": [self.data]}


class EchoInChild(Echo):
    """Returns it from a process that others use as well."""

    size = Size.MEDIUM


class Kept(Echo):
    """Is kept in SQL, too."""

    durable = True


class Fails(Confiding):
    """Fails twice, and says why; becomes a dead letter."""

    dlq_eligible = True
    retry_policy = AGAIN

    async def execute(self) -> None:
        try:
            raise KeyError(self.data)
        except KeyError as error:
            raise ValueError(f"bad {self.data!r}") from error


class FailsInChild(Fails):
    """The same in a process of its own."""

    size = Size.LARGE


class FailsQuietly(Fails):
    """The same, and only Redis remembers it."""

    dlq_eligible = False


class Dies(Confiding):
    """Ends its process, each time."""

    dlq_eligible = True
    size = Size.MEDIUM

    async def execute(self) -> None:
        os._exit(1)


class Late(Confiding):
    """Is never started in time."""

    dlq_eligible = True
    start_by = timedelta(milliseconds=1)

    async def execute(self) -> None: ...


class Saves(Confiding):
    """Saves it, reports it, is handed back once and fails once; then returns what it saved."""

    retry_policy = AGAIN

    async def execute(self) -> Any:
        saved = context().saved
        if saved is None:
            context().progress(0.5, f"at {self.data!r}"[:60])
            await context().checkpoint({"at": self.data})
            raise UnableToAcquireLockError(f"the lock of {self.data!r}")
        if context().attempt == 1:
            raise ValueError(f"after {saved!r}")
        context().progress(1, f"saved {self.data!r}"[:60])
        return saved


class Report(Confiding):
    """The callback of `Parent`: returns the results of its children."""

    async def execute(self) -> Any:
        return [child.value for child in await context().group_results()]


class Parent(Confiding):
    """Hands it to children, to their callback, and to a task that follows."""

    child: ClassVar[type[Confiding]] = Echo
    callback: ClassVar[type[Confiding]] = Report

    async def execute(self, spawn: CallbackSpawner) -> str:
        context().after_commit(self.child(self.data), id=f"{context().id}.next")
        children = [self.child(self.data), self.child(self.data)]
        return await spawn(children, self.callback(self.data))
