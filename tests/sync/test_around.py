"""What is around a task holds without an event loop, too: encryption and middleware."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import records
import redis
from sync.sync_tasks import Add

import nonet
from nonet import Middleware, OutgoingTask, register_middleware
from nonet.config.settings import plain_settings

pytestmark = pytest.mark.server


class Notes(Middleware):
    """Adds a label, and notes that it was closed."""

    is_closed = False

    def around_submit(self, task: OutgoingTask) -> Iterator[None]:
        task.labels["via"] = "sync"
        yield

    async def close(self) -> None:
        self.is_closed = True


def stored(url: str, id: str) -> bytes:
    """The envelope of a task, as it is in Redis."""
    with redis.Redis.from_url(url) as client:
        value: bytes = records.hget(client, f"{{nonet}}:t:{id}", "envelope") or b""
    return value


def test_middleware_runs_around_submissions(redis_url: str, tmp_path: Path) -> None:
    """What it adds is in the message, and it is closed with the application."""
    notes = Notes()
    register_middleware(notes)
    settings = plain_settings(redis_url=redis_url, state_dir=tmp_path, tasks=("sync.sync_tasks",))
    with nonet.SyncNonet(settings) as app:
        id = app.submit(Add(1, 2))
    assert b"via" in stored(redis_url, id) and notes.is_closed
