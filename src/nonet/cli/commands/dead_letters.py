"""``task-run dlq``: show, resubmit and delete dead letters."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.actor import who
from nonet.base.errors import ConfigurationError, NonetError, NotFoundError
from nonet.base.messages.message import Usage
from nonet.base.plain import counted, plain
from nonet.cli.batch import Report, one_by_one
from nonet.cli.commands.task_arguments import Changes
from nonet.cli.commands.task_building import read_json
from nonet.cli.options import Json, ShowArgs, Why
from nonet.cli.output import (
    echo,
    print_answer,
    print_fields,
    print_json,
    print_table,
    print_text,
    print_view,
    usage_in_words,
)
from nonet.cli.process import warn
from nonet.cli.progress import Progress
from nonet.cli.target import CodeTarget, Target, operation
from nonet.daemon.service import ExitCode
from nonet.operate import dead_letters
from nonet.operate.dead_letters import AttemptView, LetterDetails, LetterQuery, LetterSelection
from nonet.rules.letters import LetterFilter
from nonet.stores.sql.dead_letters import DeadLetters

if TYPE_CHECKING:
    from nonet.tasks.registry import Registry

app = typer.Typer(
    help="Dead letters: tasks that failed for good, kept in SQL.", rich_markup_mode=None
)

_LETTER = (
    "status task=shown_class task_id reason retries=retry_count died=created_at error=first_line"
)
_CLUSTER = (
    "cluster=fingerprint task=shown_class error=cause location letters=count pending last_day "
    "first last"
)
_DETAILS = (
    "id status task_class task_id pipeline row_key reason last_error location cluster=fingerprint "
    "note submitted_at last_attempted_at died=created_at retries=retry_count max_retries vo "
    "parent_id resubmitted_from resubmitted_as resubmissions labels"
)
_NOTHING = "no dead letter matches"

Row = Annotated[int, typer.Argument(metavar="ROW", help="Number of the row, see 'dlq list'.")]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Which letters a command acts on: named rows, or the first N that match."""

    rows: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="[ROW...]", help="Numbers of rows, see 'dlq list'.", show_default=False
        ),
    ] = None
    every: Annotated[
        bool, typer.Option("--all", help="All letters that match, even without a filter.")
    ] = False
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Act on at most this many, the oldest first.", show_default="no limit"
        ),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; print how many letters match.")
    ] = False

    def filter(
        self, target: CodeTarget, query: LetterSelection, **more: Any
    ) -> LetterFilter | None:
        """Return the filter for the letters; None if rows are named.

        Raises:
            ConfigurationError: both rows and filters are given, or neither: a typo must not select
                every letter.
        """
        if self.rows and (self.every or query.given or self.limit is not None or self.dry_run):
            raise ConfigurationError(
                "named rows exclude --all, filters, --limit and --dry-run: leave out the rows or "
                "the options"
            )
        if not (self.rows or self.every or query.given):
            raise ConfigurationError(
                "which letters? Name rows (see 'task-run dlq list'), or give a filter (--status, "
                "--task, --reason, --error, --cluster, --older-than, --newer-than), or --all"
            )
        if self.rows:
            return None
        return LetterFilter(**{**more, **query.fields(partial(_registry, target))})

    async def pages(
        self, letters: DeadLetters, chosen: LetterFilter | None
    ) -> AsyncIterator[list[int]]:
        """Yield row numbers in batches, the oldest first; `chosen` is that of `filter`."""
        if chosen is None:
            yield list(dict.fromkeys(self.rows or []))
            return
        left = self.limit
        async for page in letters.pages(chosen):
            yield page[:left]
            if left is not None and (left := left - len(page)) <= 0:
                return

    async def measured(
        self, letters: DeadLetters, chosen: LetterFilter
    ) -> tuple[int, LetterFilter]:
        """Return how many letters match now, and a filter fixed to them."""
        if self.limit is None:
            return await dead_letters.measure(letters, chosen)
        found = [row async for page in self.pages(letters, chosen) for row in page]
        return len(found), dataclasses.replace(chosen, up_to=found[-1] if found else 0)


