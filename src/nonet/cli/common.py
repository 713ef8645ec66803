"""What all commands share: running a coroutine, logging, and errors as one line and a code."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

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
        code = asyncio.run(command())
    except NonetError as error:
        if debug:
            raise
        fail(str(error), _code(error))
    except KeyboardInterrupt:
        fail("interrupted", ExitCode.FAILED)
    exit_with(code)


def exit_with(code: int) -> None:
    """End the process, also when a task's thread cannot be stopped."""
    sys.stdout.flush()
    sys.stderr.flush()
    if any(thread.name.startswith("nonet-task") for thread in threading.enumerate()):
        # Interpreter shutdown would wait for threads that run user code, perhaps for ever.
        os._exit(code)
    raise typer.Exit(code)


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
