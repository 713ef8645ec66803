"""Run the scheduler of a process until a signal: `run_scheduler`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nonet.app import Nonet
from nonet.cli.process import set_up_logging
from nonet.config.settings import load_settings
from nonet.daemon.health import answering_probes
from nonet.daemon.service import spare_collector, stop_on_signals
from nonet.telemetry.logs import process_description
from nonet.telemetry.tracing import exporting_traces


async def run_scheduler(options: Mapping[str, Any], *, debug: bool) -> int:
    """Run until a signal; return the exit code.

    Args:
        options: of `nonet.load_settings`.
    """
    settings = load_settings(**options)
    set_up_logging(debug, settings)
    application = Nonet(settings)
    traces = exporting_traces("nonet-scheduler", process_description())
    signals = stop_on_signals()
    async with traces, application, application.injector() as injector, signals as stop:
        scheduler = application.scheduler(injector)
        async with answering_probes(settings.metrics_host, settings.metrics_port, scheduler):
            spare_collector()
            return await scheduler.run(stop)
