"""``task-run dlq``: look at dead letters, submit them again, delete them."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nonet.base.errors import ConfigurationError, NonetError, ServerUnreachableError
from nonet.cli.common import (
    Debug,
    Json,
    Namespace,
    StateDir,
    Tasks,
    application,
    exit_code,
    named,
    observer,
    run,
    say,
    settings_options,
)
from nonet.cli.durations import duration
from nonet.cli.output import (
    print_fields,
    print_json,
    print_rows,
    print_table,
    print_text,
    printable,
    usage_in_words,
)
from nonet.daemon.service import ExitCode, who

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.stores.sql.dead_letters import DeadLetter, DeadLetters, LetterFilter

app = typer.Typer(help="Dead letters: what failed for good, kept in SQL.")

Row = Annotated[int, typer.Argument(metavar="ROW", help="Number of the row, see 'dlq list'.")]
Rows = Annotated[
    list[int] | None,
    typer.Argument(metavar="[ROW...]", help="Numbers of the rows.", show_default=False),
]
Status = Annotated[
    Literal["PENDING", "DISPATCHED", "FAILED"] | None,
    typer.Option(help="What became of it.", show_default=False),
]
TaskName = Annotated[
    str | None, typer.Option(metavar="CATEGORY:CLASS", help="Only letters of this class.")
]
Reason = Annotated[str | None, typer.Option(help="Why it died: retries, arguments, worker-lost …")]
OlderThan = Annotated[
    timedelta | None,
    typer.Option(parser=duration, metavar="AGE", help="Died longer ago: 30d, 12h, 90m, 3600s."),
]
NewerThan = Annotated[
    timedelta | None, typer.Option(parser=duration, metavar="AGE", help="Died since then.")
]
All = Annotated[bool, typer.Option("--all", help="Every letter that fits, also without a filter.")]
Most = Annotated[
    int | None, typer.Option(min=1, help="At most so many, the oldest.", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell which rows it would be.")]

# Never in lists; `show` has places of their own for them.
_LONG = ("task_args", "traceback", "history", "labels")


@app.command("list")
def list_(
    status: Status = None,
    task: TaskName = None,
    reason: Reason = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 100,
    every_namespace: Annotated[
        bool, typer.Option("--all-namespaces", help="All that are in the database.")
    ] = False,
    as_json: Json = False,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """List dead letters, the newest first, without their arguments."""

    async def command() -> int:
        name = _full_name(task, tasks, namespace, state_dir)
        filters = _filters(status, name, reason, older_than, newer_than)
        async with _dead_letters(namespace, state_dir) as letters:
            found = await letters.list(limit=limit, every_namespace=every_namespace, **filters)
            await _tell_of_unnamed(letters)
        if as_json:
            print_json([_document(letter) for letter in found])
        else:
            rows = [_row(letter, with_namespace=every_namespace) for letter in found]
            print_rows(rows, False, "no such dead letter")
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
    rows: Rows = None,
    every: All = False,
    status: Annotated[
        Literal["PENDING", "DISPATCHED"] | None,
        typer.Option(help="What became of it.", show_default="PENDING"),
    ] = None,
    task: TaskName = None,
    reason: Reason = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    limit: Most = None,
    dry_run: DryRun = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Once more what was submitted again before, if its task has ended otherwise than "
            "done or nothing is known of it; also if another task has its id.",
        ),
    ] = False,
    as_json: Json = False,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Submit dead letters again, each once, as a new task whose id is printed.

    Name rows, or say by filters which letters, the oldest first. A row stays PENDING unless its
    task is submitted for certain. 'task-run events' shows who did.
    Exit codes: 0 all of them, 1 not all, 3 Redis or SQL unreachable; for one named row also
    2 unknown class or arguments, 4 there is none.
    """

    async def command() -> int:
        if status == "DISPATCHED" and not again:
            raise ConfigurationError(
                "--status DISPATCHED: these were submitted again already; with --again those are "
                "submitted once more that have not been done, as far as is known"
            )
        async with application(tasks, namespace, state_dir) as nonet:
            name = nonet.registry.get(task).name if task and ":" not in task else task
            filters = _filters(status, name, reason, older_than, newer_than)
            targets = _targets(rows, every, filters, limit, dry_run)
            if targets.selection is not None and status is None:
                pending = dataclasses.replace(targets.selection, status="PENDING")
                targets = dataclasses.replace(targets, selection=pending)

            async def one(row: int) -> dict[str, Any]:
                handle = await nonet.resubmit(row, again=again)
                return {"id": str(handle), "created": handle.created}

            async def log(text: str) -> None:
                await _log(nullcontext(nonet), "dlq-resubmit", text)

            letters = await nonet.dead_letters()
            await _tell_of_unnamed(letters)
            return await _each(letters, targets, one, log, as_json)

    run(debug, command)


