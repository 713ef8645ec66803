"""Show the progress of long work on a terminal."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Self

import typer

# Work that takes less time shows nothing.
_LONG_SECONDS = 0.5
_CLEAR_LINE = "\r\x1b[2K"


class Progress:
    """Counts finished steps, and shows them on stderr if that is a terminal.

    Args:
        label: what is done, before the bar: ``submitting``.
        total: the number of steps; None if it is unknown, which shows a count in place of a bar.

    Example:
        with Progress("submitting", 100) as progress:
            for _ in range(100):
                progress.advance()
    """

    def __init__(self, label: str, total: int | None = None) -> None:
        self._label = label
        self._total = total
        self._done = 0
        self._bar: Any = None
        self._closing = ExitStack()
        self._began = time.monotonic()
        at_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._is_shown = at_terminal and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.close()

    def advance(self, steps: int = 1) -> None:
        """Count steps."""
        self._done += steps
        if self._bar is not None:
            self._bar.update(steps)
        elif self._is_shown and time.monotonic() - self._began >= _LONG_SECONDS:
            self._bar = self._closing.enter_context(self._new_bar())
            self._bar.update(self._done)

    def clear(self) -> None:
        """Remove the bar before something else is printed. The next step shows it again."""
        if self._bar is not None:
            typer.echo(_CLEAR_LINE, err=True, nl=False, color=True)

    def _new_bar(self) -> Any:
        if self._total is not None:
            return typer.progressbar(
                length=self._total, label=self._label, show_pos=True, file=sys.stderr
            )
        return typer.progressbar(  # it counts what an endless iterable has yielded
            itertools.repeat(None),
            bar_template=f"{self._label}: %(info)s",
            show_pos=True,
            file=sys.stderr,
        )


@asynccontextmanager
async def seconds_passing(label: str, at_most: float) -> AsyncIterator[None]:
    """Show how many of at most so many seconds have passed, while the block runs."""

    async def count() -> None:
        for _ in range(int(at_most)):
            await asyncio.sleep(1)
            progress.advance()

    with Progress(label, int(at_most)) as progress:
        counting = asyncio.create_task(count())
        try:
            yield
        finally:
            counting.cancel()
