"""What a viewer sees: pure functions on values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from nonet.rules.findings.explanation import Facts, explain
from nonet.rules.findings.overview import troubles
from nonet.rules.findings.servers import Server
from nonet.rules.findings.situation import Deaths, Situation
from nonet.rules.findings.timeline import Step
from nonet.rules.letters import DeadLetter, Status
from nonet.rules.viewing import for_viewer
from nonet.stores.namespace.events import Event
from nonet.stores.namespace.quarantine import Quarantined
from nonet.tasks.handles import EndedTask, Progress, TaskStatus

SECRET = "hunter2"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ERROR = f"ValueError: {SECRET}"

STATUS = TaskStatus(
    "a", "reports:Daily", "dying", error=ERROR, traceback=SECRET, blocker=SECRET, note=SECRET,
    progress=Progress(0.5, SECRET, NOW, {"file": SECRET}),
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
QUARANTINED = Quarantined("1-0", NOW, SECRET, "", "", "", 7, SECRET.encode())


@pytest.mark.parametrize("found", [STATUS, ENDED, LETTER, EVENT, QUARANTINED])
def test_a_viewer_sees_no_text_that_a_task_made(found: object) -> None:
    """It is hidden wherever the view is: alone, in a list, in a mapping or in another view."""
    for view in (found, [found], (found,), {"rows": [found]}, Step("x", usage=found)):  # type: ignore[arg-type]
        assert SECRET in _text(view)
        assert SECRET not in _text(for_viewer(view))


def _text(view: object) -> str:
    """All fields, also those that are not in its repr, except arguments, which no view shows."""
    if isinstance(view, Mapping):
        return _text(list(view.items()))
    if isinstance(view, list | tuple):
        return " ".join(map(_text, view))
    names = set(getattr(view, "__dataclass_fields__", ())) - {"task_args", "data"}
    return _text([getattr(view, name) for name in names]) if names else str(view)


def test_a_viewer_sees_the_types_of_errors() -> None:
    assert for_viewer(STATUS).error == "ValueError"
    assert for_viewer(STATUS).progress == Progress(0.5, "", NOW)
    assert for_viewer(ENDED).error_type == "ValueError"
    letter = for_viewer(LETTER)
    assert (letter.last_error, letter.labels) == ("ValueError", {})
    assert letter.history == [{"attempt": 1, "at": 0.0, "error": "ValueError", "rss": 7}]


def test_a_viewer_sees_why_a_task_was_cancelled_and_what_it_waits_for() -> None:
    cancelled = TaskStatus("a", "reports:Daily", "cancelled", error="cancelled by ann: too late")
    waiting = TaskStatus("a", "reports:Daily", "waiting", blocker="lock:mutex:job:7")
    assert for_viewer([cancelled, waiting]) == [cancelled, waiting]


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
    assert SECRET in explain(facts).text
    hidden = explain(for_viewer(facts))
    assert SECRET not in hidden.text
    assert hidden.cause == explain(facts).cause


def test_a_viewer_gets_the_next_step_for_a_quarantined_task() -> None:
    facts = Facts("a", "dead", 0.0, is_ended=True, error=f"{ERROR} (quarantined)")
    assert explain(for_viewer(facts)).next == explain(facts).next != ""


def test_an_overview_hides_texts_of_errors() -> None:
    server = Server({}, leader="a/1", failed_hooks={"warm": ERROR}, broken={"e": ERROR})
    found = Situation(
        server, dying=2, dying_error=f"reports:Daily, {ERROR}",
        deaths=[Deaths("reports:Daily", ERROR, 5, "a", 1.0)],
    )  # fmt: skip
    assert SECRET in str(troubles(found))
    hidden = str(troubles(for_viewer(found)))
    assert SECRET not in hidden
    assert hidden.count("ValueError") == str(troubles(found)).count("ValueError")
