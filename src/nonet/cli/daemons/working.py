"""Implement ``task-worker``: run one worker, run a fleet, or drain the workers that run here."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nonet.app import Nonet
from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.base.streams import Size
from nonet.cli.process import print_error, set_up_logging
from nonet.config.settings import Settings, load_settings
from nonet.daemon import runfiles
from nonet.daemon.fleet.retirement import Retirement
from nonet.daemon.fleet.worker_process import Line
from nonet.daemon.health import answering_probes
from nonet.daemon.service import (
    DRAIN_SIGNAL,
    ExitCode,
    Stop,
    every,
    process_name,
    reached,
    spare_collector,
    stop_on_signals,
    told_of_end,
)
from nonet.daemon.together import observed, run_together
from nonet.telemetry.logs import describe_process, process_description
from nonet.telemetry.tracing import exporting_traces
from nonet.worker.children.forking import HELD_OPEN
from nonet.worker.worker import Worker

if TYPE_CHECKING:
    from nonet.cli.daemons.worker import WorkerOptions
    from nonet.cli.target import CodeTarget
    from nonet.pipelines.host import PipelineHost

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.05
_IDLE_EXIT_SECONDS = 60.0
_ENDS: dict[int | None, str] = {
    None: "gone without an exit code, probably killed",
    ExitCode.OK: "drained",
    ExitCode.FAILED: "tasks were cut off after the grace period, or blocked the exit: see its log",
    ExitCode.SECOND_SIGNAL: "ended at once by a second signal",
}


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the command line of one worker says.

    Attributes:
        settings: options for `nonet.config.settings.load_settings`.
        concurrency, idle_exit, max_lifetime, fleet_line, debug: as in
            `nonet.cli.daemons.worker.WorkerOptions`.
    """

    settings: Mapping[str, Any]
    concurrency: int | None = None
    idle_exit: float | None = None
    max_lifetime: float | None = None
    fleet_line: int | None = None
    debug: bool = False


PIPELINES = "pipelines"
"""Stands for the size of a process that runs pipelines only."""


async def work(
    size: Size | None,
    pipelines: Sequence[str],
    order: Order,
) -> int:
    """Run one worker, pipelines, or both until they are stopped or the worker ends by itself."""
    settings = load_settings(**order.settings)
    set_up_logging(order.debug, settings)
    describe_process(size=size or PIPELINES)
    application = Nonet(settings)
    signals = stop_on_signals(settings.grace)
    traces = exporting_traces("nonet-worker", process_description())
    async with traces, application, application.injector() as injector, signals as stop:
        for problem in application.dependency_problems(injector):
            logger.error("%s", problem)
        for warning in application.registry.warnings():
            logger.warning("%s", warning)
        daemons: list[tuple[str, Worker | PipelineHost]] = []
        async with AsyncExitStack() as around:
            if size is not None:
                workers = application.workers(size, injector, concurrency=order.concurrency)
                daemons += workers.items()
                await around.enter_async_context(_retiring(application, size, workers, order, stop))
            if pipelines:
                host = application.pipelines(pipelines, injector)
                daemons.append((settings.namespace, host))
            describe_process(worker=daemons[0][1].name)
            address = settings.metrics_host, settings.metrics_port
            await around.enter_async_context(answering_probes(*address, observed(daemons)))
            first = {namespace: daemon.id for namespace, daemon in reversed(daemons)}
            with _run_files(settings, size or PIPELINES, first) as run_files:
                spare_collector()
                code = await run_together(daemons, stop)
                for run_file in run_files:
                    run_file.ended(code)
                return code


@asynccontextmanager
async def _retiring(
    application: Nonet, size: Size, workers: Mapping[str, Worker], order: Order, stop: Stop
) -> AsyncIterator[None]:
    """End the workers of all namespaces when they are idle or old, while the block runs."""
    line = None
    if order.fleet_line is not None:
        (worker,) = workers.values()  # a fleet has one namespace
        line = Line(order.fleet_line, worker.id)
        HELD_OPEN.add(order.fleet_line)
        worker.on_ordered_to_drain(line.leave_place)

    async def retire() -> bool:
        """Whether no namespace has work; those that were asked before one has go on."""
        for namespace, worker in workers.items():
            demands = application.parts_of(namespace).stores.demands
            if not await demands.retire(worker.id, size):
                return False
        return True

    retirement = Retirement(
        lambda: min(worker.idle_seconds for worker in workers.values()),
        retire,
        stop,
        idle_exit=order.idle_exit,
        max_lifetime=order.max_lifetime,
        line=line,
    )
    polling = asyncio.create_task(every(stop, "retirement", retirement.tick), name="retirement")
    try:
        yield
    finally:
        polling.cancel()
        await asyncio.wait({polling})


