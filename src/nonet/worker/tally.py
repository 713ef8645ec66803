"""Count the attempts of a worker for its metrics and figures, in less than 1 µs an attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from nonet.base.messages.message import Usage
from nonet.rules.vectors import end_counts, vector
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.leases import Counted
from nonet.telemetry.metrics import ROUND_TRIPS, UNKNOWN, Histogram, Sample
from nonet.worker.attempt.attempt import Attempt
from nonet.worker.tenant_tally import TenantTally

# The outcome of a task that ended dead with an error that its class declares as expected.
EXPECTED = "expected"
# The values of the label ``outcome``: what `Settler.settle` returns, and `EXPECTED`.
OUTCOMES = ("done", "retry", "crash", "dead", EXPECTED, "cancelled", "expired", "back", "lost")
# After `_EXACT` attempts of a class since the last call of `figures`, the times of one in `_SHARE`
# are measured, and count as often: enough for percentiles, and it takes a third of the time.
_EXACT, _SHARE = 1000, 8
VETOES = ("memory", "load", "registration")


class _Counts:
    """Counts of one class, size and stream.

    Attributes:
        exact: number of the last attempt that is measured in any case, see `_SHARE`.
    """

    def __init__(self, task: str, size: str, stream: str) -> None:
        self.task = task
        self.size = size
        self.stream = stream
        self.started = 0
        self.ended = 0
        self.exact = _EXACT
        self.finished: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
        self.reasons: Counter[str] = Counter()
        self.crashed = 0
        self.wait = Histogram()
        self.lock_wait = Histogram()
        self.run = Histogram()


class Tally:
    """Counts of one worker. Its event loop counts; any thread may read.

    The counters of a class start at 0, so that Prometheus sees the first event as an increase.

    Args:
        names: classes with counters of their own; all others share one set.
        size: size of the worker.
        named: returns the tenants that the configuration names.

    Attributes:
        tenants: the counts of tenants.
        offset: seconds by which the corrected clock is ahead of the server's clock.
        vetoes: how often the worker began to take nothing, by reason.
        blocked: how often the event loop was blocked, by class; a thread counts this.
        round_trips: durations of single scripts.
    """

    def __init__(
        self, names: Collection[str], size: str, named: Callable[[], Collection[str]] = tuple
    ) -> None:
        labels = (*names, UNKNOWN)
        self.offset = 0.0
        self.vetoes: Counter[str] = Counter(dict.fromkeys(VETOES, 0))
        self.blocked: Counter[str] = Counter(dict.fromkeys(labels, 0))
        self.round_trips = Histogram(ROUND_TRIPS)
        self.tenants = TenantTally(named)
        self._names = frozenset(names)
        self._counts: dict[tuple[str, str, str], _Counts] = {}
        # What `figures` has returned so far, by class and by stream.
        self._reported: tuple[dict[str, Counter[int]], ...] = ({}, {})
        for label in labels:
            self._of(label, size, "")

    def label(self, name: str) -> str:
        """Return the label ``task`` for a class name."""
        return name if name in self._names else UNKNOWN

    def started(self, attempt: Attempt) -> None:
        """Count the start of an attempt, after its envelope was read or found damaged."""
        delivery, context = attempt.delivery, attempt.context
        counts = self._counts.get((context.name, attempt.size, delivery.stream_key))
        if counts is None:
            counts = self._of(context.name, attempt.size, delivery.stream_key)
        attempt.tallied = counts
        counts.started = number = counts.started + 1
        if number <= counts.exact:
            counts.wait.observe(self._waited(delivery, context.fence))
        elif not number % _SHARE:
            counts.wait.observe(self._waited(delivery, context.fence), _SHARE)
        if delivery.tenant is not None:
            waited = self._waited(delivery, context.fence)
            self.tenants.started(delivery.tenant, attempt.size, waited)
        if delivery.waited:
            counts.lock_wait.observe(delivery.waited / 1e6)

    def finished(
        self,
        attempt: Attempt,
        outcome: str,
        usage: Usage | None = None,
        *,
        reason: str = "",
        crashed: bool = False,
    ) -> None:
        """Count the end of an attempt. Further calls for the same attempt change nothing.

        Args:
            outcome: one of `OUTCOMES`.
            reason: why its task ended, unless it is done; a `Reason`. Empty: it has not ended.
            crashed: whether its process died.
        """
        counts = attempt.tallied
        if counts is None:
            return
        attempt.tallied = None
        counts.finished[outcome] = counts.finished.get(outcome, 0) + 1
        counts.crashed += crashed
        if reason:
            counts.reasons[reason] += 1
        if attempt.delivery.tenant is not None:
            self.tenants.finished(attempt.delivery.tenant, outcome, reason)
        if usage is None or usage.wall is None:
            return
        counts.ended = number = counts.ended + 1
        if number <= counts.exact:
            counts.run.observe(usage.wall)
        elif not number % _SHARE:
            counts.run.observe(usage.wall, _SHARE)

    def note_offset(self, seconds: float) -> None:
        """Note by how much the corrected clock is ahead of the server's clock."""
        self.offset = seconds

    def figures(self) -> Counted:
        """Return what was counted since the last call. One thread calls this."""
        by_task: dict[str, list[_Counts]] = {}
        by_stream: dict[str, list[_Counts]] = {}
        for counts in list(self._counts.values()):
            by_task.setdefault(counts.task, []).append(counts)
            if counts.stream:  # a front stream counts as its main stream
                by_stream.setdefault(counts.stream.partition(":")[2], []).append(counts)
            counts.exact = counts.started + _EXACT
        classes, streams = map(_new, (by_task, by_stream), self._reported)
        return Counted(classes, *self.tenants.figures(), streams)

    def samples(self) -> Iterator[Sample]:
        """Yield all counts as samples of metrics."""
        started: Counter[tuple[str, str]] = Counter()
        finished: Counter[tuple[str, str, str]] = Counter()
        crashes: Counter[str] = Counter()
        times: dict[tuple[str, tuple[str, ...]], list[Histogram]] = {}
        for counts in list(self._counts.values()):
            task, size = counts.task, counts.size
            started[task, size] += counts.started
            crashes[task] += counts.crashed
            for outcome, number in list(counts.finished.items()):
                finished[task, size, outcome] += number
            # A front stream counts as its main stream.
            place = tuple(counts.stream.split(":")[1:])
            for name, labels, found in (
                ("nonet_task_wait_seconds", place, counts.wait),
                ("nonet_task_run_seconds", (task,), counts.run),
                ("nonet_lock_wait_seconds", (task,), counts.lock_wait),
            ):
                if found.has_some:  # skip empty ones: a histogram has 20 series
                    times.setdefault((name, labels), []).append(found)
        for counted in (
            ("nonet_tasks_started_total", started),
            ("nonet_tasks_finished_total", finished),
            ("nonet_task_crashes_total", {(task,): number for task, number in crashes.items()}),
            ("nonet_worker_vetoes_total", {(why,): n for why, n in list(self.vetoes.items())}),
            ("nonet_event_loop_blocked_total", {(t,): n for t, n in list(self.blocked.items())}),
        ):
            for labels, number in counted[1].items():
                yield counted[0], labels, number
        for (name, labels), those in times.items():
            yield name, labels, _sum(those)
        yield "nonet_redis_round_trip_seconds", (), self.round_trips

    def _waited(self, delivery: Delivery, fence: int) -> float:
        """Return the seconds that the task waited in its stream.

        The entry id is the time at which it was added (ms and µs). The fence is the time of the
        fetch (µs).
        """
        if delivery.runnable_since:
            return (fence - delivery.runnable_since) / 1e6
        milliseconds, _, rest = delivery.entry.partition("-")
        waited = (fence - 1000 * int(milliseconds) - int(rest)) / 1e6
        if self.offset and f"{milliseconds}{rest:0>3}" != delivery.gen:
            waited -= self.offset  # this entry id is uncorrected server time
        return waited

    def _of(self, name: str, size: str, stream: str) -> _Counts:
        task = self.label(name)
        return self._counts.setdefault((task, size, stream), _Counts(task, size, stream))


def _new(
    counted: Mapping[str, list[_Counts]], reported: dict[str, Counter[int]]
) -> dict[str, dict[int, int]]:
    """Return the vectors of what was counted and not yet reported, by name."""
    found = {}
    for name, those in counted.items():
        reasons = sum((each.reasons for each in those), Counter[str]())
        kinds = ("done", "retry", "crash")
        done, *retried = (sum(each.finished[kind] for each in those) for kind in kinds)
        waits = _sum(each.wait for each in those)
        runs = _sum(each.run for each in those)
        before = reported.setdefault(name, Counter())
        ends = end_counts(done, reasons, sum(retried))
        if more := vector(ends, waits.counts, runs.counts, before):
            before.update(more)
            found[name] = more
    return found


def _sum(those: Iterable[Histogram]) -> Histogram:
    """Return the sum of histograms with the bounds of `DURATIONS`."""
    total = Histogram()
    for each in those:
        total.counts = [mine + more for mine, more in zip(total.counts, each.counts, strict=True)]
        total.sum += each.sum
    return total
