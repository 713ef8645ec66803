"""``task-run call|submit|classes|list|status``: one task, and which there are."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pprint import pformat
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nonet.base.errors import (
    AdmissionRejected,
    InvalidArgumentsError,
    NonetError,
    NotFoundError,
    ResultError,
)
from nonet.cli.common import (
    Debug,
    Json,
    Namespace,
    StateDir,
    Tasks,
    application,
    observer,
    run,
    say,
    set_up_logging,
    stores,
)
from nonet.cli.output import (
    print_fields,
    print_json,
    print_rows,
    print_text,
    printable,
    usage_in_words,
)
from nonet.daemon.service import ExitCode
from nonet.telemetry.masking import keep_secret

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.stores.queue.results import Results
    from nonet.tasks.handles import Handle, TaskStatus
    from nonet.tasks.registry import TaskClass
    from nonet.tasks.task import BaseTask

Task = Annotated[
    str, typer.Argument(metavar="CATEGORY:CLASS", help="Full name, or a class name if unique.")
]
Args = Annotated[
    str, typer.Option(metavar="JSON", help="Array of arguments of the task, by position.")
]
Kwargs = Annotated[
    str, typer.Option(metavar="JSON", help="Object of arguments of the task, by name.")
]
LiveState = Literal["queued", "delayed", "waiting", "running", "dying"]

# A rest of all locks for so long is waited for; on a new Redis it takes 2 s.
_REST_SECONDS = 5.0


def call(
    task: Task,
    args: Args = "[]",
    kwargs: Kwargs = "{}",
    debugger: Annotated[
        Literal["none", "before", "exception"],
        typer.Option(help="Open pdb before the task runs, or when it has failed."),
    ] = "none",
    wait_locks: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Wait for locks that others hold.")
    ] = 0.0,
    as_json: Json = False,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Run one task here, without the broker, and print its result.

    Its structural locks are taken and renewed, its limiters skipped, its retry policy is not
    asked. Without structural locks it needs no Redis. Exit codes: 0 done, 1 failed or a lock
    is held, 2 wrong name or arguments, 3 Redis unreachable.
    """
    set_up_logging(debug)
    _stop_as_if_by_hand()

    async def command() -> int:
        nonet = application(tasks, namespace, state_dir)
        _, built = _build(nonet, task, args, kwargs)
        async with nonet:
            result = await _called(nonet, built, wait_locks, debugger)
        _print_result(result, as_json)
        return ExitCode.OK

    run(debug, command)


async def _called(
    nonet: Nonet,
    task: BaseTask,
    wait_locks: float,
    debugger: Literal["none", "before", "exception"],
) -> Any:
    """What `Nonet.call` gives; on a new Redis it waits for the end of a short rest of locks."""
    from nonet.operate.interactive import arguments_of, check_call
    from nonet.operate.interactive import call as run_here
    from nonet.tasks.secrecy import secret_texts

    check_call(task, wait_locks, debugger)
    task_class = nonet.registry.of(task)
    # Of its defaults, too: a traceback is written when the context of the call is gone.
    keep_secret(secret_texts(arguments_of(task_class, task), task_class.cls))
    async with nonet.injector() as injector:
        return await run_here(
            task,
            nonet.client,
            injector,
            nonet.settings,
            wait_seconds=wait_locks,
            rest_seconds=_REST_SECONDS,
            debugger=debugger,
        )


