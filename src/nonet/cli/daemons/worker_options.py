"""The options of ``task-worker`` that say how much a worker or a fleet runs, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The capacity of a worker or a fleet, and when a worker ends by itself."""

    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Run at most this many tasks at a time.",
            show_default="small 100, medium the number of cores, large 1",
        ),
    ] = None
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERNS",
            help="Take only tasks of these classes, such as 'ml:*,mail:Send'; leave the others to "
            "other workers.",
            show_default="all loaded classes",
        ),
    ] = None
    excluded: Annotated[
        str | None,
        typer.Option(
            "--except",
            metavar="PATTERNS",
            help="Leave the tasks of these classes to other workers.",
            show_default="none",
        ),
    ] = None
    grace: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Let running tasks continue this many seconds after SIGTERM.",
            show_default="25",
        ),
    ] = None
    minimum: Annotated[
        int | None,
        typer.Option(
            "--min",
            min=0,
            help="Fleet: keep at least this many workers.",
            show_default="1 with --max",
        ),
    ] = None
    maximum: Annotated[
        int | None,
        typer.Option(
            "--max",
            min=1,
            help="Fleet: start up to this many workers while there is a backlog.",
            show_default="no fleet",
        ),
    ] = None
    idle_exit: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="End a worker after this many seconds without a task.",
            show_default="in a fleet 60, else never",
        ),
    ] = None
    max_lifetime: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="Drain a worker after this many seconds, plus or minus 10 %; a fleet replaces it.",
            show_default="no limit",
        ),
    ] = None
    fleet_line: Annotated[int | None, typer.Option(hidden=True)] = None

    def settings(self) -> dict[str, Any]:
        """Return the arguments for `nonet.config.settings.load_settings`."""
        return {"grace": self.grace, "only_tasks": self.only, "except_tasks": self.excluded}

    def fleet_bounds(self) -> tuple[int, int] | None:
        """Return the smallest and the largest number of workers of a fleet; None without a fleet.

        Raises:
            typer.BadParameter: --max is less than --min.
        """
        if self.minimum is None and self.maximum is None:
            return None
        least = 1 if self.minimum is None else self.minimum
        most = max(least, 1) if self.maximum is None else self.maximum
        if most < least:
            raise typer.BadParameter(f"is less than --min {least}", param_hint="--max")
        return least, most
