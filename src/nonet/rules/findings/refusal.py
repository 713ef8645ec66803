"""The lock or limiter that refuses a task, as values and in words: `LockHolder`, `Refusal`."""

from __future__ import annotations

from dataclasses import dataclass

from nonet.base.durations import span
from nonet.rules.limit_changes import Override
from nonet.tasks.locks import KINDS


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A task, or a program, that holds a lock.

    Attributes:
        id: id of the task or of the hold.
        task: full class name; ``hold`` for a program that is not a task; empty if the task is gone.
        worker: ``pid@host`` of the process.
        held_seconds: how long it has held the lock; None for a lost attempt.
        ttl_seconds: time until the lock expires, unless it is renewed.
        is_live: False if the attempt no longer owns its task: it died or was voided.
        is_left: the attempt ended `held_seconds` ago, but its code ignores the cancellation and
            still runs.
        is_renewed: its process renews the lock. If not, the process is dead or frozen, and the lock
            expires after `ttl_seconds`.
        fence: number of its admission, which grows with each one; None: unknown.
        usual_seconds: how long 99 % of the attempts of its class have run lately; None: unknown.

    Example:
        for holder in (await app.explain(handle)).holders:
            print(holder.task, holder.id, holder.worker, holder.held_seconds)
    """

    id: str
    task: str
    worker: str
    held_seconds: float | None
    ttl_seconds: float
    is_live: bool
    is_left: bool = False
    is_renewed: bool = True
    fence: int | None = None
    usual_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The lock or limiter that refuses a task now.

    Attributes:
        kind: letter of its row in `nonet.tasks.locks.KINDS`.
        is_held: the lock is taken or the limit is used up; False if only earlier waiters are in
            the way.
        is_impossible: one execution counts more than the limit.
        ahead: waiters that are served first; `first` is the id of the first of them.
        holding: number of holders; `holders` names some of them.
        used, limit, window_seconds, items: of a limiter; `items` is what one execution counts.
        back_in: seconds until part of the limit, or a lock that is free, becomes available.
        override: the limit, if it was set by hand.
    """

    lock: str
    kind: str
    is_held: bool
    is_impossible: bool = False
    ahead: int = 0
    first: str = ""
    holding: int = 0
    holders: tuple[LockHolder, ...] = ()
    used: int = 0
    limit: int = 0
    window_seconds: float = 0.0
    items: int = 1
    back_in: float | None = None
    override: Override | None = None


@dataclass(frozen=True, slots=True)
class Waiters:
    """The tasks that wait for one lock or limiter.

    Attributes:
        refusal: why the lock refuses them.
        waiting: how many they are; `seconds` is the longest of their waits.
        tasks: the classes of the first of them.
    """

    refusal: Refusal
    waiting: int
    seconds: float
    tasks: tuple[str, ...] = ()


def tasks_wait(number: int) -> str:
    """Say how many tasks wait.

    >>> tasks_wait(1), tasks_wait(2)
    ('1 task waits', '2 tasks wait')
    """
    return "1 task waits" if number == 1 else f"{number} tasks wait"


def named(holder: LockHolder) -> str:
    """Describe a holder.

    >>> named(LockHolder("a", "files:Audit", "7@host", 12.0, 20.0, True))
    'task a (files:Audit on 7@host)'
    >>> named(LockHolder("hold-1", "hold", "7@host", 12.0, 20.0, True))
    'a program that is not a task (7@host, hold-1)'
    >>> named(LockHolder("a", "files:Audit", "", None, 20.0, False))
    'a lost attempt of task a (files:Audit)'
    >>> named(LockHolder("a", "files:Audit", "7@host", 40.0, 20.0, True, is_left=True))
    'code of task a (files:Audit on 7@host) that ignores its cancellation'
    """
    if holder.task == "hold":
        return f"a program that is not a task ({holder.worker}, {holder.id})"
    at = f" on {holder.worker}" if holder.worker else ""
    what = f" ({holder.task}{at})" if holder.task else ""
    if holder.is_left:
        return f"code of task {holder.id}{what} that ignores its cancellation"
    return f"{'' if holder.is_live else 'a lost attempt of '}task {holder.id}{what}"


