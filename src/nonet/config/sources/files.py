"""Read the configuration from a file or a directory, which may change while it is read."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nonet.base.errors import ConfigurationError
from nonet.config.models import Config
from nonet.config.sources.source import (
    MAX_BYTES,
    MAX_FILES,
    Check,
    Documents,
    Judged,
    in_one_line,
    is_document,
    judge,
    too_large,
    too_many,
)

# A change takes effect within 2 s, and workers poll the published configuration every second.
_POLL_SECONDS = 0.5
# A file that changes again within this time is still being written.
_SETTLE_SECONDS = 0.2
_MOST_CHANGES = 10  # in a row, before a read fails
# A mounted directory may be swapped while it is read.
_TRIES = 5
# All files of a Kubernetes mount are links through this link, which Kubernetes swaps atomically.
_MOUNTED = "..data"


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The files at one moment, or why they could not be read."""

    documents: Documents = ()
    problem: str = ""


class FileSource:
    """A file, or the ``*.yaml`` and ``*.yml`` files of a directory, polled twice a second.

    Args:
        path: may be missing until later.
        check: see `open_source`.
    """

    def __init__(self, path: Path, check: Check | None = None) -> None:
        self.name = str(path)
        self.poll_seconds = _POLL_SECONDS
        self.revision = ""
        self._path = path
        self._check = check
        self._seen: _Snapshot | None = None
        self._judged = Judged()

    async def read(self) -> Config:
        """Return the configuration once two snapshots in a row are equal.

        Raises:
            ConfigurationError: all problems together, or the files keep changing.
        """
        snapshot = await self._settled()
        if snapshot != self._seen:
            self._judged = await self._judge(snapshot)
            self._seen = snapshot
        return self._judged.get()

    async def _settled(self) -> _Snapshot:
        before = await asyncio.to_thread(snapshot, self._path)
        if before == self._seen:
            return before
        for _ in range(_MOST_CHANGES):
            await asyncio.sleep(_SETTLE_SECONDS)
            now = await asyncio.to_thread(snapshot, self._path)
            if now == before:
                return now
            before = now
        raise ConfigurationError(f"{self.name}: is not read because it keeps changing")

    async def _judge(self, snapshot: _Snapshot) -> Judged:
        if snapshot.problem:
            return Judged(problem=snapshot.problem)
        return await judge(snapshot.documents, self.name, self._check)


def snapshot(path: Path) -> _Snapshot:
    """Read a file or directory now."""
    problem = ""
    for _ in range(_TRIES):
        try:
            return _Snapshot(_read_all(path))
        except FileNotFoundError as error:
            problem = f"{path}: cannot be read: {error.strerror}"
        except OSError as error:
            return _Snapshot(problem=f"{error.filename or path}: cannot be read: {error.strerror}")
        except ConfigurationError as error:
            return _Snapshot(problem=str(error))
        except Exception as error:  # report it; the configuration in use stays
            return _Snapshot(problem=f"{path}: cannot be read: {in_one_line(error)}")
    return _Snapshot(problem=problem)


def _read_all(path: Path) -> Documents:
    if not path.is_dir():
        return ((str(path), _read(path, str(path), MAX_BYTES)),)
    documents: list[tuple[str, bytes]] = []
    left = MAX_BYTES
    version = _version(path)
    files = sorted(_files(*version), key=lambda file: file.name)
    if len(files) > MAX_FILES:
        raise too_many(str(path), len(files))
    for file in files:
        content = _read(_inside(file, version[0]), str(path), left)
        # Messages show the path that people see, not the hidden directory of a mount.
        documents.append((str(path / file.name), content))
        left -= len(content)
    if _version(path) != version:  # we may have listed the old version while it was removed
        raise FileNotFoundError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
    if not documents:
        raise ConfigurationError(f"{path}: the directory has no *.yaml or *.yml file")
    return tuple(documents)


def _version(path: Path) -> tuple[Path, Path | None]:
    """Resolve the directory and its ``..data`` link.

    Links are resolved once for all files: if a mount were swapped between two files, the result
    would mix two versions.
    """
    directory = _resolved(path)
    mounted = directory / _MOUNTED
    return directory, _resolved(mounted) if mounted.is_symlink() else None


def _inside(file: Path, directory: Path) -> Path:
    """Return the target of a link, which must be in the same directory.

    Otherwise a writer to the directory could publish any file that the scheduler can read.
    """
    found = _resolved(file)
    if not found.is_relative_to(directory):
        raise ConfigurationError(
            f"{directory / file.name}: this link leads out of the directory: copy the file here"
        )
    return found


def _resolved(path: Path) -> Path:
    # `Path.resolve` would raise a RuntimeError for a link that leads to itself.
    return Path(os.path.realpath(path, strict=True))


def _files(directory: Path, mounted: Path | None) -> Iterator[Path]:
    if mounted:
        yield from (file for file in mounted.iterdir() if _is_file(file))
    for file in directory.iterdir():
        if _is_file(file) and not (mounted and _leads_through_mount(file)):
            yield file


def _is_file(file: Path) -> bool:
    return is_document(file.name) and not file.is_dir()


def _leads_through_mount(file: Path) -> bool:
    return file.is_symlink() and os.readlink(file).startswith(f"{_MOUNTED}/")


def _read(file: Path, source: str, limit: int) -> bytes:
    # Do not block on a named pipe that has no writer.
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ConfigurationError(f"{file}: cannot be read: it is not a regular file")
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise too_large(source)
    return content
