"""The figures of classes, tenants and streams over time.

Each beat of a worker adds its counts to the current minute (``add_figures.lua``). Once a minute the
leader adds the minute that has ended to the hours of each name (``fold.lua``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from nonet.rules.figures import FigureSeries, figure_series
from nonet.rules.findings.throughput import Throughput, throughput_of
from nonet.rules.vectors import LOAD, load_vector, merged, packed
from nonet.stores.connection.redis import RedisStore
from nonet.stores.namespace.figures import Figures
from nonet.stores.namespace.slots import Kind, Slots, read_slots

_OTHERS = {Kind.CLASS: "others", Kind.STREAM: "others", Kind.TENANT: "(others)"}
_ALL = "all"

_Vectors = Mapping[datetime, Mapping[int, int]]


class Counts(RedisStore):
    """What was counted in one namespace, over a broker's connection."""

    async def figures(
        self,
        kind: Kind = Kind.CLASS,
        *,
        since: timedelta = timedelta(hours=1),
        name: str | None = None,
        compares: bool = False,
    ) -> list[FigureSeries]:
        """Return the figures of each class, tenant or stream that has some, by name.

        They are kept by minutes for three hours, and by hours for two weeks. Tasks that ended
        without a worker are not counted.

        Args:
            since: how far to look back.
            name: only this one, with its slots; of a class its full or bare name.
            compares: whether to read the day before, too.

        Raises:
            ServerUnreachableError: Redis does not answer.
        """
        is_bare = kind is Kind.CLASS and name is not None and ":" not in name
        read = self._client, self._prefix, kind, since, None if is_bare else name
        found = await read_slots(*read, compares=compares)
        return [
            _series(one, found, is_whole=name is not None)
            for one in sorted(found.vectors.keys() | found.before.keys())
            if name in (None, one, one.rpartition(":")[2] if is_bare else one)
            if one or kind is not Kind.STREAM
        ]

    async def of_all(self, *, since: timedelta) -> FigureSeries:
        """Return the figures of all streams together, and those of the day before.

        Raises:
            ServerUnreachableError: Redis does not answer.
        """
        found = await read_slots(self._client, self._prefix, Kind.STREAM, since, compares=True)
        own, before = _sum_of(found.vectors), _sum_of(found.before)
        sums = found._replace(vectors={_ALL: own}, before={_ALL: before})
        return _series(_ALL, sums, is_whole=True)

    async def throughput(self, *, since: timedelta = timedelta(minutes=2)) -> Throughput:
        """Return how many tasks of all classes ended a second lately.

        Raises:
            ServerUnreachableError: Redis does not answer.
        """
        found = await read_slots(self._client, self._prefix, Kind.CLASS, since)
        return throughput_of(found.vectors, found.first, found.now)

    async def submitted(self) -> float | None:
        """Return how many tasks a second were submitted between the last notes of the leader.

        None: there is no leader, or nothing counts them; see `Measures.figures`.
        """
        read = self._client, self._prefix, Kind.STREAM, timedelta(minutes=3), ""
        found = _series("", await read_slots(*read), is_whole=True)
        loads = [slot.load for slot in found.series if slot.load is not None]
        rate = loads[-1].submitted_per_minute if loads else None
        return None if rate is None else rate / 60

    async def fold(
        self, term: str, kind: Kind, loads: Mapping[str, Mapping[int, int]], latest: int | str
    ) -> tuple[int, float] | None:
        """Add one minute that has ended to the hours; each minute is added once.

        Args:
            loads: how much there is now, see `loads_of`.
            latest: the latest possible time by the clock of this process, in logical µs, or empty.

        Returns:
            How many more minutes have ended, and the seconds until the next one ends; None: another
            term leads.
        """
        pairs = (part for name, load in loads.items() for part in (name, packed(load)))
        answer = await self._scripts.run("fold", term, latest, kind, _OTHERS[kind], *pairs)
        leads, more, left = answer
        return (more, left / 1e6) if leads else None


def loads_of(figures: Figures) -> dict[str, dict[int, int]]:
    """Return how much there is in each stream, and as "" in all, as vectors.

    Tasks that were submitted are left out if nothing counts them.
    """
    submitted = figures.submitted

    def load(names: Collection[tuple[str, str]], **more: int) -> dict[int, int]:
        those = [figures.streams[name] for name in names]
        if submitted is not None:
            more["submitted"] = sum(submitted.get(name, 0) for name in names)
        return load_vector(
            queued=sum(max(0, one.depth - one.in_flight) for one in those),
            running=sum(one.in_flight for one in those),
            oldest_ms=round(1000 * max(one.oldest for one in those)),
            **more,
        )

    found = {":".join(name): load([name]) for name in figures.streams}
    found[""] = load(figures.streams, waiting=figures.waiting, delayed=figures.delayed)
    return found


def _series(name: str, slots: Slots, *, is_whole: bool) -> FigureSeries:
    those, times = slots.vectors.get(name, {}), (slots.first, slots.now, slots.seconds)
    return figure_series(name, those, *times, before=slots.before.get(name), is_whole=is_whole)


def _sum_of(streams: Mapping[str, _Vectors]) -> dict[datetime, dict[int, int]]:
    """Add what was counted of streams; how much there was in all is noted beside them."""
    found: dict[datetime, dict[int, int]] = {}
    for name, slots in streams.items():
        for at, vector in slots.items():
            counts = {place: n for place, n in vector.items() if place < LOAD or not name}
            found[at] = merged([found.get(at, {}), counts])
    return found
