"""What principals may see: pure functions on values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from nonet.rules.explanation import Facts, explain
from nonet.rules.overview import troubles
from nonet.rules.permissions import ACTIONS, Action, Principal, Role
from nonet.rules.refusal import LockHolder, Refusal
from nonet.rules.servers import Server
from nonet.rules.situation import Deaths, Situation
from nonet.stores.namespace.events import Event
from nonet.stores.namespace.quarantine import Quarantined
from nonet.stores.sql.letters import DeadLetter, Status
from nonet.tasks.handles import EndedTask, Progress, TaskStatus
from nonet.web import shown

SECRET = "hunter2"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
VIEWER = Principal("vera", ACTIONS[Role.VIEWER])
OPERATOR = Principal("otto", ACTIONS[Role.OPERATOR])
SCOPED = Principal("token:ci", frozenset({Action.READ, Action.DETAILS}), ("reports:*",))
ERROR = f"ValueError: {SECRET}"

STATUS = TaskStatus(
    "a", "reports:Daily", "dying", error=ERROR, traceback=SECRET, blocker=SECRET, note=SECRET,
    progress=Progress(0.5, SECRET, NOW),
)  # fmt: skip
ENDED = EndedTask(
    "a", "reports:Daily", "dead", "normal:small", 1, NOW, NOW, NOW,
    error_type="ValueError", error=SECRET, traceback=SECRET,
)  # fmt: skip
LETTER = DeadLetter(
    id=1, namespace="test", status=Status.PENDING, last_error=ERROR, resubmitted_as=None,
    resubmissions=0, created_at=NOW, task_id="a", generation=1, task_class="reports:Daily",
    task_args=SECRET.encode(), submitted_at=NOW, reason="retries", error_type="ValueError",
    error_message=SECRET, traceback=SECRET, labels={"key": SECRET},
    history=[{"attempt": 1, "at": 0.0, "error": ERROR, "rss": 7}],
)  # fmt: skip
EVENT = Event(NOW, "startup-hook", "7@host", f"warm: failed: {SECRET}")
QUARANTINED = Quarantined("1-0", NOW, SECRET, "a", "s", "1-0", 7, SECRET.encode())


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (shown.status, STATUS),
        (shown.ended, ENDED),
        (shown.dead_letter, LETTER),
        (shown.event, EVENT),
        (shown.quarantined, QUARANTINED),
    ],
)
def test_details_are_for_those_who_may_see_them(function: Any, found: Any) -> None:
    """A viewer sees no text that a task made; an operator sees it all."""
    assert _text(function(found, OPERATOR)).count(SECRET) > 0
    assert SECRET not in _text(function(found, VIEWER))


def _text(found: Any) -> str:  # all fields, also those that are not in its repr
    return str([getattr(found, name) for name in type(found).__dataclass_fields__])


def test_a_viewer_sees_the_types_of_errors() -> None:
    """What remains of an error is its type, and the progress its fraction."""
    assert shown.status(STATUS, VIEWER).error == "ValueError"
    assert shown.status(STATUS, VIEWER).progress == Progress(0.5, "", NOW)
    assert shown.ended(ENDED, VIEWER).error_type == "ValueError"
    letter = shown.dead_letter(LETTER, VIEWER)
    assert (letter.last_error, letter.labels) == ("ValueError", {})
    assert letter.history == [{"attempt": 1, "at": 0.0, "error": "ValueError", "rss": 7}]


def test_arguments_are_for_no_one() -> None:
    """Also an admin gets arguments only by a request that reveals them."""
    admin = Principal("ann", ACTIONS[Role.ADMIN])
    assert shown.dead_letter(LETTER, admin).task_args == b""
    assert shown.quarantined(QUARANTINED, admin).data == b""


def test_a_viewer_sees_why_a_task_was_cancelled_and_what_it_waits_for() -> None:
    """Words of operators and names of locks are no details."""
    cancelled = TaskStatus("a", "reports:Daily", "cancelled", error="cancelled by ann: too late")
    waiting = TaskStatus("a", "reports:Daily", "waiting", blocker="lock:mutex:job:7")
    assert shown.status(cancelled, VIEWER) == cancelled
    assert shown.status(waiting, VIEWER) == waiting


def test_a_token_sees_the_classes_of_its_scope() -> None:
    """Tasks of other classes are left out, and their details hidden."""
    other = TaskStatus("b", "invoices:Mail", "dead", error=ERROR)
    assert shown.visible([STATUS, other], SCOPED) == [STATUS]
    assert shown.visible([STATUS, other], VIEWER) == [STATUS, other]
    assert shown.status(STATUS, SCOPED) == STATUS
    assert shown.status(other, SCOPED).error == "ValueError"


@pytest.mark.parametrize(
    "facts",
    [
        Facts("a", "dead", 0.0, is_ended=True, error=f"{ERROR} (retries)"),
        Facts("a", "delayed", 0.0, due=9.0, used=1, error=ERROR),
        Facts("a", "dying", 0.0, due=9.0, error=ERROR, blocker=f"SQL: {SECRET}"),
        Facts("a", "waiting", 0.0, due=9.0, blocker=SECRET),
    ],
)
def test_an_explanation_hides_texts_of_errors(facts: Facts) -> None:
    """The explanation for a viewer says the same without quotations."""
    assert SECRET in explain(facts).text
    hidden = explain(facts.without_details())
    assert SECRET not in hidden.text
    assert hidden.cause == explain(facts).cause


@pytest.mark.parametrize("task", ["secret:Audit", "reports:Other"])
def test_a_token_is_told_of_no_holder_of_another_class(task: str) -> None:
    """It learns that the lock is held and for how long, and gets no command that ends others."""
    holder = LockHolder("theirs", task, "7@host", 12.0, 20.0, True)
    lock = Refusal("lock:mutex:job:7", "M", True, holding=1, holders=(holder,), first="next")
    facts = Facts("a", "waiting", 0.0, due=9.0, is_parked=True, refusal=lock)
    found, seen = shown.why(explain(facts), facts, SCOPED)
    is_own = task.startswith("reports:")
    for text in (str(found), str(seen)):
        assert ("theirs" in text, task in text, "7@host" in text) == (is_own,) * 3
    assert found.cause == "lock" and "held for 12 s" in found.text
    assert bool(found.next) is is_own
    assert shown.why(explain(facts), facts, VIEWER) == (explain(facts), facts)


def test_an_explanation_still_names_the_quarantine() -> None:
    """A viewer gets the same next step for a quarantined task."""
    facts = Facts("a", "dead", 0.0, is_ended=True, error=f"{ERROR} (quarantined)")
    assert explain(facts.without_details()).next == explain(facts).next != ""


def test_an_overview_hides_texts_of_errors() -> None:
    """The findings for a viewer count deaths, and name the types of their errors."""
    server = Server({}, leader="a/1", failed_hooks={"warm": ERROR}, broken={"e": ERROR})
    found = Situation(
        server, dying=2, dying_error=f"reports:Daily, {ERROR}",
        deaths=[Deaths("reports:Daily", ERROR, 5, "a", 1.0)],
    )  # fmt: skip
    assert SECRET in str(troubles(found))
    hidden = str(troubles(found.without_details()))
    assert SECRET not in hidden
    assert hidden.count("ValueError") == str(troubles(found)).count("ValueError")