@contextmanager
def _run_files(
    settings: Settings, size: str, incarnations: Mapping[str, str]
) -> Iterator[list[runfiles.RunFile]]:
    """Write a run file for each namespace of this process."""
    with ExitStack() as stack:
        made = [
            stack.enter_context(_run_file(settings.of(namespace), size, incarnation))
            for namespace, incarnation in incarnations.items()
        ]
        yield [run_file for run_file in made if run_file is not None]


@contextmanager
def _run_file(settings: Settings, size: str, incarnation: str) -> Iterator[runfiles.RunFile | None]:
    """Write a run file, by which --drain finds this process; None if that fails."""
    about = runfiles.RunningWorker(
        settings.namespace, size, os.getpid(), incarnation, runfiles.place()
    )
    with ExitStack() as stack:
        written = None
        try:
            written = stack.enter_context(runfiles.announced(_directory(settings), about))
            stack.enter_context(told_of_end(written.ended))
        except OSError as error:
            logger.warning("no run file, so --drain will not find this worker: %s", error)
        yield written


def _directory(settings: Settings) -> Path:
    return settings.state_dir / "run"


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
    from nonet.stores.namespace.inspection import Inspection

    settings = load_settings(**target.options(), grace=options.grace, metrics_port=metrics_port)
    if len(settings.namespaces) > 1:
        raise ConfigurationError(
            "a fleet grows with the backlog of one namespace: start one fleet for each, with "
            "--namespace, or one worker for all, without --min and --max"
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
            with _run_file(settings, size, supervisor.id) as run_file:
                spare_collector()
                code = await supervisor.run(stop)
                if run_file is not None:
                    run_file.ended(code)
                return code


def _options_of_workers(size: Size, options: WorkerOptions, target: CodeTarget) -> list[str]:
    """Return the command line of each worker; the environment supplies the other settings."""
    idle_exit = _IDLE_EXIT_SECONDS if options.idle_exit is None else options.idle_exit
    given = {
        "--concurrency": options.concurrency,
        "--tasks": ",".join(target.options()["tasks"] or ()) or None,
        "--namespace": target.namespace,
        "--state-dir": target.state_dir,
        "--grace": options.grace,
    }
    line = ["--size", size, "--idle-exit", str(idle_exit)]
    line += [
        part for name, value in given.items() if value is not None for part in (name, str(value))
    ]
    return [*line, "--debug"] if target.debug else line


# ---- --drain ------------------------------------------------------------------------------------


async def drain(size: Size | None, timeout: float | None, target: CodeTarget) -> int:
    """Ask the workers on this machine to drain, and wait until they end.

    Args:
        timeout: seconds to wait; None: no limit.
    """
    settings = target.settings()
    left = runfiles.running(_directory(settings), settings.namespace, size)
    if not left:
        raise NotFoundError(
            f"no {f'{size} ' if size else ''}worker of namespace {settings.namespace} runs here "
            f"(run files: {_directory(settings)})"
        )
    for item in left:
        _request_drain(item)
    codes: list[int] = []
    deadline = None if timeout is None else time.monotonic() + timeout
    while left:
        for item in [item for item in left if item.ended()]:
            left.remove(item)
            codes.append(_print_end(item))
        if left and deadline is not None and time.monotonic() >= deadline:
            for item in left:
                print_error(f"{_name(item)} still runs after {timeout:g} s; it continues to drain")
            codes.append(ExitCode.FAILED)
            break
        if left:
            await asyncio.sleep(_POLL_SECONDS)
    return max(codes)


def _request_drain(item: runfiles.Watched) -> None:
    try:
        item.signal(DRAIN_SIGNAL)
    except PermissionError:
        raise ConfigurationError(
            f"{_name(item)} belongs to another user: run the drain as that user"
        ) from None


def _print_end(item: runfiles.Watched) -> int:
    """Print how a worker ended, and return the exit code for it."""
    code = item.exit_code()
    from nonet.cli.output import print_line  # imports typer

    print_line(f"{_name(item)}: {_ENDS.get(code, f'exit code {code}')}")
    return ExitCode.FAILED if code is None else code


def _name(item: runfiles.Watched) -> str:
    kind = "fleet" if item.worker.incarnation.startswith("fleet-") else "worker"
    return f"{kind} {process_name(item.worker.pid)}"
