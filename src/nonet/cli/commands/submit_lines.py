"""``task-run submit`` without a class: submit the tasks that stdin describes, one JSON per line."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import msgspec

from nonet.base.errors import ConfigurationError, NonetError, suggestion
from nonet.cli.commands.task_arguments import start_of
from nonet.cli.commands.task_building import bind_task
from nonet.cli.output import echo, print_json
from nonet.cli.process import exit_code, is_at_terminal, print_error
from nonet.cli.progress import Progress
from nonet.cli.target import CodeTarget
from nonet.daemon.service import ExitCode
from nonet.tasks.task import Options

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.tasks.handles import Handle
    from nonet.tasks.task import BaseTask, SubmitOptions

# Tasks that are submitted together, in one or two round trips.
_BATCH = 500
# Input beyond this is kept in a temporary file until it is submitted.
_IN_MEMORY_BYTES = 16 * 2**20
# Further invalid lines are only counted.
_REPORTED = 20


class Line(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One line of the input; its fields mean the same as the options of ``task-run submit``."""

    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    id: str | None = None
    at: str | None = None
    delay: str | float | None = None
    start_by: float | None = None
    labels: dict[str, Any] = {}


_decode = msgspec.json.Decoder(Line).decode


def read_input() -> IO[bytes]:
    """Return all of stdin, to be read twice.

    Raises:
        ConfigurationError: stdin is a terminal, or there is none.
    """
    if sys.stdin is None or is_at_terminal():
        raise ConfigurationError(
            "name a task class (see 'task-run classes'), or pass tasks on stdin, one JSON object "
            "per line, as in: task-run submit < tasks.jsonl"
        )
    kept = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115  # the caller closes it
    shutil.copyfileobj(sys.stdin.buffer, kept)
    return kept


async def submit(target: CodeTarget, given: list[str], as_json: bool) -> ExitCode:
    """Submit what stdin describes; options that are meant for one task are rejected.

    Args:
        given: the options on the command line that are.
    """
    if given:
        raise ConfigurationError(
            f"{', '.join(given)}: name the class of the one task, or put this into the lines"
        )
    with read_input() as lines:
        async with target.application() as nonet:
            return await _submit_all(nonet, lines, as_json)


async def _submit_all(nonet: Nonet, lines: IO[bytes], as_json: bool) -> ExitCode:
    """Submit the tasks of all lines, or none if a line is invalid, and print their ids in order.

    Args:
        nonet: an open application.
        lines: one JSON object per line; empty lines are skipped.
    """
    await nonet.broker.ping()  # without Redis, report that once and not for each line
    number, wrong = _validate(nonet, lines)
    if wrong:
        if as_json:
            print_json(wrong)
        invalid = "1 line is" if len(wrong) == 1 else f"{len(wrong)} lines are"
        print_error(f"{invalid} invalid of {number + len(wrong)}; nothing was submitted")
        return ExitCode.USAGE
    if not number:
        echo("stdin has no line, so nothing was submitted", err=True)
    return await _submit(nonet, lines, number, as_json)


def _validate(nonet: Nonet, lines: IO[bytes]) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of valid lines, and the invalid ones with their errors."""
    valid, wrong = 0, list[dict[str, Any]]()
    for number, text in _numbered(lines):
        try:
            task, options = _parsed(nonet, text)
            nonet.client.envelopes.prepare(task, Options.from_mapping(options))
            valid += 1
        except NonetError as error:
            wrong.append({"line": number, "error": str(error)})
            if len(wrong) <= _REPORTED:
                print_error(f"line {number}: {error}")
    if len(wrong) > _REPORTED:
        print_error(f"and {len(wrong) - _REPORTED} more lines")
    return valid, wrong


async def _submit(nonet: Nonet, lines: IO[bytes], total: int, as_json: bool) -> ExitCode:
    """Submit batch by batch; stop behind a batch of which a task was not accepted."""
    report = list[dict[str, Any]]()
    code, known, left = ExitCode.OK, 0, total
    with Progress("submitting", total) as progress:
        for batch in _batches(lines):
            found = await _submit_batch(nonet, batch)
            progress.clear()
            for (number, _), item in zip(batch, found, strict=True):
                if isinstance(item, NonetError):
                    code = code or exit_code(item)
                    report.append({"line": number, "error": str(item)})
                    print_error(f"line {number}: {item}")
                    continue
                left -= 1
                known += not item.created
                if as_json:
                    report.append({"line": number, "id": str(item), "created": item.created})
                else:
                    echo(item)
            progress.advance(len(batch))
            if code:
                print_error(
                    f"stopped at line {batch[-1][0]}: {left} of {total} tasks are not known to be "
                    "submitted. Lines with an id can safely be submitted again"
                )
                break
    if known:
        echo(f"{known} of {total} were submitted before: they are the same tasks", err=True)
    if as_json:
        print_json(report)
    return code


async def _submit_batch(
    nonet: Nonet, batch: list[tuple[int, bytes]]
) -> list[Handle[Any] | NonetError]:
    """Submit concurrently, which the client sends in few calls; return what became of each."""
    parsed = [_parsed(nonet, text) for _, text in batch]
    calls = (nonet.submit(task, **options) for task, options in parsed)
    found = await asyncio.gather(*calls, return_exceptions=True)
    for item in found:
        if isinstance(item, BaseException) and not isinstance(item, NonetError):
            raise item
    return found  # type: ignore[return-value]


def _parsed(nonet: Nonet, text: bytes) -> tuple[BaseTask, SubmitOptions]:
    """Return the task of a line, and the options of its submission."""
    try:
        line = _decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{error}{_hint(text)}") from None
    name, task = bind_task(nonet, line.task, line.args, line.kwargs)
    options: SubmitOptions = {"id": line.id, "labels": line.labels}
    options["at_time"], options["delay"] = start_of(name, line.at, line.delay)
    if line.start_by is not None:
        options["start_by"] = line.start_by
    return task, options


def _hint(text: bytes) -> str:
    """Suggest the name of a misspelt field."""
    try:
        names = msgspec.json.decode(text).keys() - {*Line.__struct_fields__}
    except (msgspec.DecodeError, AttributeError, RecursionError, UnicodeDecodeError):
        return '. Write an object, as in {"task": "mytasks:RemoveFile", "args": ["/lhcb/a"]}'
    return suggestion(min(names), Line.__struct_fields__) if names else ""


def _batches(lines: IO[bytes]) -> Iterator[list[tuple[int, bytes]]]:
    batch = list[tuple[int, bytes]]()
    for item in _numbered(lines):
        batch.append(item)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _numbered(lines: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield each line that is not empty with its number, from the first."""
    lines.seek(0)
    for number, text in enumerate(lines, 1):
        if text.strip():
            yield number, text
