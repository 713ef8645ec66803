"""Create files that only this user may read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def create_private(file: Path, text: str = "") -> None:
    """Create a file of mode 600 atomically; do nothing if it exists.

    Close the file before it gets its name, for SQLite's locks: when a process closes a file, the
    kernel releases all locks of this process on it, even those of other threads.

    Raises:
        OSError: the directory is missing, or cannot be written.
    """
    if file.exists():
        return
    draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(handle, "w", encoding="utf-8") as opened:
            opened.write(text)
        os.link(draft, file)  # unlike a rename, it does not replace the file of another process
    except FileExistsError:
        pass
    finally:
        draft.unlink()
