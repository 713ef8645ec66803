"""Follow the configuration that the leader publishes in Redis."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextvars import Context
from typing import TYPE_CHECKING

from nonet.base.errors import ConfigurationError, NonetError
from nonet.base.loop import in_own_thread
from nonet.base.synchronous import Gate, timeout
from nonet.config.overrides import NONE, Overrides
from nonet.rules.fairness import BY_VO
from nonet.rules.outcomes import summarize
from nonet.stores.namespace.publication import Publication
from nonet.tasks.registry import Registry

if TYPE_CHECKING:
    from nonet.config.models import Config, PipelineConfig

logger = logging.getLogger(__name__)

_REFRESH_SECONDS = 1.0
# While Redis does not answer, poll less often, so that submissions of durable tasks rarely wait.
_RETRY_SECONDS = 5.0
_TIMEOUT_SECONDS = 2.0


class LiveConfig:
    """The published configuration as this process applies it.

    If the document disappears from Redis, the last one stays in force.

    Args:
        registry: the classes of this process; entries for other classes are ignored.

    Attributes:
        overrides: configured values that replace attributes of task classes.
        pipelines: configured values by pipeline.
        tenants_by: what identifies a tenant, see `nonet.rules.fairness`.
        named_tenants: the tenants that the configuration names.
        routes: namespaces of tenants, see `nonet.rules.routing`; empty: all are here.
        version: version of the applied document; empty: none.
        problem: why the published document is not applied; empty if it is.
        log_level: level of the log line about a new version.
    """

    def __init__(self, publication: Publication, registry: Registry) -> None:
        self.overrides: Overrides = NONE
        self.pipelines: Mapping[str, PipelineConfig] = {}
        self.tenants_by: str = BY_VO
        self.named_tenants: Sequence[str] = ()
        self.routes: Mapping[str, str] = {}
        self.version: str = ""
        self.problem: str = ""
        self.log_level: int = logging.INFO
        self._publication = publication
        self._registry = registry
        self._refused = ""
        self._next_refresh = 0.0
        self._refreshing = Gate()

    @property
    def is_due(self) -> bool:
        """Whether `refresh` would query Redis."""
        return time.monotonic() >= self._next_refresh

    async def refresh(self) -> None:
        """Apply a newer document if there is one; query Redis at most once a second.

        Errors are only logged.
        """
        if not self.is_due:
            return
        async with self._refreshing:
            if not self.is_due:
                return
            pause = _RETRY_SECONDS
            try:
                async with timeout(_TIMEOUT_SECONDS):
                    await self._follow(await self._publication.version())
                pause = _REFRESH_SECONDS
            except (NonetError, TimeoutError) as error:
                logger.debug("published configuration not read error=%s", error)
            finally:
                self._next_refresh = time.monotonic() + pause

    async def follow(self, version: str) -> None:
        """Apply the published document if its `version` differs from the applied one.

        Raises:
            NonetError: Redis does not answer or refuses.
        """
        async with self._refreshing:
            await self._follow(version)
            self._next_refresh = time.monotonic() + _REFRESH_SECONDS

    async def _follow(self, version: str) -> None:
        if version == self.version:
            self.problem = self._refused = ""
        if version in ("", self.version, self._refused):
            return  # an empty version: Redis lost the document, and the leader will publish again
        published = await self._publication.read()
        if published is not None and published.version:
            config = await in_own_thread(config_class)
            # Use an empty context: a submitting task may run this, and the log lines must not
            # carry the id of that task.
            Context().run(self._apply, published.version, config, published.document)

    def _apply(self, version: str, config: type[Config], document: str) -> None:
        try:
            read = config.from_document(document)
            overrides = Overrides.of(read)
            overrides.check(self._registry)
        except ConfigurationError as error:
            self._refuse(version, str(error))
            return
        except BaseException as error:  # a user's retry policy can raise anything
            self._refuse(version, summarize(error).brief)
            return
        self.overrides, self.version = overrides, version
        self.pipelines = read.pipelines
        self.tenants_by, self.named_tenants = read.tenants_by, read.named_tenants
        self.routes = read.namespaces
        self.problem = self._refused = ""
        logger.log(self.log_level, "configuration applied version=%s", version)

    def _refuse(self, version: str, problem: str) -> None:
        self.problem, self._refused = problem, version
        applied = self.version or "none"
        logger.error(
            "configuration not applied version=%s still_applied=%s: %s", version, applied, problem
        )


def config_class() -> type[Config]:
    """Import the models of the configuration: up to half a second; in a loop, use a thread."""
    from nonet.config.models import Config  # 0.1 s; most processes have none

    return Config