def submit(
    task: Task,
    args: Args = "[]",
    kwargs: Kwargs = "{}",
    at: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="Not before: ISO 8601 (UTC without offset), or +SECONDS from now."
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Your own id; submitting one again is the same task."),
    ] = None,
    start_by: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="It expires if it has not been started by then, from now."
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Travels along; 'priority' and 'size' override the class. May be repeated.",
        ),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Wait for the end and print the result."),
    ] = None,
    as_json: Json = False,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Submit one task and print its id.

    Exit codes: 0 submitted (with --wait: done), 1 the awaited task failed or has not ended, or a
    ceiling allows no more tasks (nothing was submitted; --json prints its numbers), 2 wrong name or
    arguments (nothing was submitted), 3 Redis unreachable.
    """

    async def command() -> int:
        from nonet.tasks.task import FROM_CLASS

        nonet = application(tasks, namespace, state_dir)
        name, built = _build(nonet, task, args, kwargs)
        labels = _labels(name, label or [])
        when = _when(name, at)
        async with nonet:
            if isinstance(when, timedelta):
                when = await nonet.broker.now() + when
            try:
                handle = await nonet.submit(
                    built,
                    at_time=when,
                    id=id,
                    labels=labels,
                    start_by=FROM_CLASS if start_by is None else start_by,
                )
            except AdmissionRejected as error:
                if as_json:
                    names = ("scope", "active", "ceiling", "retry_after")
                    print_json({name: getattr(error, name) for name in names})
                raise
            return await _report(nonet, handle, wait, as_json)

    run(debug, command)


def classes(
    as_json: Json = False,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """List the task classes that are registered here.

    What in a class is hardly meant, such as an attribute that nobody reads, is a warning on stderr.
    """

    async def command() -> int:
        from nonet.scheduler.startup import checked_hooks

        nonet = application(tasks, namespace, state_dir)
        registry = nonet.registry
        checked_hooks(nonet.settings, nonet.injector())
        for oversight in registry.oversights():
            typer.echo(f"warning: {printable(oversight)}", err=True)
        rows = [_class_row(item) for item in registry]
        if not as_json:
            rows = [{**row, "retry_policy": row["retry_policy"].split("(")[0]} for row in rows]
        print_rows(rows, as_json, "no task is registered: install some, or pass --tasks MODULE")
        return ExitCode.OK

    run(debug, command)


def list_(
    state: Annotated[
        LiveState | None, typer.Option(help="Only tasks of this state.", show_default=False)
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="CATEGORY:CLASS", help="Only tasks of this class.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """List live tasks, in no order."""

    async def command() -> int:
        found: list[TaskStatus] = []
        async with stores(namespace, state_dir) as kept:
            async for item in kept.results.live(state=state, task=task):
                if len(found) == limit:
                    typer.echo(f"there are more than {limit}: see --limit", err=True)
                    break
                found.append(item)
        if as_json:
            print_json(found)
        else:
            nothing = _no_live_task(state, task)
            print_rows([_status_row(item) for item in found], False, nothing)
        return ExitCode.OK

    run(debug, command)


def status(
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of the task.")],
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Show one task, live or ended. Exit code 4: it is unknown."""

    async def command() -> int:
        async with stores(namespace, state_dir) as kept:
            found = await kept.results.status(id)
            await _hint_at_worker(kept.results, found)
        if found is None:  # it is in SQL only, or no task
            async with observer(namespace, state_dir) as nonet:
                found = await _status(nonet, id)
        if as_json:
            print_json(found)
        else:
            print_fields(dataclasses.asdict(found) | _counted(found))
        return ExitCode.OK

    run(debug, command)


def _counted(found: TaskStatus) -> dict[str, Any]:
    """What people read of deaths, of which most tasks know none, and of what an attempt took."""
    return {
        "worker_deaths": found.worker_deaths or None,
        "crashes": found.crashes or None,
        "usage": usage_in_words(found.usage) if found.usage else None,
    }


def _no_live_task(state: str | None, task: str | None) -> str:
    """What a list without rows says: with its filters, one of which may be misspelt."""
    of_class = f" of class {task!r}" if task else ""
    return f"no live task{of_class}{f' is {state}' if state else ''}"


def _build(nonet: Nonet, name: str, args: str, kwargs: str) -> tuple[str, BaseTask]:
    """The full name and the task; nothing has been asked of a server yet."""
    from nonet.tasks.secrecy import secret_texts  # it brings pydantic

    task_class = nonet.registry.get(name)
    positional = _json(task_class.name, "--args", args, list)
    named = _json(task_class.name, "--kwargs", kwargs, dict)
    # From here on nothing that this process says shows them, whoever quotes them.
    given = dict(zip(task_class.arguments.names, positional, strict=False)) | named
    keep_secret(secret_texts(given, task_class.cls))
    try:
        return task_class.name, task_class.arguments.bind(positional, named)
    except NonetError:
        raise
    except Exception as error:  # the author's constructor refuses them
        problem = f"{type(error).__name__}: {error}"
        raise InvalidArgumentsError(task_class.name, [problem]) from error


