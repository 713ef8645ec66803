"""``task-run queues|groups``: what goes on in a namespace."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.cli.common import Debug, Json, Namespace, StateDir, run, stores
from nonet.cli.output import print_fields, print_json, print_rows
from nonet.daemon.service import ExitCode
from nonet.rules.pauses import in_words, of_task

if TYPE_CHECKING:
    from nonet.stores.namespace.ceilings import Load
    from nonet.stores.queue.groups import GroupStatus


def queues(
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Show the nine streams and the delayed tasks.

    Nothing is started of streams that are paused, see 'task-run paused'.
    Row 'delayed' counts the tasks that wait for their time, for a retry or for a lock.
    Column 'desired' says how many workers all that can run now of a size would use, as the
    leading scheduler counts it each second, for autoscalers.
    Column 'active' counts the tasks that have not ended, of which 'ceiling' allows so many: what
    would be one more is refused. Other ceilings have rows of their own.
    """

    async def command() -> int:
        async with stores(namespace, state_dir) as kept:
            found = await kept.results.queues()
            delayed = await kept.results.delayed()
            pauses = await kept.controls.load()
            desired = await kept.demands.published()
            loads = {item.scope: item for item in await kept.ceilings.loads()}
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
        print_rows([*rows, later, *others], as_json, "")
        if classes := [item.what for item in pauses if item.what.startswith("task:")]:
            words = ", ".join(in_words(what) for what in classes)
            typer.echo(f"paused, too: {words}; see 'task-run paused'", err=True)
        return ExitCode.OK

    run(debug, command)


def _load_row(load: Load | None) -> dict[str, Any]:
    return {"active": load.active if load else 0, "ceiling": load.ceiling if load else None}


def groups(
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Show this group alone.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 100,
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Show callback groups, the newest first. Exit code 4: the one asked for is unknown.

    States: building (its children are being submitted), sealed (they run), fired (the callback
    is submitted), partial (it is, though some children failed: policy all_done), failed (a child
    failed: `on_failure` is submitted, if there is one; or, with all_done, all of them failed).
    """

    async def command() -> int:
        async with stores(namespace, state_dir) as kept:
            store = kept.groups
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

    run(debug, command)


def _group_row(group: GroupStatus) -> dict[str, Any]:
    """A failed group reads as failed, not as one that did what it was opened for."""
    state = group.outcome if group.outcome in ("failed", "partial") else group.state
    return dataclasses.asdict(dataclasses.replace(group, state=state))
