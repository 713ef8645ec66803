"""What all sources share: their form, and how the texts that they find are judged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from nonet.config import Config, Problem, parse_sound, problems_error
from nonet.errors import ConfigurationError

MAX_BYTES = 4 * 1024 * 1024

Check: TypeAlias = Callable[[Config], object]
Documents: TypeAlias = tuple[tuple[str, bytes], ...]
"""Names of files, for messages, and what stands in them."""


class Source(Protocol):
    """Where a configuration is read from, again and again.

    Attributes:
        name: for messages; it shows no credentials.
        poll_seconds: how long to wait between two reads.
        problem: why the newest configuration is not the one that was read; empty: it is.
        revision: the commit that was read; empty for files.
    """

    name: str
    poll_seconds: float
    problem: str
    revision: str

    async def read(self) -> Config:
        """The configuration that holds now; the event loop is never blocked.

        Raises:
            ConfigurationError: it is bad or cannot be had, and the source knows no older one.
        """
        ...


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of some documents: a configuration, or what is wrong with them."""

    config: Config | None = None
    problem: str = ""

    def get(self) -> Config:
        """The configuration. Raises `ConfigurationError` if there is none."""
        if self.config is None:
            raise ConfigurationError(self.problem)
        return self.config


async def judge(documents: Documents, name: str, check: Check | None) -> Judged:
    """Read documents and have the configuration checked.

    Args:
        name: of the source, for messages.
    """
    found: list[str] = []
    try:
        config, problems = await asyncio.to_thread(_parse, documents, name)
        if problems:
            found.append(str(problems_error(problems)))
        if check is not None:
            check(config)  # in the loop: it may run code of task classes
    except ConfigurationError as error:
        found.append(str(error))
    return Judged(problem="\n".join(found)) if found else Judged(config)


def too_large(name: str) -> ConfigurationError:
    """More bytes than anybody writes by hand, and than are worth reading every second."""
    return ConfigurationError(
        f"{name}: is larger than {MAX_BYTES // 1024**2} MiB in sum: is it the right place?"
    )


def is_document(file_name: str) -> bool:
    """Whether a file of a directory is part of the configuration.

    Hidden ones are not: Kubernetes keeps the versions of a mount in hidden entries beside it.
    """
    return file_name.endswith((".yaml", ".yml")) and not file_name.startswith(".")


def _parse(documents: Documents, name: str) -> tuple[Config, list[Problem]]:
    return parse_sound([(file, _text(file, content)) for file, content in documents], name)


def _text(file: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: is not UTF-8: {error.reason}") from None
