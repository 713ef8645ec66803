"""``task-worker``: run one worker, or stop those that run here."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from nonet import runfiles
from nonet.app import Nonet
from nonet.cli.common import (
    Debug,
    MetricsPort,
    Namespace,
    StateDir,
    Tasks,
    Version,
    run,
    say,
    set_up_logging,
    settings_options,
)
from nonet.errors import ConfigurationError, NotFoundError
from nonet.health import answering_probes
from nonet.service import DRAIN_SIGNAL, ExitCode, stop_on_signals
from nonet.settings import Settings, load_settings
from nonet.task import Size
from nonet.worker.worker import Worker

logger = logging.getLogger(__name__)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_POLL_SECONDS = 0.05
_ENDS: dict[int | None, str] = {
    None: "gone without an exit code: killed?",
    ExitCode.OK: "drained",
    ExitCode.FAILED: "cut off by the grace",
    ExitCode.SECOND_SIGNAL: "ended at once by a second signal",
}


@app.command()
def work(
    size: Annotated[
        Size | None, typer.Option(help="Which tasks to run.", show_default="required")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Tasks at a time.", show_default="small 100, else 1"),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds for running tasks after SIGTERM.", show_default="25"),
    ] = None,
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
    1 cut off by the grace, 2 configuration, 3 Redis unreachable, 143 second signal. With --drain
    the largest code of the workers that it stopped; 1 also if one still runs at the timeout or was
    killed, 4 if there is none.
    """
    set_up_logging(debug)
    if drain:
        if (concurrency, grace, tasks, metrics_port) != (None, None, None, None):
            raise typer.BadParameter(
                "--concurrency, --grace, --tasks and --metrics-port mean nothing with --drain"
            )
        run(debug, lambda: _drain(size, timeout, namespace, state_dir))
    if size is None:
        raise typer.BadParameter("missing: name a size, or --drain", param_hint="--size")
    if timeout is not None:
        raise typer.BadParameter("means something with --drain only", param_hint="--timeout")
    wanted = size
    options = settings_options(tasks, namespace, state_dir)

    async def command() -> int:
        application = Nonet.from_settings(**options, grace=grace, metrics_port=metrics_port)
        settings = application.settings
        signals = stop_on_signals(settings.grace)
        async with application, application.injector() as injector, signals as stop:
            for problem in application.dependency_problems(injector):
                logger.error("%s", problem)
            worker = application.worker(wanted, injector, concurrency=concurrency)
            probes = answering_probes(settings.metrics_host, settings.metrics_port, worker.report)
            async with probes:
                with _announced(settings, wanted, worker) as announced:
                    code = await worker.run(stop)
                    if announced is not None:
                        announced.ended(code)
                    return code

    run(debug, command, in_spite_of_tasks=True)


@contextmanager
def _announced(settings: Settings, size: Size, worker: Worker) -> Iterator[runfiles.RunFile | None]:
    """The worker's run file; None if there can be none, which keeps no worker from its work."""
    about = runfiles.RunningWorker(
        settings.namespace, size, os.getpid(), worker.id, runfiles.place()
    )
    with ExitStack() as stack:
        announced = None
        try:
            announced = stack.enter_context(runfiles.announced(_directory(settings), about))
        except OSError as error:
            logger.warning("no run file, so --drain will not find this worker: %s", error)
        yield announced


def _directory(settings: Settings) -> Path:
    return settings.state_dir / "run"


# ---- --drain ------------------------------------------------------------------------------------


async def _drain(
    size: Size | None, timeout: float | None, namespace: str | None, state_dir: Path | None
) -> int:
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


def main() -> None:
    """Entry point of the console script."""
    app()
