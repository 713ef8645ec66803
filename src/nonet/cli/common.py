"""What all commands share: their options, an application, and errors as one line and a code."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from nonet.base.errors import (
    ConfigurationError,
    InvalidArgumentsError,
    LimitImpossible,
    NonetError,
    NotFoundError,
    RegistrationError,
    ServerUnreachableError,
    UnknownTaskError,
    suggestion,
)
from nonet.base.loop import loop_factory
from nonet.base.loop import run as run_in_loop
from nonet.cli.output import printable
from nonet.daemon.service import ExitCode
from nonet.telemetry.masking import keep_secret, without_secrets

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.config.settings import Settings
    from nonet.stores.stores import Stores
    from nonet.tasks.registry import Registry

logger = logging.getLogger(__name__)

# Start of the names of all threads that may run user code.
_THREADS = "nonet-task"
# How long threads and coroutines may take to end when all else has.
_END_SECONDS = 0.5
# How long the interpreter may take to end, which waits for what tasks have started.
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


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        typer.echo(f"nonet {metadata.version('nonet')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", help="Show the version.", is_eager=True, callback=_print_version),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks", metavar="MODULE", help="Module with tasks, or several: a,b. May be repeated."
    ),
]
Namespace = Annotated[
    str | None, typer.Option(help="Prefix of all keys in Redis.", show_default="nonet")
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        help="Where embedded servers and SQLite keep their data.",
        show_default="~/.local/state/nonet",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help="Answer /livez and /readyz on this port.", show_default="0: not"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One line of JSON on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Debug log lines, and tracebacks of errors.")]


Command = Callable[[], Coroutine[Any, Any, int]]


class PlainCommand(TyperCommand):
    """A command whose usage errors are in plain words."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """See `typer.core.TyperCommand`."""
        with _plain_words():
            return super().make_context(*args, **options)


class PlainGroup(TyperGroup):
    """Commands, also of groups in it, whose usage errors are in plain words."""

    def invoke(self, ctx: Any) -> Any:
        """See `typer.core.TyperGroup`."""
        with _plain_words():
            return super().invoke(ctx)


@contextmanager
def _plain_words() -> Iterator[None]:
    """Typer lets pydantic see to choices, which calls each refusal a value error."""
    try:
        yield
    except typer.BadParameter as error:
        error.message = error.message.removeprefix("Value error, ")
        raise


def run(debug: bool, command: Command, *, in_spite_of_tasks: bool = False) -> None:
    """Run a command to its exit code; an error of ours becomes one line on stderr.

    Args:
        in_spite_of_tasks: it runs code of others and sees to signals itself: neither SystemExit
            nor KeyboardInterrupt that such code raises ends it.
    """
    _fill_standard_files()
    if debug:
        set_up_logging(debug)
    else:
        _set_up_when_needed()
    try:
        run_to_the_end = _run_on if in_spite_of_tasks else run_in_loop
        code = run_to_the_end(_to_the_end(command))
    except NonetError as error:
        logger.debug("the command failed", exc_info=error)
        say(str(error))
        code = exit_code(error)
    except KeyboardInterrupt:
        say("interrupted")
        code = ExitCode.FAILED
    if in_spite_of_tasks:
        threading.Thread(target=_leave_at_last, args=(code,), daemon=True).start()
    exit_with(code)


def _run_on(main: Coroutine[Any, Any, int]) -> int:
    """`asyncio.run`, but a loop that an exception has stopped goes on.

    Raised in a task that a task has started (``asyncio.gather`` does so), SystemExit and
    KeyboardInterrupt leave the loop beside being the result of that task.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
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
    """A process without stdout or stderr gives their numbers to sockets, and writes to those.

    The event loop of uvloop ends a process that closes such a one.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)


async def _to_the_end(command: Command) -> int:
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


def _leave_at_last(code: int) -> None:
    """End a process whose interpreter waits for child processes or threads of tasks."""
    time.sleep(_SHUTDOWN_SECONDS)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Skip the interpreter's shutdown, which waits for threads that run user code."""
    with suppress(AttributeError, OSError, ValueError):  # nobody reads it, or the disk is full
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def exit_code(error: NonetError) -> ExitCode:
    """The code that an error ends a command with."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), ExitCode.FAILED)


def say(problem: str) -> None:
    """One line on stderr about what is wrong, without secrets."""
    typer.echo(f"error: {printable(' '.join(without_secrets(problem).split()))}", err=True)


def named(thing: str, problem: str) -> str:
    """What is wrong with one thing of several; it is named once.

    >>> named("entry 1-1", "unknown task 'a:B'."), named("entry 1-1", "there is no entry 1-1")
    ("entry 1-1: unknown task 'a:B'.", 'there is no entry 1-1')
    """
    has_name = re.search(rf"(?<!\S){re.escape(thing)}(?![\w-])", problem)
    return problem if has_name else f"{thing}: {problem}"


def set_up_logging(debug: bool, settings: Settings | None = None) -> None:
    """Log lines of this process to stderr.

    Args:
        debug: all of them, whatever the settings say.
        settings: of a daemon; without them the lines are text, for who called the command.
    """
    from nonet.telemetry.logs import describe_process, set_up_logs

    name = "DEBUG" if debug else settings.log_level.upper() if settings else "INFO"
    level = logging.getLevelNamesMapping()[name]
    set_up_logs(settings.log_format if settings else "console", level)
    if settings is not None:
        describe_process(namespace=settings.namespace)


class _FirstLine(logging.Handler):
    """Sets up the log lines of a command when there is one: most commands log nothing."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line as `set_up_logging` has all of them written, without secrets."""
        set_up_logging(False)
        logging.getLogger().handle(record)


