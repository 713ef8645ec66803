"""What is wrong, as a value: `Finding`; and the order in which people read findings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime
from typing import Literal, get_args

Severity = Literal["critical", "error", "warning"]
"""``critical``: no task is accepted, or a whole part of the system has stopped; ``error``: some
tasks fail or cannot run; ``warning``: tasks are slow, or the harm is near or past."""

_SEVERITIES = get_args(Severity)
# How many subjects with the same cause a finding names.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Seen:
    """That an operator has seen a finding, and takes care of it.

    Attributes:
        who: the operator.
        until: until then the finding is below the others, for all operators.
        severity: of the finding at that time. If it gets worse, it rises again.
    """

    who: str
    until: datetime
    severity: Severity


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, or a hint, with its next step.

    Attributes:
        kind: a word for programs: ``task``, ``class``, ``tenant``, ``workflow``, ``group``,
            ``pipeline``, ``stream``, ``queue``, ``pause``, ``ceiling``, ``lock``, ``limiter``,
            ``worker``, ``scheduler``, ``schedule``, ``entry``, ``server``, ``sql``, ``key``,
            ``count``.
        what: the thing that has the problem.
        problem: what is wrong with it.
        hint: the next step in words; empty: see `command`.
        command: the next step, as it can be typed into a shell; empty: no command helps. It undoes
            no protection, and ends nothing that works.
        severity: ``critical``, ``error`` or ``warning``.
        since: when it began, as far as that is known; None: not known.
        count: how many tasks, rows or messages it harms; 0: not known.
        cause: the same text in all findings with one cause; empty: no other finding shares the
            cause.
        seen: who has seen it; None: no operator.
    """

    kind: str
    what: str
    problem: str
    hint: str = ""
    _: KW_ONLY
    command: str = ""
    severity: Severity = "error"
    since: datetime | None = None
    count: int = 0
    cause: str = ""
    seen: Seen | None = None

    @property
    def identity(self) -> str:
        """What the finding is about: the same text at each check, until it is mended."""
        return self.cause or f"{self.kind} {self.what}"

    @property
    def next_step(self) -> str:
        """The hint and the command in one line; may be empty."""
        return ": ".join(part for part in (self.hint, self.command) if part)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return one finding for each cause, the worst first.

    A worse severity goes first, then what harms more tasks, then what is newer.

    >>> slow = Finding("queue", "small", "9 wait", severity="warning", count=9)
    >>> rare, often = (Finding("class", f"a:{n}", "died", count=n) for n in (1, 5))
    >>> [item.what for item in in_order([slow, rare, often])]
    ['a:5', 'a:1', 'small']
    """
    groups: dict[object, list[Finding]] = {}
    for number, finding in enumerate(sorted(findings, key=_badness)):
        groups.setdefault(finding.cause or number, []).append(finding)
    return [_as_one(group) for group in groups.values()]


def with_seen(findings: Iterable[Finding], marks: Mapping[str, Seen]) -> list[Finding]:
    """Return the findings with the marks of operators; those that were seen go last.

    Args:
        marks: by `Finding.identity`.

    >>> from datetime import UTC
    >>> died, slow = Finding("class", "a:B", "died"), Finding("queue", "small", "9 wait")
    >>> marks = {"class a:B": Seen("ann", datetime(2026, 7, 1, tzinfo=UTC), "error")}
    >>> [item.what for item in with_seen([died, slow], marks)]
    ['small', 'a:B']
    >>> marks = {"class a:B": replace(marks["class a:B"], severity="warning")}
    >>> [item.what for item in with_seen([died, slow], marks)]
    ['a:B', 'small']
    """

    def mark(item: Finding) -> Finding:
        seen = marks.get(item.identity)
        is_worse = seen and _SEVERITIES.index(item.severity) < _SEVERITIES.index(seen.severity)
        return item if seen is None or is_worse else replace(item, seen=seen)

    return sorted(map(mark, findings), key=lambda item: item.seen is not None)


def _badness(finding: Finding) -> tuple[int, int, float]:
    newest = -finding.since.timestamp() if finding.since else float("inf")
    return _SEVERITIES.index(finding.severity), -finding.count, newest


def _as_one(group: list[Finding]) -> Finding:
    """Return the worst finding of a cause; it names what else the cause harms."""
    first, *others = group
    if not others:
        return first
    names = list(dict.fromkeys(item.what for item in others if item.what != first.what))
    if not names:
        return first
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    problem = f"{first.problem} (it also harms {', '.join(names[:_NAMED])}{more})"
    return replace(first, problem=problem)
