"""Rows that are processed by tasks, in real workers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from row_tasks import Base, Heavy, Light, Middle, database
from waits import WAIT_SECONDS

from nonet import Nonet, load_settings

pytestmark = pytest.mark.server
_TESTS = Path(__file__).parents[1]


@contextmanager
def daemon(*options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``task-worker`` while the block runs; it drains at its end."""
    program = "import sys; from nonet_worker import main; sys.exit(main())"
    # Its own session: a stop reaches no other process.
    command = [sys.executable, "-c", program, *options, "--tasks", "row_tasks"]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            assert process.wait(30) == 0


@pytest.mark.parametrize("size", ["small", "medium", "large"])
async def test_a_row_is_processed_by_a_task_of_its_size_under_its_limits(
    size: str, postgres_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is processed once, two at a time; after a failure, timeout or crash once more."""
    environment = {
        "ROWS_PARENT": str(os.getpid()),
        "ROWS_DB_URL": postgres_url,
        "NONET_REDIS_URL": redis_url,
        "NONET_NAMESPACE": "test",
        "NONET_STATE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")]),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    model = {"small": Light, "medium": Middle, "large": Heavy}[size]
    async with database.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with database.sessions.begin() as session:
        session.add_all(model(name=f"row {number}") for number in range(6))
        session.add_all([model(name="fails once"), model(name="sleeps once")])
        if size != "small":  # that would end the worker
            session.add(model(name="dies once"))
    with daemon("--pipelines", f"{size}-rows"), daemon("--size", size):
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
    await database.close()
    assert {row.runs for row in rows} == {1}
    assert max(row.together for row in rows) <= 2
    states = sorted(ended.state for ended in history)
    assert states.count("done") >= 8
    # The attempts that failed, timed out and died; their rows were tried again.
    assert states.count("dead") == (2 if size == "small" else 3)
    assert {row.is_child for row in rows} == {size != "small"}
