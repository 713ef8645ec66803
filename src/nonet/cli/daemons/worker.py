"""``task-worker``: run one worker or a fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from nonet.base.streams import Size
from nonet.cli.options import MetricsPort, Version
from nonet.cli.plain_words import PlainCommand
from nonet.cli.process import run
from nonet.cli.target import CodeTarget, flat

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


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


@app.command(cls=PlainCommand)
@flat
def work(
    target: CodeTarget,
    size: Annotated[
        Size | None,
        typer.Option(help="Run tasks of this size.", show_default="required without --pipelines"),
    ] = None,
    *,
    pipelines: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Run these pipelines, separated by commas, instead of tasks or beside them.",
            show_default="none",
        ),
    ] = None,
    options: WorkerOptions,
    metrics_port: MetricsPort = None,
    version: Version = False,
) -> None:
    """Run tasks of one size, pipelines, or both until SIGTERM.

    Settings come from NONET_… variables; Redis from NONET_REDIS_URL. If Redis is unreachable, the
    worker waits for it.

    Exit codes: 0 drained, 1 tasks were cut off at the end of the grace period, 2 configuration
    error, 143 a second signal stopped it.

    With --max or --min the command runs a fleet: it starts and ends worker processes as the backlog
    requires. SIGHUP replaces the workers one by one. The exit code is the largest of the workers'
    codes.

    \b
    task-worker --size small --tasks mytasks
    task-worker --size medium --min 1 --max 4      # a fleet
    task-worker --pipelines volumes,invoices       # process rows of tables
    """
    from nonet.cli.daemons import working  # import is too slow for --help

    names = [name.strip() for name in (pipelines or "").split(",") if name.strip()]
    if pipelines is not None and not names:
        raise typer.BadParameter("names no pipeline", param_hint="--pipelines")
    if size is None and not names:
        raise typer.BadParameter("missing: name a size, or --pipelines", param_hint="--size")
    bounds = options.fleet_bounds()
    if names and (bounds is not None or options.idle_exit is not None):
        raise typer.BadParameter(
            "a worker with pipelines never ends by itself: leave out --min, --max and --idle-exit",
            param_hint="--pipelines",
        )
    if size is not None and bounds is not None:
        run(target.debug, lambda: working.supervise(size, bounds, options, target, metrics_port))
    arguments = working.WorkerArguments(
        settings={**target.options(), "grace": options.grace, "metrics_port": metrics_port},
        concurrency=options.concurrency,
        idle_exit=options.idle_exit,
        max_lifetime=options.max_lifetime,
        fleet_line=options.fleet_line,
        debug=target.debug,
    )
    working.run_worker(size, names, arguments)


def main() -> None:
    """Entry point of the console script."""
    app()
