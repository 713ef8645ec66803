"""Figures of classes: percentiles of buckets, sums of vectors, and rates."""

from __future__ import annotations

import bisect
import random
import statistics
from datetime import UTC, datetime, timedelta

import pytest

from nonet.rules.figures import RESOLUTIONS, class_figures, figures_of, percentile, resolution_for
from nonet.rules.vectors import DURATIONS, merged, vector

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
        counts = [2 * (step + 1), step, 0]
        reports.append(vector(counts, waited, ran, merged(reports)))
    assert merged(reports) == vector([8, 3, 0], waited, ran, {})
    assert vector([8, 3, 0], waited, ran, merged(reports)) == {}
    found = figures_of(merged(reports))
    assert (found.ended, found.failed, found.retried) == (8, 3, 0)
    assert found.wait.p50 is not None and found.run.p99 == 43200


def test_rates_include_slots_without_tasks() -> None:
    since = NOW - timedelta(minutes=9, seconds=30)
    slots = {since + MINUTE: {0: 19, 1: 1}, since + 3 * MINUTE: {0: 19, 2: 38}}
    found = class_figures("m:A", slots, since, NOW, 60)
    assert (found.ended_per_minute, found.retried_per_minute) == (4.0, 4.0)
    assert found.failed_per_minute == pytest.approx(1 / 9.5)
    assert [item.at for item in found.series] == [since + MINUTE, since + 3 * MINUTE]
    assert [item.figures.ended for item in found.series] == [19, 19]


def test_the_finest_resolution_that_reaches_back() -> None:
    assert resolution_for(timedelta(hours=2)) == RESOLUTIONS[0]
    assert resolution_for(timedelta(hours=2, seconds=1)) == RESOLUTIONS[1]
    assert resolution_for(timedelta(days=30)) == RESOLUTIONS[1]
