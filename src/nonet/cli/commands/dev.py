"""``task-run dev``: one command for a laptop."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from nonet.app import Nonet
from nonet.cli.dev.log import MergedLog
from nonet.cli.dev.plan import Plan, make_plan
from nonet.cli.dev.reloading import LONGEST_END_SECONDS, ReloadingSystem
from nonet.cli.options import ConfigSource
from nonet.cli.output import has_colours
from nonet.cli.process import run
from nonet.cli.target import Target, flat
from nonet.daemon.service import ExitCode, stop_on_signals


@flat
def dev(
    target: Target,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE...]",
            help="Files of tasks, or directories of packages.",
            show_default="the modules of NONET_TASKS",
        ),
    ] = None,
    *,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--module", "-m", metavar="MODULE", help="A module of tasks, by its name. Repeatable."
        ),
    ] = None,
    config: ConfigSource = None,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Let running tasks continue this many seconds after a change or Ctrl-C.",
            show_default="NONET_GRACE, or 5",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Port of the dashboard.",
            show_default="NONET_WEB_PORT, or the first free one from 8800 on",
        ),
    ] = None,
    no_web: Annotated[
        bool, typer.Option("--no-web", help="Run no dashboard, even if it is installed.")
    ] = False,
    no_reload: Annotated[
        bool, typer.Option("--no-reload", help="Do not start anew when the code changes.")
    ] = False,
) -> None:
    """Run all that tasks need on a laptop, and reload their code.

    Starts a scheduler, a worker of each size, the pipelines of the modules and the dashboard;
    without NONET_REDIS_URL also a Redis server, with its data in the state directory. Their logs
    are one stream. The command prints the variables by which other commands reach this system.

    After a change of a Python file new daemons start, and the old ones drain: what they do not
    finish in time is handed back, and runs again with the new code. Code that cannot be loaded
    changes nothing until the next save. Ctrl-C drains and ends all processes, a second one ends
    them at once.

    Exit codes: 0 stopped, 2 usage or configuration error, 143 a second signal stopped it.

    \b
    task-run dev mytasks.py
    task-run dev -m mypackage.tasks --config nonet.yaml
    """

    options = {**target.options(), "config": config, "grace": grace}
    about: dict[str, Any] = {"web_port": port, "has_web": not no_web, "reloads": not no_reload}
    plan = partial(make_plan, files or [], modules or [], options, debug=target.debug, **about)
    run(target.debug, lambda: _develop(plan))


async def _develop(make: Callable[[], Plan]) -> int:
    """Run what a plan has until it is stopped; return the exit code."""
    plan = make()
    log = MergedLog(_writer(lambda: stop.request()), coloured=has_colours())
    signals = stop_on_signals(
        plan.settings.grace + LONGEST_END_SECONDS, on_hangup=lambda: stop.request()
    )
    async with signals as stop, Nonet(plan.settings, load_tasks=False):
        await ReloadingSystem(plan, log).run(stop)
    return ExitCode.SECOND_SIGNAL if stop.forced.is_set() else ExitCode.OK


def _writer(on_closed: Callable[[], None]) -> Callable[[str], None]:
    """Return a function that writes a line to stdout, and reports a closed stdout."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    is_closed = False

    def write(line: str) -> None:
        nonlocal is_closed
        try:
            if not is_closed:
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()
        except OSError:
            is_closed = True
            with suppress(
                OSError
            ):  # what is left in the buffer must not fail the end of the process
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            on_closed()

    return write
