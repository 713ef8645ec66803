"""Count the attempts of each tenant, for the figures of tenants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from nonet.base.streams import Size
from nonet.rules.fairness import fold, order
from nonet.rules.vectors import end_counts, merged, started_in, vector
from nonet.telemetry.metrics import Histogram

_SIZES = tuple(Size)


class _Counts:
    """Counts of one tenant.

    Attributes:
        reported: what `TenantTally.figures` has returned so far.
    """

    def __init__(self) -> None:
        self.running = 0
        self.started = dict.fromkeys(_SIZES, 0)
        self.finished: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.wait = Histogram()
        self.reported: Counter[int] = Counter()

    def new(self) -> dict[int, int]:
        """Return the vector of what was counted since the last call."""
        finished = self.finished
        retried = finished["retry"] + finished["crash"]
        ends = end_counts(finished["done"], self.reasons, retried)
        more = vector(ends, self.wait.counts, [], self.reported, (*self.started.values(),))
        self.reported.update(more)
        return more


class TenantTally:
    """Counts of the tenants of one worker. Its event loop counts; any thread may read.

    A tenant is forgotten when it has had no attempt between two reports, as there may be very many.

    Args:
        named: returns the tenants that the configuration names.
    """

    def __init__(self, named: Callable[[], Collection[str]]) -> None:
        self._named = named
        self._counts: dict[str, _Counts] = {}

    def started(self, tenant: str, size: Size, waited: float) -> None:
        """Count the start of an attempt.

        Args:
            waited: seconds that its task was runnable before.
        """
        counts = self._counts.get(tenant) or self._counts.setdefault(tenant, _Counts())
        counts.running += 1
        counts.started[size] += 1
        counts.wait.observe(waited)

    def finished(self, tenant: str, outcome: str, reason: str) -> None:
        """Count the end of an attempt that was counted when it started; see `Tally.finished`."""
        counts = self._counts.get(tenant)
        if counts is None:  # `figures` forgot the tenant in the moment in which the attempt began
            return
        counts.running -= 1
        counts.finished[outcome] += 1
        if reason:
            counts.reasons[reason] += 1

    def running(self) -> dict[str, int]:
        """Return how many attempts run, by tenant."""
        numbers = {name: counts.running for name, counts in list(self._counts.items())}
        chosen, _ = order((), {name: number for name, number in numbers.items() if number})
        total: Counter[str] = Counter()
        for name, number in fold(numbers, chosen):
            total[name] += number
        return dict(+total)

    def figures(self) -> tuple[Mapping[str, Mapping[int, int]], int]:
        """Return the vector of each tenant with what was counted since the last call.

        Returns:
            First the tenants that the configuration names, then those that have started most; and
            how many are named. One thread calls this.
        """
        found: dict[str, Mapping[int, int]] = {}
        for name, counts in list(self._counts.items()):
            more = counts.new()
            if more:
                found[name] = more
            elif not counts.running:
                del self._counts[name]
        if not found:
            return {}, 0
        named = [name for name in self._named() if name in found]
        chosen, sure = order(named, {name: started_in(more) for name, more in found.items()})
        by_name: dict[str, list[Mapping[int, int]]] = {name: [] for name in chosen}
        for name, one in fold(found, chosen):
            by_name.setdefault(name, []).append(one)
        return {name: merged(those) for name, those in by_name.items()}, sure