def _json(task: str, option: str, text: str, kind: type) -> Any:
    wanted = "an array, as in '[1, \"a\"]'" if kind is list else "an object, as in '{\"n\": 1}'"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = f"{option} is no JSON ({error}); it must be {wanted}"
        raise InvalidArgumentsError(task, [problem]) from None
    if not isinstance(value, kind):
        raise InvalidArgumentsError(task, [f"{option} must be {wanted}"])
    return value


def _when(task: str, text: str | None) -> datetime | timedelta | None:
    if text is None:
        return None
    try:
        if text.startswith("+"):
            delay = timedelta(seconds=float(text))
            datetime.now(UTC) + delay  # far beyond any calendar?
            return delay
        instant = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        problem = f"--at {text!r} is neither ISO 8601 nor +SECONDS: {error}"
        raise InvalidArgumentsError(task, [problem]) from None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _labels(task: str, pairs: list[str]) -> dict[str, str]:
    labels = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise InvalidArgumentsError(task, [f"--label {pair!r} must be NAME=VALUE"])
        labels[name] = value
    return labels


async def _status(nonet: Nonet, id: str) -> TaskStatus:
    """One task; for an id that is none, the error says what it is."""
    try:
        return await nonet.status(id)
    except NotFoundError as unknown:
        try:
            await nonet.client.groups.status(id)
        except NotFoundError:
            raise unknown from None
    raise NotFoundError(f"{id} is a group, not a task: 'task-run groups {id}' shows it")


async def _hint_at_worker(results: Results, found: TaskStatus | None) -> None:
    """Say on stderr that nobody runs a queued task yet."""
    if found is None or found.state != "queued":
        return
    size = found.stream.partition(":")[2]
    workers = await results.workers()
    if not any(worker.alive and worker.size == size for worker in workers):
        typer.echo(f"no live task-worker --size {size} yet: it waits", err=True)


async def _report(nonet: Nonet, handle: Handle[Any], wait: float | None, as_json: bool) -> int:
    """Print the id and, if it is to be awaited, how the task ended."""
    report: dict[str, Any] = {"id": str(handle), "created": handle.created}
    if not as_json:
        # Before the wait, which may be cut short.
        typer.echo(handle)
        if not handle.created:
            typer.echo("this id was submitted before: it is the same task", err=True)
    code = ExitCode.OK
    if wait is not None:
        results = nonet.client.results
        await _hint_at_worker(results, await results.status(handle))
        code = await _await(handle, wait, report)
        if not as_json and "result" in report:
            _print_result(report["result"], False)
    if as_json:
        print_json(report)
    return code


async def _await(handle: Handle[Any], wait: float, report: dict[str, Any]) -> ExitCode:
    try:
        report["result"] = await handle.result(timeout=wait)
        report["state"] = "done"
        return ExitCode.OK
    except TimeoutError as error:
        problem = str(error)
    except ResultError as error:
        problem = report["error"] = str(error)
    report["state"] = (await handle.status()).state
    say(problem)
    return ExitCode.FAILED


def _class_row(item: TaskClass) -> dict[str, Any]:
    from nonet.tasks.task import PeriodicBaseTask

    cls = item.cls
    return {
        "name": item.name,
        "priority": cls.priority,
        "size": cls.size,
        "retry_policy": repr(cls.retry_policy),
        "dlq_eligible": cls.dlq_eligible,
        "periodic": issubclass(cls, PeriodicBaseTask),
        "place": item.place,
        "package": item.package,
    }


def _status_row(item: TaskStatus) -> Mapping[str, Any]:
    return {
        "id": item.id,
        "task": item.name,
        "state": item.state,
        "stream": item.stream,
        "attempt": item.attempt,
        "submitted": item.submitted,
        "due": item.due,
        "note": item.blocker or item.worker or item.error,
    }


def _print_result(result: Any, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        print_text(result if isinstance(result, str) else pformat(result))


def _stop_as_if_by_hand() -> None:
    """Let SIGTERM and a closed terminal release the locks, as Ctrl-C does.

    A shell starts what runs in the background with SIGINT ignored: then nothing would.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