def _set_up_when_needed() -> None:
    """Warnings and a traceback that ends the process go through the same masking as log lines."""

    def tell_of_end(*error: Any) -> None:
        set_up_logging(False)
        sys.excepthook(*error)

    def tell_of_thread(error: Any) -> None:
        set_up_logging(False)
        threading.excepthook(error)

    logging.lastResort = _FirstLine(logging.WARNING)
    sys.excepthook, threading.excepthook = tell_of_end, tell_of_thread


def application(
    tasks: list[str] | None = None, namespace: str | None = None, state_dir: Path | None = None
) -> Nonet:
    """The application of the common options, not yet open."""
    from nonet.app import Nonet  # what it brings takes longer than `--help` needs

    return Nonet.from_settings(**settings_options(tasks, namespace, state_dir))


def observer(namespace: str | None = None, state_dir: Path | None = None) -> Nonet:
    """`application` without task classes, for commands that only look at Redis."""
    from nonet.app import Nonet
    from nonet.config.settings import load_settings

    settings = load_settings(**settings_options(None, namespace, state_dir))
    return Nonet(settings, load_tasks=False)


@asynccontextmanager
async def stores(
    namespace: str | None = None, state_dir: Path | None = None
) -> AsyncIterator[Stores]:
    """What is kept of the namespace, for commands that need neither a client nor task classes."""
    from nonet.config.settings import load_settings  # as of `application`
    from nonet.stores.stores import open_stores

    settings = load_settings(**settings_options(None, namespace, state_dir))
    keep_secret(settings.secrets())
    async with AsyncExitStack() as closing:
        yield await open_stores(settings, closing)


def registry_here(nonet: Nonet) -> Registry:
    """The task classes that are known here, for hints: none if they cannot be loaded."""
    from nonet.config.loading import load_registry
    from nonet.tasks.registry import Registry

    if any(nonet.registry):
        return nonet.registry
    try:
        return load_registry(nonet.settings)
    except NonetError:  # whoever only looks at tasks needs none of the modules
        return Registry()


def names_of(task: str) -> tuple[str, str]:
    """How a task class may be named: in full and bare."""
    return task, task.rpartition(":")[2]


def unknown_here(nonet: Nonet, name: str) -> tuple[str, str] | None:
    """If no class of this name is known here: that it is so, and what is near; None: there is one.

    Also None where no classes are known at all.
    """
    known = {item.name for item in registry_here(nonet)}
    if not known or name in {part for item in known for part in names_of(item)}:
        return None
    return f"task class {name!r} is not registered here", suggestion(name, known)


def warn_of_unknown(nonet: Nonet, names: Iterable[str]) -> None:
    """A misspelt class selects nothing, and would look as if it did."""
    for name in names:
        if (unknown := unknown_here(nonet, name)) is not None:
            typer.echo(f"warning: {printable(unknown[0] + '.' + unknown[1])}", err=True)


def settings_options(
    tasks: list[str] | None = None, namespace: str | None = None, state_dir: Path | None = None
) -> dict[str, Any]:
    """The common options as settings; what was not given is left to the environment."""
    return {
        "tasks": tuple(name.strip() for each in tasks for name in each.split(","))
        if tasks
        else None,
        "namespace": namespace,
        "state_dir": state_dir,
    }
