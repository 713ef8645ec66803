"""``task-run quarantine``: look at bytes that are no task, delete them, submit them after all."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

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
    stores,
)
from nonet.cli.output import print_fields, print_json, print_rows, print_text
from nonet.daemon.service import ExitCode, who

if TYPE_CHECKING:
    from pathlib import Path

    from nonet.messages.message import Envelope
    from nonet.stores.namespace.quarantine import Quarantine, Quarantined

app = typer.Typer(help="Quarantine: bytes in streams or records that are no task.")

Entry = Annotated[str, typer.Argument(metavar="ENTRY", help="Id, see 'quarantine list'.")]
Entries = Annotated[
    list[str] | None, typer.Argument(metavar="[ENTRY...]", help="Ids.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="Every entry that is there now.")]

_PREVIEW_BYTES = 512
_PER_LINE = 16
_MOST = 1_000_000


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 100,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """List what is in the quarantine, the newest first, without the bytes."""

    async def command() -> int:
        async with stores(namespace, state_dir) as kept:
            rows = [_row(item) async for item in kept.quarantine.newest(limit)]
            count = await kept.quarantine.count_since_loss()
        print_rows(rows, as_json, "the quarantine is empty")
        if count:
            typer.echo(f"{count} were put here since Redis was last empty", err=True)
        return ExitCode.OK

    run(debug, command)


@app.command()
def show(
    entry: Entry,
    show_args: Annotated[
        bool,
        typer.Option(
            "--show-args",
            help="Show the arguments too, if it is an envelope. Secret ones are masked; so are "
            "all, where the class is not known (see --tasks).",
        ),
    ] = False,
    as_json: Json = False,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Show one entry. Exit code 4: there is none.

    Of an envelope that can be decoded it says what it claims to be, whoever made it. Of others
    the first bytes are shown as they are: they may hold anything, arguments too.
    """

    async def command() -> int:
        async with observer(namespace, state_dir) as nonet:
            item = await nonet.stores.quarantine.get(entry)
        document = {**_row(item), "kept": min(len(item.data), item.size)}
        envelope = _envelope(item)
        if envelope is not None:
            document["envelope"] = _claims(envelope)
            if show_args:
                document |= _arguments(envelope, tasks, namespace, state_dir)
        preview = item.data[:_PREVIEW_BYTES] if envelope is None else b""
        if as_json:
            print_json({**document, "preview": preview.hex()})
        else:
            print_fields(document)
            print_text("\n".join(_dump(preview)))
        return ExitCode.OK

    run(debug, command)


