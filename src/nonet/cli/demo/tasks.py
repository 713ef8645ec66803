"""The tasks of the demo: two callback groups, one after the other.

    AuditTree ─┬─ HashFiles … ─┬─ GatherHashes ─┬─ HashFile … ─┬─ ReportDuplicates
               └─ one a batch ─┘                └─ one a file ─┘

A file that cannot be read does not fail its batch. The batch lists it in its result, and the file
gets a task of its own, which is retried and may end as a dead letter. All tasks are idempotent.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from nonet.base.streams import Priority, Size
from nonet.cli.demo.hashing import Duplicates, Hashed, Walk, batches, duplicates, hash_file, walk
from nonet.client.shortcuts import CallbackSpawner
from nonet.tasks.execution import context
from nonet.tasks.locks import (
    BaseLock,
    ConcurrencyLimiter,
    ExclusiveRWLock,
    SharedRWLock,
    register_locked_object_type,
)
from nonet.tasks.retry import ExponentialBackoff
from nonet.tasks.task import BaseTask

DEMO_TREE = register_locked_object_type("demo_tree")
DEMO_DISK = register_locked_object_type("demo_disk")


class DiskSlots(ConcurrencyLimiter):
    """Limits how many tasks read files at a time."""

    limit = 4


@dataclass
class Audited:
    """What `AuditTree` found, and the group that it opened.

    Attributes:
        group: id of the group of `HashFiles`.
        files, total_bytes: number of files, and the sum of their sizes by lstat.
        closed: number of directories that could not be listed.
        closed_first: the first of them.
    """

    group: str
    files: int
    total_bytes: int
    closed: int
    closed_first: list[bytes]


@dataclass
class Batch:
    """The files that `HashFiles` could read, and those that it could not."""

    hashed: list[Hashed] = field(default_factory=list)
    unread: list[bytes] = field(default_factory=list)


@dataclass
class AuditTree(BaseTask):
    """List a tree, and submit tasks that hash its files.

    Args:
        tree: absolute path.
        workspace: directory shared by all tasks of one audit.
    """

    tree: bytes
    workspace: Path

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [_reading(self.tree)]

    async def execute(self, spawn: CallbackSpawner) -> Audited:
        found = await asyncio.to_thread(self._walk)
        group = await spawn(
            [HashFiles(self.tree, batch) for batch in batches(found.files)],
            GatherHashes(self.tree, self.workspace),
        )
        size = sum(file.size for file in found.files)
        return Audited(group, len(found.files), size, len(found.closed), found.closed[:3])

    def _walk(self) -> Walk:
        kept = self.workspace / "walk"
        if kept.exists():  # an earlier attempt spawned its batches
            return msgspec.msgpack.decode(kept.read_bytes(), type=Walk)
        found = walk(self.tree, os.fsencode(self.workspace))
        _write(kept, found)
        return found


@dataclass
class HashFiles(BaseTask):
    """Hash a batch of files."""

    tree: bytes
    paths: list[bytes]

    priority = Priority.BACKGROUND
    size = Size.SMALL

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [_reading(self.tree), _disk()]

    def execute(self) -> Batch:
        batch = Batch()
        for path in self.paths:
            try:
                batch.hashed.append(hash_file(path, context().ensure_lease))
            except OSError:
                batch.unread.append(path)
        return batch


@dataclass
class GatherHashes(BaseTask):
    """Store the hashes, and submit one task for each unread file."""

    tree: bytes
    workspace: Path

    size = Size.LARGE

    async def execute(self, spawn: CallbackSpawner) -> str:
        found: list[Batch] = [child.value for child in await context().group_results()]
        hashed = [file for batch in found for file in batch.hashed]
        await asyncio.to_thread(_write, self.workspace / "hashes", hashed)
        return await spawn(
            [HashFile(self.tree, path) for batch in found for path in batch.unread],
            ReportDuplicates(self.tree, self.workspace),
            policy="all_done",
        )


@dataclass
class HashFile(BaseTask):
    """Hash one file that its batch could not read."""

    tree: bytes
    path: bytes

    priority = Priority.BACKGROUND
    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=0.2, max_retries=2)
    dlq_eligible = True

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [_reading(self.tree), _disk()]

    def execute(self) -> Hashed:
        return hash_file(self.path, context().ensure_lease)


@dataclass
class ReportDuplicates(BaseTask):
    """Write the report under an exclusive lock of the tree, and return its path."""

    tree: bytes
    workspace: Path

    priority = Priority.REALTIME

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [ExclusiveRWLock(DEMO_TREE, os.fsdecode(self.tree))]

    async def execute(self) -> Path:
        single = [child.value for child in await context().group_results() if child.state == "done"]
        return await asyncio.to_thread(self._report, single)

    def _report(self, single: list[Hashed]) -> Path:
        gathered = (self.workspace / "hashes").read_bytes()
        hashed = msgspec.msgpack.decode(gathered, type=list[Hashed])
        report = self.workspace / "report"
        _write(report, duplicates([*hashed, *single]))
        return report


def read_report(path: Path) -> list[Duplicates]:
    """Return the groups that `ReportDuplicates` wrote."""
    return msgspec.msgpack.decode(path.read_bytes(), type=list[Duplicates])


def _reading(tree: bytes) -> SharedRWLock:
    return SharedRWLock(DEMO_TREE, os.fsdecode(tree))


def _disk() -> DiskSlots:
    return DiskSlots(DEMO_DISK, "local")


def _write(path: Path, value: Any) -> None:
    """Write a file atomically."""
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.msgpack.encode(value))
    part.replace(path)
