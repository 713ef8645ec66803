"""How many workers a size wants, and when the need is reported."""

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
        (demand(5), 4, 2),
        (demand(0, 0, 0, 0), 1, 0),
        (demand(0, 1, 0), 1, 1),
        (demand(1, 4), 1, 2),
        (demand(8, 4, 4, slots=4), 1, 4),
        (demand(0, running=3), 2, 2),  # of dead workers: they run again
        (demand(10, 0, slots=0), 5, 2),  # it did not say how many slots it has
    ],
)
def test_the_desired_workers_fit_all_that_runs_or_could_run(
    found: Demand, default: int, wanted: int
) -> None:
    assert desired(found, default) == wanted


def test_slots_are_the_mean_of_the_workers_that_report_them() -> None:
    workers = (LiveWorker("a", 1, 0), LiveWorker("b", 3, 0), LiveWorker("c", 0, 0))
    assert desired(Demand("small", 10, 0, workers), 100) == 5


@pytest.mark.parametrize(
    ("found", "starting", "alive", "room", "started"),
    [
        (demand(4, 0), 0, 1, 7, 0),  # free slots take them
        (demand(5, 0), 0, 1, 7, 1),
        (demand(4, 4), 1, 2, 6, 0),  # the one that starts will take them
        (demand(5, 4), 1, 2, 6, 1),
        (demand(100, 4), 0, 1, 7, 1),  # at most twice as many
        (demand(100, 4, 4, 4), 0, 3, 5, 3),
        (demand(100, 4, 4, 4), 0, 3, 2, 2),
        (demand(100, 4, 4, 4), 0, 3, 0, 0),
        (demand(100), 0, 0, 8, 1),  # the first one of a fleet that had none
    ],
)
def test_a_fleet_starts_workers_for_what_overflows_the_free_slots(
    found: Demand, starting: int, alive: int, room: int, started: int
) -> None:
    assert spawns(found, 4, starting=starting, alive=alive, room=room) == started


def test_a_draining_worker_has_no_free_slot() -> None:
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
    slots, work = found.slots(default), found.running + found.runnable
    wanted = desired(found, default)
    assert wanted * slots >= work or math.isclose(wanted * slots, work)
    assert wanted == 0 or (wanted - 1) * slots < work


@given(demands, st.integers(0, 20), st.integers(0, 20), st.integers(-5, 20))
def test_the_number_of_starts_is_bounded(
    found: Demand, starting: int, alive: int, room: int
) -> None:
    started = spawns(found, 4, starting=starting, alive=alive, room=room)
    assert 0 <= started <= max(0, room)
    assert started <= max(1, alive)
    if found.runnable <= found.free:
        assert started == 0


@given(demands, st.integers(1, 20))
def test_workers_that_start_are_not_started_again(found: Demand, alive: int) -> None:
    starting, rounds = 0, 0
    while more := spawns(found, 4, starting=starting, alive=alive + starting, room=10**6):
        starting, rounds = starting + more, rounds + 1
        assert rounds < 40
    slots = found.slots(4)
    overflow = max(0, found.runnable - found.free)
    assert starting <= math.ceil(overflow / slots)
    assert starting * slots >= overflow or math.isclose(starting * slots, overflow)


@pytest.mark.parametrize(
    ("looks", "due"),
    [
        pytest.param([(0, 3), (0.5, 3), (0.9, 0), (1.5, 3), (2.4, 3)], [], id="a short lack"),
        pytest.param([(0, 3), (1, 3), (2, 3), (30, 1), (60.9, 5)], [1], id="once for a need"),
        pytest.param([(0, 3), (1, 3), (61, 3), (62, 3)], [1, 61], id="again after the cooldown"),
        pytest.param([(0, 3), (1, 3), (5, 0), (6, 1), (7, 1), (8, 1)], [1, 7], id="the next need"),
    ],
)
def test_a_need_is_due_after_a_moment_and_again_after_the_cooldown(
    looks: list[tuple[float, int]], due: list[float]
) -> None:
    need = Need(1.0, 60.0)
    assert [now for now, missing in looks if need.is_due(missing, now)] == due
