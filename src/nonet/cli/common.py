"""What all commands share: running a coroutine, logging, and errors as one line and a code."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from nonet.errors import (
    ConfigurationError,
    InvalidArgumentsError,
    NonetError,
    NotFoundError,
    RegistrationError,
    ServerUnreachableError,
    UnknownTaskError,
)
from nonet.service import ExitCode

# Start of the names of all threads that may run user code.
_THREADS = "nonet-task"
# How long threads and coroutines may take to end when all else has.
_END_SECONDS = 0.5

_CODES: dict[type[NonetError], ExitCode] = {
    ConfigurationError: ExitCode.USAGE,
    RegistrationError: ExitCode.USAGE,
    UnknownTaskError: ExitCode.USAGE,
    InvalidArgumentsError: ExitCode.USAGE,
    ServerUnreachableError: ExitCode.UNREACHABLE,
    NotFoundError: ExitCode.NOT_FOUND,
}

Tasks = Annotated[
    list[str] | None,
    typer.Option("--tasks", metavar="MODULE", help="Module with tasks; may be repeated."),
]
Namespace = Annotated[
    str | None, typer.Option(help="Prefix of all keys in Redis.", show_default="nonet")
]
StateDir = Annotated[
    Path | None, typer.Option(help="Where embedded servers and SQLite keep their data.")
]
Json = Annotated[bool, typer.Option("--json", help="One line of JSON on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Debug log lines, and tracebacks of errors.")]


def run(debug: bool, command: Callable[[], Coroutine[Any, Any, int]]) -> None:
    """Run a command to its exit code; an error of ours becomes one line on stderr."""
    try:
        code = asyncio.run(_to_the_end(command))
    except NonetError as error:
        if debug:
            raise
        fail(str(error), _code(error))
    except KeyboardInterrupt:
        fail("interrupted", ExitCode.FAILED)
    exit_with(code)


async def _to_the_end(command: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """The exit code; neither a thread nor a coroutine of a task can hold the exit.

    `asyncio.run` would wait for both, perhaps for ever: user code may swallow cancellations.
    """
    loop = asyncio.get_running_loop()
    threads = ThreadPoolExecutor(thread_name_prefix=_THREADS)
    loop.set_default_executor(threads)
    try:
        code = await command()
    finally:
        threads.shutdown(wait=False)
        loop.set_default_executor(ThreadPoolExecutor())
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left and (await asyncio.wait(left, timeout=_END_SECONDS))[1]:
        _leave(code)
    return code


def exit_with(code: int) -> None:
    """End the process, also when a task's thread cannot be stopped."""
    deadline = time.monotonic() + _END_SECONDS
    for thread in threading.enumerate():
        if thread.name.startswith(_THREADS):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                _leave(code)
    raise typer.Exit(code)


def _leave(code: int) -> NoReturn:
    """Skip the interpreter's shutdown, which waits for threads that run user code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def fail(message: str, code: ExitCode) -> None:
    """Say what is wrong and exit."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)


def print_json(value: Any) -> None:
    """One line of JSON; bytes of file names survive as surrogates, as Python escapes them."""
    typer.echo(json.dumps(value, default=str))


def set_up_logging(debug: bool) -> None:
    """Log lines of this process to stderr."""
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )


def settings_options(
    tasks: list[str] | None, namespace: str | None, state_dir: Path | None
) -> dict[str, Any]:
    """The common options as settings; what was not given is left to the environment."""
    return {
        "tasks": tuple(tasks) if tasks else None,
        "namespace": namespace,
        "state_dir": state_dir,
    }


def _code(error: NonetError) -> ExitCode:
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), ExitCode.FAILED)
