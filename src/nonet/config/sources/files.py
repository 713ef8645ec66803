"""A configuration in a file or a directory, which somebody may be writing at this moment."""

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
    is_document,
    judge,
    told,
    too_large,
    too_many,
)

# It shall be effective 2 s after a change, and workers look for what is published once a second.
_POLL_SECONDS = 0.5
# What changes again within this time is still being written.
_SETTLE_SECONDS = 0.2
_LONGEST_UNREST = 10  # looks, in a row
# A mounted directory may be swapped between two steps of one look.
_TRIES = 5
# The link of a Kubernetes mount that all its files lead through; it is swapped at once.
_MOUNTED = "..data"


@dataclass(frozen=True, slots=True)
class _Look:
    """What stood there at one moment, or why nothing could be read."""

    documents: Documents = ()
    problem: str = ""


class FileSource:
    """A file, or the ``*.yaml`` and ``*.yml`` of a directory, looked at twice a second.

    Args:
        path: need not exist yet.
        check: see `open_source`.
    """

    def __init__(self, path: Path, check: Check | None = None) -> None:
        self.name = str(path)
        self.poll_seconds = _POLL_SECONDS
        self.problem = ""
        self.revision = ""
        self._path = path
        self._check = check
        self._seen: _Look | None = None
        self._judged = Judged()

    async def read(self) -> Config:
        """What stands there, once two looks in a row find the same.

        Raises:
            ConfigurationError: all problems at once, or it changes without a pause.
        """
        look = await self._settled()
        if look != self._seen:
            self._judged = await self._judge(look)
            self._seen = look
        return self._judged.get()

    async def _settled(self) -> _Look:
        before = await asyncio.to_thread(_look, self._path)
        if before == self._seen:
            return before
        for _ in range(_LONGEST_UNREST):
            await asyncio.sleep(_SETTLE_SECONDS)
            now = await asyncio.to_thread(_look, self._path)
            if now == before:
                return now
            before = now
        raise ConfigurationError(f"{self.name}: is not read while it changes without a pause")

    async def _judge(self, look: _Look) -> Judged:
        if look.problem:
            return Judged(problem=look.problem)
        return await judge(look.documents, self.name, self._check)


def _look(path: Path) -> _Look:
    problem = ""
    for _ in range(_TRIES):
        try:
            return _Look(_read_all(path))
        except FileNotFoundError as error:
            problem = f"{path}: cannot be read: {error.strerror}"
        except OSError as error:
            return _Look(problem=f"{error.filename or path}: cannot be read: {error.strerror}")
        except ConfigurationError as error:
            return _Look(problem=str(error))
        except Exception as error:  # whatever it is: what holds stays, and this is told
            return _Look(problem=f"{path}: cannot be read: {told(error)}")
    return _Look(problem=problem)


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
        content = _read(file, str(path), left)
        # Messages name what people see, not where a mount keeps it.
        documents.append((str(path / file.name), content))
        left -= len(content)
    if _version(path) != version:  # the old one may have been half removed when we listed it
        raise FileNotFoundError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
    if not documents:
        raise ConfigurationError(f"{path}: the directory has no *.yaml or *.yml file")
    return tuple(documents)


def _version(path: Path) -> tuple[Path, Path | None]:
    """Where links lead now: the directory, and what a mount shows in it.

    They are followed once, for all files: a swap between two of them would mix versions.
    """
    directory = _resolved(path)
    mounted = directory / _MOUNTED
    return directory, _resolved(mounted) if mounted.is_symlink() else None


def _resolved(path: Path) -> Path:
    # Not `Path.resolve`, which makes a RuntimeError of links that lead to themselves.
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
    # Not blocking: nobody may ever write into a named pipe.
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ConfigurationError(f"{file}: cannot be read: it is no regular file")
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise too_large(source)
    return content
