"""Ask schedules for their next occurrence in a thread, with a time limit.

A schedule of an author may hang, and any schedule may take long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nonet.base.errors import ConfigurationError
from nonet.daemon.service import retrieve
from nonet.scheduler.own_thread import Answer, in_thread_of_its_own
from nonet.tasks.schedules import SCHEDULES, CronSchedule, IntervalSecondsSchedule, TaskScheduleBase

_LONGEST_SECONDS = 2.0
_AT_A_TIME = 16


class Asker:
    """Ask schedules. A schedule that has not answered in time is not asked again until it
    answers."""

    def __init__(self) -> None:
        self._of_ours = ThreadPoolExecutor(1, thread_name_prefix="nonet-schedules")
        self._free = asyncio.Semaphore(_AT_A_TIME)
        self._silent: dict[str, asyncio.Future[Any]] = {}

    async def ask(
        self,
        key: str,
        schedule: TaskScheduleBase,
        question: Callable[[], Answer],
        *,
        is_brief: bool = False,
    ) -> Answer:
        """Return what `question` returns, or raise what it raises.

        Args:
            key: key of the entry.
            schedule: the schedule that the question is about.
            is_brief: the question is for a few occurrences only. A cron schedule answers it in
                microseconds; a thread would take longer to start on it.

        Raises:
            ConfigurationError: the schedule does not answer in time, or has not answered an earlier
                question yet.
        """
        if type(schedule) is IntervalSecondsSchedule or (
            is_brief and type(schedule) is CronSchedule
        ):
            return question()
        if type(schedule) in SCHEDULES.values():  # may take long, but never hangs
            return await asyncio.get_running_loop().run_in_executor(self._of_ours, question)
        if (before := self._silent.get(key)) is not None and not before.done():
            raise self._silence()
        async with self._free:
            answer = in_thread_of_its_own(question)
            answer.add_done_callback(retrieve)  # its error, if it ends after the time limit
            await asyncio.wait({answer}, timeout=_LONGEST_SECONDS)
        if answer.done():
            self._silent.pop(key, None)
            return answer.result()
        self._silent[key] = answer
        raise self._silence()

    def _silence(self) -> ConfigurationError:
        return ConfigurationError(
            f"its schedule has not answered for {_LONGEST_SECONDS:g} s: next_occurrence must "
            "return at once"
        )
