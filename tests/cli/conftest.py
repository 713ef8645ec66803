"""The fixture of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.terminal import TaskRun
from servers import RedisServer


@pytest.fixture
def task_run(redis_server: RedisServer, redis_url: str, tmp_path: Path) -> Iterator[TaskRun]:
    """``task-run`` on an empty Redis."""
    made = TaskRun(redis_server, tmp_path)
    yield made
    made.close()
