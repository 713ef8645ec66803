"""Fixtures of several tests of the stores."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from nonet.stores.queue.broker import Broker
from nonet.stores.queue.results import Results


@pytest.fixture
async def results(broker: Broker) -> AsyncIterator[Results]:
    opened = Results(broker.client, broker.scripts, broker.url, "test")
    yield opened
    await opened.aclose()
