"""Count the attempts of a worker for its metrics and figures, in less than 2 µs an attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from nonet.messages.message import Usage
from nonet.rules.figures import vector
from nonet.stores.queue.deliveries import Delivery
from nonet.telemetry.metrics import ROUND_TRIPS, UNKNOWN, Histogram, Sample
from nonet.worker.attempt.attempt import Attempt

# The values of the label ``outcome``: what `Settler.settle` returns.
OUTCOMES = ("done", "retry", "crash", "dead", "cancelled", "expired", "back", "lost")
# The outcomes that `nonet.rules.figures.COUNTS` count.
_KINDS = (
    ("done", "dead", "cancelled", "expired"),
    ("dead", "expired"),
    ("retry", "crash"),
)
VETOES = ("memory", "load", "registration")


class _OfClass:
    """Counts of one class and size."""

    __slots__ = ("finished", "run", "started", "wait")

    def __init__(self, run: Histogram, wait: Histogram) -> None:
        self.started = 0
        self.finished: Counter[str] = Counter()
        self.run = run
        self.wait = wait


class Tally:
    """Counts of one worker. Its event loop counts; any thread may read.

    The counters of a class start at 0, so that Prometheus sees the first event as an increase.

    Args:
        names: classes with counters of their own; all others share one set.
        size: size of the worker.

    Attributes:
        offset: seconds by which the corrected clock is ahead of the server's clock.
        vetoes: how often the worker began to take nothing, by reason.
        blocked: how often the event loop was blocked, by class; a thread counts this.
        round_trips: durations of single scripts.
    """

    def __init__(self, names: Collection[str], size: str) -> None:
        labels = (*names, UNKNOWN)
        self.offset = 0.0
        self.vetoes: Counter[str] = Counter(dict.fromkeys(VETOES, 0))
        self.blocked: Counter[str] = Counter(dict.fromkeys(labels, 0))
        self.round_trips = Histogram(ROUND_TRIPS)
        self._names = frozenset(names)
        self._classes: dict[tuple[str, str], _OfClass] = {}
        self._runs: dict[str, Histogram] = {}
        self._task_waits: dict[str, Histogram] = {}
        # What `figures` has returned so far, by class.
        self._reported: dict[str, Counter[int]] = {}
        self._waits: dict[str, Histogram] = {}
        self._lock_waits: dict[str, Histogram] = {}
        self._crashes: Counter[str] = Counter(dict.fromkeys(labels, 0))
        for label in labels:
            self._of(label, size)

    def label(self, name: str) -> str:
        """Return the label ``task`` for a class name."""
        return name if name in self._names else UNKNOWN

    def started(self, attempt: Attempt) -> None:
        """Count the start of an attempt, after its envelope was read or found damaged."""
        delivery = attempt.delivery
        of_class = attempt.tallied = self._of(attempt.context.name, attempt.size)
        of_class.started += 1
        stream = delivery.stream_key.partition(":")[2]  # a front stream counts as its main stream
        waits = self._waits.get(stream)
        if waits is None:
            waits = self._waits[stream] = Histogram()
        waited = self._waited(delivery, attempt.context.fence)
        waits.observe(waited)
        of_class.wait.observe(waited)
        if delivery.waited:
            task = self.label(attempt.context.name)
            self._lock_waits.setdefault(task, Histogram()).observe(delivery.waited / 1e6)

    def finished(
        self, attempt: Attempt, outcome: str, usage: Usage | None = None, *, crashed: bool = False
    ) -> None:
        """Count the end of an attempt. Further calls for the same attempt change nothing.

        Args:
            outcome: what `nonet.worker.attempt.settle.Settler.settle` returned.
            crashed: whether its process died.
        """
        of_class = attempt.tallied
        if of_class is None:
            return
        attempt.tallied = None
        of_class.finished[outcome] += 1
        if usage is not None and usage.wall is not None:
            of_class.run.observe(usage.wall)
        if crashed:
            self._crashes[self.label(attempt.context.name)] += 1

    def note_offset(self, seconds: float) -> None:
        """Note by how much the corrected clock is ahead of the server's clock."""
        self.offset = seconds

    def figures(self) -> dict[str, dict[int, int]]:
        """Return the vector of each class with what was counted since the last call.

        See `nonet.rules.figures`. One thread calls this.
        """
        finished: dict[str, Counter[str]] = {}
        for (task, _), of_class in list(self._classes.items()):
            finished.setdefault(task, Counter()).update(of_class.finished)
        found = {}
        for task, by_outcome in finished.items():
            counts = [sum(by_outcome[outcome] for outcome in kind) for kind in _KINDS]
            reported = self._reported.setdefault(task, Counter())
            times = self._task_waits[task].counts, self._runs[task].counts
            if more := vector(counts, *times, reported):
                reported.update(more)
                found[task] = more
        return found

    def samples(self) -> Iterator[Sample]:
        """Yield all counts as samples of metrics."""
        for (task, size), of_class in list(self._classes.items()):
            yield "nonet_tasks_started_total", (task, size), of_class.started
            counts = {**dict.fromkeys(OUTCOMES, 0), **of_class.finished}
            for outcome, number in counts.items():
                yield "nonet_tasks_finished_total", (task, size, outcome), number
        for stream, waits in list(self._waits.items()):
            priority, _, size = stream.partition(":")
            yield "nonet_task_wait_seconds", (priority, size), waits
        for name, found in (
            ("nonet_task_run_seconds", self._runs),
            ("nonet_lock_wait_seconds", self._lock_waits),
        ):
            for task, times in list(found.items()):
                if times.has_some:  # skip empty ones: a histogram has 20 series
                    yield name, (task,), times
        for name, counts in (
            ("nonet_task_crashes_total", self._crashes),
            ("nonet_worker_vetoes_total", self.vetoes),
            ("nonet_event_loop_blocked_total", self.blocked),
        ):
            for label, number in list(counts.items()):
                yield name, (label,), number
        yield "nonet_redis_round_trip_seconds", (), self.round_trips

    def _waited(self, delivery: Delivery, fence: int) -> float:
        """Return the seconds that the task waited in its stream.

        The entry id is the time at which it was added (ms and µs). The fence is the time of the
        fetch (µs).
        """
        milliseconds, _, rest = delivery.entry.partition("-")
        waited = (fence - 1000 * int(milliseconds) - int(rest)) / 1e6
        if self.offset and f"{milliseconds}{rest:0>3}" != delivery.gen:
            waited -= self.offset  # this entry id is uncorrected server time
        return waited

    def _of(self, name: str, size: str) -> _OfClass:
        found = self._classes.get((name, size))
        if found is None:
            task = self.label(name)
            run = self._runs.setdefault(task, Histogram())
            wait = self._task_waits.setdefault(task, Histogram())
            found = self._classes.setdefault((task, size), _OfClass(run, wait))
        return found
