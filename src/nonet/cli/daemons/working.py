"""What ``task-worker`` does: one worker, a fleet of them, or the end of those that run here.

Beside the command itself, so that its help need not wait for what a worker brings.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from nonet.app import Nonet
from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.base.streams import Size
from nonet.cli.common import say, set_up_logging, settings_options
from nonet.config.settings import Settings, load_settings
from nonet.daemon import runfiles
from nonet.daemon.fleet.retirement import Retirement
from nonet.daemon.fleet.supervisor import END_SECONDS, FleetPlan, Supervisor
from nonet.daemon.fleet.worker_process import Line
from nonet.daemon.health import answering_probes
from nonet.daemon.service import (
    DRAIN_SIGNAL,
    ExitCode,
    Stop,
    every,
    reached,
    spare_collector,
    stop_on_signals,
    told_of_end,
)
from nonet.stores.namespace.inspection import Inspection
from nonet.telemetry.logs import describe_process, process_description
from nonet.telemetry.tracing import exporting_traces
from nonet.worker.children.forking import HELD_OPEN
from nonet.worker.worker import Worker

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.05
_IDLE_EXIT_SECONDS = 60.0
_ENDS: dict[int | None, str] = {
    None: "gone without an exit code: killed?",
    ExitCode.OK: "drained",
    ExitCode.FAILED: "cut off by the grace, or blocked by a task: see its log",
    ExitCode.SECOND_SIGNAL: "ended at once by a second signal",
}


@dataclass(frozen=True)
class Ends:
    """When a worker ends by itself, and the line to its fleet."""

    idle_exit: float | None
    max_lifetime: float | None
    fleet_line: int | None


async def work(
    size: Size, concurrency: int | None, ends: Ends, options: dict[str, Any], debug: bool
) -> int:
    """One worker, from its start to its end."""
    settings = load_settings(**options)
    set_up_logging(debug, settings)
    describe_process(size=size)
    application = Nonet(settings)
    signals = stop_on_signals(settings.grace)
    traces = exporting_traces("nonet-worker", process_description())
    async with traces, application, application.injector() as injector, signals as stop:
        for problem in application.dependency_problems(injector):
            logger.error("%s", problem)
        for oversight in application.registry.oversights():
            logger.warning("%s", oversight)
        worker = application.worker(size, injector, concurrency=concurrency)
        describe_process(worker=worker.id)
        address = settings.metrics_host, settings.metrics_port
        probes = answering_probes(*address, worker)
        about = _about(settings, size, worker.id)
        async with probes, _retiring(application, size, worker, ends, stop):
            with _announced(settings, about) as announced:
                spare_collector()
                code = await worker.run(stop)
                if announced is not None:
                    announced.ended(code)
                return code


@asynccontextmanager
async def _retiring(
    application: Nonet, size: Size, worker: Worker, ends: Ends, stop: Stop
) -> AsyncIterator[None]:
    """Let a worker end when it is idle or old, while the block runs."""
    line = None
    if ends.fleet_line is not None:
        line = Line(ends.fleet_line, worker.id)
        HELD_OPEN.add(ends.fleet_line)
    retirement = Retirement(
        worker,
        lambda: application.stores.demands.retire(worker.id, size),
        stop,
        idle_exit=ends.idle_exit,
        max_lifetime=ends.max_lifetime,
        line=line,
    )
    looking = asyncio.create_task(every(stop, "retirement", retirement.tick), name="retirement")
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.wait({looking})


def _about(settings: Settings, size: Size, incarnation: str) -> runfiles.RunningWorker:
    place = runfiles.place()
    return runfiles.RunningWorker(settings.namespace, size, os.getpid(), incarnation, place)


@contextmanager
def _announced(
    settings: Settings, about: runfiles.RunningWorker
) -> Iterator[runfiles.RunFile | None]:
    """A run file; None if there can be none, which keeps no worker from its work."""
    with ExitStack() as stack:
        announced = None
        try:
            announced = stack.enter_context(runfiles.announced(_directory(settings), about))
            stack.enter_context(told_of_end(announced.ended))
        except OSError as error:
            logger.warning("no run file, so --drain will not find this worker: %s", error)
        yield announced


def _directory(settings: Settings) -> Path:
    return settings.state_dir / "run"


# ---- --max --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fleet:
    """The options of a fleet."""

    size: Size
    minimum: int
    maximum: int
    concurrency: int | None
    idle_exit: float | None
    max_lifetime: float | None
    debug: bool


async def supervise(fleet: Fleet, options: dict[str, Any], metrics_port: int | None) -> int:
    """A fleet, from its start to its end; task classes are for its workers alone."""
    settings = load_settings(**options, metrics_port=metrics_port)
    set_up_logging(fleet.debug, settings)
    describe_process(size=fleet.size)
    application = Nonet(settings, load_tasks=False)
    plan = FleetPlan(
        fleet.size,
        fleet.minimum,
        fleet.maximum,
        _options_of_workers(fleet, options),
        fleet.concurrency or settings.slots_of(fleet.size),
        settings.grace,
        settings.worker_ttl,
        fleet.max_lifetime,
        settings.metrics_port,
        settings.metrics_host,
    )
    async with application:
        inspection = Inspection(application.broker, settings.namespace)
        check = partial(inspection.check, allow_eviction=settings.allow_eviction)
        supervisor = Supervisor(plan, application.stores.demands, application.broker)
        about = _about(settings, fleet.size, supervisor.id)
        signals = stop_on_signals(settings.grace + END_SECONDS, on_hangup=supervisor.roll)
        address = settings.metrics_host, settings.metrics_port
        probes = answering_probes(*address, supervisor)
        async with signals as stop, probes:
            if not await reached(stop, check):
                return ExitCode.OK
            with _announced(settings, about) as announced:
                spare_collector()
                code = await supervisor.run(stop)
                if announced is not None:
                    announced.ended(code)
                return code


def _options_of_workers(fleet: Fleet, options: dict[str, Any]) -> list[str]:
    """What each worker of a fleet is told; what was not given is left to the environment."""
    idle_exit = _IDLE_EXIT_SECONDS if fleet.idle_exit is None else fleet.idle_exit
    given = {
        "--concurrency": fleet.concurrency,
        "--tasks": ",".join(options["tasks"] or ()) or None,
        "--namespace": options["namespace"],
        "--state-dir": options["state_dir"],
        "--grace": options["grace"],
    }
    told = ["--size", fleet.size, "--idle-exit", str(idle_exit)]
    told += [
        part for name, value in given.items() if value is not None for part in (name, str(value))
    ]
    return [*told, "--debug"] if fleet.debug else told


# ---- --drain ------------------------------------------------------------------------------------


async def drain(
    size: Size | None, timeout: float | None, namespace: str | None, state_dir: Path | None
) -> int:
    """Ask the workers that run here to drain, and wait for their end.

    Args:
        timeout: for how many seconds; None: for as long as it takes.
    """
    settings = load_settings(**settings_options(None, namespace, state_dir))
    left = runfiles.running(_directory(settings), settings.namespace, size)
    if not left:
        raise NotFoundError(
            f"no {f'{size} ' if size else ''}worker of namespace {settings.namespace} runs here "
            f"(run files: {_directory(settings)})"
        )
    for item in left:
        _ask(item)
    codes: list[int] = []
    deadline = None if timeout is None else time.monotonic() + timeout
    while left:
        for item in [item for item in left if item.ended()]:
            left.remove(item)
            codes.append(_tell(item))
        if left and deadline is not None and time.monotonic() >= deadline:
            for item in left:
                say(f"{_name(item)} still runs after {timeout:g} s; it drains on")
            codes.append(ExitCode.FAILED)
            break
        if left:
            await asyncio.sleep(_POLL_SECONDS)
    return max(codes)


def _ask(item: runfiles.Watched) -> None:
    try:
        item.signal(DRAIN_SIGNAL)
    except PermissionError:
        raise ConfigurationError(
            f"{_name(item)} is of another user: drain it as that one"
        ) from None


def _tell(item: runfiles.Watched) -> int:
    """Say how a worker ended; the exit code that this means."""
    code = item.exit_code()
    typer.echo(f"{_name(item)}: {_ENDS.get(code, f'exit code {code}')}")
    return ExitCode.FAILED if code is None else code


def _name(item: runfiles.Watched) -> str:
    return f"worker {item.worker.incarnation} (pid {item.worker.pid})"
