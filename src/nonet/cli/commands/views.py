"""``task-run queues|groups``: streams with their load, and callback groups."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.streams import Priority, Size
from nonet.cli.options import Json
from nonet.cli.output import echo, print_fields, print_json, print_rows
from nonet.cli.target import Target, operation
from nonet.rules.pauses import in_words, of_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nonet.rules.pauses import Pause
    from nonet.stores.namespace.ceilings import Load
    from nonet.stores.namespace.figures import Figures
    from nonet.stores.queue.groups import GroupStatus


@operation
async def queues(target: Target, as_json: Json = False) -> None:
    """Show the nine streams, and the tasks outside them.

    Columns: 'depth' counts queued and running tasks, 'oldest seconds' is the age of the oldest task
    that no worker has fetched.
    Row 'waiting': tasks that wait for locks, for a resume or for other steps of their workflow. Row
    'delayed': tasks that wait for their time or for a retry. Row 'dying': tasks that wait until SQL
    takes their dead letters. If these are very many, the three numbers are estimates: a line on
    stderr says so, and JSON 'estimate'.
    Column 'paused': no task of the stream starts, see 'task-run paused'.
    Column 'desired': the number of workers that the runnable tasks of this size would use. The
    leading scheduler counts it each second, for autoscalers.
    Columns 'active' and 'ceiling': the number of tasks that have not ended, and how many are
    allowed; submissions beyond it are rejected. Other ceilings have rows of their own.

    \b
    task-run queues --json
    """
    async with target.stores() as stores:
        figures = await stores.measures.figures()
        pauses = await stores.controls.load()
        desired = await stores.demands.published()
        loads = {item.scope: item for item in await stores.ceilings.loads()}
    rows = _rows(figures, pauses, desired, loads)
    if not as_json:
        rows = [{name: row[name] for name in row if name != "estimate"} for row in rows]
    print_rows(rows, as_json, "", least=("priority", "size"))
    if figures.is_estimate:
        echo("waiting, delayed and dying are estimates from a sample", err=True)
    if classes := [item.what for item in pauses if item.what.startswith("task:")]:
        words = ", ".join(in_words(what) for what in classes)
        echo(f"also paused: {words}; see 'task-run paused'", err=True)


def _rows(
    figures: Figures, pauses: list[Pause], desired: Mapping[str, int], loads: Mapping[str, Load]
) -> list[dict[str, Any]]:
    """Return a row for each stream, for each state outside the streams, and for other ceilings."""
    rows: list[dict[str, Any]] = [
        {
            "queue": (name := f"{priority}:{size}"),
            "priority": priority,
            "size": size,
            "depth": item.depth,
            "running": item.in_flight,
            "oldest_seconds": item.oldest if item.depth > item.in_flight else None,
            "paused": of_task(pauses, name, "") is not None,
            "desired": desired.get(size),
            **_load_row(loads.get(f"stream:{name}")),
            "estimate": False,
        }
        for size in Size
        for priority in Priority
        for item in (figures.streams[priority, size],)
    ]
    empty = dict.fromkeys(rows[0])
    states = {"waiting": figures.waiting, "delayed": figures.delayed, "dying": figures.dying}
    rows += [
        empty | {"queue": name, "depth": number, "running": 0, "estimate": figures.is_estimate}
        for name, number in states.items()
    ]
    rows += [
        empty | {"queue": item.scope} | _load_row(item)
        for item in loads.values()
        if item.ceiling is not None and not item.scope.startswith("stream:")
    ]
    return rows


def _load_row(load: Load | None) -> dict[str, Any]:
    return {"active": load.active if load else 0, "ceiling": load.ceiling if load else None}


@operation
async def groups(
    target: Target,
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Show only this group.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, the newest.")] = 100,
    as_json: Json = False,
) -> None:
    """Show callback groups, newest first.

    States: building (its children are being submitted), sealed (all are submitted), fired (the
    callback is submitted), partial (the callback is submitted although some children failed: policy
    all_done), failed (a child failed, and `on_failure` is submitted if set; with policy all_done,
    all children failed).

    Exit codes: 0 shown, 4 unknown id.

    \b
    task-run groups --limit 10
    """
    async with target.stores() as stores:
        store = stores.groups
        if id is None:
            found = [_group_row(item) for item in await store.list(limit)]
            print_rows(found, as_json, "no group")
            return
        one = _group_row(await store.status(id))
    if as_json:
        print_json(one)
    else:
        print_fields(one)


def _group_row(group: GroupStatus) -> dict[str, Any]:
    """Return a row for a group; its state shows a failure even if a callback was submitted."""
    state = group.outcome if group.outcome in ("failed", "partial") else group.state
    return dataclasses.asdict(dataclasses.replace(group, state=state))
