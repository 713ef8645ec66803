"""Read the central configuration from a file, a directory or a branch of a git repository.

Example:
    source = open_source("git+https://git.example.org/nonet.git#main", settings)
    config = await source.read()  # every `source.poll_seconds`
"""

from __future__ import annotations

from pathlib import Path

from nonet.base.errors import ConfigurationError
from nonet.config.models import Config
from nonet.config.settings import Settings
from nonet.config.sources.files import FileSource
from nonet.config.sources.git import GitSource
from nonet.config.sources.git_address import parse_address
from nonet.config.sources.source import Check, Source

__all__ = ["Check", "Source", "open_source"]

_KINDS = (
    "write the path of a file or directory, or git+https://HOST/REPOSITORY.git#BRANCH "
    "(or git+ssh://…, git+file:///…)"
)


class _Nothing:
    """No configuration: the attributes of the task classes apply."""

    name = "no configuration"
    poll_seconds = 60.0
    revision = ""

    async def read(self) -> Config:
        return Config()


def open_source(text: str, settings: Settings, check: Check | None = None) -> Source:
    """Return the source that ``NONET_CONFIG`` names, without reading it.

    Args:
        text: a path, or ``git+URL#BRANCH`` or ``git+URL#BRANCH:PATH``; empty: no configuration.
        settings: provide the poll interval of git.
        check: raises `ConfigurationError` if a valid configuration does not fit this installation.

    Raises:
        ConfigurationError: `text` is not a source, or ``git`` is not installed.
    """
    if not text:
        return _Nothing()
    if text.startswith("git+"):
        return GitSource(parse_address(text), settings.config_poll, check)
    if "://" in text:  # it may contain a password, so the message shows only the scheme
        scheme = text.partition("://")[0]
        raise ConfigurationError(f"NONET_CONFIG: {scheme}://… is not a supported source: {_KINDS}")
    return FileSource(Path(text), check)
