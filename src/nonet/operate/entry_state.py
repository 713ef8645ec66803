"""The state of a periodic entry, and why it does not run now. Pure."""

from __future__ import annotations

import shlex
from typing import Literal, get_args

from nonet.operate.leader import NO_LEADER, LeaderView
from nonet.rules.findings.remedies import of_pause
from nonet.rules.pauses import Pause, in_full
from nonet.rules.periodic import EntryStatus

State = Literal["planned", "waiting", "running", "paused", "disabled", "finished", "broken"]
STATES: tuple[State, ...] = get_args(State)


def why(item: EntryStatus, leader: LeaderView | None, occurrence: str) -> str:
    """Return one sentence: the first condition that keeps an entry from running now.

    Args:
        occurrence: the explanation of the last submitted task, if that has not ended.
    """
    match state_of(item, leader):
        case "disabled":
            by = "its class" if item.origin == "class" else item.origin
            return f"disabled by {by}"
        case "paused" if item.paused:
            command = f"task-run schedules resume {options(item)}"
            return f"paused since {item.paused}; resume with '{command}'"
        case "paused" if item.held_back:
            return held_back(item.held_back)
        case "broken" if leader:
            return f"cannot be fired: {leader.broken[item.entry]}"
        case "waiting" | "running":
            return f"task {item.last_id}: {occurrence or item.last_state}"
        case "finished":
            return "its schedule has no more occurrences"
    if reason := leader.held_up if leader else NO_LEADER:
        return f"nothing fires: {reason}"
    return f"fires at {item.next:%Y-%m-%d %H:%M:%SZ}"


def options(item: EntryStatus) -> str:
    """Return the command-line options that select an entry."""
    vo = ["--vo", item.vo] if item.vo else []
    return shlex.join([item.task, *vo, "--name", item.name])


def held_back(pause: Pause) -> str:
    """Say which pause holds entries back, and what ends it."""
    return f"{in_full(pause)}; resume with '{of_pause(pause.what)}'"


def state_of(item: EntryStatus, leader: LeaderView | None) -> State:
    """Return the first state that holds."""
    if not item.enabled:
        return "disabled"
    if item.paused:
        return "paused"
    if leader and item.entry in leader.broken:
        return "broken"
    if item.held_back:
        return "paused"
    if item.last_state:
        return "running" if item.last_state in ("running", "dying") else "waiting"
    return "planned" if item.next else "finished"


def changed_where(item: EntryStatus) -> str:
    """Return where an entry is changed that is not in the database."""
    if item.origin == "class":
        return "change its class, or write entries under periodic-tasks of the configuration"
    return f"change {item.origin} in the configuration"
