"""``task-run dlq``: show, resubmit and delete dead letters."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.actor import who
from nonet.base.errors import ConfigurationError, NonetError
from nonet.cli.batch import Report, one_by_one
from nonet.cli.commands import dead_letters_view as view
from nonet.cli.commands.dead_letters_selection import Age, DryRun, Filters, Kind, Selection
from nonet.cli.options import Json, Limit, ShowArgs
from nonet.cli.output import echo, print_answer, print_json, print_rows
from nonet.cli.process import warn
from nonet.cli.progress import Progress
from nonet.cli.target import CodeTarget, Target, operation
from nonet.daemon.service import ExitCode

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.stores.sql.dead_letters import DeadLetter, DeadLetters, LetterFilter

app = typer.Typer(
    help="Dead letters: tasks that failed for good, kept in SQL.", rich_markup_mode=None
)


Row = Annotated[int, typer.Argument(metavar="ROW", help="Number of the row, see 'dlq list'.")]
Note = Annotated[str, typer.Option(help="Why, for 'task-run events'.", show_default="none")]
Pages = AsyncIterator[list[int]]
Outcomes = AsyncIterator[tuple[int, dict[str, Any] | NonetError]]


@app.command("list")
@operation
async def list_(
    target: CodeTarget,
    filters: Filters,
    limit: Limit = 100,
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
    wanted = filters.fields(target)
    async with _dead_letters(target) as letters:
        found = await letters.list(limit=limit, every_namespace=every_namespace, **wanted)
    in_table = partial(view.row, with_namespace=every_namespace)
    rows = [(view.document if as_json else in_table)(letter) for letter in found]
    print_rows(rows, as_json, "no dead letter matches")


@app.command()
@operation
async def clusters(
    target: CodeTarget, filters: Filters, limit: Limit = 100, as_json: Json = False
) -> None:
    """List what dead letters have in common: class, exception and place; the newest first.

    The place is the innermost function of your code in the traceback. 'dlq list', 'dlq resubmit'
    and 'dlq discard' take a cluster with --cluster.

    \b
    task-run dlq clusters --newer-than 12h
    """
    from nonet.stores.sql.dead_letters import LetterFilter

    wanted = LetterFilter(**filters.fields(target))
    async with _dead_letters(target) as letters:
        found = (await letters.clusters(wanted))[:limit]
    rows = [dataclasses.asdict(item) if as_json else view.cluster_row(item) for item in found]
    print_rows(rows, as_json, "no dead letter matches")


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
    async with _dead_letters(target) as letters:
        letter = await letters.get(row)
    document = {**view.document(letter), **view.details(letter)}
    if show_args:
        document["arguments"] = _arguments(letter, target)
    if as_json:
        print_json(document)
    else:
        view.print_letter(document)


@app.command()
@operation
async def resubmit(
    target: CodeTarget,
    selection: Selection,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Also resubmit letters that were resubmitted before, unless the new task is "
            "live or done; and letters whose new id belongs to another task.",
        ),
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Start at most this many a second. All are submitted now; those that are not due "
            "are delayed, so the command does not stay.",
            show_default="all start at once",
        ),
    ] = None,
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
    task-run dlq resubmit --cluster 9e7ff739af7d1835 --rate 10
    """
    if selection.status == "FAILED":
        raise ConfigurationError(
            "--status FAILED: the new tasks of these letters died and have rows of their own; "
            "resubmit those"
        )
    if selection.status == "DISPATCHED" and not again:
        raise ConfigurationError(
            "--status DISPATCHED: these letters were resubmitted already; add --again to resubmit "
            "those whose new task did not succeed"
        )
    chosen = selection.resolve(target, status="PENDING")
    async with target.application() as nonet:
        from nonet.operate.letter_bulk import resubmit_many

        letters = await nonet.dead_letters()

        async def act(pages: Pages) -> Outcomes:
            async for some in resubmit_many(letters, nonet.client, pages, rate=rate, again=again):
                for item in some:
                    yield item.row, item.error or {"id": item.id, "created": item.created}

        async def log(text: str) -> None:
            await _log(nullcontext(nonet), "dlq-resubmit", text)

        return await _each(letters, selection, chosen, act, log, as_json)


@app.command()
@operation
async def discard(
    target: CodeTarget, selection: Selection, note: Note = "", as_json: Json = False
) -> int:
    """Delete dead letters and print each row.

    Name rows, or select letters by filters; the oldest come first. 'task-run events' shows who
    deleted them and the note, if Redis answers.

    Exit codes: 0 all deleted, 1 some not, 3 SQL unreachable; for one named row also 4 no such row.

    \b
    task-run dlq discard --reason arguments --note "sent by hand" --json
    """
    chosen = selection.resolve(target)
    async with _dead_letters(target) as letters:

        async def one(row: int) -> dict[str, Any]:
            await letters.discard(row, only=chosen)
            return {"discarded": True}

        async def log(text: str) -> None:
            await _log(target.observer(), "dlq-discard", f"{text}: {note}" if note else text)

        return await _each(letters, selection, chosen, partial(one_by_one, one), log, as_json)


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
    async with _dead_letters(target) as letters:
        await letters.annotate(row, text)


