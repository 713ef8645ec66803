"""Rows that are processed by tasks, in real workers."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy as sa
from daemons import Daemon
from row_tasks import Base, Heavy, Light, database
from waits import WAIT_SECONDS

from nonet import Nonet, load_settings

pytestmark = pytest.mark.server


@pytest.mark.parametrize("size", ["small", "large"])
async def test_a_row_is_processed_by_a_task_of_its_size_under_its_limits(
    size: str, postgres_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is processed once, two at a time; after a failure, timeout or crash once more."""
    environment = {
        "ROWS_DB_URL": postgres_url,
        "NONET_REDIS_URL": redis_url,
        "NONET_NAMESPACE": "test",
        "NONET_STATE_DIR": str(tmp_path),
        "NONET_TASKS": "row_tasks",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    model = {"small": Light, "large": Heavy}[size]
    async with database.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with database.sessions.begin() as session:
        session.add_all([model(name="sleeps once"), model(name="fails once")])
        if size != "small":  # that would end the worker
            session.add(model(name="dies once"))
        session.add_all(model(name=f"row {number}") for number in range(6))
    commands = {"pipeline": ("--pipelines", f"{size}-rows"), "worker": ("--size", size)}
    with ExitStack() as stack:
        daemons = {
            name: stack.enter_context(
                Daemon("task-worker", *options, environment=environment, log=tmp_path / name)
            )
            for name, options in commands.items()
        }
        ends_at = time.monotonic() + WAIT_SECONDS
        while True:
            async with database.sessions() as session:
                rows = (await session.scalars(sa.select(model))).all()
            if all(row.due_at is None for row in rows):
                break
            assert time.monotonic() < ends_at, [(row.name, row.runs, row.attempts) for row in rows]
            await asyncio.sleep(0.1)
        async with Nonet(load_settings(), load_tasks=False) as nonet:
            history = await nonet.history()
        for daemon in daemons.values():
            daemon.terminate()
            assert daemon.wait() == 0
    await database.close()
    assert {row.runs for row in rows} == {1}
    assert max(row.together for row in rows) <= 2
    states = sorted(ended.state for ended in history)
    assert states.count("done") >= 8
    # The attempts that failed, timed out and died; their rows were tried again.
    assert states.count("dead") == (2 if size == "small" else 3)
    assert {row.pid != daemons["worker"].pid for row in rows} == {size != "small"}
