"""What most tests of the stores begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from nonet.stores.queue.broker import Broker


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[Broker]:
    """An open broker of the empty namespace ``test``, with the times of production."""
    opened = Broker(redis_url, "test", lock_ttl=30, lease=45, result_ttl=60, dedup_ttl=60)
    yield opened
    await opened.aclose()
