"""How soon a worker that crashed is replaced."""

from __future__ import annotations

from nonet.daemon.processes import Backoff


def pauses(*crashes: tuple[float, float]) -> list[float]:
    """The pauses after crashes (time, seconds it had lived)."""
    backoff = Backoff()
    return [backoff.crashed(lived, now) for now, lived in crashes]


def test_the_pause_doubles_up_to_half_a_minute() -> None:
    """A worker that crashes whenever it is started does not spin."""
    found = pauses(*[(100.0 * n, 0.1) for n in range(8)])
    assert found == [1, 2, 4, 8, 16, 30, 30, 30]


def test_the_pause_is_short_again_after_a_minute_of_life() -> None:
    """A crash after a long life has another cause."""
    assert pauses((0, 1), (100, 1), (200, 61), (300, 1)) == [1, 2, 1, 2]


def test_workers_that_crash_together_are_one_failure() -> None:
    """Eight workers that end for one reason do not wait for eight failures."""
    assert pauses(*[(0, 5)] * 8, (0.5, 5), (1, 5)) == [1] * 8 + [0.5, 2]
