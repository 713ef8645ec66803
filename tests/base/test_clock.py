"""Steps of a clock, told from slow replies, frozen servers and frozen processes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from nonet.base.clock import ClockWatch, Reading, clock_step

HOUR = timedelta(hours=1)
START = 1_700_000_000.0

# Seconds: mostly short, sometimes those of a frozen process.
delays = st.floats(0, 2) | st.floats(0, 600)
prompt = st.floats(0, 0.99)
steps = st.floats(10, 90_000) | st.floats(-90_000, -10)


def reading(sent: float, there: float, back: float, error: float = 0) -> Reading:
    """A look whose script ran `there` seconds after it was sent, by a clock that is wrong."""
    return Reading(sent, sent + there + back, round((START + sent + there + error) * 1e6))


@pytest.mark.parametrize(
    ("previous", "current", "step"),
    [
        pytest.param((0, 0, 0), (1, 0, 0, 0), 0, id="none"),
        pytest.param((0, 0, 0), (1, 0, 0, 4), 0, id="slewed"),
        pytest.param((0, 0, 0), (1, 0, 0, 3600), 3600, id="forward"),
        pytest.param((0, 0, 0), (1, 0, 0, -3600), -3600, id="back"),
        pytest.param((0, 0, 0), (1, 30, 0), 0, id="late request"),
        pytest.param((0, 0, 30), (31, 0, 0), 0, id="late reply"),
        pytest.param((0, 0, 0), (3600, 0, 0), 0, id="frozen scheduler"),
    ],
)
def test_a_step_is_a_difference_that_no_delay_explains(
    previous: tuple[float, ...], current: tuple[float, ...], step: float
) -> None:
    assert clock_step(reading(*previous), reading(*current)) == timedelta(seconds=step)


@given(delays, delays, delays, delays, delays, st.floats(-4.9, 4.9))
def test_no_delay_looks_like_a_step(
    there: float, back: float, pause: float, later: float, last: float, drift: float
) -> None:
    first = reading(0, there, back)
    second = reading(first.received + pause, later, last, drift)
    assert not clock_step(first, second)


@given(prompt, prompt, delays, prompt, prompt, steps)
def test_every_step_is_found(
    there: float, back: float, pause: float, later: float, last: float, step: float
) -> None:
    """Beyond 10 s none is missed, and it is known to half of what both replies took."""
    first = reading(0, there, back)
    second = reading(first.received + pause, later, last, step)
    found = clock_step(first, second)
    error = (there + back + later + last) / 2 + 1e-3
    assert abs(found.total_seconds() - step) <= error


def test_a_step_is_found_until_it_is_corrected() -> None:
    watch = ClockWatch()
    assert not watch.look(reading(0, 0, 0))
    assert watch.look(reading(1, 0, 0, 3600)) == HOUR
    assert watch.look(reading(2, 0, 0, 3600)) == HOUR
    assert not watch.look(reading(3, 0, 0))


def test_a_corrected_step_is_not_found_again() -> None:
    watch = ClockWatch()
    watch.look(reading(0, 0, 0))
    stepped = reading(1, 0, 0, -3600)
    watch.correct(stepped, watch.look(stepped))
    assert watch.before == reading(1, 0, 0).now
    assert not watch.look(reading(2, 0, 0))
    assert watch.look(reading(3, 0, 0, -3600)) == -HOUR


def test_an_uncorrected_step_is_forgotten_after_a_minute() -> None:
    watch = ClockWatch()
    watch.look(reading(0, 0, 0))
    assert watch.look(reading(100, 0, 0, 3600)) == HOUR
    assert watch.look(reading(159, 0, 0, 3600)) == HOUR
    assert not watch.look(reading(161, 0, 0, 3600))
    assert watch.look(reading(162, 0, 0)) == -HOUR


def test_a_slow_reply_is_ignored() -> None:
    watch = ClockWatch()
    watch.look(reading(0, 0, 0))
    assert not watch.look(reading(1, 1.5, 0, 3600))
    assert watch.look(reading(4, 0, 0, 3600)) == HOUR


def test_the_latest_time_allows_for_the_tolerance() -> None:
    """It is unknown before the first reading; then it is that, the time since, and 5 s."""
    watch = ClockWatch()
    assert watch.latest(0) is None
    watch.look(reading(0, 0, 0))
    assert watch.latest(10) == round((START + 15) * 1e6)
