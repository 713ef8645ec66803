"""Findings about locks and limiters that tasks wait for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from math import ceil

from nonet.base.durations import span
from nonet.rules.findings import remedies
from nonet.rules.findings.finding import Finding
from nonet.rules.findings.refusal import Waiters, by_hand, named, tasks_wait
from nonet.rules.findings.situation import Situation
from nonet.tasks.locks import KINDS

# Shorter waits are normal (seconds).
_LONG_WAIT = 5.0


def contention(found: Situation) -> Iterator[Finding]:
    """Return the locks and limiters that tasks wait for too long, a finding for each cause."""
    yield from _locks(found)
    yield from _limiters(found)


def _locks(found: Situation) -> Iterator[Finding]:
    def sentence(first: Waiters) -> str:
        refusal = first.refusal
        if not refusal.holders:
            return f"{tasks_wait(first.waiting)} for {refusal.lock}"
        holder = refusal.holders[0]
        text = f"{tasks_wait(first.waiting)} for {refusal.lock}{_of(first)}, held by "
        text += named(holder)
        text += f" for {span(holder.held_seconds)}" if holder.held_seconds else ""
        if remedies.is_stuck(holder) and holder.usual_seconds is not None:
            text += f", though 99 % of its class run for less than {span(holder.usual_seconds)}"
        return text + (", which renews it" if holder.is_live else "")

    yield from _by_type(found, sentence, limiter=False)


def _limiters(found: Situation) -> Iterator[Finding]:
    def sentence(first: Waiters) -> str:
        refusal, by = first.refusal, by_hand(first.refusal)
        text = f"{tasks_wait(first.waiting)} for {refusal.lock}{_of(first)}"
        if not refusal.window_seconds:
            return f"{text}, {refusal.limit} at a time{by}"
        windows = ceil(first.waiting / max(1, refusal.limit)) - 1
        last = (refusal.back_in or 0.0) + windows * refusal.window_seconds
        text += f", {refusal.limit} per {refusal.window_seconds:g} s"
        return f"{text}, the last in {span(last)}{by}"

    yield from _by_type(found, sentence, limiter=True)


def _of(first: Waiters) -> str:
    return f" ({', '.join(first.tasks)})" if first.tasks else ""


def _by_type(
    found: Situation, sentence: Callable[[Waiters], str], *, limiter: bool
) -> Iterator[Finding]:
    """Report the worst lock of each kind and object type: there may be one for each job."""
    wanted = [
        item
        for item in found.waiters
        if item.seconds >= _LONG_WAIT and KINDS[item.refusal.kind].limiter == limiter
    ]
    groups = [list(group) for _, group in groupby(sorted(wanted, key=_type_of), _type_of)]
    for group in groups:
        first = max(group, key=lambda item: (item.waiting, item.seconds))
        refusal, waiting = first.refusal, sum(item.waiting for item in group)
        problem = sentence(first)
        if len(group) > 1:
            others = f"{waiting - first.waiting} for {len(group) - 1} others of its type"
            problem += f" (and {others}: task-run locks)"
        # A limit that works as configured only delays.
        is_meant = limiter and not (refusal.override and refusal.override.is_narrower)
        yield Finding(
            "limiter" if limiter else "lock",
            refusal.lock,
            problem,
            command=remedies.of_refusal(refusal),
            severity="warning" if is_meant else "error",
            since=found.ago(max(item.seconds for item in group)),
            count=waiting,
        )


def _type_of(item: Waiters) -> tuple[str, str]:
    """The kind and object type of a lock, and the limit by hand or the stuck task of its own."""
    refusal = item.refusal
    head, _, rest = refusal.lock.partition(":")
    parts = rest.split(":")
    kind = ":".join((head, *parts[: 3 if parts[1:2] and parts[1].startswith("@") else 2]))
    stuck = next((holder.id for holder in refusal.holders if remedies.is_stuck(holder)), "")
    return kind, stuck or (refusal.override.name if refusal.override else "")
