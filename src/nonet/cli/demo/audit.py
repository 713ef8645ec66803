"""Run the demo: start a system, submit one task, follow its groups, and summarise."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nonet.app import Nonet
from nonet.base.errors import ConfigurationError, NonetError
from nonet.cli.demo.hashing import Duplicates, as_text
from nonet.cli.demo.tasks import Audited, AuditTree, HashFile, read_report
from nonet.config.settings import plain_settings
from nonet.daemon.service import stop_on_signals, unless_stopped
from nonet.stores.queue.groups import callback_id

TASKS = "nonet.cli.demo.tasks"
NAMESPACE = "demo"
_POLL_SECONDS = 0.1

Progress = Callable[[str, int, int], None]
"""Called repeatedly with the current step, how many of its tasks have ended, and of how many.

The last number is 0 while it is unknown."""


@dataclass(frozen=True)
class Summary:
    """The result of an audit, with counts and the time taken.

    Attributes:
        files, total_bytes: all regular files, unreadable ones included, and their sizes by lstat.
        closed: number of directories that could not be listed; `closed_first` names some.
        groups: files with equal content; each hard link counts as a file.
        retries: attempts after a failed one.
        dead_letters: rows in the dead-letter table, one per unreadable file.
        tasks: number of ended tasks.
        seconds: from the first submission to the report, without the start of the workers.
        database: SQLAlchemy URL of the dead-letter table.
    """

    files: int
    total_bytes: int
    closed: int
    closed_first: list[bytes]
    groups: list[Duplicates]
    retries: int
    dead_letters: int
    tasks: int
    seconds: float
    database: str

    @property
    def wasted_bytes(self) -> int:
        """Bytes of all copies but one in each group."""
        return sum(group.wasted for group in self.groups)

    def document(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return {
            "files": self.files,
            "bytes": self.total_bytes,
            "duplicate_groups": [[as_text(path) for path in group.paths] for group in self.groups],
            "wasted_bytes": self.wasted_bytes,
            "dead_letters": self.dead_letters,
            "tasks": self.tasks,
            "seconds": round(self.seconds, 3),
        }


async def run_demo(tree: Path, state_dir: Path, progress: Progress) -> Summary:
    """Audit a tree with an embedded server, a scheduler and workers of all sizes.

    Scheduler and workers run in this process. Only the dead letters stay, in ``STATE_DIR/demo``.
    ``NONET_`` variables of this process are not used.

    Args:
        tree: the directory to audit.
        state_dir: parent of the directory for the data of the demo.
        progress: see `Progress`.

    Raises:
        ConfigurationError: the tree cannot be listed, or no Redis server is installed.
        NonetError: a worker or the scheduler failed, or a signal stopped the demo.
    """
    root, home = _checked(tree), _home(state_dir)
    letters = home / "nonet.db"
    had_letters = letters.exists()
    with _workspace(home) as directory:
        values = {
            "redis_url": "embedded://",
            "db_url": f"sqlite+aiosqlite:///{letters}",
            "namespace": NAMESPACE,
            "tasks": TASKS,
            "state_dir": str(directory),
            "grace": "1",
        }
        progress("starting the server, a scheduler and workers", 0, 0)
        app = Nonet(plain_settings(**values))

        async def audited() -> Summary:
            async with app.running():
                return await _Audit(app, progress).run(AuditTree(root, directory))

        async with stop_on_signals() as stop:
            summary = await unless_stopped(audited(), stop)
        if summary is None:
            raise NonetError("the demo was stopped by a signal")
    if not had_letters and not summary.dead_letters:
        letters.unlink(missing_ok=True)  # it contains only data of the scheduler
    return summary


@dataclass(frozen=True)
class _Audit:
    """Submits an audit and follows it."""

    app: Nonet
    progress: Progress

    async def run(self, task: AuditTree) -> Summary:
        start = time.monotonic()
        self.progress(f"listing {_shown(task.tree)}", 0, 0)
        handle = await self.app.submit(task)
        audited: Audited = await handle.result()
        retried = await self._callback(audited.group, f"hashing {audited.files} files")
        report = await self._callback(retried, "reading unreadable files again")
        seconds = time.monotonic() - start
        batches, singles = [
            await self.app.client.group_results(group) for group in (audited.group, retried)
        ]
        statuses = [await self.app.status(child.id) for child in singles]
        return Summary(
            files=audited.files,
            total_bytes=audited.total_bytes,
            closed=audited.closed,
            closed_first=audited.closed_first,
            groups=read_report(report),
            retries=sum(status.attempt - 1 for status in statuses),
            dead_letters=await self._dead_letters({child.id for child in singles}),
            tasks=len(batches) + len(singles) + 3,
            seconds=seconds,
            database=self.app.settings.sql_url(),
        )

    async def _callback(self, group: str, doing: str) -> Any:
        """Wait for a group, and return the result of its callback."""
        while True:
            status = await self.app.stores.groups.status(group)
            if status.total:
                self.progress(doing, status.total - status.pending, status.total)
            if status.state == "fired":
                break
            await asyncio.sleep(_POLL_SECONDS)
        if status.callback_id != callback_id(group):
            children = await self.app.client.group_results(group)
            errors = [child.error for child in children if child.state != "done"]
            raise NonetError(f"the audit failed while {doing}: {errors[0]}")
        return await self.app.result(callback_id(group))

    async def _dead_letters(self, ids: set[str]) -> int:
        """Count the dead letters of these tasks; the table also has those of earlier runs."""
        if not ids:
            return 0
        letters = await self.app.dead_letters()
        name = self.app.registry.get(HashFile.__name__).name
        rows = await letters.list(task_class=name, limit=1_000_000)
        return sum(row.task_id in ids for row in rows)


@contextmanager
def _workspace(home: Path) -> Iterator[Path]:
    """Create a directory for one run, and remove it afterwards."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = TemporaryDirectory(prefix="run-", dir=home, ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigurationError(
            f"the demo cannot write to {home}: {error.strerror}. Set NONET_STATE_DIR or "
            "--state-dir to a writable directory"
        ) from error
    with directory as path:
        yield Path(path)


def _home(state_dir: Path) -> Path:
    return state_dir.absolute() / "demo"


def _checked(tree: Path) -> bytes:
    try:
        with os.scandir(tree):
            return os.fsencode(tree.absolute())
    except OSError as error:
        raise ConfigurationError(
            f"cannot list {_shown(os.fsencode(tree))}: {error.strerror}"
        ) from None


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
