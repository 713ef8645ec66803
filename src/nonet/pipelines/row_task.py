"""`RowTask`: a task that processes one row of a pipeline, in a worker of its size."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa

from nonet.base.errors import LeaseLostError, NonetError, NotFoundError
from nonet.client.client import Client
from nonet.config.settings import load_settings
from nonet.pipelines.burial import Letters
from nonet.pipelines.definition import check
from nonet.pipelines.dispatch import take
from nonet.pipelines.eligibility import Mains, mains_of
from nonet.pipelines.heartbeat import renewing
from nonet.pipelines.lease import Stale
from nonet.pipelines.leasing import Leasing
from nonet.pipelines.loading import load_pipelines
from nonet.pipelines.pipeline import Pipeline
from nonet.pipelines.pipeline_options import options_of
from nonet.pipelines.processing import Item, Processing
from nonet.pipelines.table_keys import key_from_text
from nonet.tasks.execution import running_context
from nonet.tasks.injection import Injector
from nonet.tasks.task import BaseTask, current_submitter
from nonet.tasks.unique import Unique

logger = logging.getLogger(__name__)


@dataclass
class RowTask(BaseTask):
    """Processes one row of a pipeline: subclass it, and name the subclass in ``process_as``.

    The subclass declares size, priority, time limits, locks and limiters like any task; they hold
    while the row is processed. The lease of the row begins when the task does. The retry policy of
    the pipeline decides when a row whose processing failed is due again; the task itself is not
    retried.

    Args:
        pipeline: name of the pipeline.
        key: primary key of the row, as text.
        series: identifies the state of the row for which the task was submitted.

    Example:
        class ScanVolume(RowTask):
            size = Size.LARGE

            @property
            def execution_locks(self):
                return [*super().execution_locks, MutexLock(LockedObjectType.VOLUME, self.key)]

        class ScanVolumes(Pipeline[Volume]):
            process_as = ScanVolume
    """

    pipeline: str
    key: str
    series: int

    unique = Unique.until_done()

    async def execute(self) -> str:
        """Lease and process the row; return how that ended, e.g. ``done``.

        Raises:
            LeaseLostError: the lease of the row was lost; another worker processes it.
            BaseException: whatever ``process`` raises, after the row was released.
        """
        leasing = Leasing(_pipeline_of(self)(), _mains_of)
        async with renewing(leasing.database) as heartbeat:
            since = time.monotonic()
            key = key_from_text(leasing.table, self.key)
            lease = await take(leasing, key, self.series, since)
            if lease is None:
                return "not due any more"
            running = running_context()
            item = Item(lease, is_alone=running is not None and running.is_alone)
            item.task = asyncio.current_task()
            loop = asyncio.get_running_loop()

            def lose(reason: str) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(item.lose, reason)

            held = leasing.held(lease)
            item.beating = heartbeat.hold(held, leasing.pipeline.lease, since, lose)
            try:
                return await _process(leasing, item)
            finally:
                heartbeat.drop(item.beating)


async def _process(leasing: Leasing, item: Item) -> str:
    client = current_submitter()
    assert isinstance(client, Client)  # a worker has opened it
    cls = type(leasing.pipeline)

    def interval() -> float:
        return options_of(cls, client.live_config.pipelines.get(cls.name), "").interval

    async with Injector() as injector:
        write = partial(Letters(client).write, cls.name)
        processing = Processing(leasing, injector, client, interval, write)
        try:
            outcome = await processing.run(item)
        except Stale:
            raise LeaseLostError(
                f"the lease of row {item.lease.key} was lost: {item.lost}"
            ) from None
        except asyncio.CancelledError:
            # The worker stops, or the task was cancelled.
            await asyncio.shield(_release(leasing, item))
            raise
    if item.error is not None:
        raise item.error
    return outcome


async def _release(leasing: Leasing, item: Item) -> None:
    try:
        await leasing.release([item.lease])
    except NonetError as error:
        logger.warning("row not released, its lease ends: %s", error)


def _pipeline_of(task: RowTask) -> type[Pipeline[Any]]:
    """The pipeline of a task: usually its module has imported it, or an entry point names it."""
    if (found := _imported(task)) is None:
        load_pipelines(load_settings())
        found = _imported(task)
    if found is None:
        raise NotFoundError(
            f"no pipeline named {task.pipeline!r} is processed by {type(task).__name__} here: "
            "define it in the module of the task, or name it as an entry point nonet.pipelines"
        )
    check(found)
    return found


def _imported(task: RowTask) -> type[Pipeline[Any]] | None:
    for cls in _subclasses(Pipeline):
        name = cls.__dict__.get("name", cls.__name__)
        if name == task.pipeline and cls.process_as is type(task):
            return cls
    return None


def _mains_of(table: sa.Table) -> Mains:
    """The imported pipelines whose related rows are in a table."""
    return mains_of(_subclasses(Pipeline), table)


def _subclasses(base: type[Pipeline[Any]]) -> Iterator[type[Pipeline[Any]]]:
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)