@app.command()
def adopt(
    rows: Rows = None,
    every: All = False,
    status: Status = None,
    task: TaskName = None,
    reason: Reason = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    limit: Most = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Take letters into the namespace that releases without namespaces wrote.

    Name rows, or say by filters which letters, the oldest first. Where several namespaces share a
    database, take only those of your own: 'task-run dlq list --all-namespaces' shows all.
    Exit codes: 0 all of them, 1 not all, 3 SQL unreachable; for one named row also 4 there is none.
    """

    async def command() -> int:
        name = _full_name(task, tasks, namespace, state_dir)
        filters = _filters(status, name, reason, older_than, newer_than)
        targets = _targets(rows, every, filters, limit, dry_run)
        async with _dead_letters(namespace, state_dir) as letters:

            async def one(row: int) -> dict[str, Any]:
                await letters.adopt(row)
                return {"namespace": letters.namespace}

            async def log(text: str) -> None:
                await _log(observer(namespace, state_dir), "dlq-adopt", text)

            return await _each(letters.unnamed, targets, one, log, as_json)

    run(debug, command)


@app.command()
def discard(
    rows: Rows = None,
    every: All = False,
    status: Status = None,
    task: TaskName = None,
    reason: Reason = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    limit: Most = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Delete dead letters and tell each one.

    Name rows, or say by filters which letters, the oldest first. 'task-run events' shows who did,
    if Redis answers. Exit codes: 0 all of them, 1 not all, 3 SQL unreachable; for one named row
    also 4 there is none.
    """

    async def command() -> int:
        name = _full_name(task, tasks, namespace, state_dir)
        filters = _filters(status, name, reason, older_than, newer_than)
        targets = _targets(rows, every, filters, limit, dry_run)
        async with _dead_letters(namespace, state_dir) as letters:

            async def one(row: int) -> dict[str, Any]:
                await letters.discard(row, only=targets.selection)
                return {"discarded": True}

            async def log(text: str) -> None:
                await _log(observer(namespace, state_dir), "dlq-discard", text)

            await _tell_of_unnamed(letters)
            return await _each(letters, targets, one, log, as_json)

    run(debug, command)


@app.command()
def purge(
    older_than: Annotated[
        timedelta,
        typer.Option(parser=duration, metavar="AGE", help="Died longer ago: 30d, 12h, 90m, 3600s."),
    ],
    status: Status = None,
    task: TaskName = None,
    reason: Reason = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell how many it would be.")
    ] = False,
    as_json: Json = False,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Delete old dead letters, some hundred at a time, and tell how many.

    'task-run events' shows who did, if Redis answers.
    Exit codes: 0 done, also if there was none, 3 SQL unreachable; what was deleted stays so.
    """

    async def command() -> int:
        from nonet.stores.sql.dead_letters import LetterFilter

        name = _full_name(task, tasks, namespace, state_dir)
        old = LetterFilter(**_filters(status, name, reason, older_than, None))
        found = 0
        async with _dead_letters(namespace, state_dir) as letters:
            await _tell_of_unnamed(letters)
            try:
                if dry_run:
                    async for rows in letters.pages(old):
                        found += len(rows)
                else:
                    async for deleted in letters.purge(old):
                        found += deleted
            except BaseException:
                if found:  # else the error says it all
                    _tell_purge(found, old.died_before, dry_run, as_json)
                raise
            else:
                _tell_purge(found, old.died_before, dry_run, as_json)
            finally:
                if found and not dry_run:
                    text = f"{found} that {_in_words(old)}"
                    await _log(observer(namespace, state_dir), "dlq-purge", text)
        return ExitCode.OK

    run(debug, command)


def _tell_purge(found: int, before: datetime | None, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"before": before, "found": found, "purged": 0 if dry_run else found})
    else:
        typer.echo(f"{found} dead letters {'would be purged' if dry_run else 'purged'}")


def _in_words(old: LetterFilter) -> str:
    """What a purge was to delete, for the event stream."""
    given = {name: getattr(old, name) for name in ("status", "task_class", "reason")}
    filters = [f"{name} {value}" for name, value in given.items() if value]
    return ", ".join([f"died before {old.died_before:%Y-%m-%dT%H:%M:%SZ}", *filters])


async def _log(application: AbstractAsyncContextManager[Nonet], kind: str, text: str) -> None:
    """Write to the event stream what was done in SQL; without Redis that stays done."""
    try:
        async with application as nonet:
            await nonet.stores.events.log(kind, who(), text)
    except NonetError as error:
        problem = printable(" ".join(str(error).split()))
        typer.echo(f"warning: done, but 'task-run events' will not show it: {problem}", err=True)


@asynccontextmanager
async def _dead_letters(
    namespace: str | None, state_dir: Path | None
) -> AsyncIterator[DeadLetters]:
    """The store alone: to look at letters neither Redis nor any task class is needed."""
    from nonet.config.settings import load_settings
    from nonet.stores.sql.dead_letters import DeadLetters

    settings = load_settings(**settings_options(None, namespace, state_dir))
    letters = DeadLetters(settings.sql_url(), settings.namespace)
    try:
        yield letters
    finally:
        await letters.close()


async def _tell_of_unnamed(letters: DeadLetters) -> None:
    """Say that there are letters which no command but adopt acts on."""
    if number := sum((await letters.unnamed.count()).values()):
        typer.echo(
            f"{number} dead letters without a namespace, written by a release before: those of "
            f"{letters.namespace} join it by 'task-run dlq adopt' (--all, or rows; see 'task-run "
            "dlq list --all-namespaces')",
            err=True,
        )


# ---- many rows ----------------------------------------------------------------------------------


def _full_name(
    task: str | None, tasks: list[str] | None, namespace: str | None, state_dir: Path | None
) -> str | None:
    if task is None or ":" in task:
        return task
    return application(tasks, namespace, state_dir).registry.get(task).name


def _filters(
    status: str | None,
    task_class: str | None,
    reason: str | None,
    older_than: timedelta | None,
    newer_than: timedelta | None,
) -> dict[str, Any]:
    """Fields of a `LetterFilter`; what was not given is left out."""
    now = datetime.now(UTC)
    filters = {
        "status": status,
        "task_class": task_class,
        "reason": reason,
        "died_before": None if older_than is None else now - older_than,
        "died_after": None if newer_than is None else now - newer_than,
    }
    return {name: value for name, value in filters.items() if value is not None}


@dataclass(frozen=True)
class _Targets:
    """What a command acts on: named rows, or the letters that fit filters.

    Attributes:
        selection: None if rows are named.
        limit: at most so many, the oldest; None: all.
        dry_run: only tell which rows these are.
    """

    rows: list[int]
    selection: LetterFilter | None
    limit: int | None
    dry_run: bool

    async def pages(self, letters: DeadLetters) -> AsyncIterator[list[int]]:
        """Row ids, some hundred at a time."""
        if self.selection is None:
            yield list(dict.fromkeys(self.rows))
            return
        left = self.limit
        async for page in letters.pages(self.selection):
            yield page[:left]
            if left is not None and (left := left - len(page)) <= 0:
                return


def _targets(
    rows: list[int] | None,
    every: bool,
    filters: dict[str, Any],
    limit: int | None,
    dry_run: bool,
) -> _Targets:
    """Rows or filters.

    Raises:
        ConfigurationError: both, or neither: a slip must not act on everything.
    """
    from nonet.stores.sql.dead_letters import LetterFilter

    if rows and (every or filters or limit is not None or dry_run):
        raise ConfigurationError(
            "rows are named, so neither --all nor filters, --limit and --dry-run have a meaning: "
            "leave out the rows or the options"
        )
    if not (rows or every or filters):
        raise ConfigurationError(
            "which letters? Name rows (see 'task-run dlq list'), or give a filter (--status, "
            "--task, --reason, --older-than, --newer-than), or --all"
        )
    return _Targets(rows or [], None if rows else LetterFilter(**filters), limit, dry_run)


async def _each(
    letters: DeadLetters,
    targets: _Targets,
    act: Callable[[int], Awaitable[dict[str, Any]]],
    log: Callable[[str], Awaitable[None]],
    as_json: bool,
) -> ExitCode:
    """Act on each row, whatever became of the others, and report every one.

    Args:
        log: takes what was done, for the event stream.
    """
    report = _Report(as_json, are_named=targets.selection is None)
    try:
        async for page in targets.pages(letters):
            for row in page:
                try:
                    report.done(row, {} if targets.dry_run else await act(row))
                except ServerUnreachableError:
                    raise  # for all that follow too
                except NonetError as error:
                    report.failed(row, error)
            report.turn_page()
    finally:
        report.close()
        if not targets.dry_run and (text := report.in_words()):
            await log(text)
    if targets.dry_run:
        typer.echo(f"{len(report.entries)} rows; nothing was done (--dry-run)", err=True)
    elif not report.entries:
        typer.echo("no such dead letter", err=True)
    return report.code()


@dataclass
class _Report:
    """What became of each row: for people page by page, for programs one array at the end.

    Attributes:
        are_named: the rows were named, so that the code of one tells what is wrong with it.
    """

    as_json: bool
    are_named: bool
    entries: list[dict[str, Any]] = field(default_factory=list)
    failures: list[ExitCode] = field(default_factory=list)
    _told: int = 0

    def done(self, row: int, result: dict[str, Any]) -> None:
        self.entries.append({"row": row, **result})

    def failed(self, row: int, error: NonetError) -> None:
        self.entries.append({"row": row, "error": str(error)})
        self.failures.append(exit_code(error))
        say(named(f"dead letter {row}", str(error)))

    def turn_page(self) -> None:
        """Tell people what has been done since the last page."""
        page = [entry for entry in self.entries[self._told :] if "error" not in entry]
        self._told = len(self.entries)
        if page and not self.as_json:
            print_rows(page, False, "")

    def close(self) -> None:
        """Tell the rest, also after an error."""
        self.turn_page()
        if self.as_json:
            print_json(self.entries)

    def code(self) -> ExitCode:
        if not self.failures:
            return ExitCode.OK
        if self.are_named and len(self.entries) == 1:
            return self.failures[0]
        return ExitCode.FAILED

    def in_words(self) -> str:
        """How many rows were changed, and the last one; empty if none was."""
        done = [entry for entry in self.entries if "error" not in entry]
        rows = [entry["row"] for entry in done if entry.get("created", True)]
        if len(rows) < 2:
            return "".join(f"row {row}" for row in rows)
        return f"{len(rows)} rows, the last {rows[-1]}"


# ---- one letter ---------------------------------------------------------------------------------


def _document(letter: DeadLetter) -> dict[str, Any]:
    return {
        field.name: getattr(letter, field.name)
        for field in dataclasses.fields(letter)
        if field.name not in _LONG
    }


def _details(letter: DeadLetter) -> dict[str, Any]:
    from nonet.tasks.secrecy import mask_names

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


def _row(letter: DeadLetter, *, with_namespace: bool) -> dict[str, Any]:
    return {
        "row": letter.id,
        **({"namespace": letter.namespace or "(none)"} if with_namespace else {}),
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
    from nonet.messages.message import decode
    from nonet.tasks.secrecy import masked_arguments

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
        print_table([], [_attempt_cells(attempt) for attempt in texts["history"]])
    if texts["traceback"]:
        print_text(f"\n{texts['traceback']}")


def _attempt_cells(attempt: dict[str, Any]) -> list[Any]:
    """One attempt for people; what it took stands last."""
    from nonet.messages.message import Usage

    taken = Usage(*(attempt.get(name) for name in ("wall", "cpu", "rss")))
    return [attempt.get(name) for name in ("attempt", "at", "error")] + [usage_in_words(taken)]
