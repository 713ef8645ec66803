"""Format the output of ``task-run schedules``: states of entries, reasons, the leader."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nonet.rules.pauses import Pause, in_full
from nonet.rules.remedies import of_pause

if TYPE_CHECKING:
    from nonet.stores.namespace.leadership import Leader
    from nonet.stores.namespace.periodic import EntryStatus

NO_LEADER = "no scheduler leads, start a task-scheduler"


def row(item: EntryStatus, leader: Leader | None) -> dict[str, Any]:
    """Return an entry as a row of a table."""
    return {
        "task": item.task,
        "vo": item.vo,
        "name": item.name,
        "schedule": item.schedule,
        "state": _state(item, leader),
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
        "why": why(item, leader, occurrence),
        "suppressed": item.suppressed,
        "paused": item.paused,
        "problem": _broken(leader).get(item.entry, ""),
        "last_task": item.last_id,
        "last_task_state": item.last_state,
        "overlap": item.overlap or "skip if it takes a mutex, else allow",
        "catch_up": item.catch_up,
        "jitter": item.jitter,
        "origin": item.origin,
    }


def why(item: EntryStatus, leader: Leader | None, occurrence: str) -> str:
    """Return one sentence: the first condition that keeps an entry from running now.

    Args:
        occurrence: see `document`.
    """
    match _state(item, leader):
        case "disabled":
            by = "its class" if item.origin == "class" else item.origin
            return f"disabled by {by}"
        case "paused" if item.paused:
            command = f"task-run schedules resume {options(item)}"
            return f"paused since {item.paused}; resume with '{command}'"
        case "paused" if item.held_back:
            return _paused(item.held_back)
        case "broken":
            return f"cannot be fired: {_broken(leader)[item.entry]}"
        case "waiting" | "running":
            return f"task {item.last_id}: {occurrence or item.last_state}"
        case "finished":
            return "its schedule has no more occurrences"
    if reason := held_up(leader):
        return f"nothing fires: {reason}"
    return f"fires at {item.next:%Y-%m-%d %H:%M:%SZ}"


def held_up(leader: Leader | None) -> str:
    """Explain why no entry fires at all; empty if entries fire."""
    if leader is None:
        return NO_LEADER
    told = _told(leader)
    failure = told.get("loops", {}).get("periodic entries", {}).get("error", "")
    return str(told.get("waits_for") or failure)


def in_words(leader: Leader | None) -> str:
    """Describe the leading scheduler, and whether the loop that fires entries runs."""
    if leader is None:
        return f"nothing fires: {NO_LEADER}"
    told = _told(leader)
    text = f"leader {told.get('name', leader.owner)}, term {leader.term}"
    if told.get("since"):
        text += f", since {told['since']}"
    pulse = told.get("loops", {}).get("periodic entries", {})
    if pulse.get("last"):
        ago = (datetime.now(UTC) - datetime.fromisoformat(pulse["last"])).total_seconds()
        text += f", last tick {max(0.0, ago):.1f} s ago"
    if reason := held_up(leader):
        text += f"; nothing fires yet: {reason}"
    return text


def loop(pulse: dict[str, Any]) -> str:
    """Describe the state of one loop of the leader."""
    text = f"last tick {pulse['last'] or 'never'}, {pulse['failures']} failures"
    return f"{text}: {pulse['error']}" if pulse.get("error") else text


def options(item: EntryStatus) -> str:
    """Return the command-line options that select an entry."""
    vo = f" --vo {item.vo}" if item.vo else ""
    return f"{item.task}{vo} --name {item.name}"


def held_back(found: Iterable[EntryStatus]) -> list[str]:
    """Return the pauses that keep tasks of entries from starting: who, when and why."""
    return sorted({_paused(item.held_back) for item in found if item.held_back})


def _paused(pause: Pause) -> str:
    return f"{in_full(pause)}; resume with '{of_pause(pause.what)}'"


def _state(item: EntryStatus, leader: Leader | None) -> str:
    if not item.enabled:
        return "disabled"
    if item.paused:
        return "paused"
    if item.entry in _broken(leader):
        return "broken"
    if item.held_back:
        return "paused"
    if item.last_state:
        return "running" if item.last_state in ("running", "dying") else "waiting"
    return "planned" if item.next else "finished"


def _broken(leader: Leader | None) -> dict[str, str]:
    broken: dict[str, str] = _told(leader).get("broken", {})
    return broken


def _told(leader: Leader | None) -> dict[str, Any]:
    """Return the status that the leader publishes."""
    told: dict[str, Any] = json.loads(leader.info) if leader and leader.info else {}
    return told
