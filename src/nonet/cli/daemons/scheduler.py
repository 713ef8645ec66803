"""``task-scheduler``: run one scheduler. Of several, one leads and the others stand by."""

from __future__ import annotations

import typer

from nonet.cli.options import ConfigSource, MetricsPort, Version
from nonet.cli.plain_words import PlainCommand
from nonet.cli.process import run, set_up_logging
from nonet.cli.target import CodeTarget, flat

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(cls=PlainCommand)
@flat
def schedule(
    target: CodeTarget,
    config: ConfigSource = None,
    metrics_port: MetricsPort = None,
    version: Version = False,
) -> None:
    """Promote delayed tasks and submit periodic ones until SIGTERM.

    Settings come from NONET_… variables; Redis from NONET_REDIS_URL. If Redis is unreachable, the
    scheduler waits for it.

    Exit codes: 0 stopped, 2 configuration error, 143 second signal.

    \b
    task-scheduler --config /etc/nonet/nonet.yaml --tasks mytasks
    """
    from nonet.app import Nonet  # these are slower to import than `--help` may take
    from nonet.config.settings import load_settings
    from nonet.daemon.health import answering_probes
    from nonet.daemon.service import spare_collector, stop_on_signals
    from nonet.telemetry.logs import process_description
    from nonet.telemetry.tracing import exporting_traces

    async def command() -> int:
        settings = load_settings(**target.options(), config=config, metrics_port=metrics_port)
        set_up_logging(target.debug, settings)
        application = Nonet(settings)
        traces = exporting_traces("nonet-scheduler", process_description())
        signals = stop_on_signals()
        async with traces, application, application.injector() as injector, signals as stop:
            scheduler = application.scheduler(injector)
            address = settings.metrics_host, settings.metrics_port
            async with answering_probes(*address, scheduler):
                spare_collector()
                return await scheduler.run(stop)

    run(target.debug, command, runs_user_code=True)


def main() -> None:
    """Entry point of the console script, after its imports."""
    app()
