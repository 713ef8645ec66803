"""``task-run queues|groups``: streams with their load, and callback groups."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.cli.options import Json
from nonet.cli.output import print_fields, print_json, print_rows
from nonet.cli.target import Target, operation
from nonet.daemon.service import ExitCode
from nonet.rules.pauses import in_words, of_task

if TYPE_CHECKING:
    from nonet.stores.namespace.ceilings import Load
    from nonet.stores.queue.groups import GroupStatus


@operation
async def queues(
    target: Target,
    as_json: Json = False,
) -> int:
    """Show the nine streams and the delayed tasks.

    Row 'delayed' counts tasks that wait for their time, for a retry or for a lock.
    Column 'paused': no task of the stream starts, see 'task-run paused'.
    Column 'desired': the number of workers that the runnable tasks of this size would use. The
    leading scheduler counts it each second, for autoscalers.
    Columns 'active' and 'ceiling': the number of tasks that have not ended, and how many are
    allowed; submissions beyond it are rejected. Other ceilings have rows of their own.

    \b
    task-run queues --json
    """
    async with target.stores() as stores:
        found = await stores.results.queues()
        delayed = await stores.results.delayed()
        pauses = await stores.controls.load()
        desired = await stores.demands.published()
        loads = {item.scope: item for item in await stores.ceilings.loads()}
    rows: list[dict[str, Any]] = [
        {
            "queue": (name := f"{item.priority}:{item.size}"),
            **dataclasses.asdict(item),
            "paused": of_task(pauses, name, "") is not None,
            "desired": desired.get(item.size),
            **_load_row(loads.get(f"stream:{name}")),
        }
        for item in found
    ]
    later = dict.fromkeys(rows[0]) | {"queue": "delayed", "depth": delayed, "running": 0}
    others = [
        dict.fromkeys(rows[0]) | {"queue": item.scope} | _load_row(item)
        for item in loads.values()
        if item.ceiling is not None and not item.scope.startswith("stream:")
    ]
    print_rows([*rows, later, *others], as_json, "", least=("priority", "size"))
    if classes := [item.what for item in pauses if item.what.startswith("task:")]:
        words = ", ".join(in_words(what) for what in classes)
        typer.echo(f"also paused: {words}; see 'task-run paused'", err=True)
    return ExitCode.OK


def _load_row(load: Load | None) -> dict[str, Any]:
    return {"active": load.active if load else 0, "ceiling": load.ceiling if load else None}


@operation
async def groups(
    target: Target,
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Show only this group.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, the newest.")] = 100,
    as_json: Json = False,
) -> int:
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
            return ExitCode.OK
        one = _group_row(await store.status(id))
    if as_json:
        print_json(one)
    else:
        print_fields(one)
    return ExitCode.OK


def _group_row(group: GroupStatus) -> dict[str, Any]:
    """Return a row for a group; its state shows a failure even if a callback was submitted."""
    state = group.outcome if group.outcome in ("failed", "partial") else group.state
    return dataclasses.asdict(dataclasses.replace(group, state=state))
