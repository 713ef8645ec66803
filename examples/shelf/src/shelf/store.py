"""Where pictures and shelves are: files below ``SHELF_DIR``. Each write replaces a file at once."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from nonet import load_settings


class Store:
    """The files of this service."""

    def __init__(self, root: Path) -> None:
        self._pictures, self._shelves = root / "pictures", root / "shelves"

    def save(self, content: bytes) -> str:
        """Write a picture, and return its name: the same for the same bytes."""
        name = f"{hashlib.sha256(content).hexdigest()[:32]}.png"
        _replace(self.path(name), content)
        return name

    def path(self, name: str) -> Path:
        """Return the path of a picture."""
        return self._pictures / name

    def shelf(self, user: str) -> dict[str, str]:
        """Return the shelf of a user: from the address of a picture to its thumbnail."""
        path = self._shelves / f"{user}.json"
        shelf: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        return shelf

    def put(self, user: str, address: str, thumbnail: str) -> int:
        """Add to a shelf, and return its size; only for one task at a time."""
        shelf = {**self.shelf(user), address: thumbnail}
        _replace(self._shelves / f"{user}.json", json.dumps(shelf, sort_keys=True).encode())
        return len(shelf)

    def remove_unused(self, older_than_seconds: float) -> int:
        """Delete old pictures that are on no shelf, and return their number."""
        users = [path.stem for path in self._shelves.glob("*.json")]
        used = {name for user in users for name in self.shelf(user).values()}
        unused = [
            path
            for path in self._pictures.glob("*.png")
            if path.name not in used and time.time() - path.stat().st_mtime > older_than_seconds
        ]
        for path in unused:
            path.unlink(missing_ok=True)
        return len(unused)


def store() -> Iterator[Store]:
    """Provide the store to tasks and routes."""
    yield Store(Path(os.environ.get("SHELF_DIR", load_settings().state_dir / "shelf")))


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}.new")
    new.write_bytes(content)
    new.replace(path)
