"""``task-worker``: run one worker or a fleet."""

from __future__ import annotations

from typing import Annotated

import typer

from nonet.base.streams import Size
from nonet.cli.daemons.worker_options import WorkerOptions
from nonet.cli.options import MetricsPort, Version
from nonet.cli.plain_words import PlainCommand
from nonet.cli.process import run
from nonet.cli.target import CodeTarget, flat

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


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
    task-worker --size large --only 'ml:*'         # takes only these classes
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
        settings={**target.options(), **options.settings(), "metrics_port": metrics_port},
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
