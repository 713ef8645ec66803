"""When a child process is killed, how its end is reported, and its lease on the board."""

from __future__ import annotations

import pytest

from nonet import CpuLimitExceeded, MemoryLimitExceeded, TaskCrashed, TaskTimeoutError
from nonet.worker.attempt.crashes import Crash
from nonet.worker.child_process.guarding import BOARD_SECONDS, LOOK_SECONDS, Bounds
from nonet.worker.children.board import Board


@pytest.mark.parametrize(
    ("bounds", "lease_ends", "kill_at", "memory", "cpu", "why"),
    [
        (Bounds(), 0.0, 0.0, 10**12, 10**6, ""),
        (Bounds(), 10.001, 0.0, 0, 0.0, ""),
        (Bounds(), 10.0, 0.0, 0, 0.0, "lease"),
        (Bounds(), 0.0, 10.001, 0, 0.0, ""),
        (Bounds(), 0.0, 10.0, 0, 0.0, "time"),
        (Bounds(memory=100), 0.0, 0.0, 100, 0.0, ""),
        (Bounds(memory=100), 0.0, 0.0, 101, 0.0, "memory"),
        (Bounds(cpu=2.0), 0.0, 0.0, 0, 2.0, ""),
        (Bounds(cpu=2.0), 0.0, 0.0, 0, 2.1, "cpu"),
        (Bounds(memory=1, cpu=1.0), 9.0, 9.0, 2, 2.0, "lease"),
        (Bounds(memory=1, cpu=1.0), 11.0, 9.0, 2, 2.0, "memory"),
    ],
)
def test_why_a_child_is_killed(
    bounds: Bounds, lease_ends: float, kill_at: float, memory: int, cpu: float, why: str
) -> None:
    """It is killed when a limit is exceeded; 0 is no limit, and the lease counts most."""
    assert bounds.exceeded(lease_ends, kill_at, 10.0, memory, cpu) == why


@pytest.mark.parametrize(
    ("bounds", "lease_ends", "kill_at", "at"),
    [
        (Bounds(), 0.0, 0.0, 10.0 + BOARD_SECONDS),
        (Bounds(), 12.0, 11.0, 10.0 + BOARD_SECONDS),
        (Bounds(), 10.1, 11.0, 10.1),
        (Bounds(), 12.0, 10.1, 10.1),
        (Bounds(memory=1), 12.0, 0.0, 10.0 + LOOK_SECONDS),
        (Bounds(cpu=1.0), 0.0, 10.01, 10.01),
    ],
)
def test_when_a_child_is_checked(
    bounds: Bounds, lease_ends: float, kill_at: float, at: float
) -> None:
    """At its next deadline, and soon for those that are written meanwhile."""
    assert bounds.next_look(lease_ends, kill_at, now=10.0) == at


def test_a_lease_is_never_shortened_nor_comes_back() -> None:
    """What the watchdog says late of an attempt that is over changes nothing."""
    board = Board()
    try:
        board.extend(3, 50.0)
        assert board.lease(3) == 0.0, "it was not open"
        board.open(3, 10.0, attempt=1, kill_at=12.0)
        board.extend(3, 20.0)
        board.extend(3, 15.0)
        assert (board.lease(3), board.lease(4), board.kill_at(3)) == (20.0, 0.0, 12.0)
        board.end(3)
        assert (board.lease(3), board.kill_at(3)) == (20.0, 0.0)
        board.clear(3)
        board.extend(3, 30.0)
        assert board.lease(3) == 0.0
    finally:
        board.close()
    board.extend(3, 40.0)  # a thread may come late
    board.end(3)
    assert not board.has_received(3)
    board.close()


def test_processes_share_a_board() -> None:
    """What one writes the other one reads: a child tells that it has received its attempt."""
    ours = Board()
    theirs = Board(ours.fd)
    assert not ours.has_received(7), "it was sent none"
    for attempt in (1, 2):
        ours.open(7, 1.5, attempt)
        assert (theirs.lease(7), theirs.attempt(7)) == (1.5, attempt)
        assert not ours.has_received(7)
        theirs.receive(7)
        assert ours.has_received(7)
    ours.reset(7)
    assert (theirs.lease(7), theirs.attempt(7), ours.has_received(7)) == (0.0, 0, False)
    ours.close()


@pytest.mark.parametrize(
    ("crash", "kind", "text"),
    [
        (Crash("", exit_code=3), TaskCrashed, "its process exited with code 3"),
        (Crash("", signal=11), TaskCrashed, "its process was killed by signal 11 (SIGSEGV)"),
        (Crash("memory", signal=9, allowed=2**30), MemoryLimitExceeded, "limit of 1 GiB"),
        (Crash("cpu", signal=9, allowed=1.5), CpuLimitExceeded, "limit of 1.5 s"),
        (Crash("time", "hard timeout of 2 s exceeded", signal=9), TaskTimeoutError, "2 s exceeded"),
    ],
)
def test_the_end_of_a_process_is_an_exception(crash: Crash, kind: type, text: str) -> None:
    """Of the class that a policy looks at, with the reason in its text."""
    error = crash.error()
    assert type(error) is kind and text in str(error)
