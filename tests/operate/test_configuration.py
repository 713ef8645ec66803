"""What ``task-run config status`` makes of what Redis knows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nonet.operate.configuration import WorkerConfig, judged
from nonet.stores.namespace.leadership import Leader
from nonet.stores.namespace.publication import Published
from nonet.stores.queue.results import WorkerStatus

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
LEADER = Leader("incarnation", "7", NOW, '{"name": "1@host"}')


def published(seconds_ago: float = 60, problem: str = "") -> Published:
    at = NOW - timedelta(seconds=seconds_ago)
    return Published("new", "{}", "c.yaml", "", at, "me@host 1", problem, at if problem else None)


def worker(config: str, *, alive: bool = True, problem: str = "") -> WorkerStatus:
    return WorkerStatus("w", "2@host", "small", 1, "1.0", 0, alive, config, problem)


@pytest.mark.parametrize(
    ("held", "leader", "workers", "good"),
    [
        (published(), LEADER, [], True),
        (published(), LEADER, [worker("new")], True),
        (published(), LEADER, [worker("new"), worker("old")], False),
        (published(), LEADER, [worker("")], False),
        (published(9.9), LEADER, [worker("old")], True),  # it has some seconds
        (published(10.1), LEADER, [worker("old")], False),
        (published(), LEADER, [worker("old", alive=False)], True),  # the dead apply nothing
        (published(problem="c.yaml:1: bad"), LEADER, [worker("new")], False),
        (published(), None, [worker("new")], False),
        (None, None, [], False),
        (None, LEADER, [worker("")], True),
    ],
)
def test_status_is_good_if_every_worker_applies_the_source(
    held: Published | None, leader: Leader | None, workers: list[WorkerStatus], good: bool
) -> None:
    """A problem, no leader, or a live worker that still applies another version after 10 s."""
    assert judged(held, leader, workers, NOW).good is good


def test_a_worker_that_is_behind_has_its_problem() -> None:
    """The row of a worker has its version, whether that is the published one, and its problem."""
    found = judged(published(), LEADER, [worker("old", problem="too old")], NOW)
    assert found.leader == "1@host"
    assert found.workers == [WorkerConfig("2@host", "small", "old", True, "too old")]
