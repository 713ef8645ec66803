"""Fixtures of sync programs: an open application, alone or beside a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from acceptance.site import no_variables
from daemons import Daemon
from servers import RedisServer

import nonet
from nonet.config.settings import plain_settings

TASKS = "sync.sync_tasks"


@pytest.fixture(autouse=True, scope="session")
def _own_environment() -> Iterator[None]:
    with no_variables():
        yield


def environment_of(redis_url: str, directory: Path) -> dict[str, str]:
    return {
        "NONET_REDIS_URL": redis_url,
        "NONET_NAMESPACE": "test",
        "NONET_TASKS": TASKS,
        "NONET_STATE_DIR": str(directory / "state"),
        "NONET_DB_URL": f"sqlite:///{directory}/nonet.db",
    }


@pytest.fixture
def environment(redis_url: str, tmp_path: Path) -> dict[str, str]:
    """The variables of programs."""
    return environment_of(redis_url, tmp_path)


@pytest.fixture
def app(environment: dict[str, str]) -> Iterator[nonet.SyncNonet]:
    """An open application."""
    with nonet.SyncNonet(settings_of(environment)) as opened:
        yield opened


@pytest.fixture(scope="module")
def served_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of programs for whose tasks there is a worker."""
    home = tmp_path_factory.mktemp("served")
    with RedisServer() as server:
        environment = environment_of(server.url, home)
        command = ("task-worker", "--size", "small")
        with Daemon(*command, environment=environment, log=home / "worker.log") as worker:
            worker.wait_ready()
            yield environment


@pytest.fixture
def served(served_environment: dict[str, str]) -> Iterator[nonet.SyncNonet]:
    """An open application beside a worker."""
    with nonet.SyncNonet(settings_of(served_environment)) as opened:
        yield opened


def settings_of(environment: dict[str, str]) -> nonet.Settings:
    """The settings that these variables make."""
    options = {name.removeprefix("NONET_").lower(): value for name, value in environment.items()}
    return plain_settings(**{**options, "tasks": (TASKS,)})
