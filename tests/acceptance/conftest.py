"""Fixtures of the acceptance tests: real daemons on a real Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from acceptance.site import LONG, PROBES, Site, no_variables
from servers import RedisServer


@pytest.fixture(autouse=True, scope="session")
def _own_environment() -> Iterator[None]:
    with no_variables():
        yield


def _made(request: pytest.FixtureRequest, server: RedisServer, home: Path) -> Iterator[Site]:
    """A site with long leases, whose daemons load the modules that `TASKS` of the test names."""
    site = Site(server, home)
    site.settings |= {"NONET_TASKS": getattr(request.module, "TASKS", PROBES), **LONG}
    yield site
    site.close()


@pytest.fixture
def site(
    request: pytest.FixtureRequest,
    redis_server: RedisServer,
    no_leaked_keys: list[str],
    tmp_path: Path,
) -> Iterator[Site]:
    """A namespace of its own; at the end its daemons are killed and leaked keys fail the test."""
    no_leaked_keys.append("groups")  # the index of groups forgets the old when one is opened
    yield from _made(request, redis_server, tmp_path)


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A Redis that this test may kill."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def own_site(
    request: pytest.FixtureRequest, own_server: RedisServer, tmp_path: Path
) -> Iterator[Site]:
    """A site on a Redis that this test may kill."""
    yield from _made(request, own_server, tmp_path)
