"""``task-run quarantine``: show, delete and retry messages that are not valid tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.cli.batch import Report, one_by_one
from nonet.cli.options import Json, Why
from nonet.cli.output import echo, print_text, print_view
from nonet.cli.target import CodeTarget, Target, operation
from nonet.cli.task_classes import registry_here
from nonet.daemon.service import ExitCode
from nonet.operate import quarantine
from nonet.operate.lists import ListQuery

if TYPE_CHECKING:
    from nonet.stores.namespace.quarantine import Quarantine

app = typer.Typer(
    help="Quarantine: messages in Redis that are not valid tasks.", rich_markup_mode=None
)

Entry = Annotated[
    str, typer.Argument(metavar="ENTRY", help="Id of the entry, see 'quarantine list'.")
]

_COLUMNS = "entry at reason task_id stream"
_MOST = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Named entries, or all."""

    entries: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENTRY...]", help="Ids of entries, see 'quarantine list'.", show_default=False
        ),
    ] = None
    every: Annotated[bool, typer.Option("--all", help="All entries in the quarantine.")] = False

    async def resolve(self, store: Quarantine) -> list[str]:
        """Return the ids, each once, newest first.

        Raises:
            ConfigurationError: ids and --all are given, or neither: a typo must not select every
                entry.
        """
        if self.entries and self.every:
            raise ConfigurationError("named entries exclude --all: leave out the entries or --all")
        if not (self.entries or self.every):
            raise ConfigurationError(
                "which entries? Name them (see 'task-run quarantine list'), or give --all"
            )
        if self.entries:
            return list(dict.fromkeys(self.entries))
        return [item.entry async for item in store.newest(_MOST)]

    def report(self, as_json: bool) -> Report:
        """Create the report of the outcomes."""
        return Report("entry", "entry", as_json, are_named=not self.every)


@app.command("list")
@operation
async def list_(target: Target, query: ListQuery, as_json: Json = False) -> None:
    """List quarantined messages, newest first, without their bytes.

    \b
    task-run quarantine list
    """
    async with target.stores() as stores:
        found = await quarantine.find(stores, query)
    print_view(found, as_json, f"{_COLUMNS} size", "the quarantine is empty")
    if found.total and not as_json:
        echo(f"{found.total} messages quarantined since Redis was last empty", err=True)


@app.command()
@operation
async def show(target: Target, entry: Entry, as_json: Json = False) -> None:
    """Show one quarantined message, without its content.

    If the message decodes as an envelope, 'claims' has its fields, without a check of its
    signature. 'refused' says why this process would not retry it.

    Exit codes: 0 shown, 4 no such entry.

    \b
    task-run quarantine show 1764244800000-0
    """
    async with target.observer() as nonet:
        found = await quarantine.get(nonet.client, entry)
    print_view(found, as_json, f"{_COLUMNS} size kept claims refused")


@app.command()
@operation
async def reveal(target: CodeTarget, entry: Entry, as_json: Json = False) -> None:
    """Show what a quarantined message contains.

    Of an envelope these are its arguments and labels. Secrets are masked; if the class is not
    loaded (see --tasks), all arguments are. Of anything else these are its first 512 bytes,
    unmasked.

    Exit codes: 0 shown, 4 no such entry.

    \b
    task-run quarantine reveal 1764244800000-0 --tasks mytasks
    """
    async with target.observer() as nonet:
        found = await quarantine.reveal(nonet.client, entry, registry_here(nonet))
    print_view(found, as_json, "arguments labels")
    if found.preview and not as_json:
        print_text("\n".join(quarantine.dump(bytes.fromhex(found.preview))))


@app.command()
@operation
async def discard(
    target: Target, selection: Selection, why: Why = "", as_json: Json = False
) -> int:
    """Delete quarantined messages for good.

    'task-run events' shows who deleted them and why.

    Exit codes: 0 all deleted, 1 some not, 4 no such entry.

    \b
    task-run quarantine discard 1764244800000-0
    """
    async with target.stores() as stores:
        chosen = await selection.resolve(stores.quarantine)
        gone = await quarantine.discard(stores, chosen, why)
    report = selection.report(as_json)
    for entry in chosen:
        if entry in gone:
            report.done(entry, {"discarded": True})
        else:
            report.failed(entry, NotFoundError(_NOT_THERE))
    report.close()
    return _finish(report)


@app.command()
@operation
async def retry(target: CodeTarget, selection: Selection, as_json: Json = False) -> int:
    """Submit quarantined messages, each once, as task q-ENTRY.

    Use it after you have added a key or deployed newer code. An entry is checked as a worker would
    check it: signature (NONET_SIGNING_KEYS), length (NONET_MESSAGE_LIMIT), class and arguments. An
    entry that fails the check stays in the quarantine, and the reason is printed. It also stays if
    its task was submitted before and failed, or if another task has its id.

    Exit codes: 0 all submitted, 1 some not; for one named entry also 2 unknown class or invalid
    arguments, 4 no such entry.

    \b
    task-run quarantine retry --all
    """
    report = selection.report(as_json)
    async with target.application() as nonet:
        chosen = await selection.resolve(nonet.stores.quarantine)

        async def one(entry: str) -> dict[str, Any]:
            return asdict(await quarantine.retry(nonet.client, entry))

        async def page() -> AsyncIterator[list[str]]:
            # Retry all entries in the order of their submission.
            yield chosen[::-1] if selection.every else chosen

        await report.follow(one_by_one(one, page()))
    return _finish(report)


_NOT_THERE = "there is no such entry: see 'task-run quarantine list'"


def _finish(report: Report) -> ExitCode:
    if not (report.items or report.as_json):
        echo("the quarantine is empty", err=True)
    return report.code()
