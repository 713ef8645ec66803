"""Explains why a task does not run, by its first blocking cause. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from nonet.base.durations import span
from nonet.rules.findings import remedies
from nonet.rules.findings.peers import Needs, Peer, busy, declining, fit, sql_problem, unfit
from nonet.rules.findings.refusal import LockHolder, Refusal, refused_by
from nonet.rules.pauses import Pause, in_full
from nonet.rules.workflows import Blocked, why_blocked
from nonet.tasks.locks import KINDS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Due tasks are promoted once a second. A task that is due for longer has no promoter.
_PROMOTED_WITHIN = 3.0
# The leading scheduler hands over durable tasks once a second. A task that waits longer is stuck.
HANDED_OVER_WITHIN = 10.0
_LONGEST_ERROR = 200
# What the error of an ended task ends with if its message is in the quarantine.
_QUARANTINED = "(quarantined)"

# docs/how-to/find-out-why-it-waits.md says what to do for each cause.
Cause = Literal[
    "cancelling",
    "running",
    "paused",
    "step",
    "lock",
    "withheld",
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
    "ended",
]


@dataclass(frozen=True, slots=True)
class Turn:
    """When it is a tenant's turn.

    Attributes:
        tenant: the tenant; empty: tasks without one.
        others: how many other tenants go first, with `tasks` tasks together.
        seconds: about how long the task waits; None: nothing has begun yet.
    """

    tenant: str
    others: int
    tasks: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a task in Redis at one instant.

    Attributes:
        now: Redis time, Unix seconds, like `due` and `start_by`.
        state: state of a live task, or its terminal state.
        is_ended: the state is terminal; `error` then says why the task failed.
        used: attempts used; `error` is that of the last one.
        crashes: how many processes died with this task alone, out of `crash_limit`.
        blocker: why a worker handed the task back, or why it waits for SQL.
        due: when it is promoted or checked next, for a task in the delayed set.
        worker: ``pid@host`` of the worker that has it; `is_worker_alive`: it is registered.
        running_seconds: time since its delivery.
        is_parked: it is in the queues of locks; `refusal` is None if nothing refuses it now.
        place: stream of a queued task, with `ahead` tasks before it: ``tasks``, ``woken``,
            ``suspects`` or ``burials``; ``beyond``: more than `ahead` are before it; ``list``: it
            is in the list of its tenant, see `turn`; ``none``: it is in no stream.
        turn: who goes first because of fair shares, for a task in a list.
        workers, idle: live workers of its size, and how many of them wait for work.
        peers: those workers, or the first hundred.
        similar: classes with a similar name that they take, if none of them takes its class.
        name, needs: its class, and what it requires of a worker.
        handed_on: how often a worker that cannot run it has handed it on.
        promoters: live processes that promote due tasks.
        cancel: who cancelled a task that still runs, and why.
        start_by: when it expires unless it has started.
        paused: the pause that keeps a queued or waiting task from starting.
        workflow: id of the workflow whose step it is, or empty.
        blocked: the steps that a step of a workflow waits for; None: it waits for none.
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
    turn: Turn | None = None
    workers: int = 0
    idle: int = 0
    promoters: int = 0
    paused: Pause | None = None
    name: str = ""
    needs: Needs = field(default_factory=Needs)
    handed_on: int = 0
    peers: tuple[Peer, ...] = ()
    similar: tuple[str, ...] = ()
    cancel: str = ""
    start_by: float | None = None
    workflow: str = ""
    blocked: Blocked | None = None

    @property
    def size(self) -> str:
        """Size of the worker that the task needs."""
        return self.stream.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a task is, or the first thing that keeps it from running.

    Attributes:
        id: id of the task.
        state: as in `TaskStatus.state`.
        cause: one word for programs: ``cancelling``, ``running``, ``paused``, ``step`` (steps of
            its workflow come first), ``lock``, ``withheld`` (no lock is granted right after a loss
            of data), ``turn`` (other waiters are first), ``limiter``, ``rate``, ``impossible``,
            ``look`` (nothing refuses it; it is checked soon), ``hand-back``, ``hand-over``
            (durable, still in SQL only), ``time``, ``retry``, ``promoter`` (due, but no process
            promotes it), ``worker`` (no live worker of its size), ``unknown`` (no live worker can
            run it), ``veto`` (the live workers take no tasks), ``queue``, ``suspect`` (a process
            died while running it), ``woken``, ``sql``, ``ended``.
        text: a sentence for people; it begins with the state.
        lock: name of the lock or limiter, as ``task-run locks`` shows it.
        holders: some of the holders.
        ahead: how many tasks or waiters come first.
        until: when the cause ends by itself, if that is known.
        worker: the worker that has the task.
        next: the command that ends the wait, quoted for a shell; empty if waiting is right.

    Example:
        why = await app.explain(handle)
        print(why.cause, "-", why.text)
        print("next:", why.next or "wait")
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
    next: str = ""

    @property
    def line(self) -> str:
        """The text with the next command, in one line."""
        return f"{self.text}. Next: '{self.next}'" if self.next else self.text


def explain(facts: Facts) -> Explanation:
    """Name the first blocking cause, and the deadline if the task has one.

    >>> explain(Facts("a", "running", 0.0, worker="7@host", running_seconds=61)).text
    'running on 7@host for 1 min 1 s'
    """
    found = _first_cause(facts)
    if facts.start_by is None:
        return found
    left = facts.start_by - facts.now
    if facts.blocked is not None and facts.blocked.event:
        expires = f"fails in {span(left)}" if left > 0 else "is about to fail"
        return replace(found, text=f"{found.text}. Without it the step {expires}")
    expires = f"expires in {span(left)} unless it starts" if left > 0 else "is about to expire"
    return replace(found, text=f"{found.text}. It {expires} (start_by)")


def _first_cause(facts: Facts) -> Explanation:
    if facts.is_ended:
        text = facts.state + (f": {facts.error}" if facts.error else "")
        if facts.error.startswith(facts.state):  # it says who cancelled the task
            text = facts.error
        is_kept = facts.state == "dead" and facts.error.endswith(_QUARANTINED)
        return _made(facts, "ended", text, next=remedies.of_quarantine() if is_kept else "")
    if facts.cancel and facts.state != "dying":
        return _cancelling(facts)
    if facts.state in ("running", "dying") and facts.worker:
        return _delivered(facts)
    if facts.blocked is not None:
        text, next = why_blocked(facts.blocked)
        return _made(facts, "step", text, next=next)
    if facts.paused is not None:
        text, next = in_full(facts.paused), remedies.of_pause(facts.paused.what)
        return _made(facts, "paused", f"{facts.state}: {text}", next=next)
    if facts.is_parked:
        return _parked(facts)
    if facts.due is not None and facts.state in ("delayed", "waiting", "dying"):
        return _later(facts, facts.due)
    return _queued(facts)


def explain_kept(
    id: str, *, seconds: float, is_led: bool, due: datetime | None = None
) -> Explanation:
    """Explain why a durable task is still in SQL only.

    Args:
        seconds: time since its submission.
        is_led: whether a scheduler leads, which hands durable tasks over to Redis.
        due: earliest start.

    >>> explain_kept("a", seconds=0.2, is_led=True).text
    'delayed: in SQL for 0.2 s. The leading task-scheduler hands it to Redis within a second'
    """
    text, next = f"delayed: in SQL for {span(seconds)}", ""
    if not is_led:
        text += ", but no scheduler leads to hand it to Redis"
        next = remedies.of_promoter()
    elif seconds <= HANDED_OVER_WITHIN:
        text += ". The leading task-scheduler hands it to Redis within a second"
    else:
        text += ", and still not in Redis. Read the log of the leading task-scheduler"
        next = remedies.of_hand_over()
    if due is not None:
        text += f". It starts after {due:%Y-%m-%d %H:%M:%SZ}"
    cause: Cause = "hand-over"
    return Explanation(id, "delayed", cause, text, until=due, next=next)


def _made(facts: Facts, cause: Cause, text: str, **details: object) -> Explanation:
    return Explanation(facts.id, facts.state, cause, text, **details)  # type: ignore[arg-type]  # the names are those of the class


def _delivered(facts: Facts) -> Explanation:
    cause: Cause = "running" if facts.state == "running" else "sql"
    text, next = f"running on {facts.worker} for {span(facts.running_seconds)}", ""
    if facts.state == "running" and facts.blocker:
        text += f". It was handed back before: {facts.blocker}"
    if facts.state == "dying":
        text = f"{_dying(facts)}: {facts.worker} is writing its dead letter to SQL"
        next = remedies.of_sql()
    if not facts.is_worker_alive and facts.workers:
        text += ". That worker no longer answers; another one takes over when the lease ends"
    elif not facts.is_worker_alive:
        text += f". That worker no longer answers, and no {facts.size} worker is live"
        cause, next = "worker", remedies.of_worker(facts.size)
    return _made(facts, cause, text, worker=facts.worker, next=next)


def _cancelling(facts: Facts) -> Explanation:
    if facts.state != "running":
        text = f"{facts.state}, cancelled {facts.cancel}. It ends when a worker reads it"
        return _made(facts, "cancelling", text, next=_missing_worker(facts))
    text = f"running on {facts.worker} for {span(facts.running_seconds)}, cancelled {facts.cancel}"
    if not facts.is_worker_alive:
        text += ". That worker no longer answers; the task ends when its lease ends"
    next = "" if facts.is_worker_alive else _missing_worker(facts)
    return _made(facts, "cancelling", text, worker=facts.worker, next=next)


def _missing_worker(facts: Facts) -> str:
    return "" if facts.workers else remedies.of_worker(facts.size)


def _parked(facts: Facts) -> Explanation:
    refusal = facts.refusal
    if refusal is None:
        when = f"within {span(facts.due - facts.now)}" if facts.due else "soon"
        text = f"waiting: nothing refuses it any more. It is checked again {when}"
        return _made(facts, "look", text, until=_instant(facts.due))
    until = _instant(facts.now + refusal.back_in) if refusal.back_in is not None else None
    return _made(
        facts,
        _cause_of(refusal),
        refused_by(refusal),
        lock=refusal.lock,
        holders=refusal.holders,
        ahead=refusal.ahead,
        until=until,
        next=remedies.of_refusal(refusal, facts.workflow),
    )


def _cause_of(refusal: Refusal) -> Cause:
    if refusal.is_impossible:
        return "impossible"
    if not refusal.is_held:
        return "turn"
    kind = KINDS[refusal.kind]
    if kind.limiter:
        return "rate" if kind.windowed else "limiter"
    return "lock" if refusal.holders else "withheld"


def _later(facts: Facts, due: float) -> Explanation:
    if facts.state == "waiting" and facts.handed_on:
        if reason := _unfit(facts):
            return _unknown(facts, f"waiting, handed back: {reason}")
        if able := fit(facts.peers, facts.needs):
            text = f"waiting, handed back: {facts.blocker}. {able}"
            return _made(facts, "hand-back", text)
    if facts.now - due > _PROMOTED_WITHIN and not facts.promoters:
        text = (
            f"{facts.state}, overdue by {span(facts.now - due)}: no scheduler leads and no "
            "worker is live"
        )
        return _made(facts, "promoter", text, next=remedies.of_promoter())
    if facts.state == "delayed":
        return _delayed(facts, due)
    why = facts.blocker.removeprefix("SQL: ") or "no reason was recorded"
    next_try = f"Next try in {span(due - facts.now)}"
    if facts.state == "dying":
        text = f"{_dying(facts)}: its dead letter cannot be written to SQL: {why}. {next_try}"
        return _made(facts, "sql", text, until=_instant(due), next=remedies.of_sql())
    text = f"waiting, handed back: {why}. {next_try}"
    return _made(facts, "hand-back", text, until=_instant(due))


def _delayed(facts: Facts, due: float) -> Explanation:
    clock = (_EPOCH + timedelta(seconds=due)).strftime("%Y-%m-%d %H:%M:%SZ")
    text = f"delayed until {clock} (in {span(due - facts.now)})"
    if not facts.error:
        return _made(facts, "time", text, until=_instant(due))
    text = f"{text} for attempt {facts.used + 1}. The last attempt failed: {_failure(facts)}"
    return _made(facts, "retry", text, until=_instant(due))


def _dying(facts: Facts) -> str:
    return f"dying ({_failure(facts)})" if facts.error else "dying"


def _failure(facts: Facts) -> str:
    """How the last attempt failed, in one line."""
    kind, _, text = facts.error.partition(": ")
    text = text.partition("\n")[0][:_LONGEST_ERROR]
    crash = ""
    if facts.crashes and "its process " in text:
        crash = f" (crash {facts.crashes} of {facts.crash_limit})"
    return f"{kind}: {text}".removesuffix(": ") + crash


def _queued(facts: Facts) -> Explanation:
    what = "dying, its dead letter not yet in SQL" if facts.state == "dying" else facts.state
    if not facts.workers:
        text = f"{what}: no {facts.size} worker is live"
        return _made(facts, "worker", text, next=remedies.of_worker(facts.size))
    if facts.state == "queued" and (reason := _unfit(facts)):
        return _unknown(facts, f"{what}: {reason}")
    if facts.place == "none":
        text = (
            f"{what}, but in no stream: a fetch was cut short, or Redis lost the entry. Workers "
            "queue it again when the lease ends"
        )
        return _made(facts, "queue", text)
    if facts.state == "dying" and (reason := sql_problem(facts.peers)):
        text = f"{_dying(facts)}: its dead letter cannot be written to SQL: {reason}"
        return _made(facts, "sql", text, ahead=facts.ahead, next=remedies.of_sql())
    if facts.place == "suspects":
        text = f"{what}: a process died while running it, so it runs alone, after ordinary tasks"
        text += f"; {facts.ahead} ahead of it" if facts.ahead else ""
        return _made(facts, "suspect", text, ahead=facts.ahead)
    if facts.place == "woken" and not facts.ahead:
        return _made(facts, "woken", f"{what}, woken: the next free {facts.size} worker runs it")
    return _in_line(facts, what)


def _unknown(facts: Facts, text: str) -> Explanation:
    # No command mends it: another worker of the same installation would not know the class either.
    return _made(facts, "unknown", text)


def _in_line(facts: Facts, what: str) -> Explanation:
    text = f"{what}, first in its stream"
    if facts.turn is not None:
        text = f"{what}, {_in_turn(facts, facts.turn)}"
    elif facts.ahead:
        text = f"{what}, {'more than ' * (facts.place == 'beyond')}{facts.ahead} ahead of it"
    if declined := declining(facts.peers, facts.workers, facts.size):
        takers = any(not peer.off for peer in facts.peers)
        cause: Cause = "queue" if takers else "veto"
        text, next = f"{text}. {declined}", remedies.of_worker(facts.size)
        return _made(facts, cause, text, ahead=facts.ahead, next=next)
    next = ""
    if facts.state == "dying":
        text += f". A {facts.size} worker writes it"
    elif facts.idle:
        text += f". An idle {facts.size} worker is about to read the stream"
    else:
        is_next = not (facts.ahead or any(peer.lacks_threads for peer in facts.peers))
        starts = "; it starts when a slot frees" if is_next else ""
        text += f". {busy(facts.peers, facts.workers, facts.size)}{starts}"
        next = remedies.of_worker(facts.size)
    return _made(facts, "queue", text, ahead=facts.ahead, next=next)


def _in_turn(facts: Facts, turn: Turn) -> str:
    """Say why a task waits in the list of its tenant."""
    tenant = f"tenant {turn.tenant}" if turn.tenant else "tasks without a tenant"
    about = f", about {span(turn.seconds)}" if turn.seconds is not None else ""
    ahead = f"behind {facts.ahead} other{'s' * (facts.ahead != 1)}" if facts.ahead else "first"
    text = f"{ahead} of {tenant}"
    if not turn.others:
        return f"{text}{about}"
    others = "1 other goes" if turn.others == 1 else f"{turn.others} others go"
    return f"{text}, which has used its share: {others} first, with {turn.tasks} tasks{about}"


def _unfit(facts: Facts) -> str:
    """Why no live worker can run the task; empty if one may, or not all of them are known."""
    if len(facts.peers) != facts.workers:
        return ""
    return unfit(facts.peers, facts.name, facts.needs, facts.size, facts.similar)


def _instant(seconds: float | None) -> datetime | None:
    return None if seconds is None else _EPOCH + timedelta(seconds=seconds)