@app.command("list")
@operation
async def list_(
    target: CodeTarget,
    query: LetterQuery,
    every_namespace: Annotated[
        bool,
        typer.Option(
            "--all-namespaces", help="List the letters of all namespaces in the database."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """List dead letters, newest first, without their arguments.

    \b
    task-run dlq list --reason retries --newer-than 12h
    """
    async with _store(target) as letters:
        registry = partial(_registry, target)
        found = await dead_letters.find(letters, query, registry, every_namespace=every_namespace)
    namespace = "namespace " if every_namespace else ""
    print_view(found, as_json, f"row=id {namespace}{_LETTER}", _NOTHING)


@app.command()
@operation
async def clusters(target: CodeTarget, query: LetterQuery, as_json: Json = False) -> None:
    """Group dead letters by class, exception and location; newest first.

    The location is the innermost function of your code in the traceback. 'dlq list', 'dlq resubmit'
    and 'dlq discard' take a cluster with --cluster.

    \b
    task-run dlq clusters --newer-than 12h
    """
    async with _store(target) as letters:
        found = await dead_letters.clusters(letters, query, partial(_registry, target))
    print_view(found, as_json, _CLUSTER, _NOTHING)


@app.command()
@operation
async def show(
    target: CodeTarget, row: Row, show_args: ShowArgs = False, as_json: Json = False
) -> None:
    """Show one dead letter with its traceback and attempts.

    Exit codes: 0 shown, 3 SQL unreachable, 4 no such row.

    \b
    task-run dlq show 17 --show-args --tasks mytasks
    """
    async with _store(target) as letters:
        letter = await dead_letters.get(letters, row)
        arguments = await _arguments(letter, letters, target) if show_args else None
    if as_json:
        print_json({**plain(letter), **({"arguments": arguments} if show_args else {})})
        return
    print_view(letter, False, _DETAILS)
    if arguments:
        print_fields({"arguments": arguments})
    if letter.history:
        print_text("\nattempts")
        print_table([], [_cells(attempt) for attempt in letter.history])
    for attempt in letter.history:
        if attempt.log:
            print_text(f"\nlog of attempt {attempt.attempt}\n{attempt.log}")
    if letter.traceback:
        print_text(f"\n{letter.traceback}")


def _cells(attempt: AttemptView) -> list[Any]:
    usage = Usage(attempt.wall, attempt.cpu, attempt.rss)
    return [attempt.attempt, attempt.at, attempt.error, usage_in_words(usage)]


@app.command()
@operation
async def resubmit(
    target: CodeTarget,
    query: LetterSelection,
    rows: Rows,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Also resubmit letters whose new task is neither live nor done, or whose new id "
            "another task has.",
        ),
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Start at most this many a second. All tasks are submitted at once with "
            "staggered delays; the command does not wait.",
            show_default="all start at once",
        ),
    ] = None,
    changes: Changes = "{}",
    as_json: Json = False,
) -> int:
    """Submit dead letters again as new tasks, each letter once, and print the new ids.

    Name rows, or select letters by filters; the oldest come first. Without --status only PENDING
    letters are selected. A row stays PENDING until its new task is known to have been submitted.
    'task-run events' shows who resubmitted.

    Exit codes: 0 all submitted, 1 some not, 3 Redis or SQL unreachable; for one named row also
    2 unknown class or invalid arguments, 4 no such row.

    \b
    task-run dlq resubmit 17 18
    task-run dlq resubmit --task RemoveFile --newer-than 2d --dry-run
    task-run dlq resubmit --cluster 9e7ff739af7d1835 --rate 10 --changes '{"host": "db-2"}'
    """
    _check_status(query.status, again)
    wanted = read_json("dlq resubmit", "--changes", changes, dict)
    chosen = rows.filter(target, query, status="PENDING")
    async with target.application() as nonet:
        letters, client = await nonet.dead_letters(), nonet.client
        if chosen and rows.dry_run:
            return _preview(*await rows.measured(letters, chosen), as_json)
        found = dead_letters.resubmit_many(
            letters,
            client,
            partial(_log, target),
            rows.pages(letters, chosen),
            rate=rate,
            again=again,
            changes=wanted,
        )
        report = Report("dead letter", "row", as_json, are_named=chosen is None)
        await report.follow(
            (item.row, item.error or {"id": item.id, "created": item.created})
            async for some in found
            for item in some
        )
        if not report.items:
            echo(_NOTHING, err=True)
        return report.code()


