"""``task-worker``: run one worker."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from nonet.app import Nonet
from nonet.cli.common import (
    Debug,
    Namespace,
    StateDir,
    Tasks,
    Version,
    run,
    set_up_logging,
    settings_options,
)
from nonet.service import stop_on_signals
from nonet.task import Size

logger = logging.getLogger(__name__)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def work(
    size: Annotated[Size, typer.Option(help="Which tasks to run.")],
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Tasks at a time.", show_default="small 100, else 1"),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds for running tasks after SIGTERM.", show_default="25"),
    ] = None,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
    version: Version = False,
) -> None:
    """Fetch, execute and settle tasks of one size until SIGTERM.

    Settings come from NONET_… variables; Redis from NONET_REDIS_URL. Exit codes: 0 drained,
    1 cut off by the grace, 2 configuration, 3 Redis unreachable, 143 second signal.
    """
    set_up_logging(debug)
    options = settings_options(tasks, namespace, state_dir)

    async def command() -> int:
        application = Nonet.from_settings(**options, grace=grace)
        async with application, application.injector() as injector, stop_on_signals() as stop:
            for problem in application.dependency_problems(injector):
                logger.error("%s", problem)
            return await application.worker(size, injector, concurrency=concurrency).run(stop)

    run(debug, command)


def main() -> None:
    """Entry point of the console script."""
    app()
