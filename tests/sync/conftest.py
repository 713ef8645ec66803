"""Fixtures of sync programs: an open application, and a worker for its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from acceptance.site import no_variables
from daemons import Daemon

import nonet.sync
from nonet.config.settings import plain_settings

TASKS = "sync.sync_tasks"


@pytest.fixture(autouse=True, scope="session")
def _own_environment() -> Iterator[None]:
    with no_variables():
        yield


@pytest.fixture
def environment(redis_url: str, tmp_path: Path) -> dict[str, str]:
    """The variables of programs and daemons."""
    return {
        "NONET_REDIS_URL": redis_url,
        "NONET_NAMESPACE": "test",
        "NONET_TASKS": TASKS,
        "NONET_STATE_DIR": str(tmp_path / "state"),
        "NONET_DB_URL": f"sqlite:///{tmp_path}/nonet.db",
    }


@pytest.fixture
def app(environment: dict[str, str]) -> Iterator[nonet.sync.Nonet]:
    """An open application."""
    with nonet.sync.Nonet(settings_of(environment)) as opened:
        yield opened


@pytest.fixture
def worker(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[[], Daemon]]:
    """Starts a small worker."""
    started: list[Daemon] = []

    def start() -> Daemon:
        command = ("task-worker", "--size", "small")
        log = tmp_path / f"worker-{len(started)}.log"
        started.append(Daemon(*command, environment=environment, log=log))
        return started[-1].wait_ready()

    yield start
    for daemon in started:
        daemon.kill()


def settings_of(environment: dict[str, str]) -> nonet.Settings:
    """The settings that these variables make."""
    options = {name.removeprefix("NONET_").lower(): value for name, value in environment.items()}
    return plain_settings(**{**options, "tasks": (TASKS,)})
