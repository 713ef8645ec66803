"""Uniqueness with real clients and workers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from acceptance.site import Site
from acceptance.unique_tasks import Brief, Refresh

from nonet import InvalidArgumentsError, spawn_with_callback

TASKS = "acceptance.unique_tasks"


async def test_clients_that_submit_at_once_make_one_task(site: Site) -> None:
    """One of six makes the task, all get its id, it runs once, and its key is free again."""
    gate = site.gate()
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(site.app()) for _ in range(6)]
        handles = await asyncio.gather(*(app.submit(Refresh(gate, "CERN")) for app in apps))
        assert len(set(handles)) == 1
        assert sum(handle.created for handle in handles) == 1
        site.worker()
        await site.started(handles[0])
        site.open(gate)
        await site.all_ended()
    assert len(site.journal("start")) == 1
    assert not list(site.redis.scan_iter(site.key("u:*")))


async def test_a_group_refuses_uniqueness(site: Site) -> None:
    """The error says what to do instead, and nothing is submitted."""
    async with site.app():
        for children, callback in (
            ([Refresh("", "CERN")], Brief(1)),
            ([Brief(1)], Refresh("", "CERN")),
        ):
            with pytest.raises(InvalidArgumentsError, match="unique: a group or workflow waits"):
                await spawn_with_callback(children, callback)
    assert site.live() == []
