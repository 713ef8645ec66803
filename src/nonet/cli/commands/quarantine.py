"""``task-run quarantine``: show, delete and retry messages that are not valid tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.actor import who
from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.cli.batch import Report, one_by_one
from nonet.cli.options import Json, Limit, ShowArgs
from nonet.cli.output import echo, print_fields, print_json, print_rows, print_text
from nonet.cli.target import CodeTarget, Target, operation
from nonet.daemon.service import ExitCode

if TYPE_CHECKING:
    from nonet.messages.message import Envelope
    from nonet.stores.namespace.quarantine import Quarantine, Quarantined

app = typer.Typer(
    help="Quarantine: messages in Redis that are not valid tasks.", rich_markup_mode=None
)

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

    async def resolve(self, quarantine: Quarantine) -> list[str]:
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
        return [item.entry async for item in quarantine.newest(_MOST)]

    def report(self, as_json: bool) -> Report:
        """Create the report of the outcomes."""
        return Report("entry", "entry", as_json, are_named=not self.every)


@app.command("list")
@operation
async def list_(target: Target, limit: Limit = 100, as_json: Json = False) -> None:
    """List quarantined messages, newest first, without their bytes.

    \b
    task-run quarantine list
    """
    async with target.stores() as stores:
        rows = [_row(item) async for item in stores.quarantine.newest(limit)]
        count = await stores.quarantine.count_since_loss()
    print_rows(rows, as_json, "the quarantine is empty")
    if count:
        echo(f"{count} messages quarantined since Redis was last empty", err=True)


@app.command()
@operation
async def show(
    target: CodeTarget,
    entry: Annotated[
        str, typer.Argument(metavar="ENTRY", help="Id of the entry, see 'quarantine list'.")
    ],
    show_args: ShowArgs = False,
    as_json: Json = False,
) -> None:
    """Show one quarantined message.

    If the message decodes as an envelope, its fields are shown without a check of its signature.
    Otherwise its first 512 bytes are shown unmasked, which may include arguments.

    Exit codes: 0 shown, 4 no such entry.

    \b
    task-run quarantine show 1764244800000-0
    """
    from nonet.operate.quarantine import PREVIEW_BYTES, claimed, dump

    async with target.observer() as nonet:
        item = await nonet.stores.quarantine.get(entry)
    document = {**_row(item), "kept": min(len(item.data), item.size)}
    envelope = claimed(item, target.settings().cipher())
    if envelope is not None:
        document["envelope"] = _claims(envelope)
        if show_args:
            document |= _arguments(envelope, target)
    preview = item.data[:PREVIEW_BYTES] if envelope is None else b""
    if as_json:
        print_json({**document, "preview": preview.hex()})
    else:
        print_fields(document)
        print_text("\n".join(dump(preview)))


@app.command()
@operation
async def discard(
    target: Target,
    selection: Selection,
    note: Annotated[
        str, typer.Option(help="Why, for 'task-run events'.", show_default="none")
    ] = "",
    as_json: Json = False,
) -> int:
    """Delete quarantined messages for good.

    'task-run events' shows who deleted them and the note.

    Exit codes: 0 all deleted, 1 some not, 4 no such entry.

    \b
    task-run quarantine discard 1764244800000-0
    """
    async with target.observer() as nonet:
        chosen = await selection.resolve(nonet.stores.quarantine)
        gone = await nonet.stores.quarantine.discard(chosen, who(), note)
    report = selection.report(as_json)
    for entry, done in zip(chosen, gone, strict=True):
        if done:
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
    from nonet.operate.quarantine import retry as retry_entry

    report = selection.report(as_json)
    async with target.application() as nonet:
        quarantine = nonet.stores.quarantine
        chosen = await selection.resolve(quarantine)

        async def one(entry: str) -> dict[str, Any]:
            handle = await retry_entry(entry, nonet.client, quarantine, who())
            return {"id": str(handle), "created": handle.created}

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


def _row(item: Quarantined) -> dict[str, Any]:
    return {
        "entry": item.entry,
        "at": item.at,
        "reason": item.reason,
        "task_id": item.task_id,
        "stream": item.stream,
        "size": item.size,
    }


def _claims(envelope: Envelope) -> dict[str, Any]:
    """Return the fields of an envelope, except arguments and labels."""
    names = ("version", "id", "name", "parent", "group")
    submitted = datetime.fromtimestamp(envelope.submitted, UTC)
    return {**{name: getattr(envelope, name) for name in names}, "submitted": submitted}


def _arguments(envelope: Envelope, target: CodeTarget) -> dict[str, Any]:
    from nonet.tasks.secrecy import mask_names, masked_arguments

    found = target.application().registry.find(envelope.name)
    return {
        "arguments": masked_arguments(envelope.args, found.cls if found else None),
        "labels": mask_names(envelope.labels),
    }
