"""Implement ``task-worker``: run one worker, or a fleet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from nonet.app import Nonet
from nonet.base.errors import ConfigurationError
from nonet.base.streams import Size
from nonet.cli.process import run, set_up_logging
from nonet.config.settings import load_settings
from nonet.daemon.fleet.retirement import Retirement
from nonet.daemon.fleet.worker_process import Line
from nonet.daemon.health import answering_probes
from nonet.daemon.service import ExitCode, Stop, every, reached, spare_collector, stop_on_signals
from nonet.daemon.together import Together, run_together
from nonet.stores.namespace.inspection import Inspection
from nonet.telemetry.logs import describe_process, process_description
from nonet.telemetry.tracing import exporting_traces
from nonet.worker.children.forking import HELD_OPEN
from nonet.worker.worker import Worker

if TYPE_CHECKING:
    from nonet.cli.daemons.worker_options import WorkerOptions
    from nonet.cli.target import CodeTarget
    from nonet.pipelines.host import PipelineHost

logger = logging.getLogger(__name__)

_IDLE_EXIT_SECONDS = 60.0


class WorkerArguments(Struct, frozen=True, kw_only=True):
    """The arguments of one worker, from its command line.

    Attributes:
        settings: options for `nonet.config.settings.load_settings`.
        concurrency, idle_exit, max_lifetime, fleet_line, debug: as in
            `nonet.cli.daemons.worker_options.WorkerOptions`.
    """

    settings: Mapping[str, Any]
    concurrency: int | None = None
    idle_exit: float | None = None
    max_lifetime: float | None = None
    fleet_line: int | None = None
    debug: bool = False


PIPELINES = "pipelines"
"""Stands for the size of a process that runs pipelines only."""


def run_worker(size: Size | None, pipelines: Sequence[str], args: WorkerArguments) -> None:
    """Run one worker, pipelines, or both, and end the process."""
    run(args.debug, lambda: work(size, pipelines, args), runs_user_code=True)


async def work(size: Size | None, pipelines: Sequence[str], args: WorkerArguments) -> int:
    """Run one worker, pipelines, or both until they are stopped or the worker ends by itself."""
    settings = load_settings(**args.settings)
    set_up_logging(args.debug, settings)
    describe_process(size=size or PIPELINES)
    application = Nonet(settings)
    if size is not None and not list(application.registry):
        raise ConfigurationError(
            "this worker has no task classes, so it could run nothing: name their modules with "
            "--tasks or NONET_TASKS, or install a package that declares them as entry points"
        )
    signals = stop_on_signals(settings.grace)
    traces = exporting_traces("nonet-worker", process_description())
    async with traces, application, application.injector() as injector, signals as stop:
        for problem in application.dependency_problems(injector):
            logger.error("%s", problem)
        for warning in application.registry.warnings():
            logger.warning("%s", warning)
        daemons: list[Worker | PipelineHost] = []
        async with AsyncExitStack() as around:
            if size is not None:
                worker = application.worker(size, injector, concurrency=args.concurrency)
                daemons.append(worker)
                await around.enter_async_context(_retiring(application, size, worker, args, stop))
            if pipelines:
                daemons.append(application.pipelines(pipelines, injector))
            describe_process(worker=daemons[0].name)
            address = settings.metrics_host, settings.metrics_port
            await around.enter_async_context(answering_probes(*address, Together(daemons)))
            spare_collector()
            return await run_together(daemons, stop)


@asynccontextmanager
async def _retiring(
    application: Nonet, size: Size, worker: Worker, args: WorkerArguments, stop: Stop
) -> AsyncIterator[None]:
    """End the worker when it is idle or old, while the block runs."""
    line = None
    if args.fleet_line is not None:
        line = Line(args.fleet_line, worker.id)
        HELD_OPEN.add(args.fleet_line)
        worker.on_ordered_to_drain(line.leave_place)
    retirement = Retirement(
        lambda: worker.idle_seconds,
        lambda: application.stores.demands.retire(worker.id, size),
        stop,
        idle_exit=args.idle_exit,
        max_lifetime=args.max_lifetime,
        line=line,
    )
    polling = asyncio.create_task(every(stop, "retirement", retirement.tick), name="retirement")
    try:
        yield
    finally:
        polling.cancel()
        await asyncio.wait({polling})


# ---- --max --------------------------------------------------------------------------------------


async def supervise(
    size: Size,
    bounds: tuple[int, int],
    options: WorkerOptions,
    target: CodeTarget,
    metrics_port: int | None,
) -> int:
    """Run a fleet until it is stopped. Only its workers load task classes."""
    from nonet.daemon.fleet.supervisor import END_SECONDS, FleetPlan, Supervisor  # not for workers

    settings = load_settings(**target.options(), **options.settings(), metrics_port=metrics_port)
    if (settings.only_tasks or settings.except_tasks) and bounds[0] != bounds[1]:
        raise ConfigurationError(
            "a fleet counts the tasks of all classes, so it cannot follow those that --only and "
            "--except leave to it: give --min and --max the same number"
        )
    set_up_logging(target.debug, settings)
    describe_process(size=size)
    application = Nonet(settings, load_tasks=False)
    plan = FleetPlan(
        size,
        *bounds,
        options=_options_of_workers(size, options, target),
        slots=options.concurrency or settings.slots_of(size),
        grace=settings.grace,
        worker_ttl=settings.worker_ttl,
        max_lifetime=options.max_lifetime,
        metrics_port=settings.metrics_port,
        metrics_host=settings.metrics_host,
    )
    async with application:
        inspection = Inspection(application.broker, settings.namespace)
        check = partial(inspection.check, allow_eviction=settings.allow_eviction)
        supervisor = Supervisor(plan, application.stores.demands, application.broker)
        signals = stop_on_signals(settings.grace + END_SECONDS, on_hangup=supervisor.roll)
        address = settings.metrics_host, settings.metrics_port
        probes = answering_probes(*address, supervisor)
        async with signals as stop, probes:
            if not await reached(stop, check):
                return ExitCode.OK
            spare_collector()
            return await supervisor.run(stop)


def _options_of_workers(size: Size, options: WorkerOptions, target: CodeTarget) -> list[str]:
    """Return the command line of each worker; the environment supplies the other settings."""
    idle_exit = _IDLE_EXIT_SECONDS if options.idle_exit is None else options.idle_exit
    given = {
        "--concurrency": options.concurrency,
        "--tasks": ",".join(target.options()["tasks"] or ()) or None,
        "--namespace": target.namespace,
        "--state-dir": target.state_dir,
        "--grace": options.grace,
        "--only": options.only,
        "--except": options.excluded,
    }
    line = ["--size", size, "--idle-exit", str(idle_exit)]
    line += [
        part for name, value in given.items() if value is not None for part in (name, str(value))
    ]
    return [*line, "--debug"] if target.debug else line
