"""Format the output of ``task-run schedules``: rows, entries in full, loops of the leader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nonet.operate import schedules

if TYPE_CHECKING:
    from nonet.stores.namespace.leadership import Leader
    from nonet.stores.namespace.periodic import EntryStatus


def row(item: EntryStatus, leader: Leader | None) -> dict[str, Any]:
    """Return an entry as a row of a table."""
    return {
        "task": item.task,
        "vo": item.vo,
        "name": item.name,
        "schedule": item.schedule,
        "state": schedules.state_of(item, leader),
        "next": item.next if item.enabled else None,
        "last": item.last,
        "fired": item.fired,
        "skipped": item.skipped,
        "missed": item.missed,
    }


def document(item: EntryStatus, leader: Leader | None, occurrence: str) -> dict[str, Any]:
    """Return an entry in full, without its arguments, which ``task-run config show`` shows.

    Args:
        occurrence: the explanation of the last submitted task, if that has not ended.
    """
    return {
        "entry": item.entry,
        **row(item, leader),
        "why": schedules.why(item, leader, occurrence),
        "suppressed": item.suppressed,
        "paused": item.paused,
        "problem": schedules.problems(leader).get(item.entry, ""),
        "last_task": item.last_id,
        "last_task_state": item.last_state,
        "overlap": item.overlap or "skip if it takes a mutex, else allow",
        "catch_up": item.catch_up,
        "jitter": item.jitter,
        "origin": item.origin,
    }


def loop(pulse: dict[str, Any]) -> str:
    """Describe the state of one loop of the leader."""
    text = f"last tick {pulse['last'] or 'never'}, {pulse['failures']} failures"
    return f"{text}: {pulse['error']}" if pulse.get("error") else text
