"""Which occurrences are due, and what becomes of each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nonet.scheduler.periodic.due import BATCH, Due, Occurrence, due
from nonet.tasks.schedules import (
    CatchUp,
    CronSchedule,
    IntervalSeconds,
    RRuleSchedule,
    TaskScheduleBase,
    misfire_grace_of,
    next_after,
)

HOURLY = IntervalSeconds(3600)
GRACE = timedelta(seconds=60)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2025-06-01T{text}").replace(tzinfo=UTC)


TENS = IntervalSeconds(10)
DUE = [
    # schedule, last, now, fire, next, collapsed
    (HOURLY, None, "10:00:05", [], "11:00", 0),
    (HOURLY, "10:00", "10:59:59", [], "11:00", 0),
    (HOURLY, "10:00", "11:00", ["11:00"], "12:00", 0),
    (HOURLY, "10:00", "11:01", ["11:00"], "12:00", 0),  # old now, but the latest
    (HOURLY, "10:00", "15:30", ["15:00"], "16:00", 4),
    (HOURLY, "10:00", "15:00:30", ["15:00"], "16:00", 4),  # a younger one makes good, too
    (HOURLY, "12:00", "10:00", [], "13:00", 0),  # the clock went back: nothing is repeated
    (HOURLY, "10:17", "11:00", ["11:00"], "12:00", 0),  # `last` off the grid: first seen then
    (TENS, "10:00", "10:00:30", ["10:00:10", "10:00:20", "10:00:30"], "10:00:40", 0),
    (
        TENS,
        "10:00",
        "10:01:25",
        [*(f"10:00:{s}" for s in (30, 40, 50)), "10:01:00", "10:01:10", "10:01:20"],
        "10:01:30",
        2,
    ),
    (CronSchedule("0 * * * *"), "10:00", "15:00:30", ["15:00"], "16:00", 4),
    (RRuleSchedule("FREQ=HOURLY"), "10:00", "15:30", ["15:00"], "16:00", 4),
    (
        RRuleSchedule("DTSTART:20250601T110000 RRULE:FREQ=HOURLY;COUNT=2"),
        "10:00",
        "15:00",
        ["12:00"],
        None,
        1,
    ),
    (
        RRuleSchedule("DTSTART:20250601T110000 RRULE:FREQ=HOURLY;COUNT=2"),
        "12:00",
        "15:00",
        [],
        None,
        0,
    ),
]


@pytest.mark.parametrize(("schedule", "last", "now", "fire", "following", "collapsed"), DUE)
def test_young_occurrences_fire_and_one_makes_good_for_the_older_ones(
    schedule: TaskScheduleBase,
    last: str | None,
    now: str,
    fire: list[str],
    following: str | None,
    collapsed: int,
) -> None:
    decision = due(schedule, last and at(last), at(now), GRACE)
    assert [(step.instant, step.fires) for step in decision.steps] == [(at(x), True) for x in fire]
    assert sum(step.missed for step in decision.steps) == collapsed
    assert decision.next == (at(following) if following else None)


FIVES = IntervalSeconds(5)
GRACES = [
    # schedule, now, the setting in seconds, the grace in seconds
    (FIVES, "10:00:03", 60, 5),
    (HOURLY, "10:00:03", 60, 60),
    (CronSchedule("* * * * *"), "10:00:30", 300, 60),
    (CronSchedule("0,5 * * * *"), "10:06:00", 3600, 300),  # the last two: 10:00 and 10:05
    (CronSchedule("0,5 * * * *"), "11:01:00", 7200, 3300),  # the last two: 10:05 and 11:00
    (RRuleSchedule("FREQ=MINUTELY;BYSECOND=0,10,40"), "10:00:20", 60, 10),
    (CronSchedule("0 * * * *"), "10:30", 0, 0),
]


@pytest.mark.parametrize(("schedule", "now", "setting", "grace"), GRACES)
def test_the_grace_is_the_setting_or_the_last_interval_if_that_is_shorter(
    schedule: TaskScheduleBase, now: str, setting: int, grace: int
) -> None:
    found = misfire_grace_of(schedule, at(now), timedelta(seconds=setting))
    assert found == timedelta(seconds=grace)


@pytest.mark.parametrize("schedule", [FIVES, CronSchedule("* * * * *"), TENS, HOURLY])
@pytest.mark.parametrize("seconds", [18, 61, 3599, 20_000])
def test_any_outage_costs_one_run(schedule: TaskScheduleBase, seconds: int) -> None:
    """With `one`, a single run makes good for all that was missed."""
    last, now = at("00:00"), at("00:00") + timedelta(seconds=seconds)
    decision = due(schedule, last, now, misfire_grace_of(schedule, now, GRACE))
    missed = _occurrences(schedule, last, now)
    assert [step.instant for step in decision.steps] == missed[-1:]
    assert sum(step.missed for step in decision.steps) == max(0, len(missed) - 1)


def _occurrences(schedule: TaskScheduleBase, last: datetime, now: datetime) -> list[datetime]:
    found = []
    while (moment := next_after(schedule, last)) is not None and moment <= now:
        found.append(moment)
        last = moment
    return found


THREE = {"catch_up": CatchUp.ALL, "catch_up_limit": 3}
HALF_PAST = CronSchedule("30 * * * *")
CAUGHT_UP = [
    # schedule, how, last, now, steps: (instant, missed, fires)
    (HOURLY, {"catch_up": CatchUp.SKIP}, "10:00", "15:30", [("15:00", 5, False)]),
    (
        HOURLY,
        {"catch_up": CatchUp.SKIP},
        "10:00",
        "15:00:30",
        [("14:00", 4, False), ("15:00", 0, True)],
    ),
    (HOURLY, {"catch_up": CatchUp.SKIP}, "10:00", "11:00:30", [("11:00", 0, True)]),
    (HOURLY, THREE, "10:00", "15:30", [("13:00", 2, True), ("14:00", 0, True), ("15:00", 0, True)]),
    (HOURLY, THREE, "10:00", "12:30", [("11:00", 0, True), ("12:00", 0, True)]),
    (
        HALF_PAST,
        THREE,
        "10:00",
        "14:31:30",
        [("12:30", 2, True), ("13:30", 0, True), ("14:30", 0, True)],
    ),
    (
        HALF_PAST,
        {"catch_up": CatchUp.ALL, "catch_up_limit": 1},
        "10:00",
        "14:30:30",
        [("13:30", 3, True), ("14:30", 0, True)],
    ),
]


@pytest.mark.parametrize(("schedule", "how", "last", "now", "steps"), CAUGHT_UP)
def test_skip_passes_over_old_occurrences_and_all_fires_the_newest(
    schedule: TaskScheduleBase,
    how: dict[str, Any],
    last: str,
    now: str,
    steps: list[tuple[str, int, bool]],
) -> None:
    decision = due(schedule, at(last), at(now), GRACE, **how)
    assert decision.steps == [Occurrence(at(when), missed, fires) for when, missed, fires in steps]


@given(
    st.sampled_from([TENS, CronSchedule("*/7 * * * *"), RRuleSchedule("FREQ=MINUTELY;INTERVAL=9")]),
    st.integers(1, 20_000),
    st.integers(1, 40),
)
def test_catching_up_counts_every_occurrence(
    schedule: TaskScheduleBase, seconds: int, limit: int
) -> None:
    last, now = at("00:00:01"), at("00:00:01") + timedelta(seconds=seconds)
    decision = due(schedule, last, now, GRACE, catch_up=CatchUp.ALL, catch_up_limit=limit)
    expected = _occurrences(schedule, last, now)
    fired = [step.instant for step in decision.steps]
    assert fired == expected[len(expected) - len(fired) :]
    assert len(fired) + sum(step.missed for step in decision.steps) == len(expected)
    assert sum(instant <= now - GRACE for instant in fired) <= limit


@given(
    st.sampled_from([TENS, CronSchedule("*/7 * * * *"), RRuleSchedule("FREQ=MINUTELY;INTERVAL=9")]),
    st.lists(st.integers(1, 4000), min_size=1, max_size=20),
)
def test_every_occurrence_is_fired_once_or_collapsed(
    schedule: TaskScheduleBase, steps: list[int]
) -> None:
    start = last = now = at("00:00:01")
    fired: list[datetime] = []
    collapsed = 0
    for step in steps:
        now += timedelta(seconds=step)
        decision = due(schedule, last, now, GRACE)
        fired += [item.instant for item in decision.steps]
        collapsed += sum(item.missed for item in decision.steps)
        last = fired[-1] if fired else last
        assert decision.next is not None and decision.next > now
    expected = _occurrences(schedule, start, now)
    assert fired == sorted(set(fired)) and set(fired) <= set(expected)
    assert len(fired) + collapsed == len(expected)
    assert fired[-1:] == expected[-1:]


@pytest.mark.parametrize(
    ("schedule", "collapsed"),
    [
        (IntervalSeconds(0.001), 31_535_999_999),
        (CronSchedule("* * * * *", "Europe/Zurich"), 1001),
        (RRuleSchedule("FREQ=SECONDLY;INTERVAL=2"), 1001),
    ],
)
def test_a_year_of_missed_occurrences_is_not_walked_through(
    schedule: TaskScheduleBase, collapsed: int
) -> None:
    now = at("00:00")
    decision = due(schedule, now - timedelta(days=365), now, timedelta())
    assert decision.steps == [Occurrence(now, collapsed)]


def test_more_than_a_batch_is_fired_in_several_calls() -> None:
    """A call fires at most a batch; `next` is then the first left over, and nothing is lost."""
    schedule = IntervalSeconds(0.01)
    last, now = at("10:00"), at("10:00:25")
    fired: list[datetime] = []
    for size in (BATCH, BATCH, 500):
        decision = due(schedule, last, now, GRACE)
        assert len(decision.steps) == size and not any(step.missed for step in decision.steps)
        fired += [step.instant for step in decision.steps]
        last = fired[-1]
        assert decision.next == last + timedelta(milliseconds=10)
    assert len(set(fired)) == 2500


class FromNow(TaskScheduleBase):
    """An author's schedule without an argument: it answers by its own clock."""

    def __init__(self, *answers: datetime | None) -> None:
        self.answers = list(answers)

    def next_occurrence(self) -> datetime | None:  # type: ignore[override]  # that is the point
        return self.answers.pop(0)


def test_an_authors_schedule_is_called_once_per_firing() -> None:
    schedule = FromNow(at("10:00"), at("11:00"), None)
    first = due(schedule, None, at("09:00"), GRACE)
    assert first == Due([], at("10:00"))
    assert due(schedule, None, at("09:30"), GRACE, planned=first.next) == first
    second = due(schedule, None, at("10:00:05"), GRACE, planned=first.next)
    assert second == Due([Occurrence(at("10:00"))], at("11:00"))
    assert due(schedule, at("10:00"), at("12:00"), GRACE, planned=second.next) == Due(
        [Occurrence(at("11:00"))], None
    )
    again = FromNow(at("13:00"))
    skipped = due(again, None, at("12:00"), GRACE, planned=at("11:00"), catch_up=CatchUp.SKIP)
    assert skipped == Due([Occurrence(at("11:00"), missed=1, fires=False)], at("13:00"))
    young = {"planned": at("11:00"), "catch_up": CatchUp.SKIP}
    fired = due(FromNow(at("13:00")), None, at("11:00:30"), GRACE, **young)
    assert fired == Due([Occurrence(at("11:00"))], at("13:00"))