@app.command()
@operation
async def purge(
    target: CodeTarget,
    older_than: Annotated[timedelta, Age],
    kind: Kind,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete old dead letters in batches, and print their number.

    If the purge fails, letters deleted so far stay deleted. 'task-run events' shows who deleted
    them, if Redis answers.

    Exit codes: 0 done, also if no letter matched, 3 SQL unreachable.

    \b
    task-run dlq purge --older-than 30d --status DISPATCHED
    """
    from nonet.stores.sql.dead_letters import LetterFilter

    before = datetime.now(UTC) - older_than
    old = LetterFilter(**kind.fields(target), died_before=before)
    found, is_done = 0, False
    async with _dead_letters(target) as letters:
        would_be = (len(rows) async for rows in letters.pages(old))
        try:
            with Progress("dead letters") as progress:
                async for number in would_be if dry_run else letters.purge(old):
                    found += number
                    progress.advance(number)
            is_done = True
        finally:
            if found or is_done:
                text = f"{found} dead letters {'would be purged' if dry_run else 'purged'}"
                purged = 0 if dry_run else found
                print_answer({"before": before, "found": found, "purged": purged}, text, as_json)
            if found and not dry_run:
                text = f"{found} that {_filter_in_words(old)}"
                await _log(target.observer(), "dlq-purge", text)


def _filter_in_words(old: LetterFilter) -> str:
    """Describe the filter of a purge for the event stream."""
    given = {name: getattr(old, name) for name in ("status", "task_class", "reason", "error")}
    given["cluster"] = (old.fingerprints or ("",))[0]
    filters = [f"{name} {value}" for name, value in given.items() if value]
    return ", ".join([f"died before {old.died_before:%Y-%m-%dT%H:%M:%SZ}", *filters])


async def _log(application: AbstractAsyncContextManager[Nonet], kind: str, text: str) -> None:
    """Record a change of SQL in the event stream. The change stays if Redis does not answer."""
    try:
        async with application as nonet:
            await nonet.stores.events.log(kind, who(), text)
    except NonetError as error:
        warn(f"done, but 'task-run events' will not show it: {error}")


@asynccontextmanager
async def _dead_letters(target: Target) -> AsyncIterator[DeadLetters]:
    """Open only the store: reading letters needs neither Redis nor task classes."""
    from nonet.stores.sql.dead_letters import DeadLetters

    settings = target.settings()
    letters = DeadLetters(settings.sql_url(), settings.namespace, settings.cipher())
    try:
        yield letters
    finally:
        await letters.close()


async def _each(
    letters: DeadLetters,
    selection: Selection,
    chosen: LetterFilter | None,
    act: Callable[[Pages], Outcomes],
    log: Callable[[str], Awaitable[None]],
    as_json: bool,
) -> ExitCode:
    """Act on each row, report every outcome, and record the changes in the event stream."""

    async def nothing(row: int) -> dict[str, Any]:
        return {}

    report = Report("dead letter", "row", as_json, are_named=chosen is None)
    try:
        outcomes = partial(one_by_one, nothing) if selection.dry_run else act
        await report.follow(outcomes(selection.pages(letters, chosen)))
    finally:
        if not selection.dry_run and (text := _in_words(report)):
            await log(text)
    if selection.dry_run:
        echo(f"{len(report.items)} rows; nothing was changed (--dry-run)", err=True)
    elif not report.items:
        echo("no dead letter matches", err=True)
    return report.code()


def _in_words(report: Report) -> str:
    """Describe how many rows were changed, and the last one; empty if none was."""
    from nonet.operate.letter_bulk import in_words

    done = [item for item in report.items if "error" not in item]
    rows = [item["row"] for item in done if item.get("created", True)]
    return in_words(len(rows), rows[-1]) if rows else ""


def _arguments(letter: DeadLetter, target: CodeTarget) -> dict[str, Any]:
    from nonet.operate.dead_letters import arguments_of, why_unknown

    registry = target.application().registry
    found = arguments_of(letter, registry)
    if found is None:
        why = why_unknown(letter, target.settings().cipher())
        echo(f"the arguments are not shown: {why}", err=True)
        return {}
    if registry.find(letter.task_class) is None:
        category = letter.task_class.partition(":")[0]
        echo(
            f"{letter.task_class} is not registered here, so all arguments are masked: pass the "
            f"module that defines it, as in --tasks package.{category}",
            err=True,
        )
    return found
