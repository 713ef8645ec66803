"""Fixtures of the acceptance tests: real daemons on a real Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from acceptance.site import Site, no_variables
from servers import RedisServer


@pytest.fixture(autouse=True, scope="session")
def _own_environment() -> Iterator[None]:
    with no_variables():
        yield


@pytest.fixture
def site(redis_server: RedisServer, no_leaked_keys: list[str], tmp_path: Path) -> Iterator[Site]:
    """A namespace of its own; at the end its daemons are killed and leaked keys fail the test."""
    no_leaked_keys.append("groups")  # the index of groups forgets the old when one is opened
    made = Site(redis_server, tmp_path)
    yield made
    made.close()


@pytest.fixture
def contended(site: Site) -> Site:
    """A site whose daemons know the tasks that hold locks, instead of the probes."""
    site.settings["NONET_TASKS"] = "acceptance.lock_tasks"
    return site


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A Redis that this test may kill."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def own_site(own_server: RedisServer, tmp_path: Path) -> Iterator[Site]:
    """A site on a Redis that this test may kill."""
    made = Site(own_server, tmp_path)
    yield made
    made.close()
