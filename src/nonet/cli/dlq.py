"""``task-run dlq``: look at dead letters, submit them again, delete them."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nonet.cli.common import (
    Debug,
    Json,
    Namespace,
    StateDir,
    Tasks,
    application,
    exit_code,
    run,
    say,
    settings_options,
)
from nonet.cli.output import print_fields, print_json, print_rows, print_table, print_text
from nonet.errors import NonetError, ServerUnreachableError
from nonet.service import ExitCode

if TYPE_CHECKING:
    from nonet.stores.dead_letters import DeadLetter, DeadLetters

app = typer.Typer(help="Dead letters: what failed for good, kept in SQL.")

Row = Annotated[int, typer.Argument(metavar="ROW", help="Number of the row, see 'dlq list'.")]
Rows = Annotated[list[int], typer.Argument(metavar="ROW...", help="Numbers of the rows.")]

# Never in lists; `show` has places of their own for them.
_LONG = ("task_args", "traceback", "history", "labels")


@app.command("list")
def list_(
    status: Annotated[
        Literal["PENDING", "DISPATCHED", "FAILED"] | None,
        typer.Option(help="What became of it.", show_default=False),
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="CATEGORY:CLASS", help="Only letters of this class.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="Why it died: retries, arguments, worker-lost …")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 100,
    as_json: Json = False,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """List dead letters, the newest first, without their arguments."""

    async def command() -> int:
        name = task
        if task is not None and ":" not in task:
            name = application(tasks, namespace, state_dir).registry.get(task).name
        async with _dead_letters(namespace, state_dir) as letters:
            found = await letters.list(status=status, task_class=name, reason=reason, limit=limit)
        if as_json:
            print_json([_document(letter) for letter in found])
        else:
            print_rows([_row(letter) for letter in found], False, "no such dead letter")
        return ExitCode.OK

    run(debug, command)


@app.command()
def show(
    row: Row,
    show_args: Annotated[
        bool,
        typer.Option(
            "--show-args",
            help="Show the arguments too. Secret ones are masked; so are all, where the class is "
            "not known (see --tasks).",
        ),
    ] = False,
    as_json: Json = False,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Show one dead letter with its traceback and attempts. Exit code 4: there is none."""

    async def command() -> int:
        async with _dead_letters(namespace, state_dir) as letters:
            letter = await letters.get(row)
        document = {**_document(letter), **_details(letter)}
        if show_args:
            document["arguments"] = _arguments(letter, tasks, namespace, state_dir)
        if as_json:
            print_json(document)
        else:
            _print_letter(document)
        return ExitCode.OK

    run(debug, command)


@app.command()
def resubmit(
    rows: Rows,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Also a letter that was submitted again before, if nothing is known of its task.",
        ),
    ] = False,
    as_json: Json = False,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Submit dead letters again, each once, as a new task whose id is printed.

    Exit codes: 0 all of them, 1 not all, 3 Redis or SQL unreachable.
    """

    async def command() -> int:
        async with application(tasks, namespace, state_dir) as nonet:

            async def one(row: int) -> dict[str, Any]:
                handle = await nonet.resubmit(row, again=again)
                return {"id": str(handle), "created": handle.created}

            return await _each(rows, one, as_json)

    run(debug, command)


@app.command()
def discard(
    rows: Rows,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Delete dead letters. Exit codes: 0 all of them, 1 not all, 3 SQL unreachable."""

    async def command() -> int:
        async with _dead_letters(namespace, state_dir) as letters:

            async def one(row: int) -> dict[str, Any]:
                await letters.discard(row)
                return {"discarded": True}

            return await _each(rows, one, as_json)

    run(debug, command)


@asynccontextmanager
async def _dead_letters(
    namespace: str | None, state_dir: Path | None
) -> AsyncIterator[DeadLetters]:
    """The store alone: to look at letters neither Redis nor any task class is needed."""
    from nonet.settings import load_settings
    from nonet.stores.dead_letters import DeadLetters

    letters = DeadLetters(load_settings(**settings_options(None, namespace, state_dir)).sql_url())
    try:
        yield letters
    finally:
        await letters.close()


async def _each(
    rows: list[int], act: Callable[[int], Awaitable[dict[str, Any]]], as_json: bool
) -> ExitCode:
    """Act on each row, whatever became of the others, and report every one."""
    report: list[dict[str, Any]] = []
    failures: list[ExitCode] = []
    try:
        for row in dict.fromkeys(rows):
            try:
                report.append({"row": row, **await act(row)})
            except ServerUnreachableError:
                raise  # for all that follow too
            except NonetError as error:
                report.append({"row": row, "error": str(error)})
                failures.append(exit_code(error))
                say(f"row {row}: {error}")
    finally:
        done = [entry for entry in report if "error" not in entry]
        if as_json:
            print_json(report)
        elif done:
            print_rows(done, False, "")
    if not failures:
        return ExitCode.OK
    return failures[0] if len(report) == 1 else ExitCode.FAILED


def _document(letter: DeadLetter) -> dict[str, Any]:
    return {
        field.name: getattr(letter, field.name)
        for field in dataclasses.fields(letter)
        if field.name not in _LONG
    }


def _details(letter: DeadLetter) -> dict[str, Any]:
    from nonet.cli.secrets import mask_names

    return {
        "labels": mask_names(letter.labels),
        "history": [{**attempt, "at": _instant(attempt.get("at"))} for attempt in letter.history],
        "traceback": _whole_traceback(letter),
    }


def _instant(seconds: Any) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def _whole_traceback(letter: DeadLetter) -> str:
    """As Python prints it: the table keeps frames and error apart."""
    if not letter.traceback:
        return ""
    frames = letter.traceback.rstrip("\n")
    error = f"{letter.error_type}: {letter.error_message}".removesuffix(": ")
    return f"Traceback (most recent call last):\n{frames}\n{error}"


def _row(letter: DeadLetter) -> dict[str, Any]:
    return {
        "row": letter.id,
        "status": letter.status,
        "task": letter.task_class or "(not decodable)",
        "task_id": letter.task_id,
        "reason": letter.reason,
        "retries": letter.retry_count,
        "died": letter.created_at,
        "error": letter.last_error.partition("\n")[0][:200],
    }


def _arguments(
    letter: DeadLetter, tasks: list[str] | None, namespace: str | None, state_dir: Path | None
) -> dict[str, Any]:
    from nonet.cli.secrets import masked_arguments
    from nonet.message import decode

    if not letter.task_class:
        typer.echo("its arguments cannot be decoded", err=True)
        return {}
    found = application(tasks, namespace, state_dir).registry.find(letter.task_class)
    if found is None:
        category = letter.task_class.partition(":")[0]
        typer.echo(
            f"{letter.task_class} is not registered here, so all arguments are masked: pass the "
            f"module that defines it, as in --tasks package.{category}",
            err=True,
        )
    return masked_arguments(decode(letter.task_args), found.cls if found else None)


def _print_letter(document: dict[str, Any]) -> None:
    texts = {name: document.pop(name) for name in ("traceback", "history")}
    print_fields(document)
    if texts["history"]:
        print_text("\nattempts")
        print_table([], [list(attempt.values()) for attempt in texts["history"]])
    if texts["traceback"]:
        print_text(f"\n{texts['traceback']}")
