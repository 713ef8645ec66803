"""Which live workers can run a task, and why others cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nonet.base.plain import counted
from nonet.base.versions import is_older


@dataclass(frozen=True, slots=True)
class Needs:
    """What a task requires of its worker.

    Attributes:
        layout: format of the task, see `nonet.base.messages.formats`.
        min_version: oldest version of the distribution with its class; empty: any.
        key: encryption key of its arguments, see `base.messages.encryption.Cipher.keys`, or empty.
    """

    layout: int = 1
    min_version: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Peer:
    """A live worker of a task's size.

    Attributes:
        name: ``pid@host``.
        off: why it takes no tasks; empty if it takes some.
        layout: newest format of tasks that it reads; None: it does not report what it can run.
        version: version of the task's class there; None: it does not know the class.
        build: version of Nonet there.
        sql: why it cannot write to SQL; empty if it can.
        slots: how many tasks it runs at a time; 0: it does not report that.
        running: how many deliveries it has.
        threads: how many ``def`` tasks it runs at a time; None: it limits only its slots.
        keys: its encryption keys.
    """

    name: str
    off: str = ""
    layout: int | None = None
    version: str | None = None
    build: str = ""
    sql: str = ""
    slots: int = 0
    running: int = 0
    threads: int | None = None
    keys: Sequence[str] = ()

    @property
    def lacks_threads(self) -> bool:
        """Whether a busy worker has free slots: it waits for a thread, and fetches nothing."""
        return self.threads is not None and self.threads < self.running < self.slots

    def fits(self, needs: Needs) -> bool:
        """Whether it can run a task. A worker that does not report what it can run might."""
        if self.layout is None:
            return True
        if self.version is None or self.layout < needs.layout:
            return False
        if needs.key and needs.key not in self.keys:
            return False
        return not needs.min_version or not is_older(self.version, needs.min_version)


def sql_problem(peers: Sequence[Peer]) -> str:
    """Why no worker can write dead letters to SQL; empty if one can."""
    if not peers or not all(peer.sql for peer in peers):
        return ""
    return f"{peers[0].sql}. {peers[0].name} retries every few seconds"


def unfit(
    peers: Sequence[Peer], name: str, needs: Needs, size: str, similar: Sequence[str] = ()
) -> str:
    """Why none of these workers can run a task; empty if one can.

    Args:
        name: full class name of the task.
        similar: classes with a similar name that they take.
    """
    if not peers or any(peer.fits(needs) for peer in peers):
        return ""
    of_class = [peer for peer in peers if peer.version is not None]
    if not of_class:
        builds = ", ".join(sorted({peer.build for peer in peers if peer.build}))
        workers = counted(len(peers), "worker") + (f" with Nonet {builds}" if builds else "")
        taken = f". They take {' and '.join(similar)}: is its name right?" if similar else "."
        deploy = "Deploy its package there, or see their --only and --except"
        return f"no live {size} worker takes {name} ({workers}){taken} {deploy}"
    readers = [peer for peer in of_class if (peer.layout or 0) >= needs.layout]
    if not readers:
        layouts = ", ".join(sorted({str(peer.layout) for peer in of_class}))
        return (
            f"no live {size} worker reads tasks of format {needs.layout} "
            f"({counted(len(of_class), 'worker')} up to {layouts}). Upgrade the workers"
        )
    holders = [peer for peer in readers if not needs.key or needs.key in peer.keys]
    if not holders:
        id = needs.key.partition(" ")[0]
        return (
            f"it is encrypted with key {id}, which no live {size} worker has "
            f"({counted(len(readers), 'worker')}). Set NONET_ENCRYPTION_KEYS there"
        )
    versions = ", ".join(sorted({peer.version or "no version" for peer in holders}))
    return (
        f"{name} needs version {needs.min_version}, and no live {size} worker has it "
        f"({counted(len(holders), 'worker')}: {versions}). Upgrade its package there"
    )


def fit(peers: Sequence[Peer], needs: Needs) -> str:
    """Which workers report that they can run a task; empty if none does."""
    found = [peer for peer in peers if peer.layout is not None and peer.fits(needs)]
    if not found:
        return ""
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{found[0].name}{others} can run it as soon as a slot is free"


def declining(peers: Sequence[Peer], workers: int, size: str) -> str:
    """How many of the live workers take no tasks, and the reason of the first; or empty."""
    off = [peer for peer in peers if peer.off]
    if not off:
        return ""
    verb = "takes" if len(off) == 1 else "take"
    of = f"{len(off)} of {counted(workers, f'{size} worker')}"
    return f"{of} {verb} no tasks: {off[0].off} ({off[0].name})"


def busy(peers: Sequence[Peer], workers: int, size: str) -> str:
    """Say that all live workers are busy, and what with.

    >>> busy([Peer("7@host", slots=4)], 1, "small")
    'The only live small worker is busy (4 slots)'
    """
    who = {1: f"The only live {size} worker is", 2: f"Both live {size} workers are"}
    slots, full = sum(peer.slots for peer in peers), [peer for peer in peers if peer.lacks_threads]
    used = f"{sum(peer.running for peer in peers)} of " if full else ""
    in_all = f" ({used}{counted(slots, 'slot')}{' in total' if workers > 1 else ''})"
    text = f"{who.get(workers, f'All {workers} live {size} workers are')} busy"
    text += in_all if slots else ""
    if not full:
        return text
    others = f" and {len(full) - 1} more" if len(full) > 1 else ""
    return (
        f"{text}: `def` tasks use all {counted(full[0].threads or 0, 'thread')} of {full[0].name}"
        f"{others} (NONET_THREADS). Until a thread is free, such a worker fetches nothing, not "
        "even coroutines"
    )
