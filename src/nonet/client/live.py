"""The published configuration as this process applies it: the newest that it can read."""

from __future__ import annotations

import asyncio
import logging
import time
from contextvars import Context
from typing import TYPE_CHECKING

from nonet.base.errors import ConfigurationError, NonetError
from nonet.base.loop import in_own_thread
from nonet.config.overrides import NONE, Overrides
from nonet.rules.outcomes import summarize
from nonet.stores.namespace.publication import Publication
from nonet.tasks.registry import Registry

if TYPE_CHECKING:
    from nonet.config.models import Config

logger = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS = 1.0
# Redis is away: who submits meets that itself, and what is kept in SQL only must not wait for it.
_LOOK_AGAIN_SECONDS = 5.0
_LOOK_SECONDS = 2.0


class LiveConfig:
    """Follows what the leader publishes. Nothing published (any more) changes nothing.

    Args:
        registry: the classes of this process: what concerns others needs not be known here.

    Attributes:
        overrides: what is said of task classes.
        version: of the document that is applied; empty: none yet.
        problem: why the published one is not applied; empty if it is.
        log_level: of the line that tells of another version.
    """

    def __init__(self, publication: Publication, registry: Registry) -> None:
        self.overrides: Overrides = NONE
        self.version: str = ""
        self.problem: str = ""
        self.log_level: int = logging.INFO
        self._publication = publication
        self._registry = registry
        self._refused = ""
        self._next_look = 0.0
        self._looking = asyncio.Lock()

    @property
    def is_due(self) -> bool:
        """Whether `refresh` would look."""
        return time.monotonic() >= self._next_look

    async def refresh(self) -> None:
        """Look for a newer document, at most once a second; raises nothing if that fails."""
        if not self.is_due:
            return
        async with self._looking:
            if not self.is_due:
                return
            pause = _LOOK_AGAIN_SECONDS
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._follow(await self._publication.version())
                pause = _LOOK_EVERY_SECONDS
            except (NonetError, TimeoutError) as error:
                logger.debug("no look at the published configuration: %s", error)
            finally:
                self._next_look = time.monotonic() + pause

    async def follow(self, version: str) -> None:
        """Apply what is published if `version`, which Redis has, is another one than ours.

        Raises:
            NonetError: Redis does not answer, or refuses.
        """
        async with self._looking:
            await self._follow(version)
            self._next_look = time.monotonic() + _LOOK_EVERY_SECONDS

    async def _follow(self, version: str) -> None:
        if version == self.version:
            self.problem = self._refused = ""
        if version in ("", self.version, self._refused):
            return  # if Redis has lost it, the leader will bring it back
        published = await self._publication.read()
        if published is not None and published.version:
            config = await in_own_thread(_config_class)
            # In a context of its own: whoever looks may be a task, and no line of ours is about it.
            Context().run(self._apply, published.version, config, published.document)

    def _apply(self, version: str, config: type[Config], document: str) -> None:
        try:
            overrides = Overrides.of(config.from_document(document))
            overrides.check(self._registry)
        except ConfigurationError as error:
            self._refuse(version, str(error))
            return
        except BaseException as error:  # a retry policy is code of authors; nothing waits here
            why = summarize(error)
            self._refuse(version, why.brief)
            return
        self.overrides, self.version = overrides, version
        self.problem = self._refused = ""
        logger.log(self.log_level, "configuration %s applied", version)

    def _refuse(self, version: str, problem: str) -> None:
        self.problem, self._refused = problem, version
        applied = self.version or "that of the classes"
        logger.error("configuration %s not applied, %s stays: %s", version, applied, problem)


def _config_class() -> type[Config]:
    """Called in a thread: its first import would block the event loop for up to half a second."""
    from nonet.config.models import Config

    return Config
