"""Where the central configuration comes from: a file, a directory or a branch of a git repository.

source = open_source("git+https://git.example.org/nonet.git#main", settings)
config = await source.read()          # each `source.poll_seconds`
"""

from __future__ import annotations

from pathlib import Path

from nonet.base.errors import ConfigurationError
from nonet.config.models import Config
from nonet.config.settings import Settings
from nonet.config.sources.files import FileSource
from nonet.config.sources.git import GitSource, parse_address
from nonet.config.sources.source import Check, Source

__all__ = ["Check", "Source", "open_source"]

_KINDS = (
    "write the path of a file or directory, or git+https://HOST/REPOSITORY.git#BRANCH "
    "(or git+ssh://…, git+file:///…)"
)


class _Nothing:
    """No configuration at all: the defaults of the classes hold."""

    name = "no configuration"
    poll_seconds = 60.0
    problem = ""
    revision = ""

    async def read(self) -> Config:
        return Config()


def open_source(text: str, settings: Settings, check: Check | None = None) -> Source:
    """What ``NONET_CONFIG`` names; nothing is read yet.

    Args:
        text: a path, or ``git+URL#BRANCH`` or ``git+URL#BRANCH:PATH``; empty: no configuration.
        settings: where git repositories are cached and how often they are asked.
        check: raises `ConfigurationError` if a configuration that can be read does not fit this
            installation. A commit that it refuses is never kept as the last good one.

    Raises:
        ConfigurationError: the text names no such source, or ``git`` is not installed.
    """
    if not text:
        return _Nothing()
    if text.startswith("git+"):
        cache = settings.state_dir / "config-git"
        return GitSource(parse_address(text), cache, settings.config_poll, check)
    if "://" in text:  # it may hold a password: only its scheme is shown
        scheme = text.partition("://")[0]
        raise ConfigurationError(
            f"NONET_CONFIG: {scheme}://… is no source of a configuration: {_KINDS}"
        )
    return FileSource(Path(text), check)
