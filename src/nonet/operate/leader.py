"""The scheduler that leads: what it reports, and what keeps it from firing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nonet.stores.namespace.leadership import Leader

NO_LEADER = "no scheduler leads, start a task-scheduler"


@dataclass(frozen=True, slots=True)
class LeaderView:
    """The scheduler that leads.

    Attributes:
        name: ``pid@host``.
        term: of its lease.
        since: when it began to lead.
        lease_ends: unless it is extended.
        entries: how many entries it plans.
        remembers: where it remembers the last occurrences.
        waits_for: why it fires nothing yet, or empty.
        config_version: of the configuration that it read.
        config_problem: why it does not apply a newer one, or empty.
        broken: why entries could not be fired at the last try, by entry.
        loops: of each of its loops the last tick, and how often it has failed.
    """

    name: str
    term: str
    since: str | None
    lease_ends: datetime
    entries: int
    remembers: str
    waits_for: str
    config_version: str
    config_problem: str
    broken: Mapping[str, str] = field(default_factory=dict)
    loops: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def held_up(self) -> str:
        """Why no entry fires at all; empty if entries fire."""
        return self.waits_for or str(self.loops.get("periodic entries", {}).get("error", ""))


def leader_view(found: Leader) -> LeaderView:
    """Return what a leader reports."""
    report = json.loads(found.info or "{}")
    config = report.get("config", {})
    return LeaderView(
        name=report.get("name", found.owner),
        term=found.term,
        since=report.get("since"),
        lease_ends=found.expiry,
        entries=report.get("entries", 0),
        remembers=report.get("remembers", ""),
        waits_for=report.get("waits_for", ""),
        config_version=config.get("version", ""),
        config_problem=config.get("problem", ""),
        broken=report.get("broken", {}),
        loops=report.get("loops", {}),
    )


def leader_in_words(leader: LeaderView | None) -> str:
    """Describe the leading scheduler, and whether the loop that fires entries runs."""
    if leader is None:
        return f"nothing fires: {NO_LEADER}"
    text = f"leader {leader.name}, term {leader.term}"
    if leader.since:
        text += f", since {leader.since}"
    if last := leader.loops.get("periodic entries", {}).get("last"):
        ago = (datetime.now(UTC) - datetime.fromisoformat(last)).total_seconds()
        text += f", last tick {max(0.0, ago):.1f} s ago"
    return text + (f"; nothing fires yet: {leader.held_up}" if leader.held_up else "")
