"""A periodic entry as operators see it, and a schedule that a program made."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from nonet.rules.entry_names import DATABASE
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

    @property
    def source(self) -> str:
        """Where it is defined: ``class``, ``configuration`` or ``database``."""
        return self.origin if self.origin in ("class", DATABASE) else "configuration"


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule that a program made; SQL keeps it.

    Attributes:
        id: chosen by the program; the name of its periodic entry.
        task: full name of the class.
        tenant: the tenant of its tasks, or empty.
        schedule: when it fires, as ``task-run schedules`` shows it.
        changed: when it was last put with a change.
        paused: whether it is paused.
        envelope: the signed message with its arguments, encrypted if the class is.
        catch_up: which missed occurrences are submitted; empty: as the class says.
        misfire_grace: how late an occurrence still counts as in time, in seconds; None: as the
            class says.
    """

    id: str
    task: str
    tenant: str
    schedule: str
    changed: datetime
    envelope: bytes = field(repr=False)
    catch_up: str = ""
    misfire_grace: float | None = None
    paused: bool = False


class Put(StrEnum):
    """What `Schedules.put` has done.

    Attributes:
        CREATED: the id is new.
        CHANGED: class, arguments, schedule or tenant were others.
        UNCHANGED: everything was the same already.

    Example:
        if await app.schedules.put("digest-7", SendDigest(7), CronSchedule("@daily")) == "created":
            print("new")
    """

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
