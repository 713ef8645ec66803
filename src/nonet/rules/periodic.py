"""A periodic entry as operators see it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from nonet.rules.pauses import Pause


@dataclass(frozen=True, slots=True)
class EntryStatus:
    """A periodic entry as operators see it.

    Attributes:
        entry: its identity, ``full_name|vo|name`` with VO and name escaped.
        task: full name of its class.
        vo: empty for a class that is not VO-aware.
        name: of the entry, among those of its class.
        schedule: as in the configuration.
        origin: where it is defined; ``class``: in its class.
        enabled: false: it never fires.
        overlap: what becomes of an occurrence while the last one runs; empty: it is skipped if the
            class takes a mutex.
        catch_up: which missed occurrences are submitted.
        jitter: each occurrence is up to this many seconds later.
        next: when it fires next; null: it is disabled, or its schedule has ended.
        last: the occurrence that was submitted last; null before the first.
        last_id: the task that was submitted last.
        last_state: where that task is, or how it ended; empty: unknown, or there is none.
        fired: how many occurrences were submitted.
        skipped: occurrences that were due while the last one ran.
        missed: occurrences that were too old, after an outage.
        suppressed: occurrences that were due while it was paused.
        paused: who paused it, when and why; empty: it is not paused.
        held_back: another pause that keeps its tasks from starting: of the class, of everything, or
            of the stream in which the last submitted task waits.
    """

    entry: str
    task: str
    vo: str
    name: str
    schedule: str
    origin: str
    enabled: bool
    overlap: str
    catch_up: str
    jitter: float
    next: datetime | None
    last: datetime | None
    last_id: str
    last_state: str
    fired: int
    skipped: int
    missed: int
    suppressed: int
    paused: str
    held_back: Pause | None = None
