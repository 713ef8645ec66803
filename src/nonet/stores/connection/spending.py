"""Count the commands that a part of a process sends to Redis, e.g. the pages of a dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Spending:
    """Commands that were sent. A call of a script is one command, whatever the script does.

    Example:
        pages = Spending()
        with spending(pages):
            await stores.results.workers()
        print(pages.commands)
    """

    __slots__ = ("commands",)

    def __init__(self) -> None:
        self.commands = 0


_current: ContextVar[Spending | None] = ContextVar("spending", default=None)


@contextmanager
def spending(counted: Spending) -> Iterator[None]:
    """Count in `counted` what this block sends, and the asyncio tasks that it starts."""
    token = _current.set(counted)
    try:
        yield
    finally:
        _current.reset(token)


def note_sent(commands: int) -> None:
    """Count commands for the block that sends them, if its commands are counted."""
    if (counted := _current.get()) is not None:
        counted.commands += commands
