"""How many workers a size wants, and when somebody is told."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from nonet.rules.demand import Demand, LiveWorker, Need, desired, spawns


def demand(runnable: int, *busy: int, slots: int = 4, running: int | None = None) -> Demand:
    """A size whose live workers have so many deliveries each."""
    workers = tuple(LiveWorker(f"medium-{n}", slots, held) for n, held in enumerate(busy))
    return Demand("medium", runnable, sum(busy) if running is None else running, workers)


@pytest.mark.parametrize(
    ("found", "default", "wanted"),
    [
        (demand(0), 4, 0),
        (demand(1), 4, 1),
        (demand(4), 4, 1),
        (demand(5), 4, 2),
        (demand(5), 1, 5),
        (demand(0, 0, 0, 0), 1, 0),
        (demand(0, 1, 0), 1, 1),
        (demand(0, 4), 1, 1),
        (demand(1, 4), 1, 2),
        (demand(8, 4, 4, slots=4), 1, 4),
        (demand(0, running=3), 2, 2),  # of dead workers: they run again
        (demand(10, 0, slots=0), 5, 2),  # it did not say how many slots it has
    ],
)
def test_desired(found: Demand, default: int, wanted: int) -> None:
    """As many workers as all that runs or could run needs, by the slots that workers have."""
    assert desired(found, default) == wanted


def test_slots_are_the_mean_of_those_that_say() -> None:
    """Workers of one size may differ."""
    workers = (LiveWorker("a", 1, 0), LiveWorker("b", 3, 0), LiveWorker("c", 0, 0))
    assert desired(Demand("small", 10, 0, workers), 100) == 5


@pytest.mark.parametrize(
    ("found", "starting", "alive", "room", "started"),
    [
        (demand(0, 0), 0, 1, 7, 0),
        (demand(4, 0), 0, 1, 7, 0),  # free slots take them
        (demand(5, 0), 0, 1, 7, 1),
        (demand(4, 4), 1, 2, 6, 0),  # the one that starts will take them
        (demand(5, 4), 1, 2, 6, 1),
        (demand(100, 4), 0, 1, 7, 1),  # at most twice as many
        (demand(100, 4, 4, 4), 0, 3, 5, 3),
        (demand(100, 4, 4, 4), 0, 3, 2, 2),
        (demand(100, 4, 4, 4), 0, 3, 0, 0),
        (demand(100, 4, 4, 4), 0, 3, -1, 0),
        (demand(100), 0, 0, 8, 1),  # the first one of a fleet that had none
        (demand(9, 0), 0, 1, 7, 1),
    ],
)
def test_spawns(found: Demand, starting: int, alive: int, room: int, started: int) -> None:
    """A fleet starts what overflows the free slots, bounded, and counts those that start."""
    assert spawns(found, 4, starting=starting, alive=alive, room=room) == started


def test_who_drains_has_no_free_slot() -> None:
    """Free slots of a worker that takes nothing are none."""
    idle = LiveWorker("a", 4, 0, takes=False)
    assert idle.free == 0
    found = Demand("small", 1, 0, (idle,))
    assert (found.live, found.free) == (0, 0)
    assert spawns(found, 4, alive=0, room=8) == 1


counts = st.integers(0, 10_000)
demands = st.builds(
    Demand,
    st.just("small"),
    counts,
    counts,
    st.lists(
        st.builds(LiveWorker, st.text(), st.integers(0, 200), st.integers(0, 300), st.booleans())
    ).map(tuple),
)


@given(demands, st.integers(1, 100))
def test_desired_workers_hold_all_and_none_is_idle(found: Demand, default: int) -> None:
    """All fits into the slots of the desired workers, and not into those of one less."""
    slots, work = found.slots(default), found.running + found.runnable
    wanted = desired(found, default)
    assert wanted * slots >= work or math.isclose(wanted * slots, work)
    assert wanted == 0 or (wanted - 1) * slots < work


@given(demands, st.integers(0, 20), st.integers(0, 20), st.integers(-5, 20))
def test_spawns_are_bounded(found: Demand, starting: int, alive: int, room: int) -> None:
    """Never more than there is room for, nor more than double; none if nothing overflows."""
    started = spawns(found, 4, starting=starting, alive=alive, room=room)
    assert 0 <= started <= max(0, room)
    assert started <= max(1, alive)
    if found.runnable <= found.free:
        assert started == 0


@given(demands, st.integers(1, 20))
def test_what_starts_is_not_started_again(found: Demand, alive: int) -> None:
    """At the next look those that were started count: the need is met in the end, once."""
    starting, rounds = 0, 0
    while more := spawns(found, 4, starting=starting, alive=alive + starting, room=10**6):
        starting, rounds = starting + more, rounds + 1
        assert rounds < 40
    slots = found.slots(4)
    overflow = max(0, found.runnable - found.free)
    assert starting <= math.ceil(overflow / slots)
    assert starting * slots >= overflow or math.isclose(starting * slots, overflow)


class TestNeed:
    """Once for each need, or after the cooldown."""

    def looks(self, *looks: tuple[float, int]) -> list[float]:
        """When it is due, of looks (time, missing)."""
        need = Need(1.0, 60.0)
        return [now for now, missing in looks if need.is_due(missing, now)]

    def test_it_waits_for_a_moment(self) -> None:
        """A short lack is no need."""
        assert self.looks((0.0, 3), (0.5, 3), (0.9, 0), (1.5, 3), (2.4, 3)) == []

    def test_it_is_told_once(self) -> None:
        """While workers start nobody is told again."""
        assert self.looks((0.0, 3), (1.0, 3), (2.0, 3), (30.0, 1), (60.9, 5)) == [1.0]

    def test_it_is_told_again_after_the_cooldown(self) -> None:
        """If nobody came."""
        assert self.looks((0.0, 3), (1.0, 3), (61.0, 3), (62.0, 3)) == [1.0, 61.0]

    def test_a_need_that_was_met_ends(self) -> None:
        """The next one is another, and waits for a moment too."""
        assert self.looks((0.0, 3), (1.0, 3), (5.0, 0), (6.0, 1), (7.0, 1), (8.0, 1)) == [1.0, 7.0]
