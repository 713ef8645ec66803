"""Walk a tree, batch files, hash them and find duplicates, without tasks."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_CHUNK = 1 << 20
# Keep the paths of a batch, and its result with a digest per file, well below
# NONET_MESSAGE_LIMIT.
_BATCH_FILES = 100
_BATCH_PATH_BYTES = 64 << 10
# Spread large files over the workers.
_BATCH_BYTES = 64 << 20


class Found(NamedTuple):
    """A regular file, and its size by lstat; 0 if lstat is forbidden."""

    path: bytes
    size: int


class Hashed(NamedTuple):
    """A file that was read: its size in bytes, and its SHA-256."""

    path: bytes
    size: int
    digest: bytes


@dataclass
class Walk:
    """The content of a tree.

    Attributes:
        files: every regular file, as ``find -type f`` lists them.
        closed: directories that could not be listed.
    """

    files: list[Found] = field(default_factory=list)
    closed: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class Duplicates:
    """Files with equal content: their size, and their sorted paths."""

    size: int
    paths: list[bytes]

    @property
    def wasted(self) -> int:
        """Bytes of all copies but one."""
        return self.size * (len(self.paths) - 1)


def walk(tree: bytes, skip: bytes) -> Walk:
    """List a tree; symbolic links are neither followed nor listed.

    Args:
        tree: the root directory.
        skip: a directory to leave out: the demo's own, which changes during the walk.
    """
    found = Walk()
    left = [tree]
    skipped = os.stat(skip).st_ino
    while left:
        directory = left.pop()
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.inode() != skipped or not os.path.samefile(entry.path, skip):
                            left.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        found.files.append(Found(entry.path, _size(entry)))
        except OSError:
            found.closed.append(directory)
    found.files.sort()
    return found


def batches(files: Iterable[Found]) -> Iterator[list[bytes]]:
    """Split paths into batches of bounded number, path length and file size.

    >>> [len(batch) for batch in batches([Found(b"a", 0)] * 250)]
    [100, 100, 50]
    """
    batch: list[bytes] = []
    path_bytes = content = 0
    for file in files:
        path_bytes += len(file.path)
        content += file.size
        full = len(batch) == _BATCH_FILES or path_bytes > _BATCH_PATH_BYTES
        if batch and (full or content > _BATCH_BYTES):
            yield batch
            batch, path_bytes, content = [], len(file.path), file.size
        batch.append(file.path)
    if batch:
        yield batch


def hash_file(path: bytes, between: Callable[[], None] = lambda: None) -> Hashed:
    """Hash a file.

    Args:
        between: called before each mebibyte; if it raises, the reading ends.

    Raises:
        OSError: the file cannot be read, or is no longer a regular file.
    """
    digest = hashlib.sha256()
    size = 0
    with open(path, "rb", buffering=0, opener=_open) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "no longer a regular file", path)
        between()
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            between()
    return Hashed(path, size, digest.digest())


def duplicates(files: Iterable[Hashed]) -> list[Duplicates]:
    """Group files with equal content, two or more each, in the order of their first path.

    Hard links to one file count as files.
    """
    by_content: dict[tuple[int, bytes], list[bytes]] = {}
    for file in files:
        by_content.setdefault((file.size, file.digest), []).append(file.path)
    groups = [
        Duplicates(size, sorted(paths, key=as_text))
        for (size, _), paths in by_content.items()
        if len(paths) > 1
    ]
    return sorted(groups, key=lambda group: as_text(group.paths[0]))


def as_text(path: bytes) -> str:
    """Return a path as text for JSON; bytes that are not UTF-8 become surrogate escapes.

    >>> as_text(b"caf\\xe9")
    'caf\\udce9'
    """
    return path.decode("utf-8", "surrogateescape")


def _size(entry: os.DirEntry[bytes]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0


def _open(path: str, flags: int) -> int:
    # The path may have been replaced since the walk: do not follow a link, and do not wait for the
    # writer of a FIFO.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
