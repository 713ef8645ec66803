"""``task-scheduler``: run one scheduler; one of any number leads."""

from __future__ import annotations

from typing import Annotated

import typer

from nonet.cli.common import (
    Debug,
    MetricsPort,
    Namespace,
    PlainCommand,
    StateDir,
    Tasks,
    Version,
    run,
    set_up_logging,
    settings_options,
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(cls=PlainCommand)
def schedule(
    config: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="The central configuration: a file, a directory or git+https://…#BRANCH.",
        ),
    ] = None,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    metrics_port: MetricsPort = None,
    debug: Debug = False,
    version: Version = False,
) -> None:
    """Promote delayed tasks and submit periodic ones until SIGTERM.

    Settings come from NONET_… variables; Redis from NONET_REDIS_URL. Exit codes: 0 stopped,
    2 configuration, 143 second signal; Redis is waited for.
    """
    from nonet.app import Nonet  # what these bring takes longer than the help needs
    from nonet.config.settings import load_settings
    from nonet.daemon.health import answering_probes
    from nonet.daemon.service import spare_collector, stop_on_signals
    from nonet.telemetry.logs import process_description
    from nonet.telemetry.tracing import exporting_traces

    options = settings_options(tasks, namespace, state_dir)

    async def command() -> int:
        settings = load_settings(**options, config=config, metrics_port=metrics_port)
        set_up_logging(debug, settings)
        application = Nonet(settings)
        traces = exporting_traces("nonet-scheduler", process_description())
        signals = stop_on_signals()
        async with traces, application, application.injector() as injector, signals as stop:
            scheduler = application.scheduler(injector)
            address = settings.metrics_host, settings.metrics_port
            async with answering_probes(*address, scheduler):
                spare_collector()
                return await scheduler.run(stop)

    run(debug, command, in_spite_of_tasks=True)


def main() -> None:
    """What the console script comes to when its imports are done."""
    app()
