"""Pipelines of `row_tables` for real processes, which note in a file which rows they hold.

Variables: ROWS_DB_URL, ROWS_NOTES (the file), ROWS_LEASE, ROWS_SECONDS (the longest row),
ROWS_ATTEMPTS, ROWS_POISON (rows that kill their process, such as ``jobs:1,fleets:2``).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from row_tables import Fleet, Fleets, Instance, Instances, Job, Jobs

from nonet.pipelines import Changes, Pipeline, RowDatabase

database = RowDatabase(lambda: os.environ["ROWS_DB_URL"], connections=4)
_LEASE = float(os.environ.get("ROWS_LEASE", "10"))
_SECONDS = float(os.environ.get("ROWS_SECONDS", "0.2"))
_POISON = os.environ.get("ROWS_POISON", "").split(",")


def _note(event: str, row: Any) -> None:
    """Append a line; its time is that of the machine, which all processes share."""
    line = f"{time.monotonic()} {os.getpid()} {event} {row.__tablename__} {row.id}\n"
    file = os.open(os.environ["ROWS_NOTES"], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(file, line.encode())
    os.close(file)


@contextmanager
def _noted(row: Any) -> Iterator[None]:
    _note("begin", row)
    try:
        yield
    finally:
        _note("end", row)


class Noting:
    """Holds a row for a while, and is due again soon."""

    database: ClassVar[RowDatabase] = database
    lease = _LEASE
    workers = 10
    max_attempts = int(os.environ.get("ROWS_ATTEMPTS", "1000"))

    def needs_related(self, row: Any) -> bool:
        """Note when it tries to lease its related rows."""
        _note("try", row)
        return True

    async def process(self, row: Any) -> Changes:
        """Note when it begins and ends."""
        with _noted(row):
            if f"{row.__tablename__}:{row.id}" in _POISON:
                await asyncio.sleep(0.3 * _SECONDS)
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(random.uniform(0.5, 1) * _SECONDS)
        return Changes().again(random.uniform(0.2, 1))


class NotingFleets(Noting, Fleets):
    """Holds the instances of a fleet, too."""


class NotingInstances(Noting, Instances):
    """Holds an instance."""


class NotingJobs(Noting, Jobs):
    """Holds the instance of a job, too."""


MODELS = (Fleet, Instance, Job)
PIPELINES: tuple[type[Pipeline[Any]], ...] = (NotingFleets, NotingInstances, NotingJobs)
