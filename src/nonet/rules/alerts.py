"""Which findings of an overview to report to a webhook. Pure.

A finding is known by its kind and what it is about, because its text changes from look to look. It
is reported when two looks in a row have found it, and again as ended when two looks have not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

from nonet.rules.diagnosis import Finding

_LOOKS = 2


@dataclass(frozen=True, slots=True)
class Alert:
    """A finding, and what was reported of it.

    Attributes:
        since: when it was found first, ISO 8601.
        seen, missed: in how many looks in a row it was found, or was not found.
        is_told: whether it was reported.
    """

    kind: str
    what: str
    problem: str
    hint: str
    since: str
    seen: int = 1
    missed: int = 0
    is_told: bool = False

    @property
    def is_new(self) -> bool:
        """Whether to report it now."""
        return not self.is_told and self.seen >= _LOOKS

    @property
    def has_ended(self) -> bool:
        """Whether to report now that it has ended."""
        return self.is_told and self.missed >= _LOOKS


Known = Mapping[tuple[str, str], Alert]
"""Alerts by kind and what they are about."""


def looked(known: Known, findings: Iterable[Finding], now: datetime) -> Known:
    """Return what is known after another look.

    Example:
        >>> from datetime import UTC
        >>> found, now = Finding("worker", "small", "no worker", "start one"), datetime.now(UTC)
        >>> once = looked({}, [found], now)
        >>> twice = looked(once, [found], now)
        >>> [alert.is_new for alert in (*once.values(), *twice.values())]
        [False, True]
    """
    after: dict[tuple[str, str], Alert] = {}
    for item in findings:
        key = item.kind, item.what
        old = known.get(key)
        if key in after:
            continue  # the first one is the worst
        new = Alert(item.kind, item.what, item.problem, item.hint, now.isoformat())
        if old:
            seen = min(old.seen + 1, _LOOKS)
            new = replace(new, since=old.since, seen=seen, is_told=old.is_told)
        after[key] = new
    for key, old in known.items():
        if key not in after and old.is_told:
            after[key] = replace(old, missed=min(old.missed + 1, _LOOKS))
    return after


def pending(known: Known) -> list[Alert]:
    """Return what to report now."""
    return [alert for alert in known.values() if alert.is_new or alert.has_ended]


def told(known: Known) -> Known:
    """Return what is known after all that was pending was reported."""
    return {
        key: replace(alert, is_told=True) if alert.is_new else alert
        for key, alert in known.items()
        if not alert.has_ended
    }


def message(alerts: Sequence[Alert], namespace: str, now: datetime, url: str) -> dict[str, Any]:
    """Return the document that a webhook gets.

    Args:
        url: address of the dashboard, to which each finding is linked; empty: none.
    """
    findings = [
        {
            "status": "ended" if alert.has_ended else "new",
            "kind": alert.kind,
            "subject": alert.what,
            "problem": alert.problem,
            "hint": alert.hint,
            "since": alert.since,
            "link": url + page_of(alert.kind, alert.what) if url else "",
        }
        for alert in alerts
    ]
    lines = [f"[{namespace}] {item['status']}: {item['problem']}" for item in findings]
    return {
        "namespace": namespace,
        "at": now.isoformat(),
        "text": "\n".join(lines),  # what chat services show
        "findings": findings,
    }


def page_of(kind: str, what: str) -> str:
    """Return the path of the dashboard's page about a finding.

    >>> page_of("lock", "lock:mutex:customer:c0"), page_of("scheduler", "leader")
    ('/locks/lock%3Amutex%3Acustomer%3Ac0', '/')
    """
    match kind, what:
        case "lock", _:
            return f"/locks/{quote(what, safe='')}"
        case "task", _:
            return f"/tasks/{quote(what, safe='')}"
        case "sql", "dead letters":
            return "/dead-letters"
        case "workflow", "building" | "resuming":
            return f"/workflows?state={what}"
        case "stream", "quarantine":
            return "/quarantine"
        case "worker", "deaths":
            return "/events?kind=worker-lost"
    pages = {
        "limiter": "/limits",
        "worker": "/workers",
        "queue": "/workers",
        "schedule": "/schedules",
        "class": "/classes",
        "workflow": "/workflows?state=failed",
    }
    return pages.get(kind, "/")


def to_rows(known: Known) -> list[dict[str, Any]]:
    """Return what is known as data for JSON."""
    return [asdict(alert) for alert in known.values()]


def from_rows(rows: Iterable[Mapping[str, Any]]) -> Known:
    """Reverse `to_rows`; rows of another version are left out."""
    found: dict[tuple[str, str], Alert] = {}
    for row in rows:
        try:
            alert = Alert(**row)
        except TypeError:
            continue
        found[alert.kind, alert.what] = alert
    return found
