"""Print the progress, figures and warnings of the demo."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from pathlib import Path

from nonet.cli.demo.audit import NAMESPACE, TASKS, Progress, Summary
from nonet.cli.demo.hashing import as_text
from nonet.cli.output import echo, print_table

_LARGEST = 5
_LINE_SECONDS = 5.0


def progress(*, silent: bool) -> Progress:
    """Return a function that prints a line for each step, and another every few seconds."""
    last, printed_at = "", 0.0

    def show(doing: str, done: int, total: int) -> None:
        nonlocal last, printed_at
        if not silent and (doing != last or time.monotonic() > printed_at + _LINE_SECONDS):
            count = f": {done} of {total} tasks" if done else ""
            echo(doing + count, err=True)
            last, printed_at = doing, time.monotonic()

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
        echo()
        echo("The duplicates that waste most:")
        largest = sorted(wasting, key=lambda group: group.wasted, reverse=True)[:_LARGEST]
        rows = [
            (f"{group.wasted:,}", f"{len(group.paths):,}", as_text(group.paths[0]))
            for group in largest
        ]
        print_table(["wasted bytes", "files", "one of them"], rows)


def print_warnings(summary: Summary) -> None:
    """Print files and directories missing from the figures, and how to inspect the dead letters."""
    if summary.closed:
        names = ", ".join(map(as_text, summary.closed_first))
        more = ", …" if summary.closed > len(summary.closed_first) else ""
        echo(
            f"warning: directories left out because they could not be listed: {summary.closed} "
            f"({names}{more})",
            err=True,
        )
    if summary.dead_letters:
        where = f"NONET_DB_URL={shlex.quote(summary.database)} NONET_NAMESPACE={NAMESPACE}"
        command = f"  {where} {_task_run()} dlq"
        for line in (
            f"files that could not be read: {summary.dead_letters}. Inspect their dead letters:",
            f"{command} list",
            f"{command} show ROW --show-args --tasks {TASKS}",
        ):
            echo(line, err=True)


def _task_run() -> str:
    """The shell command that runs this program."""
    script = Path(sys.argv[0]).resolve()
    found = shutil.which("task-run")
    return "task-run" if found and Path(found).resolve() == script else shlex.quote(str(script))