@app.command()
def discard(
    entries: Entries = None,
    every: All = False,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Delete entries for good. 'task-run events' shows who did.

    Exit codes: 0 all of them, 1 not all, 4 there is no such entry.
    """

    async def command() -> int:
        async with observer(namespace, state_dir) as nonet:
            chosen = await _chosen(entries, every, nonet.stores.quarantine)
            gone = await nonet.stores.quarantine.discard(chosen, who())
        report: list[dict[str, Any]] = [
            {"entry": entry, "discarded": True} if done else {"entry": entry, "error": _NOT_THERE}
            for entry, done in zip(chosen, gone, strict=True)
        ]
        codes = [ExitCode.NOT_FOUND for done in gone if not done]
        return _tell(report, codes, as_json, is_one=not every)

    run(debug, command)


@app.command()
def retry(
    entries: Entries = None,
    every: All = False,
    as_json: Json = False,
    tasks: Tasks = None,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Submit entries after all, each once, as task q-ENTRY: after a key or newer code came.

    What is no task for this process stays where it is, and the reason is told: its signature
    (NONET_SIGNING_KEYS), length (NONET_MESSAGE_LIMIT), class and arguments are looked at as a
    worker would. So does an entry whose task was made before and has failed, and one whose id
    belongs to another task. Exit codes: 0 all of them, 1 not all; for one named entry also 2
    unknown class or arguments, 4 there is none.
    """

    async def command() -> int:
        from nonet.operate.quarantine import retry as retry_entry

        async with application(tasks, namespace, state_dir) as nonet:

            async def one(entry: str) -> dict[str, Any]:
                handle = await retry_entry(entry, nonet.client, nonet.stores.quarantine, who())
                return {"id": str(handle), "created": handle.created}

            # The oldest first, as they were submitted.
            chosen = (await _chosen(entries, every, nonet.stores.quarantine))[:: -1 if every else 1]
            return await _each(chosen, one, as_json, is_one=not every)

    run(debug, command)


_NOT_THERE = "there is no such entry: see 'task-run quarantine list'"


async def _chosen(entries: list[str] | None, every: bool, quarantine: Quarantine) -> list[str]:
    """The ids that a command was given, each once.

    Raises:
        ConfigurationError: neither ids nor --all, or both: a slip must not act on everything.
    """
    if entries and every:
        raise ConfigurationError(
            "entries are named, so --all has no meaning: leave out the entries or --all"
        )
    if not (entries or every):
        raise ConfigurationError(
            "which entries? Name them (see 'task-run quarantine list'), or give --all"
        )
    if entries:
        return list(dict.fromkeys(entries))
    return [item.entry async for item in quarantine.newest(_MOST)]


async def _each(
    entries: list[str],
    act: Callable[[str], Coroutine[Any, Any, dict[str, Any]]],
    as_json: bool,
    *,
    is_one: bool,
) -> ExitCode:
    """Act on each entry, whatever became of the others, and report every one."""
    report: list[dict[str, Any]] = []
    codes: list[ExitCode] = []
    try:
        for entry in entries:
            try:
                report.append({"entry": entry, **await act(entry)})
            except ServerUnreachableError:
                raise  # for all that follow too
            except NonetError as error:
                report.append({"entry": entry, "error": str(error)})
                codes.append(exit_code(error))
    finally:
        code = _tell(report, codes, as_json, is_one=is_one)
    return code


def _tell(
    report: list[dict[str, Any]], codes: list[ExitCode], as_json: bool, *, is_one: bool
) -> ExitCode:
    """Print what became of each entry; the exit code, given those of the failures.

    Args:
        is_one: if there is one entry it was named, so the code tells what is wrong with it.
    """
    for row in report:
        if "error" in row:
            say(named(f"entry {row['entry']}", row["error"]))
    done = [row for row in report if "error" not in row]
    if as_json:
        print_json(report)
    elif done or not report:
        print_rows(done, False, "the quarantine is empty")
    if not codes:
        return ExitCode.OK
    return codes[0] if is_one and len(report) == 1 else ExitCode.FAILED


def _row(item: Quarantined) -> dict[str, Any]:
    return {
        "entry": item.entry,
        "at": item.at,
        "reason": item.reason,
        "task_id": item.task_id,
        "stream": item.stream,
        "size": item.size,
    }


def _envelope(item: Quarantined) -> Envelope | None:
    from nonet.base.errors import MalformedMessageError
    from nonet.messages.message import decode_envelope

    try:
        return decode_envelope(item.data)
    except MalformedMessageError:
        return None


def _claims(envelope: Envelope) -> dict[str, Any]:
    """What an envelope says of itself, its arguments and labels apart."""
    names = ("version", "id", "name", "parent", "group")
    submitted = datetime.fromtimestamp(envelope.submitted, UTC)
    return {**{name: getattr(envelope, name) for name in names}, "submitted": submitted}


def _arguments(
    envelope: Envelope, tasks: list[str] | None, namespace: str | None, state_dir: Path | None
) -> dict[str, Any]:
    from nonet.tasks.secrecy import mask_names, masked_arguments

    found = application(tasks, namespace, state_dir).registry.find(envelope.name)
    return {
        "arguments": masked_arguments(envelope.args, found.cls if found else None),
        "labels": mask_names(envelope.labels),
    }


def _dump(data: bytes) -> list[str]:
    """Bytes as hexadecimal digits and characters, for people."""
    lines = []
    for start in range(0, len(data), _PER_LINE):
        part = data[start : start + _PER_LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:04x}  {part.hex(' '):<{3 * _PER_LINE}} {text}")
    return lines
