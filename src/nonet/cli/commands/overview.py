"""``task-run overview``: what is wrong now, and the command that mends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.amounts import format_bytes
from nonet.base.durations import span
from nonet.base.plain import counted
from nonet.cli.durations import duration
from nonet.cli.findings import print_findings
from nonet.cli.options import Json
from nonet.cli.output import echo, print_answer, print_heading, print_json, print_line, print_rows
from nonet.cli.pages import page_at, with_page
from nonet.cli.target import Target, operation
from nonet.cli.watching import show
from nonet.operate import overview

if TYPE_CHECKING:
    from nonet.rules.findings.situation import Overview
    from nonet.rules.findings.throughput import StreamLoad


@operation
async def show_overview(
    target: Target,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it anew every 2 seconds, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what is wrong now, and the command that mends it.

    There is a finding for each cause, the worst first. Below are the streams that have tasks, and
    the tasks that run longest. Waits for locks of less than 5 seconds are not reported.
    'task-run explain ID' tells about one task, and 'task-run doctor' checks every key.

    Exit codes: 0 shown, 3 Redis unreachable.

    \b
    task-run overview --watch
    """
    async with target.stores() as stores:
        read, display = partial(overview.find, stores, target.settings()), partial(_print, as_json)
        await show(read, display, watch=watch, as_json=as_json)


@operation
async def see_finding(
    target: Target,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of the finding: worker, …")],
    what: Annotated[str, typer.Argument(metavar="WHAT", help="What the finding is about.")],
    lasts: Annotated[
        timedelta,
        typer.Option("--for", metavar="DURATION", parser=duration, help="How long; 0s: not seen."),
    ],
    as_json: Json = False,
) -> None:
    """Mark a finding as seen, for all operators.

    For that long it is below the others, here and on the page. If it gets worse, it rises again.
    'task-run overview --json' names kind and what of each finding.

    Exit codes: 0 marked, 4 no such finding.

    \b
    task-run seen worker small --for 8h
    """
    async with target.stores() as stores:
        found = await overview.see(stores, target.settings(), kind, what, lasts)
    how = f"seen until {found.seen.until:%Y-%m-%d %H:%M:%SZ}" if found.seen else "not seen"
    print_answer(found, f"{kind} {what}: {how}", as_json)


def _print(as_json: bool, found: Overview) -> None:
    page = page_at("/")
    if as_json:
        print_json(with_page(found, page))
        return
    print_heading(_verdict(found))
    print_line(_counts(found))
    print_line(_servers(found))
    shown = [replace(one, problem=f"{one.severity}: {one.problem}") for one in found.findings]
    print_findings(shown, more="task-run overview --json")
    if found.streams:
        echo()
        print_rows([_stream_row(load, found.empty_in_seconds) for load in found.streams], False, "")
    if found.longest:
        echo()
        print_rows([_running_row(task) for task in found.longest], False, "")
    if page:
        echo()
        echo(f"page: {page}")


def _verdict(found: Overview) -> str:
    number = len(found.findings)
    wrong = f"{counted(number, 'finding')}, worst first" if number else "nothing is wrong"
    return f"{found.at:%Y-%m-%d %H:%M:%SZ}: {wrong}"


def _counts(found: Overview) -> str:
    states = ("running", "queued", "waiting", "delayed", "dying")
    tasks = [f"{getattr(found, state)} {state}" for state in states if getattr(found, state)]
    return f"tasks: {', '.join(tasks) or 'none'}"


def _servers(found: Overview) -> str:
    limit = f" of {format_bytes(found.memory_limit)}" if found.memory_limit else ""
    workers = ", ".join(f"{number} {size}" for size, number in found.workers.items())
    workers += f" with {counted(found.slots, 'slot')}" if workers else ""
    return (
        f"workers: {workers or 'none'}; "
        f"leader: {found.leader or 'none'}; Redis: {format_bytes(found.memory_bytes)}{limit}"
    )


def _stream_row(load: StreamLoad, seconds: Mapping[str, float]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "stream": load.name,
        "queued": load.queued,
        "running": load.running,
        "oldest": span(load.oldest_seconds) if load.queued else None,
    }
    if seconds:
        is_known = load.queued and load.name in seconds
        row["empty_in"] = span(seconds[load.name]) if is_known else None
    return row


def _running_row(task: Any) -> dict[str, Any]:
    return {
        "runs longest": task.id,
        "task": task.task,
        "worker": task.worker,
        "for": span(task.seconds),
        "progress": task.progress,
    }