def _check_status(status: str | None, again: bool) -> None:
    """Reject a status whose letters cannot be resubmitted."""
    if status == "FAILED":
        raise ConfigurationError(
            "--status FAILED: the new tasks of these letters died and have rows of their own; "
            "resubmit those"
        )
    if status == "DISPATCHED" and not again:
        raise ConfigurationError(
            "--status DISPATCHED: these letters were resubmitted already; add --again to resubmit "
            "those whose new task did not succeed"
        )


@app.command()
@operation
async def discard(
    target: CodeTarget, query: LetterSelection, rows: Rows, why: Why = "", as_json: Json = False
) -> int:
    """Delete dead letters: named rows, or those that filters select, and print their number.

    The oldest come first. If it fails, letters deleted so far stay deleted. 'task-run events' shows
    who deleted them and why, if Redis answers.

    Exit codes: 0 all deleted, 1 some not, 3 SQL unreachable; for one named row also 4 no such row.

    \b
    task-run dlq discard 17 --why "sent by hand"
    task-run dlq discard --older-than 30d --status DISPATCHED --dry-run
    """
    chosen, log = rows.filter(target, query), partial(_log, target)
    async with _store(target) as letters:
        if chosen is None:

            async def one(row: int) -> dict[str, Any]:
                await dead_letters.discard(letters, log, row, why)
                return {}

            report = Report("dead letter", "row", as_json, are_named=True)
            await report.follow(one_by_one(one, rows.pages(letters, None)))
            return report.code()
        number, exact = await rows.measured(letters, chosen)
        if rows.dry_run:
            return _preview(number, exact, as_json)
        words = f"{query.in_words}: {why}".removesuffix(": ")
        gone = 0
        try:
            with Progress("dead letters") as progress:
                async for some in dead_letters.discard_many(letters, log, exact, words):
                    gone += some
                    progress.advance(some)
        finally:
            if gone or not number:
                print_answer({"discarded": gone}, f"{gone} dead letters discarded", as_json)
    return ExitCode.OK


def _preview(number: int, exact: LetterFilter, as_json: bool) -> ExitCode:
    """Print how many letters a change would concern, as the API answers a dry run."""
    if as_json:
        print_json({"number": number, "up_to": exact.up_to or 0, "bulk": None})
    echo(f"{counted(number, 'dead letter')}; nothing was changed (--dry-run)", err=True)
    return ExitCode.OK


@app.command()
@operation
async def note(
    target: CodeTarget,
    row: Row,
    text: Annotated[str, typer.Argument(help="The note; an empty one removes it.")],
) -> None:
    """Write a note on a dead letter for the next operator; it replaces an earlier note.

    Exit codes: 0 written, 3 SQL unreachable, 4 no such row.

    \b
    task-run dlq note 17 "waits for the new printer"
    """
    async with _store(target) as letters:
        await dead_letters.annotate(letters, row, text)


async def _log(target: Target, kind: str, text: str) -> None:
    """Record a change of SQL in the event stream. The change stays if Redis does not answer."""
    try:
        async with target.stores() as stores:
            await stores.events.log(kind, who(), text)
    except NonetError as error:
        warn(f"done, but 'task-run events' will not show it: {error}")


def _registry(target: CodeTarget) -> Registry:
    """Load the task classes, which only a bare name of a class needs."""
    return target.application().registry


@asynccontextmanager
async def _store(target: Target) -> AsyncIterator[DeadLetters]:
    """Open only the store: reading letters needs neither Redis nor task classes."""

    settings = target.settings()
    letters = DeadLetters(settings.sql_url(), settings.namespace, settings.cipher())
    try:
        yield letters
    finally:
        await letters.close()


async def _arguments(
    letter: LetterDetails, letters: DeadLetters, target: CodeTarget
) -> dict[str, Any]:
    registry = _registry(target)
    try:
        found = await dead_letters.reveal(letters, letter.id, registry, target.settings().cipher())
    except NotFoundError as error:
        echo(str(error), err=True)
        return {}
    if registry.find(letter.task_class) is None:
        category = letter.task_class.partition(":")[0]
        echo(
            f"{letter.task_class} is not registered here, so all arguments are masked: pass the "
            f"module that defines it, as in --tasks package.{category}",
            err=True,
        )
    return found