def lasting(holder: LockHolder) -> str:
    """How long a holder has had a lock, or when it loses it.

    >>> lasting(LockHolder("a", "files:Audit", "7@host", 3840.0, 20.0, True))
    'held 1 h 4 min, renewed'
    >>> lasting(LockHolder("a", "files:Audit", "", None, 12.0, False, is_renewed=False))
    'expires in 12 s'
    """
    if not (holder.is_live and holder.is_renewed):
        return f"expires in {span(holder.ttl_seconds)}"
    held = "" if holder.held_seconds is None else f"held {span(holder.held_seconds)}, "
    return f"{held}renewed"


def refused_by(refusal: Refusal) -> str:
    """Say what refuses a waiting task, and when that ends if it is known.

    >>> refused_by(Refusal("limiter:conc:job:7", "C", True, used=8, limit=8, ahead=2))
    'waiting for limiter:conc:job:7: 8 of 8 in use; 2 ahead of it'
    """
    if refusal.is_impossible:
        return (
            f"waiting for {refusal.lock}, which can never admit it: the limit is {refusal.limit}, "
            f"and one execution counts {refusal.items}{by_hand(refusal)}. It fails for good at "
            "the next check. Raise the limit, or lower n_items of its class"
        )
    if not refusal.is_held:
        first = f" (the first is task {refusal.first})" if refusal.first else ""
        return f"waiting for {refusal.lock}: {refusal.ahead} ahead of it{first}"
    kind = KINDS[refusal.kind]
    says = _rate if kind.windowed else _slots if kind.limiter else _held
    text = f"waiting for {refusal.lock}{says(refusal)}{by_hand(refusal)}"
    return f"{text}; {refusal.ahead} ahead of it" if refusal.ahead else text


def by_hand(refusal: Refusal) -> str:
    """Say who set a limit, if an operator did.

    >>> from nonet.rules.limits import Limit
    >>> by_hand(Refusal("limiter:conc:job:7", "C", True, override=Override("a", Limit(1), "ann")))
    '; ann set the limit by hand'
    """
    override = refusal.override
    if override is None:
        return ""
    at = f" on {override.since:%Y-%m-%d %H:%M:%SZ}" if override.since else ""
    text = f"; {override.by} set the limit by hand{at}"
    return text + (f", it is {override.otherwise} without that" if override.otherwise else "")


def _held(refusal: Refusal) -> str:
    if not refusal.holders:
        left = f" for {span(refusal.back_in)} more" if refusal.back_in is not None else ""
        return (
            f": Redis has lost its data. No task gets the lock{left}, as an earlier holder may "
            "not know of the loss yet"
        )
    first, others = refusal.holders[0], refusal.holding - 1
    is_timed = first.is_live and first.held_seconds is not None
    text = ", held"
    text += f" for {span(first.held_seconds or 0)}" if is_timed else ""
    text += f" by {named(first)}"
    if others > 0:
        text += f" and {others} other reader{'s' if others > 1 else ''}"
    if not first.is_live:
        text += f". The lock expires in {span(first.ttl_seconds)}"
    elif not first.is_renewed:
        text += f". No process renews it: it expires in {span(first.ttl_seconds)}"
    elif first.is_left:
        text += f". Restart worker {first.worker}"
    return text


def _slots(refusal: Refusal) -> str:
    return f": {refusal.used} of {refusal.limit} in use"


def _rate(refusal: Refusal) -> str:
    text = f": {refusal.used} of {refusal.limit} used in {refusal.window_seconds:g} s"
    if refusal.items > 1:
        text += f", and one execution counts {refusal.items}"
    if refusal.back_in is not None:
        text += f". Next token in {span(refusal.back_in)}"
    return text
