"""``task-run call``: run one task in this process."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nonet.cli.commands.task_arguments import Args, Kwargs, Task
from nonet.cli.commands.task_building import build_task
from nonet.cli.options import Json
from nonet.cli.output import print_json, print_result
from nonet.cli.process import run, set_up_logging
from nonet.cli.target import CodeTarget, flat
from nonet.operate.interactive import arguments_of, call as run_here
from nonet.tasks.secrecy import secret_texts
from nonet.telemetry.masking import keep_secret

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.tasks.task import BaseTask

# A new Redis grants no locks for 2 s; wait that long, but no longer than this.
_QUIET_SECONDS = 5.0


@flat
def call(
    target: CodeTarget,
    task: Task,
    args: Args = "[]",
    kwargs: Kwargs = "{}",
    debugger: Annotated[
        Literal["none", "before", "exception"],
        typer.Option(help="Open pdb before the task runs, or after it failed."),
    ] = "none",
    wait_locks: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Wait this many seconds for locks that others hold."
        ),
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Run one task here, without the broker, and print its result.

    The task takes its structural locks; limiters and the retry policy do not apply. A task without
    structural locks needs no Redis.

    Exit codes: 0 done, 1 the task failed or a lock is held, 2 unknown class or invalid arguments,
    3 Redis unreachable.

    \b
    task-run call mytasks:RemoveFile --args '["/lhcb/a"]' --tasks mytasks
    task-run call RemoveFile --kwargs '{"lfn": "/lhcb/a"}' --debugger exception
    """
    set_up_logging(target.debug)
    _release_locks_on_signals()

    async def command() -> None:
        nonet = target.application()
        _, built = build_task(nonet, task, args, kwargs)
        async with nonet:
            result = await _called(nonet, built, wait_locks, debugger)
        if as_json:
            print_json(result)
        else:
            print_result(result)

    run(target.debug, command)


async def _called(
    nonet: Nonet,
    task: BaseTask,
    wait_locks: float,
    debugger: Literal["none", "before", "exception"],
) -> Any:
    """Act as `Nonet.call`, but wait until a new Redis grants locks."""

    task_class = nonet.registry.of(task)
    # Mask the defaults of arguments too: a traceback is printed after the call has ended.
    keep_secret(secret_texts(arguments_of(task_class, task), task_class.cls))
    async with nonet.injector() as injector:
        return await run_here(
            task,
            nonet.client,
            injector,
            nonet.settings,
            wait_seconds=wait_locks,
            rest_seconds=_QUIET_SECONDS,
            debugger=debugger,
        )


def _release_locks_on_signals() -> None:
    """Let SIGTERM and SIGHUP interrupt the task like Ctrl-C, so that its locks are released.

    A shell starts background processes with SIGINT ignored; restore that handler too.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
