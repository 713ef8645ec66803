"""Why a task does not run: the first blocking cause, from facts to words. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from nonet.base.versions import is_older
from nonet.rules.pauses import Pause, in_full

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Whoever promotes looks once a second; what is due for longer is not looked at.
_PROMOTED_WITHIN = 3.0
# The leading scheduler looks once a second for durable tasks; what waits longer is held up.
HANDED_OVER_WITHIN = 10.0
_LONGEST_ERROR = 200
_STARTS = "it starts when a worker that can run it registers"

# docs/how-to/find-out-why-it-waits.md says of each what to do.
Cause = Literal[
    "cancelling",
    "running",
    "paused",
    "lock",
    "calm",
    "turn",
    "limiter",
    "rate",
    "impossible",
    "look",
    "hand-back",
    "hand-over",
    "time",
    "retry",
    "promoter",
    "worker",
    "unknown",
    "veto",
    "queue",
    "suspect",
    "woken",
    "sql",
    "damaged",
    "ended",
]


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who holds a lock.

    Attributes:
        id: of the task, or of the hold.
        task: its full class name, ``hold`` for code that is no task; empty if it is gone.
        worker: ``pid@host`` of the process.
        held_seconds: since when; None of an attempt that is lost.
        ttl_seconds: until the lock ends by itself unless it is renewed.
        is_live: False if the attempt no longer owns its task: it died, or was voided.
        is_left: the attempt has ended, and its code ignores its cancellation, for `held_seconds`.

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


@dataclass(frozen=True, slots=True)
class Refusal:
    """The lock or limiter that refuses a task now.

    Attributes:
        kind: ``M`` mutex, ``W`` writer, ``R`` reader, ``C`` concurrency, ``L`` rate.
        is_held: holders or grants are in the way, not only others who wait.
        is_impossible: the limit is below what one execution counts.
        ahead: waiters that are served first; `first` is the id of the first of them.
        holding: how many hold it; `holders` names some of them.
        used, limit, window_seconds, items: of a limiter; items is what one execution counts.
        back_in: seconds until some of what is used comes back, or a lock that nobody holds.
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


@dataclass(frozen=True, slots=True)
class Needs:
    """What a task asks of its worker.

    Attributes:
        layout: the format of the task, see `nonet.messages.formats`.
        min_version: of the distribution that provides its class, at least; empty: any.
    """

    layout: int = 1
    min_version: str = ""


@dataclass(frozen=True, slots=True)
class Peer:
    """A live worker of a task's size.

    Attributes:
        name: ``pid@host``.
        off: why it takes nothing, or empty.
        layout: the format of tasks up to which it reads them; None: it does not say what it knows.
        version: of the class there; None: it does not know the class.
        build: version of Nonet there.
        sql: why it cannot write to SQL, or empty.
    """

    name: str
    off: str = ""
    layout: int | None = None
    version: str | None = None
    build: str = ""
    sql: str = ""

    def fits(self, needs: Needs) -> bool:
        """Whether it can run a task; who does not say what it knows might."""
        if self.layout is None:
            return True
        if self.version is None or self.layout < needs.layout:
            return False
        return not needs.min_version or not is_older(self.version, needs.min_version)


