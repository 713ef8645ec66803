"""Figures of classes: percentiles of buckets, sums of vectors, and rates."""

from __future__ import annotations

import bisect
import random
import statistics
from datetime import UTC, datetime, timedelta

import pytest

from nonet.rules.figures import RESOLUTIONS, figure_series, figures_of, percentile, resolution_for
from nonet.rules.vectors import DURATIONS, end_counts, load_vector, merged, vector

NOW = datetime(2026, 7, 1, 12, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_a_percentile_lies_in_the_bucket_of_the_true_one(share: float) -> None:
    chance = random.Random(share)
    times = sorted(chance.lognormvariate(-2, 2) for _ in range(1000))
    counts = [0] * (len(DURATIONS) + 1)
    for time in times:
        counts[bisect.bisect_left(DURATIONS, time)] += 1
    true = statistics.quantiles(times, n=100, method="inclusive")[round(100 * share) - 1]
    found = percentile(counts, share)
    assert found is not None
    assert abs(bisect.bisect_left(DURATIONS, found) - bisect.bisect_left(DURATIONS, true)) <= 1


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ([], 0.5, None),
        ([0] * 21, 0.5, None),
        ([4], 0.5, 0.0005),
        ([4], 1.0, 0.001),
        ([1, 1], 0.5, 0.001),
        ([0] * 20 + [3], 0.99, 43200),
    ],
)
def test_percentiles_of_few(counts: list[int], share: float, expected: float | None) -> None:
    assert percentile(counts, share) == expected


def test_the_sum_of_reports_is_what_was_counted() -> None:
    waited, ran = [0] * 21, [0] * 21
    reports = []
    for step in range(4):
        waited[step] += 2
        ran[20 - step] += 1
        counts = end_counts(2 + step, {"retries": step}, 0)
        reports.append(vector(counts, waited, ran, merged(reports)))
    total = end_counts(5, {"retries": 3}, 0)
    assert merged(reports) == vector(total, waited, ran, {})
    assert vector(total, waited, ran, merged(reports)) == {}
    found = figures_of(merged(reports))
    assert (found.ended, found.failed, found.retried) == (8, 3, 0)
    assert found.wait.p50 is not None and found.run.p99 == 43200


def test_rates_include_slots_without_tasks() -> None:
    since = NOW - timedelta(minutes=9, seconds=30)
    slots = {since + MINUTE: {0: 18, 1: 1}, since + 3 * MINUTE: {0: 19, 11: 38}}
    found = figure_series("m:A", slots, since, NOW, 60)
    assert (found.ended_per_minute, found.retried_per_minute) == (4.0, 4.0)
    assert found.failed_per_minute == pytest.approx(1 / 9.5)
    assert [item.at for item in found.series] == [since + MINUTE, since + 3 * MINUTE]
    assert [item.figures.ended for item in found.series] == [19, 19]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("retries", (1, 1, 0)),
        ("expected", (1, 0, 1)),
        ("capacity", (1, 1, 0)),
        ("cancelled", (1, 0, 0)),
        ("done", (1, 0, 0)),
    ],
)
def test_tasks_end_for_a_reason(end: str, expected: tuple[int, int, int]) -> None:
    done, reasons = (1, {}) if end == "done" else (0, {end: 1})
    found = figures_of(vector(end_counts(done, reasons, 0), [], [], {}))
    assert (found.ended, found.failed, found.expected) == expected
    assert found.ends == {end: 1}


def test_loads_are_not_added() -> None:
    """Submissions are those since the slot before; none if Redis has lost its data meanwhile."""
    loads = [{"queued": 3, "submitted": 50}, {"queued": 9, "submitted": 80}, {"submitted": 2}]
    slots = {NOW + n * MINUTE: load_vector(**load) for n, load in enumerate(loads)}
    assert merged(slots.values()) == load_vector(queued=9, submitted=80)
    found = figure_series("", slots, NOW, NOW + 3 * MINUTE, 60).series
    assert [slot.load and slot.load.submitted_per_minute for slot in found] == [None, 30, 0]


def test_the_rate_of_the_day_before_is_of_whole_hours() -> None:
    """Of those that overlap the same time, also those in which nothing was counted."""
    begin = NOW - timedelta(hours=26, seconds=30)  # at ten, and it is half a minute past twelve
    before = {begin: vector([120], [], [], {})}
    found = figure_series("m:A", {}, NOW - timedelta(hours=2), NOW, 60, before=before)
    assert (found.ended_per_minute_before, found.before[0].figures.ended) == (120 / 180, 120)


def test_the_finest_resolution_that_reaches_back() -> None:
    assert resolution_for(timedelta(hours=3)) == RESOLUTIONS[0]
    assert resolution_for(timedelta(hours=3, seconds=1)) == RESOLUTIONS[1]
    assert resolution_for(timedelta(days=30)) == RESOLUTIONS[1]
