"""All pipelines of one process: `PipelineHost` starts, watches and drains them."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

from nonet.base.actor import process_name
from nonet.base.errors import NonetError, RegistrationError
from nonet.client.client import Client
from nonet.daemon.health import Observed, Report
from nonet.daemon.service import ExitCode, Stop, every, reached
from nonet.pipelines.burial import Letters
from nonet.pipelines.database import RowDatabase
from nonet.pipelines.figures import measure
from nonet.pipelines.heartbeat import Heartbeat, renewing
from nonet.pipelines.hints import Listener
from nonet.pipelines.loading import Pipelines
from nonet.pipelines.pipeline import Pipeline
from nonet.pipelines.pipeline_options import PipelineOptions, options_of
from nonet.pipelines.pipeline_runner import PipelineRunner
from nonet.pipelines.processing import of_row
from nonet.pipelines.room import RowAdmission
from nonet.rules.pauses import EVERYTHING, Pause, of_pipeline
from nonet.rules.pipelines import WITH_ALL, Replica
from nonet.stores.queue.workers import DRAINS
from nonet.tasks.injection import Injector
from nonet.telemetry.metrics import Sample

logger = logging.getLogger(__name__)

_HINT_SECONDS = 1.0
_LAST_TICK_SECONDS = 2.0
_FOLLOW_SECONDS = 1.0
_REPORT_SECONDS = 5.0


class PipelineHost(Observed):
    """Runs pipelines in this process.

    Args:
        client: the client of the open application.
        injector: provides the parameters of ``process``.
        pipelines: the pipelines that this process knows.
        names: the names of the pipelines to run.

    Raises:
        NotFoundError: a name is unknown.
        RegistrationError: a parameter of a ``process`` cannot be provided.

    Attributes:
        id: unique to this process.
        name: ``pid@host``, shown to operators.
    """

    def __init__(
        self, client: Client, injector: Injector, pipelines: Pipelines, names: Sequence[str]
    ) -> None:
        self.id: str = f"pipelines-{secrets.token_hex(6)}"
        self.name: str = process_name()
        self._client = client
        self._classes = [pipelines.find(name) for name in dict.fromkeys(names)]
        for cls in self._classes:
            _check_parameters(cls, injector)
        self._stop = Stop()
        self._is_ready = False
        self._heartbeats: dict[RowDatabase, Heartbeat] = {}
        letters = self._letters = Letters(client)
        self._pauses: Sequence[Pause] = ()
        room = RowAdmission()
        self.runners: list[PipelineRunner] = [
            PipelineRunner(
                pipelines.leasing(cls), injector, client, partial(self._options, cls), room, letters
            )
            for cls in self._classes
        ]

        self._listener = Listener(
            client.hints,
            client.stores.broker.wakes,
            [(runner.table, runner.hinted.set) for runner in self.runners],
        )

    async def run(self, stop: Stop) -> ExitCode:
        """Process rows until a stop is requested, then drain.

        Wait for the databases while they are unavailable.

        Returns:
            OK if all rows in process have ended, FAILED if the grace period cut some off,
            SECOND_SIGNAL if a second signal did.

        Raises:
            ConfigurationError: a database cannot be used.
        """
        self._stop = stop
        async with AsyncExitStack() as closing:
            for database in {cls.database for cls in self._classes}:
                if (reserved := database.reserve()) is not None:
                    closing.enter_context(reserved)
                heartbeat = await closing.enter_async_context(renewing(database))
                self._heartbeats[database] = heartbeat
                if not await reached(stop, database.check):
                    return ExitCode.OK
            logger.info(
                "pipelines %s ready: %s", self.name, ", ".join(c.name for c in self._classes)
            )
            # A paused pipeline must not fetch before its pause is known. Without Redis it may.
            with suppress(NonetError, TimeoutError):
                async with asyncio.timeout(_HINT_SECONDS):
                    await self._follow()
            self._is_ready = True
            loops = [
                asyncio.create_task(runner.run(stop, self._heartbeats[runner.pipeline.database]))
                for runner in self.runners
            ]
            beside = {
                asyncio.create_task(self._listener.run(stop), name="hints"),
                asyncio.create_task(every(stop, "configuration of pipelines", self._follow)),
                asyncio.create_task(every(stop, "report of pipelines", self._report)),
            }
            try:
                await asyncio.gather(*loops)
                return await self._drain(stop)
            finally:
                # They end with their ticks. A call to Redis that is cut off leaves its connection.
                await asyncio.wait({*loops, *beside}, timeout=_LAST_TICK_SECONDS)
                for task in (*loops, *beside):
                    task.cancel()
                await asyncio.wait({*loops, *beside})

    async def _drain(self, stop: Stop) -> ExitCode:
        grace = self._client.settings.grace
        logger.info("draining %d rows", sum(runner.running for runner in self.runners))
        ended = await asyncio.gather(*(r.drain(grace, stop.forced) for r in self.runners))
        with suppress(NonetError, TimeoutError):
            async with asyncio.timeout(_HINT_SECONDS):
                await self._client.hints.send({runner.table for runner in self.runners})
                await self._client.stores.pipelines.leave(self.id)
        if stop.forced.is_set():
            return ExitCode.SECOND_SIGNAL
        return ExitCode.OK if all(ended) else ExitCode.FAILED

    # ---- configuration, pauses and figures ------------------------------------------------------

    def _options(self, cls: type[Pipeline[Any]]) -> PipelineOptions:
        pause = of_pipeline(self._pauses, cls.name)
        by = f"by {pause.who}" if pause is not None else ""
        if pause is not None and pause.what == EVERYTHING:
            by = f"{WITH_ALL} {by}"
        configured = self._client.live_config.pipelines.get(cls.name)
        return options_of(cls, configured, by)

    async def _follow(self) -> float:
        """Read the pauses and the configuration; while Redis is unavailable, keep the last ones."""
        await self._client.live_config.refresh()
        self._pauses = await self._client.stores.controls.load()
        return _FOLLOW_SECONDS

    async def _report(self) -> float:
        """Report to operators, and count rows if that is the turn of this process."""
        reports = self._client.stores.pipelines
        await reports.report(self.id, {r.pipeline.name: self._replica(r) for r in self.runners})
        for runner in self.runners:
            if await reports.may_count(runner.pipeline.name):
                rows = await measure(runner.pipeline)
                await reports.report_rows(runner.pipeline.name, rows)
        return _REPORT_SECONDS

    def _replica(self, runner: PipelineRunner) -> Replica:
        options = self._options(type(runner.pipeline))
        return Replica(
            name=self.name,
            workers=options.workers,
            running=runner.running,
            queued=runner.queued,
            rate=runner.tally.rate,
            wait=runner.tally.wait,
            problem=runner.problem,
            letters=self._letters.problem,
            paused=options.paused,
        )

    # ---- what probes and metrics show -----------------------------------------------------------

    def report(self) -> Report:
        """Report whether this process processes rows, and if not, why."""
        reasons = [
            f"pipeline {runner.pipeline}: {runner.problem}"
            for runner in self.runners
            if runner.problem
        ]
        if self._stop.requested.is_set():
            reasons.insert(0, DRAINS)
        elif not self._is_ready:
            reasons.insert(0, "its databases have not answered yet")
        pipelines = {
            runner.pipeline.name: {"running": runner.running, "queued": runner.queued}
            for runner in self.runners
        }
        return Report(not reasons, reasons, {"worker": self.name, "pipelines": pipelines})

    def stuck(self) -> Sequence[str]:
        """Return why leases are not renewed, if a heartbeat has ended."""
        return [why for heartbeat in self._heartbeats.values() if (why := heartbeat.stuck())]

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of the pipelines."""
        failures = sum(heartbeat.failures for heartbeat in self._heartbeats.values())
        yield "nonet_pipeline_heartbeat_failures_total", (), failures
        for runner in self.runners:
            name, options = runner.pipeline.name, self._options(type(runner.pipeline))
            yield "nonet_pipeline_workers", (name,), options.workers
            yield "nonet_pipeline_rows_running", (name,), runner.running
            yield "nonet_pipeline_rows_queued", (name,), runner.queued
            yield "nonet_pipeline_paused", (name,), float(bool(options.paused))
            yield "nonet_pipeline_database_up", (name,), float(not runner.problem)
            yield "nonet_pipeline_letters_waiting", (name,), float(bool(self._letters.problem))
            yield from runner.tally.samples(name)


def _check_parameters(cls: type[Pipeline[Any]], injector: Injector) -> None:
    if problems := injector.check(of_row(cls().process)):
        raise RegistrationError(f"pipeline {cls.name} ({cls.__module__}): {'; '.join(problems)}")
