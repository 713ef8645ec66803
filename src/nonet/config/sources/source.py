"""The interface of configuration sources, and the validation of the files that they read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from nonet.base.errors import ConfigurationError
from nonet.config.models import Config
from nonet.config.reading import parse_files
from nonet.rules.outcomes import summarize

MAX_BYTES = 4 * 1024 * 1024
MAX_FILES = 1_000

Check: TypeAlias = Callable[[Config], object]
Documents: TypeAlias = tuple[tuple[str, bytes], ...]
"""Names of files, for messages, and their contents."""


class Source(Protocol):
    """A place that the configuration is read from repeatedly.

    Attributes:
        name: for messages, without credentials.
        poll_seconds: how long to wait between two reads.
        revision: the commit that was read; empty for files.
    """

    name: str
    poll_seconds: float
    revision: str

    async def read(self) -> Config:
        """Return the present configuration, without blocking the event loop.

        Raises:
            ConfigurationError: it is invalid or unavailable.
        """


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of validating documents: a configuration, or the problems."""

    config: Config | None = None
    problem: str = ""

    def get(self) -> Config:
        """Return the configuration, or raise `ConfigurationError` with the problems."""
        if self.config is None:
            raise ConfigurationError(self.problem)
        return self.config


async def judge(documents: Documents, name: str, check: Check | None) -> Judged:
    """Parse and validate documents, then run `check` on the configuration.

    Every exception counts as a problem of the documents, because validation runs code of task
    authors.

    Args:
        name: the source, for messages.
    """
    judged = await asyncio.to_thread(_tried, name, lambda: _parse(documents, name))
    config = judged.config
    if config is None or check is None:
        return judged

    def checked() -> Config:
        check(config)
        return config

    return _tried(name, checked)  # in the loop: it may run code of task classes


def in_one_line(error: BaseException) -> str:
    """Describe an unexpected exception in one line."""
    why = summarize(error)
    return f"{why.type}: {' '.join(why.text.split())}".removesuffix(": ")


def too_many(name: str, number: int) -> ConfigurationError:
    """Return the error for more than `MAX_FILES` files."""
    return ConfigurationError(
        f"{name}: has {number} *.yaml and *.yml files, {MAX_FILES} at most: is it the right place?"
    )


def too_large(name: str) -> ConfigurationError:
    """Return the error for more than `MAX_BYTES` bytes."""
    return ConfigurationError(
        f"{name}: is larger than {MAX_BYTES // 1024**2} MiB in sum: is it the right place?"
    )


def is_document(file_name: str) -> bool:
    """Return whether a file of a directory belongs to the configuration.

    Hidden files do not: Kubernetes keeps the versions of a mount in hidden entries.
    """
    return file_name.endswith((".yaml", ".yml")) and not file_name.startswith(".")


def _tried(name: str, step: Callable[[], Config]) -> Judged:
    """Return the result of `step`, or the reason if it raises.

    `step` is synchronous, so this cannot swallow a cancellation of the asyncio task.
    """
    try:
        return Judged(step())
    except ConfigurationError as error:
        problem = str(error)
    except BaseException as error:  # including SystemExit of an author's validator
        problem = f"{name}: cannot be used: {in_one_line(error)}"
    # YAML escapes can produce lone surrogates, which neither a terminal nor Redis accepts.
    return Judged(problem=problem.encode("utf-8", "backslashreplace").decode())


def _parse(documents: Documents, name: str) -> Config:
    config = parse_files([(file, _text(file, content)) for file, content in documents], name)
    _check_publishable(config, name)
    return config


def _check_publishable(config: Config, name: str) -> None:
    """Reject values that YAML permits but JSON does not: deep nesting, infinite numbers."""
    try:
        Config.from_document(config.document())
    except Exception as error:
        raise ConfigurationError(f"{name}: cannot be published: {in_one_line(error)}") from error


def _text(file: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: is not UTF-8: {error.reason}") from None
