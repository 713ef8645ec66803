"""``task-scheduler``: run one scheduler. Of several, one leads and the others stand by."""

from __future__ import annotations

import typer

from nonet.cli.options import ConfigSource, MetricsPort, Version
from nonet.cli.plain_words import PlainCommand
from nonet.cli.process import run
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

    Exit codes: 0 stopped, 2 configuration error, 143 a second signal stopped it.

    \b
    task-scheduler --config /etc/nonet/nonet.yaml --tasks mytasks
    """
    from nonet.cli.daemons import scheduling  # slower to import than `--help` may take

    options = {**target.options(), "config": config, "metrics_port": metrics_port}
    run(
        target.debug,
        lambda: scheduling.run_scheduler(options, debug=target.debug),
        runs_user_code=True,
    )


def main() -> None:
    """Entry point of the console script, after its imports."""
    app()
