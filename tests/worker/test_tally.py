"""What a worker counts of its attempts, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nonet.base.messages.message import Usage
from nonet.rules.figures import figures_of
from nonet.rules.vectors import DURATIONS
from nonet.stores.queue.deliveries import Delivery
from nonet.telemetry.metrics import UNKNOWN, Histogram, Peak
from nonet.worker.attempt.attempt import Attempt
from nonet.worker.tally import OUTCOMES, Tally

MINUTE = 60_000_000
QUEUED = 1_800_000_000_123_456


@pytest.fixture
async def tally() -> Iterator[Tally]:
    return Tally(["files:Audit"], "small")


def attempt(
    *,
    name: str = "files:Audit",
    stream: str = "tasks:normal:small",
    entry: str = "1800000000123-456",
    gen: str = str(QUEUED),
    fence: int = QUEUED + MINUTE,
    **more: Any,
) -> Attempt:
    delivery = Delivery(*("id", gen, str(fence), stream, entry, b"", ""), **more)
    made = Attempt(delivery, 0.0)
    made.context.name = name
    return made


REASONS = {name: name for name in ("expected", "cancelled")}
REASONS |= {"dead": "retries", "expired": "capacity"}


def ended(tally: Tally, outcome: str, *, wall: float = 1.0, **more: Any) -> None:
    one = attempt(**more)
    tally.started(one)
    tally.finished(one, outcome, Usage(wall=wall), reason=REASONS.get(outcome, ""))


def found(tally: Tally, name: str) -> dict[tuple[str, ...], float]:
    """Series that are not 0, by their labels; of a histogram its sum."""
    values = {
        labels: value.sum if isinstance(value, Histogram) else value
        for name_found, labels, value in tally.samples()
        if name_found == name
    }
    return {labels: value for labels, value in values.items() if value}


async def test_each_attempt_is_counted_once_at_its_start_and_once_at_its_end(tally: Tally) -> None:
    one = attempt()
    tally.started(one)
    tally.finished(one, "retry", Usage(wall=2.0), crashed=True)
    tally.finished(one, "lost")
    assert found(tally, "nonet_tasks_started_total") == {("files:Audit", "small"): 1}
    assert found(tally, "nonet_tasks_finished_total") == {("files:Audit", "small", "retry"): 1}
    assert found(tally, "nonet_task_run_seconds") == {("files:Audit",): 2.0}
    assert found(tally, "nonet_task_crashes_total") == {("files:Audit",): 1}


async def test_figures_contain_only_what_is_new(tally: Tally) -> None:
    outcomes = ("done", *OUTCOMES)
    for outcome in outcomes:
        ended(tally, outcome, wall=2.0)
    counted = tally.figures()
    first = counted.classes["files:Audit"]
    assert counted.streams == {"normal:small": first}
    total = figures_of(first)
    assert (total.ended, total.failed, total.expected, total.retried) == (6, 2, 1, 2)
    assert total.ends == {"done": 2} | dict.fromkeys(REASONS.values(), 1)
    assert total.wait.p99 is not None and 30 < total.wait.p99 <= 60
    assert total.run.p50 is not None and 1 < total.run.p50 <= 2.5
    counted = tally.figures()
    assert (counted.classes, counted.tenants, counted.streams) == ({}, {}, {})
    assert tally.tenants.running() == {}
    ended(tally, "done", name="made:Up")
    (name, second) = next(iter(tally.figures().classes.items()))
    assert (name, figures_of(second).ended) == (UNKNOWN, 1)


async def test_times_of_a_fast_class_are_sampled(tally: Tally) -> None:
    """All attempts count, and those that are measured stand for the others, until the next beat."""
    for _ in range(9000):
        ended(tally, "done")
    first = tally.figures().classes["files:Audit"]
    assert (first[0], sum(first.values())) == (9000, 3 * 9000)
    tally.started(attempt())
    assert sum(tally.figures().classes["files:Audit"].values()) == 1


async def test_counts_of_a_class_start_at_0(tally: Tally) -> None:
    first = {(name, labels): value for name, labels, value in tally.samples()}
    for task in ("files:Audit", "unknown"):
        assert first["nonet_tasks_started_total", (task, "small")] == 0
        assert first["nonet_task_crashes_total", (task,)] == 0
        assert first["nonet_event_loop_blocked_total", (task,)] == 0
        for outcome in OUTCOMES:
            assert first["nonet_tasks_finished_total", (task, "small", outcome)] == 0
    assert "nonet_task_run_seconds" not in {name for name, _ in first}
    ended(tally, "dead")
    assert {(name, labels) for name, labels, _ in tally.samples()} - set(first) == {
        ("nonet_task_run_seconds", ("files:Audit",)),
        ("nonet_task_wait_seconds", ("normal", "small")),
    }


async def test_a_dead_letter_without_an_attempt_is_not_counted(tally: Tally) -> None:
    tally.finished(attempt(), "dead", Usage(wall=1.0))
    assert found(tally, "nonet_tasks_finished_total") == {}


async def test_unknown_classes_share_a_series(tally: Tally) -> None:
    for name in ("", "files:Gone", "a:B\n"):
        tally.started(attempt(name=name))
    assert found(tally, "nonet_tasks_started_total") == {("unknown", "small"): 3}


async def test_a_wait_is_from_the_entry_to_the_fetch(tally: Tally) -> None:
    """Woken tasks count at their stream, and those that were parked with the time for which."""
    tally.started(attempt(fence=QUEUED + 1_500_000))
    tally.started(attempt(stream="woken:normal:small", fence=QUEUED + 500_000, waited=4_000_000))
    waits = [labels for name, labels, _ in tally.samples() if name == "nonet_task_wait_seconds"]
    assert waits == [("normal", "small")]
    total = found(tally, "nonet_task_wait_seconds")["normal", "small"]
    assert total == pytest.approx(2.0)
    assert found(tally, "nonet_lock_wait_seconds") == {("files:Audit",): 4.0}


@pytest.mark.parametrize(("offset", "gen", "waited"), [(0, "7", 60), (50, "7", 10)])
async def test_the_time_of_a_redis_entry_is_compared_with_the_clock_of_redis(
    tally: Tally, offset: float, gen: str, waited: float
) -> None:
    tally.offset = offset
    tally.started(attempt(gen=gen))
    assert found(tally, "nonet_task_wait_seconds")["normal", "small"] == pytest.approx(waited)
    tally.started(attempt())  # this one has the time of leases
    assert found(tally, "nonet_task_wait_seconds")["normal", "small"] == pytest.approx(waited + 60)


async def test_a_clock_that_was_set_makes_no_negative_wait(tally: Tally) -> None:
    tally.started(attempt(fence=QUEUED - MINUTE))
    assert found(tally, "nonet_task_wait_seconds") == {}


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.0011, 1, 43200, 1e6])
def test_a_duration_is_in_the_bucket_that_holds_it(seconds: float) -> None:
    times = Histogram()
    times.observe(seconds)
    place = times.counts.index(1)
    assert place == len(DURATIONS) or seconds <= DURATIONS[place]
    assert place == 0 or seconds > DURATIONS[place - 1]


def test_a_peak_is_remembered_for_a_while() -> None:
    peak = Peak(30)
    peak.note(2.0, at=100)
    assert [peak.largest(at) for at in (100, 110, 119, 121, 134)] == [2.0, 2.0, 2.0, 0.0, 0.0]
    peak.note(1.0, at=134)
    peak.note(0.5, at=136)
    assert [peak.largest(at) for at in (136, 149, 151, 165)] == [1.0, 1.0, 0.5, 0.0]


async def test_the_wait_for_a_turn_of_the_tenant_counts(tally: Tally) -> None:
    one = attempt(entry="1800000059999-0", tenant="cms", runnable_since=QUEUED)
    tally.started(one)
    assert found(tally, "nonet_task_wait_seconds") == {("normal", "small"): 60.0}
    assert tally.tenants.running() == {"cms": 1}
    tally.finished(one, "done", Usage(wall=1.0, cpu=0.5))
    counted = tally.figures()
    of_tenant, of_class = counted.tenants["cms"], counted.classes["files:Audit"]
    assert figures_of(of_tenant).ended == figures_of(of_class).ended == 1
    assert figures_of(of_tenant).wait == figures_of(of_class).wait
