"""Fixtures of the tests of workflows."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from servers import RedisServer
from workflows.flow_site import FlowSite

from nonet import Nonet


@pytest.fixture
async def flows(redis_server: RedisServer, redis_url: str) -> AsyncIterator[FlowSite]:
    """An open application of the empty namespace ``test``, without daemons."""
    options = {"namespace": "test", "tasks": ("workflows.flow_tasks",)}
    async with Nonet.from_settings(redis_url=redis_url, **options) as app:
        with redis_server.client(encoding_errors="replace") as client:
            yield FlowSite(app, client)
