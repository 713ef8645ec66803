"""Count the due rows of pipelines that no process runs: a duty of the leader."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from nonet.base.errors import NonetError, RegistrationError
from nonet.pipelines.figures import measure
from nonet.pipelines.pipeline import Pipeline
from nonet.stores.namespace.pipelines import PipelineReports
from nonet.telemetry.failure_log import FailureLog

logger = logging.getLogger(__name__)

_COUNT_SECONDS = 5.0

Known = Mapping[str, type[Pipeline[Any]]]


class UnrunPipelines:
    """Counts the rows of known pipelines that no process has reported lately.

    Processes count the rows of the pipelines that they run; rows of other pipelines become due,
    too.

    Args:
        reports: what the processes that run pipelines report.
        load: loads the pipelines that this process knows.
    """

    def __init__(self, reports: PipelineReports, load: Callable[[], Known]) -> None:
        self._reports = reports
        self._load = load
        self._known: Known | None = None
        self._log = FailureLog("count of rows of pipelines that no process runs", logger)

    async def tick(self, term: str) -> float:
        """Count once; return the seconds until the next call."""
        if self._known is None:
            try:
                self._known = self._load()
            except RegistrationError as error:
                logger.error("pipelines not loaded, so their rows are not counted: %s", error)
                self._known = {}
        if not self._known:
            return _COUNT_SECONDS
        running = {found.name for found in await self._reports.read() if found.replicas}
        for name, cls in self._known.items():
            if name not in running:
                await self._count(name, cls)
        return _COUNT_SECONDS

    async def _count(self, name: str, cls: type[Pipeline[Any]]) -> None:
        try:
            async with cls.database.used_once(name):
                rows = await measure(cls())
        except NonetError as error:  # this process may have no access to that database
            self._log.failed(error, _COUNT_SECONDS)
            return
        self._log.succeeded()
        await self._reports.report_rows(name, rows)
