"""``task-worker``: run one worker, or stop those that run here."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from nonet.base.streams import Size
from nonet.cli.common import (
    Debug,
    MetricsPort,
    Namespace,
    PlainCommand,
    StateDir,
    Tasks,
    Version,
    run,
    settings_options,
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(cls=PlainCommand)
def work(
    size: Annotated[
        Size | None, typer.Option(help="Which tasks to run.", show_default="required")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Tasks at a time.",
            show_default="small 100, medium the cores, large 1",
        ),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds for running tasks after SIGTERM.", show_default="25"),
    ] = None,
    minimum: Annotated[
        int | None,
        typer.Option(
            "--min", min=0, help="A fleet: so many workers at least.", show_default="1 with --max"
        ),
    ] = None,
    maximum: Annotated[
        int | None,
        typer.Option("--max", min=1, help="A fleet: so many workers at most, as work overflows."),
    ] = None,
    idle_exit: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Seconds without any task after which a worker ends.",
            show_default="in a fleet 60, else never",
        ),
    ] = None,
    max_lifetime: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Seconds after which a worker drains, a tenth more or less; a fleet replaces it.",
            show_default="no limit",
        ),
    ] = None,
    fleet_line: Annotated[int | None, typer.Option(hidden=True)] = None,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain",
            help="Run nothing: let the workers of this namespace (and size) that run here drain, "
            "and wait for their end.",
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="With --drain: wait so many seconds.", show_default="no limit"),
    ] = None,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    metrics_port: MetricsPort = None,
    debug: Debug = False,
    version: Version = False,
) -> None:
    """Fetch, execute and settle tasks of one size until SIGTERM.

    Settings come from NONET_… variables; Redis from NONET_REDIS_URL. Exit codes: 0 drained,
    1 cut off by the grace, 2 configuration, 143 second signal; Redis is waited for. With --drain
    the largest code of the workers that it stopped; 1 also if one still runs at the timeout or was
    killed, 4 if there is none.

    With --max it is a fleet: it starts and ends workers of its own, as there is work for them.
    SIGHUP replaces them one by one; its exit code is their largest.
    """
    from nonet.cli.daemons import working  # what it brings takes longer than the help needs

    if drain:
        other = (concurrency, grace, tasks, metrics_port, minimum, maximum, idle_exit, max_lifetime)
        if any(value is not None for value in other):
            raise typer.BadParameter(
                "options other than --size, --timeout, --namespace and --state-dir mean nothing "
                "with --drain"
            )
        run(debug, lambda: working.drain(size, timeout, namespace, state_dir))
    if size is None:
        raise typer.BadParameter("missing: name a size, or --drain", param_hint="--size")
    if timeout is not None:
        raise typer.BadParameter("means something with --drain only", param_hint="--timeout")
    options = settings_options(tasks, namespace, state_dir)
    if minimum is not None or maximum is not None:
        least = 1 if minimum is None else minimum
        most = max(least, 1) if maximum is None else maximum
        if most < least:
            raise typer.BadParameter(f"is less than --min {least}", param_hint="--max")
        fleet = working.Fleet(size, least, most, concurrency, idle_exit, max_lifetime, debug)
        run(debug, lambda: working.supervise(fleet, {**options, "grace": grace}, metrics_port))
    ends = working.Ends(idle_exit, max_lifetime, fleet_line)
    options |= {"grace": grace, "metrics_port": metrics_port}
    start = partial(working.work, size, concurrency, ends, options, debug)
    run(debug, start, in_spite_of_tasks=True)


def main() -> None:
    """Entry point of the console script."""
    app()
