"""What operators see of an entry: its state, and one reason, the first that holds."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nonet.operate.leader import LeaderView, leader_in_words, leader_view
from nonet.operate.schedules import view
from nonet.rules.pauses import Pause
from nonet.rules.periodic import EntryStatus
from nonet.stores.namespace.leadership import Leader

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
PAUSE = Pause("task:Sweep", NOON, "ann@host 7", "tape is down")


NONE: dict[str, Any] = {
    **dict.fromkeys(("vo", "overlap", "last_id", "last_state", "paused"), ""),
    **dict.fromkeys(("fired", "skipped", "missed", "suppressed", "jitter"), 0),
    "last": None,
    "catch_up": "one",
}
PLAIN = EntryStatus(
    entry="p:Sweep||default",
    task="p:Sweep",
    name="default",
    schedule="s",
    origin="class",
    enabled=True,
    next=NOON,
    **NONE,
)


def entry(**changes: Any) -> EntryStatus:
    return replace(PLAIN, **changes)


def leader(**told: Any) -> LeaderView:
    return leader_view(Leader("incarnation", "7", NOON, json.dumps({"name": "1@host", **told})))


BROKEN = leader(broken={"p:Sweep||default": "ValueError: no"})
FAILING = leader(loops={"periodic entries": {"error": "OSError: away"}})


@pytest.mark.parametrize(
    ("item", "leads", "state", "said"),
    [
        (entry(), leader(), "planned", "fires at 2026-07-01 12:00:00Z"),
        (entry(), None, "planned", "nothing fires: no scheduler leads, start a task-scheduler"),
        (entry(), leader(waits_for="hook x fails"), "planned", "nothing fires: hook x fails"),
        (entry(), FAILING, "planned", "nothing fires: OSError: away"),
        (entry(next=None), None, "finished", "its schedule has no more occurrences"),
        (entry(enabled=False), None, "disabled", "disabled by its class"),
        (entry(enabled=False, origin="a.b"), BROKEN, "disabled", "disabled by a.b"),
        (
            entry(paused="Monday by ann", vo="lhcb"),
            BROKEN,
            "paused",
            "paused since Monday by ann; resume with "
            "'task-run schedules resume p:Sweep --vo lhcb --name default'",
        ),
        (entry(held_back=PAUSE), BROKEN, "broken", "cannot be fired: ValueError: no"),
        (
            entry(held_back=PAUSE, last_state="running"),
            leader(),
            "paused",
            "task Sweep is paused since 2026-07-01 12:00:00Z by ann@host 7: tape is down; "
            "resume with 'task-run resume --task Sweep'",
        ),
        (entry(last_id="p-1", last_state="queued"), None, "waiting", "task p-1: for a worker"),
        (entry(last_id="p-1", last_state="dying"), None, "running", "task p-1: for a worker"),
    ],
)
def test_state_and_reason_of_an_entry(
    item: EntryStatus, leads: LeaderView | None, state: str, said: str
) -> None:
    """The reason is the first that holds, or what its live task waits for."""
    shown = view(item, leads, NOON, {}, "for a worker")
    assert (shown.state, shown.why) == (state, said)


def test_the_leader_is_shown_with_what_keeps_all_entries_from_firing() -> None:
    """There is no leader, or one of its loops fails."""
    assert "no scheduler leads" in leader_in_words(None)
    assert leader_in_words(leader()) == "leader 1@host, term 7"
    assert leader_in_words(FAILING).endswith("; nothing fires yet: OSError: away")


def test_an_entry_is_late_if_nothing_keeps_it() -> None:
    """An entry that is paused, or whose last task lives, is not late."""
    at = NOON + timedelta(minutes=1)
    held = [entry(paused="x"), entry(held_back=PAUSE), entry(last_state="queued")]
    seconds = [view(item, None, at, {}).late_seconds for item in (entry(), *held)]
    assert seconds == [60, None, None, None]
