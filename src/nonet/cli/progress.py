"""Show the progress of long work on a terminal."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import typer

# Work that takes less time shows nothing.
_LONG_SECONDS = 0.5


@contextmanager
def progress(
    label: str, total: int | None = None, *, prints: bool = False
) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts finished steps, and shows them on stderr if it is a terminal.

    Args:
        label: what is done, before the bar: ``submitting``.
        total: the number of steps; None if it is unknown, which shows a count in place of a bar.
        prints: the work prints on stdout meanwhile. If that is a terminal too, its lines show the
            progress, and there is no bar.
    """
    is_shown = _is_terminal(sys.stderr) and not (prints and _is_terminal(sys.stdout))
    began, done = time.monotonic(), 0
    bar: Any = None
    with ExitStack() as closing:

        def advance(steps: int) -> None:
            nonlocal bar, done
            done += steps
            if bar is not None:
                bar.update(steps)
            elif is_shown and time.monotonic() - began >= _LONG_SECONDS:
                bar = closing.enter_context(_bar(label, total))
                bar.update(done)

        yield advance


def _bar(label: str, total: int | None) -> Any:
    if total is None:  # typer takes it from an iterable whose length it cannot tell
        template = f"{label}: %(info)s"
        endless = itertools.repeat(None)
        return typer.progressbar(endless, bar_template=template, show_pos=True, file=sys.stderr)
    return typer.progressbar(length=total, label=label, show_pos=True, file=sys.stderr)


def _is_terminal(file: Any) -> bool:
    return file is not None and file.isatty()
