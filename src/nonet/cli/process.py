"""Run a command as a process: usage errors, logging, errors as one line, and the exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from nonet.base.errors import (
    ConfigurationError,
    InvalidArgumentsError,
    LimitImpossible,
    NonetError,
    NotFoundError,
    RegistrationError,
    ServerUnreachableError,
    UnknownTaskError,
)
from nonet.base.forks import Threads
from nonet.base.loop import open_runner, run as run_in_loop
from nonet.daemon.service import ExitCode
from nonet.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from nonet.config.settings import Settings

logger = logging.getLogger(__name__)

# Prefix of the names of all threads that may run user code.
_THREADS = "nonet-task"
# The time limit for leftover threads and coroutines to end.
_END_SECONDS = 0.5
# The time limit for the shutdown of the interpreter, which waits for child processes of tasks.
_SHUTDOWN_SECONDS = 2.0

_CODES: dict[type[NonetError], ExitCode] = {
    ConfigurationError: ExitCode.USAGE,
    RegistrationError: ExitCode.USAGE,
    UnknownTaskError: ExitCode.USAGE,
    InvalidArgumentsError: ExitCode.USAGE,
    LimitImpossible: ExitCode.USAGE,
    ServerUnreachableError: ExitCode.UNREACHABLE,
    NotFoundError: ExitCode.NOT_FOUND,
}

# The type in JSON of a failure that a command reports by its exit code.
_TYPES: dict[int, str] = {
    ExitCode.USAGE: ConfigurationError.__name__,
    ExitCode.NOT_FOUND: NotFoundError.__name__,
}
_problems: dict[str, str] = {}

Command = Callable[[], Coroutine[Any, Any, int | None]]


def run(debug: bool, command: Command, *, runs_user_code: bool = False) -> None:
    """Run a command and end the process with its exit code; None: 0.

    A `NonetError` is printed as one line on stderr, and with --json also as JSON on stdout.

    Args:
        debug: log at level DEBUG.
        runs_user_code: the command executes tasks and handles signals itself, so a SystemExit or
            KeyboardInterrupt raised by a task does not end it.
    """
    _fill_standard_files()
    if debug:
        set_up_logging(debug)
    else:
        _set_up_logging_when_needed()
    try:
        from nonet.config.settings import uses_uvloop  # slower to import than `--help` may take

        run_loop = _run_despite_exits if runs_user_code else run_in_loop
        with_uvloop = uses_uvloop()
        code = run_loop(_with_bounded_end(command), with_uvloop=with_uvloop)
    except NonetError as error:
        logger.debug("command failed", exc_info=error)
        print_error(str(error))
        code = exit_code(error)
        print_error_as_json(type(error).__name__, str(error), code)
    except KeyboardInterrupt:
        print_error("interrupted")
        code = ExitCode.FAILED
    except Exception as error:
        print_error_as_json(type(error).__name__, str(error), ExitCode.FAILED)
        raise
    if code:
        print_error_as_json(_TYPES.get(code, "NonetError"), _problems.get("last", ""), code)
    if runs_user_code:
        threading.Thread(target=_exit_late, args=(code,), daemon=True).start()
    exit_with(code)


def _run_despite_exits(main: Coroutine[Any, Any, int], *, with_uvloop: bool) -> int:
    """Act as `asyncio.run`, but resume a loop that an exception has stopped.

    asyncio lets a SystemExit or KeyboardInterrupt out of the loop when a task raises it, for
    example below ``asyncio.gather``, although it is also the result of that task.
    """
    with open_runner(with_uvloop=with_uvloop) as runner:
        task = runner.get_loop().create_task(main)
        while True:
            try:
                return runner.get_loop().run_until_complete(task)
            except (SystemExit, KeyboardInterrupt) as error:
                is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
                if task.done() or (isinstance(error, KeyboardInterrupt) and is_ours):
                    raise
                logger.warning("a task raised %s beside its attempt", type(error).__name__)


def _fill_standard_files() -> None:
    """Open /dev/null in place of closed standard files.

    Otherwise sockets get the numbers 0 to 2: prints would write to them, and uvloop aborts the
    process when it closes one.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)


