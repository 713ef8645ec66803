"""What is around a task holds without an event loop, too: encryption and middleware."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import redis
from sync.sync_tasks import Add

import nonet.sync
from nonet import Middleware, Nonet, OutgoingTask, register_middleware
from nonet.config.settings import plain_settings

pytestmark = pytest.mark.server

KEY = base64.b64encode(bytes(32)).decode()


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
        value: bytes = client.get(f"{{nonet}}:b:{id}") or b""
    return value


@pytest.mark.parametrize("beside", [False, True])
async def test_arguments_are_encrypted(redis_url: str, tmp_path: Path, beside: bool) -> None:
    """With `NONET_ENCRYPT_ALL`, by an application of its own and by that for threads."""
    settings = plain_settings(
        redis_url=redis_url,
        state_dir=tmp_path,
        tasks=("sync.sync_tasks",),
        encryption_keys=f"k1:{KEY}",
        encrypt_all=True,
    )
    if beside:
        async with Nonet(settings) as app:
            id = app.sync.submit(Add(4711, 4712))
    else:
        with nonet.sync.Nonet(settings) as opened:
            id = opened.submit(Add(4711, 4712))
    data = stored(redis_url, id)
    assert b"k1" in data and msgspec.msgpack.encode({"a": 4711})[1:] not in data


def test_middleware_runs_around_submissions(redis_url: str, tmp_path: Path) -> None:
    """What it adds is in the message, and it is closed with the application."""
    notes = Notes()
    register_middleware(notes)
    settings = plain_settings(redis_url=redis_url, state_dir=tmp_path, tasks=("sync.sync_tasks",))
    with nonet.sync.Nonet(settings) as app:
        id = app.submit(Add(1, 2))
    assert b"via" in stored(redis_url, id) and notes.is_closed
