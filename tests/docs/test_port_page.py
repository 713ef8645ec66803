"""The port guide: what it names of Nonet is there."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docs.pages import Page, codes
from docs.test_shown import refusal, words_of

from nonet.settings import Settings

PAGE = Page.read("how-to/port-from-diracx.md")
_GROUPS = ("tasks.CATEGORY", "lock_object_types", "startup", "dependencies", "vos", "overflow")


def _told(heading: str) -> Iterator[str]:
    """What the second column of the table below a heading names in code; `none` names nothing."""
    for _, second, *_ in PAGE.rows(heading):
        named = codes(second)
        assert named or second.startswith("none"), second
        yield from named


def _found(name: str) -> Any:
    """The object of a dotted name: of the longest module in it."""
    module, *rest = name.split(".")
    found: Any = importlib.import_module(module)
    for part in rest:
        module += f".{part}"
        if not hasattr(found, part):
            importlib.import_module(module)
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", sorted(set(_told("Names"))))
def test_the_names_can_be_imported(name: str) -> None:
    """Those that take the place of a name of DiracX."""
    assert name.startswith("nonet.")
    assert _found(name) is not None


@pytest.mark.parametrize("line", sorted(set(_told("Commands"))))
def test_the_commands_are_understood(line: str) -> None:
    """Complete as they are shown; or it is a setting."""
    if line.startswith("NONET_"):
        assert _is_setting(line)
    else:
        assert refusal(words_of(line)) is None


@pytest.mark.parametrize("name", sorted(set(_told("Environment"))))
def test_the_variables_are_settings(name: str) -> None:
    """Each is read by a process of Nonet."""
    assert _is_setting(name)


def test_the_entry_points_are_looked_for() -> None:
    """The table has all groups that Nonet has, and no other."""
    told = {name for name in _told("Entry points") if name.startswith("nonet.")}
    assert told == {f"nonet.{group}" for group in _GROUPS}


def _is_setting(name: str) -> bool:
    return name.removeprefix("NONET_").lower() in Settings.model_fields


# Written as tasks of DiracX are, but for the first import.
_PORTED = """
from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends

from nonet import (
    BaseLock, BaseTask, CallbackSpawner, ExponentialBackoff, IntervalSeconds, LockedObjectType,
    MutexLock, PeriodicBaseTask, PeriodicVoAwareBaseTask, Priority, Size,
    register_locked_object_type,
)

OWNER = register_locked_object_type("owner")


class OwnerDB:
    @classmethod
    async def transaction(cls) -> AsyncIterator[OwnerDB]:
        yield cls()


@dataclasses.dataclass
class SyncOwners(BaseTask):
    priority = Priority.BACKGROUND
    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=10, max_retries=3)
    dlq_eligible = True
    result_ttl_seconds = 60

    owner: str

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MutexLock(OWNER, self.owner), MutexLock(LockedObjectType("job"), 7)]

    async def execute(
        self, db: Annotated[OwnerDB, Depends(OwnerDB.transaction, scope="function")], **kwargs: Any
    ) -> str:
        return f"{type(db).__name__} of {self.owner}"


@dataclasses.dataclass
class Report(PeriodicBaseTask):
    size = Size.SMALL
    _enabled = True
    default_schedule = IntervalSeconds(3600)

    async def execute(self, spawn: CallbackSpawner) -> None:
        await spawn([SyncOwners("a"), SyncOwners("b")], SyncOwners("all"), ttl_seconds=100)


@dataclasses.dataclass
class Submit(PeriodicVoAwareBaseTask):
    size = Size.SMALL
    default_schedule = IntervalSeconds(3600)

    async def execute(self) -> str:
        return self.vo
"""
_ENTRY_POINTS = """
[diracx.tasks.owners]
SyncOwners = ported:SyncOwners
Report = ported:Report
Submit = ported:Submit

[diracx.lock_object_types]
owner = ported:OWNER
"""


def test_a_package_of_diracx_runs_with_its_entry_points(tmp_path: Path, redis_url: str) -> None:
    """Only its imports are changed: classes are found, one runs with its locks and its session."""
    (tmp_path / "ported.py").write_text(_PORTED)
    info = tmp_path / "ported-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ported\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "NONET_ENTRY_POINTS": "diracx",
        "NONET_REDIS_URL": redis_url,
        "NONET_STATE_DIR": str(tmp_path),
    }

    def task_run(*words: str) -> str:
        command = [str(Path(sys.executable).with_name("task-run")), *words]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    found = {item["name"]: item for item in json.loads(task_run("classes", "--json"))}
    assert set(found) == {"owners:SyncOwners", "owners:Report", "owners:Submit"}
    args = ("--args", '["alice"]', "--wait-locks", "40")
    assert "OwnerDB of alice" in task_run("call", "owners:SyncOwners", *args)
