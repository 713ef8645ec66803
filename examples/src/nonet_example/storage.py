"""A stand-in for storage elements, made of directories. Only `storage` is specific to Nonet.

    EXAMPLE_STORAGE   root directory (default: ``storage`` under NONET_STATE_DIR)
    EXAMPLE_SECONDS   how long each request takes (default: 0)

A file ``DOWN`` in the directory of an element takes it out of service.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from nonet import load_settings

logger = logging.getLogger(__name__)


class StorageUnavailable(Exception):
    """The element is out of service; a later attempt may succeed."""


class Storage:
    """A client of all storage elements."""

    def __init__(self, root: Path, seconds: float = 0) -> None:
        self.root = root
        self.seconds = seconds

    async def create(self, element: str, lfn: str, content: bytes) -> int:
        """Write a file, and return its size in bytes."""
        path = await self._reach(element, lfn)
        return await asyncio.to_thread(path.write_bytes, content)

    async def copy(self, source: str, target: str, lfn: str) -> int:
        """Copy a file to another element, and return its size in bytes."""
        path = await self._reach(source, lfn)
        return await self.create(target, lfn, await asyncio.to_thread(path.read_bytes))

    async def remove(self, element: str, lfn: str) -> int:
        """Delete a file, and return the number of bytes freed; 0 if it was already deleted."""
        logger.info("removing %s at %s", lfn, element)
        path = await self._reach(element, lfn)
        freed = await asyncio.to_thread(_delete, path)
        logger.info("removed %s at %s", lfn, element)
        return freed

    async def _reach(self, element: str, lfn: str) -> Path:
        await asyncio.sleep(self.seconds)
        if element not in os.listdir(self.root):
            raise LookupError(f"there is no storage element {element}")
        directory = self.root / element
        if (directory / "DOWN").exists():
            raise StorageUnavailable(f"{element} is out of service")
        return directory / quote(lfn, safe="")


def storage() -> Iterator[Storage]:
    """Provide the client: ``Annotated[Storage, Depends(storage, scope="process")]``.

    With this scope, the first attempt that needs the dependency opens it once for the process. The
    code after ``yield`` runs when the process stops.
    """
    default = load_settings().state_dir / "storage"
    root = Path(os.environ.get("EXAMPLE_STORAGE", default))
    root.mkdir(parents=True, exist_ok=True)
    yield Storage(root, float(os.environ.get("EXAMPLE_SECONDS", "0")))
    logger.info("storage is closed")


def _delete(path: Path) -> int:
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0  # an earlier execution has deleted it
    return size
