"""What all sources share: their form, and how the texts that they find are judged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from nonet.base.errors import ConfigurationError
from nonet.config.models import Config
from nonet.config.reading import parse_sound, problems_error
from nonet.rules.outcomes import summarize

MAX_BYTES = 4 * 1024 * 1024
MAX_FILES = 1_000

_T = TypeVar("_T")

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

    Whatever is raised meanwhile is something wrong with them: it may be code of authors.

    Args:
        name: of the source, for messages.
    """
    found: list[str] = []
    config = await asyncio.to_thread(_noted, found, name, lambda: _parse(documents, name, found))
    if config is not None and check is not None:
        _noted(found, name, lambda: check(config))  # in the loop: it may run code of task classes
    if config is None or found:
        # Escapes of YAML can make texts that neither a terminal nor Redis takes.
        return Judged(problem="\n".join(found).encode("utf-8", "backslashreplace").decode())
    return Judged(config)


def told(error: BaseException) -> str:
    """An exception that nobody foresaw, in one line."""
    why = summarize(error)
    return f"{why.type}: {' '.join(why.text.split())}".removesuffix(": ")


def too_many(name: str, number: int) -> ConfigurationError:
    """More files than anybody keeps a configuration in."""
    return ConfigurationError(
        f"{name}: has {number} *.yaml and *.yml files, {MAX_FILES} at most: is it the right place?"
    )


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


def _noted(found: list[str], name: str, step: Callable[[], _T]) -> _T | None:
    """What `step` returns; if it raises, the reason is added to `found`.

    It waits for nothing: no cancellation of the present asyncio task can come out of it.
    """
    try:
        return step()
    except ConfigurationError as error:
        found.append(str(error))
    except BaseException as error:  # SystemExit of an author's validator, too
        found.append(f"{name}: cannot be used: {told(error)}")
    return None


def _parse(documents: Documents, name: str, found: list[str]) -> Config:
    texts = [(file, _text(file, content)) for file, content in documents]
    config, problems = parse_sound(texts, name)
    if problems:
        found.append(str(problems_error(problems)))
    else:
        _check_publishable(config, name)
    return config


def _check_publishable(config: Config, name: str) -> None:
    """YAML can say what JSON cannot carry to the workers: too deep, numbers without end."""
    try:
        Config.from_document(config.document())
    except Exception as error:
        raise ConfigurationError(f"{name}: cannot be published: {told(error)}") from error


def _text(file: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: is not UTF-8: {error.reason}") from None
