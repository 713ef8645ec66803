"""Decide which findings of an overview to report to a webhook. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nonet.rules.findings.finding import Finding
from nonet.rules.page_paths import page_of


@dataclass(frozen=True, slots=True)
class Alert:
    """A finding, and when it was first found."""

    finding: Finding
    since: datetime


Alerts = Mapping[str, Alert]
"""Alerts by `Finding.identity`, because the text of a finding changes from check to check."""


def found_now(findings: Iterable[Finding], known: Alerts, now: datetime) -> Alerts:
    """Return the findings of a check; those that are `known` keep their time."""
    found: dict[str, Alert] = {}
    for item in findings:
        key = item.identity
        since = known[key].since if key in known else now
        found.setdefault(key, Alert(item, since))  # the first one is the worst
    return found


def changes(reported: Alerts, last: Alerts, found: Alerts) -> tuple[Alerts, Alerts]:
    """Return which alerts to report as new, and which as ended.

    Two checks in a row must agree: an alert is new if both found it, and ended if neither did.

    Args:
        last, found: the findings of the last check and of this one.

    Example:
        >>> from datetime import UTC
        >>> item = Finding("worker", "small", "no worker", "start one", cause="drained")
        >>> found = found_now([item], {}, datetime.now(UTC))
        >>> [list(part) for part in changes({}, found, found)]
        [['drained'], []]
    """
    new = {key: one for key, one in found.items() if key in last and key not in reported}
    ended = {key: one for key, one in reported.items() if key not in last and key not in found}
    return new, ended


def message(new: Alerts, ended: Alerts, namespace: str, now: datetime, url: str) -> dict[str, Any]:
    """Return the document that a webhook gets.

    Args:
        url: address of the dashboard, to which each finding is linked; empty: none.
    """
    findings = [
        {
            "status": status,
            "kind": alert.finding.kind,
            "subject": alert.finding.what,
            "problem": alert.finding.problem,
            "severity": alert.finding.severity,
            "hint": alert.finding.hint,
            "command": alert.finding.command,
            "since": alert.since.isoformat(),
            "link": url + page_of(alert.finding.kind, alert.finding.what) if url else "",
        }
        for status, alerts in (("new", new), ("ended", ended))
        for alert in alerts.values()
    ]
    lines = [f"[{namespace}] {item['status']}: {item['problem']}" for item in findings]
    return {
        "namespace": namespace,
        "at": now.isoformat(),
        "text": "\n".join(lines),  # what chat services show
        "findings": findings,
    }
