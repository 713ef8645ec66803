"""What an installed package brings by its entry points is there in tests, as in a worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from nonet import BaseTask, LockedObjectType, MutexLock
from nonet.tasks.locks import BaseLock
from nonet.testing import System, inline, run_inline


@dataclass
class Sorts(BaseTask):
    """Its type of lock is registered by a package only."""

    type_name: str

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MutexLock(LockedObjectType(self.type_name), 1)]

    async def execute(self) -> str:
        (lock,) = self.execution_locks
        return lock.redis_key


@pytest.fixture
def type_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> str:
    """A type that a package registers; a name of its own, as a process has each only once."""
    module = f"nonet_{request.node.name}"
    info = tmp_path / f"{module}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[nonet.lock_object_types]\nshelf = {module}\n")
    (tmp_path / f"{module}.py").write_text(
        f"from nonet import register_locked_object_type\nregister_locked_object_type({module!r})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return module


async def test_run_inline_knows_installed_lock_types(type_name: str) -> None:
    inline._load_installed.cache_clear()
    run = await run_inline(Sorts(type_name))
    assert run.result == f"lock:mutex:{type_name}:1"


async def test_a_system_of_named_tasks_knows_installed_lock_types(
    type_name: str, redis_url: str
) -> None:
    async with System([Sorts], redis_url=redis_url) as system:
        handle = await Sorts(type_name).schedule()
        await system.run_until_idle()
        assert await handle.result() == f"lock:mutex:{type_name}:1"
