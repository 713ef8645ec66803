"""Create files that only this user may read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def create_private(file: Path, text: str = "") -> None:
    """Create a file of mode 600, whole at once; nothing happens if it exists.

    The file is closed before it gets its name. SQLite's locks need that: when a process closes a
    file, the kernel releases all locks that this process has on it, those of other threads, too.

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
