"""Fixtures of several tests of the stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from stores.beats import Reports

from nonet.stores.namespace.leadership import Leadership
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.results import Results


@pytest.fixture
async def results(broker: Broker) -> AsyncIterator[Results]:
    opened = Results(broker)
    yield opened
    await opened.aclose()


@pytest.fixture
async def term(broker: Broker) -> str:
    """Of a leader."""
    return await Leadership(broker, "test").lead("a", 30, "{}") or ""


@pytest.fixture
def reports(redis_url: str) -> Iterator[Reports]:
    """Of a worker that lives for one test."""
    with Reports(redis_url) as made:
        yield made
