"""Asks schedules in a thread, with a limit of time: an author's may hang, and any may take long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from nonet.base.errors import ConfigurationError
from nonet.tasks.schedules import SCHEDULES, IntervalSecondsSchedule, TaskScheduleBase

Answer = TypeVar("Answer")

_LONGEST_SECONDS = 2.0
_AT_A_TIME = 16


class Asker:
    """Asks schedules; those that do not answer are not asked again until they do.

    Args:
        longest_seconds: how long a schedule may take to answer.
    """

    def __init__(self, longest_seconds: float = _LONGEST_SECONDS) -> None:
        self._longest_seconds = longest_seconds
        self._of_ours = ThreadPoolExecutor(1, thread_name_prefix="nonet-schedules")
        self._free = asyncio.Semaphore(_AT_A_TIME)
        self._silent: dict[str, asyncio.Future[Any]] = {}

    async def ask(
        self, key: str, schedule: TaskScheduleBase, question: Callable[[], Answer]
    ) -> Answer:
        """What `question` returns or raises.

        Args:
            key: of the entry.
            schedule: whom the question is about.

        Raises:
            ConfigurationError: it does not answer in time, or still has not answered before.
        """
        if type(schedule) is IntervalSecondsSchedule:
            return question()
        if type(schedule) in SCHEDULES.values():  # may take long, and never hangs
            return await asyncio.get_running_loop().run_in_executor(self._of_ours, question)
        if (before := self._silent.get(key)) is not None and not before.done():
            raise self._silence()
        async with self._free:
            answer = self._in_thread(question)
            await asyncio.wait({answer}, timeout=self._longest_seconds)
        if answer.done():
            self._silent.pop(key, None)
            return answer.result()
        self._silent[key] = answer
        raise self._silence()

    @staticmethod
    def _in_thread(question: Callable[[], Answer]) -> asyncio.Future[Answer]:
        threads = ThreadPoolExecutor(1, thread_name_prefix="nonet-task")
        answer = asyncio.get_running_loop().run_in_executor(threads, question)
        threads.shutdown(wait=False)
        # Nobody may be left to hear what it raises.
        answer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return answer

    def _silence(self) -> ConfigurationError:
        return ConfigurationError(
            f"its schedule has not answered for {self._longest_seconds:g} s: next_occurrence must "
            "return at once"
        )
