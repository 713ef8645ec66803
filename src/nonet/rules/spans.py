"""When a task waited, and when its attempts ran. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from nonet.tasks.handles import TaskStatus


class Run(NamedTuple):
    """An attempt: its number, its begin, its end (None: it runs), and its error."""

    attempt: int
    begin: datetime
    end: datetime | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the life of a task.

    Attributes:
        what: ``waited``, ``ran``, or ``retried``: attempts whose times are not kept, and the waits
            between them.
        attempt: the attempt that ran, or that was to begin next.
        begin, end: when; null: it has not ended.
        error: what the attempt failed with, or empty.
        blocker: what the task waits for now, as far as that is known.
    """

    what: Literal["waited", "ran", "retried"]
    attempt: int
    begin: datetime
    end: datetime | None
    error: str = ""
    blocker: str = ""

    def lasted(self, now: datetime) -> timedelta:
        """Return how long it took so far."""
        return max((self.end or now) - self.begin, timedelta())


def last_run(status: TaskStatus) -> list[Run]:
    """Return the last attempt of a task if its status tells when it ran; else nothing."""
    number, finished = status.attempt, status.finished
    if status.state == "running" and status.started:
        return [Run(number, status.started, None)]
    wall = status.usage.wall if status.usage else None
    begin = status.started or (finished and wall is not None and finished - timedelta(seconds=wall))
    if not (number and finished and begin):
        return []
    return [Run(number, begin, finished, status.error if status.state == "dead" else "")]


def spans(status: TaskStatus, begin: datetime | None, runs: Sequence[Run]) -> list[Span]:
    """Return the life of a task without gaps.

    Args:
        begin: since when it could have run; None: unknown.
        runs: the attempts whose times are known, in their order.

    >>> at = datetime(2026, 7, 1, 12)
    >>> status = TaskStatus("a", "m:A", "done", attempt=3, finished=at + timedelta(seconds=9))
    >>> run = Run(3, at + timedelta(seconds=5), status.finished)
    >>> [(one.what, one.attempt, one.lasted(at).seconds) for one in spans(status, at, [run])]
    [('retried', 3, 5), ('ran', 3, 4)]
    """
    found, reached, known = list[Span](), begin, 0
    for run in runs:
        start = max(run.begin, reached or run.begin)  # of clocks of two machines
        if reached and reached < start:
            found.append(Span(_wait(run.attempt, known), run.attempt, reached, start))
        reached = run.end and max(run.end, start)
        found.append(Span("ran", run.attempt, start, reached, run.error))
        known = run.attempt
        if reached is None:
            return found
    end = status.finished
    if reached and (end is None or end > reached):
        next = status.attempt + (status.state in ("queued", "delayed", "waiting"))
        found.append(Span(_wait(next, known), next, reached, end, blocker=status.blocker))
    return found


def _wait(attempt: int, known: int) -> Literal["waited", "retried"]:
    return "waited" if attempt <= known + 1 else "retried"


def those_before(before: Mapping[str, Sequence[str]], places: Sequence[str]) -> list[str]:
    """Return the steps that `since_when` needs: predecessors, and all that these have added.

    >>> those_before({"0": [], "0.0": [], "1": ["s0"]}, ["1"])
    ['0', '0.0']
    """
    wanted = {edge[1:] for place in places for edge in before[place]}
    wanted |= {place.rpartition(".")[0] for place in places if not before[place]}
    return [place for place in before if not wanted.isdisjoint(_line(place))]


def _line(place: str) -> list[str]:
    """Return a step, the step that added it, the one that added that, and so on."""
    parts = place.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def since_when(
    before: Mapping[str, Sequence[str]],
    ends: Mapping[str, datetime | None],
    opened: datetime,
    places: Sequence[str],
) -> dict[str, datetime | None]:
    """Return since when steps of a workflow could run; None: other steps have not ended.

    Args:
        before: the predecessors of each step, each the letter of the edge and the place.
        ends: when steps ended (None: not yet), at least the predecessors and what they added.
        opened: when the workflow was submitted.
        places: which steps.

    >>> noon, one = datetime(2026, 7, 1, 12), datetime(2026, 7, 1, 13)
    >>> ends = {"0": noon, "0.0": one, "1": None}
    >>> since_when({"0": [], "1": ["s0"], "2": ["s1"]}, ends, noon, ["1", "2"])
    {'1': datetime.datetime(2026, 7, 1, 13, 0), '2': None}
    """
    last = dict[str, datetime | None]()  # the end of a step and of all that it added
    for place, end in ends.items():
        for above in _line(place):
            met = last.get(above, end)
            last[above] = max(met, end) if met and end else None
    found = dict[str, datetime | None]()
    for place in places:
        moments = [last.get(edge[1:]) for edge in before[place]]
        above = place.rpartition(".")[0]
        if not moments:
            moments = [ends.get(above) if above else opened]
        known = [moment for moment in moments if moment]
        found[place] = max(known) if len(known) == len(moments) else None
    return found