async def _with_bounded_end(command: Command) -> int:
    """Run a command; neither threads nor coroutines of tasks can delay the exit.

    `asyncio.run` would wait for both, perhaps forever: user code may swallow cancellations.
    """
    loop = asyncio.get_running_loop()
    threads = Threads(thread_name_prefix=_THREADS)
    loop.set_default_executor(threads)
    try:
        code = await command() or ExitCode.OK
    finally:
        threads.shutdown(wait=False)
        loop.set_default_executor(ThreadPoolExecutor())
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left and (await asyncio.wait(left, timeout=_END_SECONDS))[1]:
        _exit_now(code)
    return code


def exit_with(code: int) -> None:
    """End the process, even if a thread of a task cannot be stopped."""
    deadline = time.monotonic() + _END_SECONDS
    for thread in threading.enumerate():
        if thread.name.startswith(_THREADS):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                _exit_now(code)
    sys.exit(code)


def _exit_late(code: int) -> None:
    """End the process if its shutdown takes too long: it waits for child processes and threads."""
    time.sleep(_SHUTDOWN_SECONDS)
    _exit_now(code)


def _exit_now(code: int) -> NoReturn:
    """Skip the shutdown of the interpreter, which waits for threads that run user code."""
    with suppress(AttributeError, OSError, ValueError):  # the pipe is closed, or the disk full
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def exit_code(error: NonetError) -> ExitCode:
    """Return the exit code for an error."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), ExitCode.FAILED)


def is_at_terminal() -> bool:
    """Return whether stdin is a terminal, where a person can answer."""
    return sys.stdin is not None and sys.stdin.isatty()


def print_error(problem: str) -> None:
    """Print one line on stderr, without secrets."""
    _problems["last"] = problem
    _print_line("error", problem)


def print_error_as_json(kind: str, problem: str, code: int) -> None:
    """Print why a command failed on stdout, if it has --json and has printed no JSON yet.

    Args:
        kind: name of the exception class.
        problem: its text; secrets are masked.
    """
    if "--json" not in sys.argv[1:]:
        return
    output = _output()
    if not output.PRINTED:
        message = " ".join(without_secrets(problem).split())
        output.print_json({"error": {"type": kind, "message": message, "exit_code": int(code)}})


def warn(problem: str) -> None:
    """Print a warning as one line on stderr, without secrets."""
    _print_line("warning", problem)


def _output() -> Any:
    from nonet.cli import output  # it imports typer, which most workers do without

    return output


def _print_line(level: str, text: str) -> None:
    _output().print_line(f"{level}: {' '.join(without_secrets(text).split())}", err=True)


def named(thing: str, problem: str) -> str:
    """Prefix a problem with the name of the item, unless the problem mentions it.

    >>> named("entry 1-1", "unknown task 'a:B'."), named("entry 1-1", "there is no entry 1-1")
    ("entry 1-1: unknown task 'a:B'.", 'there is no entry 1-1')
    """
    has_name = re.search(rf"(?<!\S){re.escape(thing)}(?![\w-])", problem)
    return problem if has_name else f"{thing}: {problem}"


def set_up_logging(debug: bool, settings: Settings | None = None) -> None:
    """Write the log lines of this process to stderr.

    Args:
        debug: log at level DEBUG, whatever the settings say.
        settings: those of a daemon; without them lines are text at level INFO.
    """
    from nonet.telemetry.logs import describe_process, set_up_logs  # `--help` does without

    name = "DEBUG" if debug else settings.log_level.upper() if settings else "INFO"
    level = logging.getLevelNamesMapping()[name]
    kept = settings.task_log_bytes if settings else 0
    set_up_logs(settings.log_format if settings else "console", level, kept)
    if settings is not None:
        describe_process(namespace=settings.namespace)


class _FirstLine(logging.Handler):
    """Set up logging at the first line: most commands log nothing, and the set-up is slow."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        set_up_logging(False)
        logging.getLogger().handle(record)


def _set_up_logging_when_needed() -> None:
    """Mask secrets in warnings, and in a traceback that ends the process, as in log lines."""

    def report_crash(*error: Any) -> None:
        set_up_logging(False)
        sys.excepthook(*error)

    def report_crash_of_thread(error: Any) -> None:
        set_up_logging(False)
        threading.excepthook(error)

    logging.lastResort = _FirstLine(logging.WARNING)
    sys.excepthook, threading.excepthook = report_crash, report_crash_of_thread