@dataclass(frozen=True, slots=True)
class Facts:
    """What one look at Redis tells of a task.

    Attributes:
        now: Redis time, Unix seconds; so is `due`.
        state: of a live task, or its terminal state.
        is_ended: whether that is terminal; `error` then tells why it failed.
        used: attempts used; `error`: of the last one.
        crashes: how many processes died with it alone, of `crash_limit` that may.
        due: when it is looked at next, of a task in the delayed set.
        worker: ``pid@host`` of who has it; `is_worker_alive`: whether that one is registered.
        running_seconds: since its delivery.
        is_parked: it stands in the queues of locks; then `refusal` (None: nothing refuses it now).
        place: of a queued task: ``tasks``, ``woken``, ``suspects`` or ``burials``: its stream,
            with `ahead` tasks before it;
            ``beyond``: there are more than `ahead`; ``none``: it is in no stream.
        workers, idle: live workers of its size, and those of them that are asking for work.
        peers: those workers, or the first of very many.
        name, needs: its class, and what it asks of a worker.
        handed_on: how often it was handed on by workers that cannot run it.
        promoters: live processes that move what is due.
        cancel: who wants a running task to end, and why.
        start_by: when it expires unless it is started, Unix seconds.
        paused: what keeps a queued or waiting task from starting.
        damage: what is wrong with its keys; nothing else is known then.
    """

    id: str
    state: str
    now: float
    is_ended: bool = False
    stream: str = ""
    used: int = 0
    error: str = ""
    crashes: int = 0
    crash_limit: int = 0
    blocker: str = ""
    due: float | None = None
    worker: str = ""
    is_worker_alive: bool = True
    running_seconds: float = 0.0
    is_parked: bool = False
    refusal: Refusal | None = None
    place: str = ""
    ahead: int = 0
    workers: int = 0
    idle: int = 0
    promoters: int = 0
    paused: Pause | None = None
    name: str = ""
    needs: Needs = Needs()
    handed_on: int = 0
    peers: tuple[Peer, ...] = ()
    cancel: str = ""
    start_by: float | None = None
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a task is, or the first thing that keeps it from running.

    Attributes:
        id: of the task.
        state: as `TaskStatus.state`.
        cause: one word for programs: ``cancelling``, ``running``, ``paused``, ``lock``,
            ``calm`` (no lock is granted right after a loss of data), ``turn`` (others are served
            first), ``limiter``, ``rate``, ``impossible``, ``look`` (nothing refuses it, it will be
            looked at), ``hand-back``, ``hand-over`` (durable, in SQL only),
            ``time``, ``retry``, ``promoter`` (due, but nobody moves it),
            ``worker`` (none of its size is live), ``unknown`` (those that are cannot run it),
            ``veto`` (they take nothing), ``queue``, ``suspect`` (a process died with it),
            ``woken``, ``sql``, ``damaged`` (somebody has changed its keys), ``ended``.
        text: the sentence for people; it begins with the state.
        lock: name of the lock or limiter, as ``task-run locks`` shows it.
        holders: some of those who hold it.
        ahead: how many come first.
        until: when it changes by itself, if that is known.
        worker: who has the task.

    Example:
        why = await app.explain(handle)
        print(why.cause, "-", why.text)
    """

    id: str
    state: str
    cause: str
    text: str
    lock: str = ""
    holders: tuple[LockHolder, ...] = ()
    ahead: int | None = None
    until: datetime | None = None
    worker: str = ""


def explain(facts: Facts) -> Explanation:
    """The first blocking cause; of a task with a deadline, that too.

    >>> explain(Facts("a", "running", 0.0, worker="7@host", running_seconds=61)).text
    'running on 7@host for 1 min 1 s'
    """
    found = _first_cause(facts)
    if facts.start_by is None:
        return found
    left = facts.start_by - facts.now
    deadline = f"expires in {span(left)} unless it is started" if left > 0 else "is about to expire"
    return replace(found, text=f"{found.text}; it {deadline} (start_by)")


def _first_cause(facts: Facts) -> Explanation:
    if facts.is_ended:
        return _made(facts, "ended", facts.state + (f": {facts.error}" if facts.error else ""))
    if facts.damage:
        text = f"damaged: {facts.damage}; a worker of any size puts it into the quarantine"
        return _made(facts, "damaged", text)
    if facts.cancel and facts.state != "dying":
        return _cancelling(facts)
    if facts.state in ("running", "dying") and facts.worker:
        return _in_hands(facts)
    if facts.paused is not None:
        return _paused(facts, facts.paused)
    if facts.is_parked:
        return _refused(facts)
    if facts.due is not None and facts.state in ("delayed", "waiting", "dying"):
        return _later(facts, facts.due)
    return _queued(facts)


def explain_kept(
    id: str, *, seconds: float, is_led: bool, due: datetime | None = None
) -> Explanation:
    """What keeps a durable task that is in SQL and not in Redis.

    Args:
        seconds: since its submission.
        is_led: whether a scheduler leads: that one hands it over.
        due: not before.

    >>> explain_kept("a", seconds=0.2, is_led=True).text
    'delayed: kept in SQL for 0.2 s, the leading task-scheduler hands it over within a second'
    """
    text = f"delayed: kept in SQL for {span(seconds)}, "
    if not is_led:
        text += "but nobody hands it over: no task-scheduler leads, start one"
    elif seconds <= HANDED_OVER_WITHIN:
        text += "the leading task-scheduler hands it over within a second"
    else:
        text += "and not handed over: the log of the leading task-scheduler says why"
    if due is not None:
        text += f"; it runs after {due:%Y-%m-%d %H:%M:%SZ}"
    cause: Cause = "hand-over"
    return Explanation(id, "delayed", cause, text, until=due)


def span(seconds: float) -> str:
    """A duration for people.

    >>> span(0.44), span(59.6), span(3725), span(180_000), span(-1)
    ('0.4 s', '1 min', '1 h 2 min', '2 d 2 h', '0 s')
    """
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    for unit, name, small, small_name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // small
            return f"{whole // unit} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{whole} s"


def named(holder: LockHolder) -> str:
    """A holder for people.

    >>> named(LockHolder("a", "files:Audit", "7@host", 12.0, 20.0, True))
    'task a (files:Audit on 7@host)'
    >>> named(LockHolder("hold-1", "hold", "7@host", 12.0, 20.0, True))
    'a program that is no task (7@host, hold-1)'
    >>> named(LockHolder("a", "files:Audit", "", None, 20.0, False))
    'a lost attempt of task a (files:Audit)'
    >>> named(LockHolder("a", "files:Audit", "7@host", 40.0, 20.0, True, is_left=True))
    'code of task a (files:Audit on 7@host) that ignores its cancellation'
    """
    if holder.task == "hold":
        return f"a program that is no task ({holder.worker}, {holder.id})"
    at = f" on {holder.worker}" if holder.worker else ""
    what = f" ({holder.task}{at})" if holder.task else ""
    if holder.is_left:
        return f"code of task {holder.id}{what} that ignores its cancellation"
    return f"{'' if holder.is_live else 'a lost attempt of '}task {holder.id}{what}"


def _made(facts: Facts, cause: Cause, text: str, **details: object) -> Explanation:
    return Explanation(facts.id, facts.state, cause, text, **details)  # type: ignore[arg-type]  # the names are those of the class


def _in_hands(facts: Facts) -> Explanation:
    text = f"{facts.state} on {facts.worker} for {span(facts.running_seconds)}"
    if facts.state == "dying":
        text = f"dying: {facts.worker} writes its dead letter to SQL"
    cause: Cause = "running" if facts.state == "running" else "sql"
    if not facts.is_worker_alive and facts.workers:
        text += "; that worker no longer answers: another one takes over when the lease has ended"
    elif not facts.is_worker_alive:
        size = _size(facts)
        text += f"; that worker no longer answers, and no other of size {size} is live: "
        text += f"start a task-worker --size {size}"
        cause = "worker"
    return _made(facts, cause, text, worker=facts.worker)


def _cancelling(facts: Facts) -> Explanation:
    if facts.state != "running":
        text = f"{facts.state}: cancelled {facts.cancel}; it ends as soon as a worker reads it"
        return _made(facts, "cancelling", text)
    text = f"running on {facts.worker} for {span(facts.running_seconds)}, cancelled {facts.cancel}"
    if not facts.is_worker_alive:
        text += "; that worker no longer answers: the task ends when its lease has ended"
    return _made(facts, "cancelling", text, worker=facts.worker)


def _paused(facts: Facts, pause: Pause) -> Explanation:
    return _made(facts, "paused", f"{facts.state}: {in_full(pause)}")


def _refused(facts: Facts) -> Explanation:
    refusal = facts.refusal
    if refusal is None:
        look = f" (at the latest in {span(facts.due - facts.now)})" if facts.due else ""
        text = f"waiting: nothing refuses it any more, it is about to be looked at{look}"
        return _made(facts, "look", text, until=_instant(facts.due))
    if refusal.is_impossible:
        text = (
            f"waiting: {refusal.lock} allows {refusal.limit}, one execution counts "
            f"{refusal.items}: it dies when it is looked at"
        )
        return _made(facts, "impossible", text, lock=refusal.lock)
    if not refusal.is_held:
        text = f"waiting: {refusal.ahead} ahead of it for {refusal.lock}"
        if refusal.first:
            text += f" (the first is task {refusal.first})"
        return _made(facts, "turn", text, lock=refusal.lock, ahead=refusal.ahead)
    limiters: dict[str, Cause] = {"C": "limiter", "L": "rate"}
    cause = limiters.get(refusal.kind, "lock")
    text = {"C": _slots, "L": _rate}.get(refusal.kind, _held)(refusal)
    if cause == "lock" and not refusal.holders:
        cause = "calm"
    if refusal.ahead:
        text += f"; {refusal.ahead} ahead of it"
    return _made(
        facts,
        cause,
        f"waiting: {text}",
        lock=refusal.lock,
        holders=refusal.holders,
        ahead=refusal.ahead,
        until=_instant(facts.now + refusal.back_in) if refusal.back_in is not None else None,
    )


def _held(refusal: Refusal) -> str:
    if not refusal.holders:
        left = f" for {span(refusal.back_in)} more" if refusal.back_in is not None else ""
        return (
            f"{refusal.lock} is granted to nobody{left}: Redis has lost its data, and whoever held "
            "it before may not know that yet"
        )
    first, others = refusal.holders[0], refusal.holding - 1
    text = f"{refusal.lock} is held by {named(first)}"
    if first.is_live and first.held_seconds is not None:
        text += f" for {span(first.held_seconds)}"
    elif not first.is_live:
        text += f", whose lock ends in {span(first.ttl_seconds)}"
    if others > 0:
        text += f" and {others} other reader{'s' if others > 1 else ''}"
    if first.is_left and first.is_live:
        text += f"; restart worker {first.worker}"
    return text


def _slots(refusal: Refusal) -> str:
    return f"{refusal.lock}: {refusal.used} of {refusal.limit} in use"


def _rate(refusal: Refusal) -> str:
    window = f"{refusal.window_seconds:g} s"
    text = f"{refusal.lock}: {refusal.used} of {refusal.limit} in {window} used"
    if refusal.items > 1:
        text += f", one execution counts {refusal.items}"
    if refusal.back_in is not None:
        text += f", next token in {span(refusal.back_in)}"
    return text


def _later(facts: Facts, due: float) -> Explanation:
    cause: Cause = "time"
    text = f"until {_clock(due)} (in {span(due - facts.now)})"
    if facts.state == "delayed":
        text = f"delayed {text}"
        if facts.error:
            cause = "retry"
            text += f": attempt {facts.used + 1} follows after {_failure(facts)}"
    else:
        cause = "sql" if facts.state == "dying" else "hand-back"
        what = "waits for SQL" if facts.state == "dying" else "handed back"
        why = facts.blocker.removeprefix("SQL: ") or "no reason kept"
        text = f"{facts.state}: {what}: {why}; looked at again in {span(due - facts.now)}"
        if facts.handed_on and facts.state == "waiting":
            if unfit := _unfit(facts):
                return _made(facts, "unknown", f"{facts.state}: {what}: {unfit}; {_STARTS}")
            if known := _who_knows_it(facts):
                return _made(facts, cause, f"{facts.state}: {what}: {why}; {known}")
    if facts.now - due > _PROMOTED_WITHIN and not facts.promoters:
        text = (
            f"{facts.state}: due for {span(facts.now - due)}, but nobody moves it: "
            "no task-scheduler leads and no task-worker is live"
        )
        return _made(facts, "promoter", text)
    return _made(facts, cause, text, until=_instant(due))


def _failure(facts: Facts) -> str:
    """How the last attempt failed."""
    kind, _, text = facts.error.partition(": ")
    text = text.partition("\n")[0][:_LONGEST_ERROR]
    if not facts.crashes or "its process " not in text:
        return f"{kind}: {text}".removesuffix(": ")
    return f"{kind}: {text} in attempt {facts.used} (crash {facts.crashes} of {facts.crash_limit})"


def _queued(facts: Facts) -> Explanation:
    size = _size(facts)
    what = f"{facts.state}: " + ("its dead letter must be written, " * (facts.state == "dying"))
    if not facts.workers:
        text = f"{what}no live worker of size {size}: start a task-worker --size {size}"
        return _made(facts, "worker", text)
    if facts.state == "queued" and (unfit := _unfit(facts)):
        return _made(facts, "unknown", f"{what}{unfit}")
    if facts.place == "none":
        text = (
            f"{what}in no stream: a fetch was cut short, and it is queued again when that lease "
            "has ended; or Redis has lost its entry"
        )
        return _made(facts, "queue", text)
    if facts.state == "dying" and (why := _sql_problem(facts)):
        return _made(facts, "sql", f"dying: waits for SQL: {why}", ahead=facts.ahead)
    if facts.place == "suspects":
        text = f"{what}a process died while it ran, so it runs apart, after ordinary work"
        text += f"; {facts.ahead} ahead of it" if facts.ahead else ""
        return _made(facts, "suspect", text, ahead=facts.ahead)
    if facts.place == "beyond":
        text = f"{what}more than {facts.ahead} ahead of it"
    elif facts.ahead:
        text = f"{what}{facts.ahead} ahead of it"
    elif facts.place == "woken":
        text = f"{what}woken, a worker of size {size} will take it"
        return _made(facts, "woken", text)
    else:
        text = f"{what}next in line"
    if declined := _declined(facts):
        takers = any(not peer.off for peer in facts.peers)
        return _made(facts, "queue" if takers else "veto", text + declined, ahead=facts.ahead)
    if facts.idle:
        text += "; an idle worker is about to read them"
    else:
        workers = f"{facts.workers} live worker{'s' if facts.workers > 1 else ''}"
        text += f"; {workers} of size {size}, none is asking for work now"
    return _made(facts, "queue", text, ahead=facts.ahead)


def _sql_problem(facts: Facts) -> str:
    """Why SQL does not take the dead letters of this size, as its workers say; or empty."""
    failing = [peer for peer in facts.peers if peer.sql]
    if not failing or len(failing) < len(facts.peers):  # the others write them
        return ""
    return f"{failing[0].sql} (says {failing[0].name}, which tries every few seconds)"


def _unfit(facts: Facts) -> str:
    """Why no live worker can run the task; empty if one may."""
    peers, size = facts.peers, _size(facts)
    if len(peers) != facts.workers or any(peer.fits(facts.needs) for peer in peers) or not peers:
        return ""
    of_class = [peer for peer in peers if peer.version is not None]
    if not of_class:
        builds = ", ".join(sorted({peer.build for peer in peers if peer.build}))
        workers = _count(len(peers), "worker") + (f" with Nonet {builds}" if builds else "")
        return f"no live worker of size {size} knows {facts.name} ({workers})"
    readers = [peer for peer in of_class if (peer.layout or 0) >= facts.needs.layout]
    if not readers:
        layouts = ", ".join(sorted({str(peer.layout) for peer in of_class}))
        return (
            f"no live worker of size {size} reads tasks of format {facts.needs.layout} "
            f"({_count(len(of_class), 'worker')} up to {layouts}): upgrade the workers"
        )
    versions = ", ".join(sorted({peer.version or "no version" for peer in readers}))
    return (
        f"{facts.name} needs version {facts.needs.min_version}, and no live worker of size {size} "
        f"has it ({_count(len(readers), 'worker')}: {versions})"
    )


def _who_knows_it(facts: Facts) -> str:
    fit = [peer for peer in facts.peers if peer.layout is not None and peer.fits(facts.needs)]
    if not fit:
        return ""
    others = f" and {len(fit) - 1} more" if len(fit) > 1 else ""
    return f"{fit[0].name}{others} can run it, and take{'' if others else 's'} it into a free slot"


def _declined(facts: Facts) -> str:
    """Which of the live workers take nothing, and why the first of them does not; or empty."""
    off = [peer for peer in facts.peers if peer.off]
    if not off:
        return ""
    verb = "takes" if len(off) == 1 else "take"
    of = f"{len(off)} of {_count(facts.workers, 'worker')} of size {_size(facts)}"
    return f"; {of} {verb} nothing: {off[0].off} ({off[0].name})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _size(facts: Facts) -> str:
    return facts.stream.rpartition(":")[2]


def _instant(seconds: float | None) -> datetime | None:
    return None if seconds is None else _EPOCH + timedelta(seconds=seconds)


def _clock(seconds: float) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%SZ")
