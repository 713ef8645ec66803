"""Print the progress, figures and warnings of the demo."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bars

from nonet.base.plain import printable
from nonet.cli.output import print_table
from nonet.demo.audit import NAMESPACE, TASKS, Progress, Summary
from nonet.demo.hashing import as_text

_LARGEST = 5
_PLAIN_SECONDS = 5.0


@contextmanager
def silence() -> Iterator[Progress]:
    """Show no progress."""
    yield lambda doing, done, total: None


@contextmanager
def progress() -> Iterator[Progress]:
    """Show progress on stderr: a bar for each step on a terminal, else plain lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain_lines()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=console) as bars:
        steps: dict[str, TaskID] = {}

        def show(doing: str, done: int, total: int) -> None:
            if doing not in steps:
                for step in bars.tasks:  # earlier steps are complete
                    bars.update(step.id, total=step.total or 1, completed=step.total or 1)
                steps[doing] = bars.add_task(printable(doing), total=None)
            bars.update(steps[doing], completed=done, total=total or None)

        yield show


def _plain_lines() -> Progress:
    """Print a line for each step, and another every few seconds."""
    last, said = "", 0.0

    def show(doing: str, done: int, total: int) -> None:
        nonlocal last, said
        if doing != last or time.monotonic() > said + _PLAIN_SECONDS:
            count = f": {done} of {total} tasks" if done else ""
            typer.echo(printable(doing) + count, err=True)
            last, said = doing, time.monotonic()

    return show


def print_summary(summary: Summary) -> None:
    """Print the figures, and the duplicates that waste the most space."""
    figures = {
        "files": f"{summary.files:,}",
        "bytes": f"{summary.total_bytes:,}",
        "duplicate groups": f"{len(summary.groups):,}",
        "wasted bytes": f"{summary.wasted_bytes:,}",
        "retries": f"{summary.retries:,}",
        "dead letters": f"{summary.dead_letters:,}",
        "tasks": f"{summary.tasks:,}",
        "seconds": f"{summary.seconds:,.2f}",
        "tasks per second": f"{summary.tasks / summary.seconds:,.0f}",
    }
    print_table([], figures.items())
    wasting = [group for group in summary.groups if group.wasted]
    if wasting:
        typer.echo("\nThe duplicates that waste most:")
        largest = sorted(wasting, key=lambda group: group.wasted, reverse=True)[:_LARGEST]
        rows = [
            (f"{group.wasted:,}", f"{len(group.paths):,}", as_text(group.paths[0]))
            for group in largest
        ]
        print_table(["wasted bytes", "files", "one of them"], rows)


def print_warnings(summary: Summary) -> None:
    """Print files and directories missing from the figures, and how to inspect the dead letters."""
    if summary.closed:
        names = ", ".join(printable(as_text(path)) for path in summary.closed_first)
        more = ", …" if summary.closed > len(summary.closed_first) else ""
        typer.echo(
            f"warning: directories left out because they could not be listed: {summary.closed} "
            f"({names}{more})",
            err=True,
        )
    if summary.dead_letters:
        where = f"NONET_DB_URL={shlex.quote(summary.database)} NONET_NAMESPACE={NAMESPACE}"
        command = f"  {where} {_task_run()} dlq"
        typer.echo(
            f"files that could not be read: {summary.dead_letters}. Inspect their dead letters:\n"
            f"{command} list\n{command} show ROW --show-args --tasks {TASKS}",
            err=True,
        )


def _task_run() -> str:
    """The shell command that runs this program."""
    script = Path(sys.argv[0]).resolve()
    found = shutil.which("task-run")
    return "task-run" if found and Path(found).resolve() == script else shlex.quote(str(script))
