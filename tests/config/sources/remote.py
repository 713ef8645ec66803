"""The git repository of an administrator."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Remote:
    """A repository below `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *command: str) -> str:
        """Run a git command in it; its output."""
        identity = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.org")
        full = ["git", "-C", str(self.path), *identity, *command]
        return subprocess.run(full, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, files: dict[str, str | bytes], *options: str) -> str:
        """Write and commit files; the commit."""
        for name, text in files.items():
            file = self.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode() if isinstance(text, str) else text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", "change", *options)
        return self.git("rev-parse", "HEAD")
