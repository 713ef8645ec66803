"""Demand: the leading scheduler publishes how many workers each size wants, and calls for them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType

from nonet.base.errors import NonetError
from nonet.daemon.service import who
from nonet.rules.demand import Demand, Need, desired
from nonet.rules.outcomes import summarize
from nonet.stores.namespace.demand import Demands
from nonet.stores.namespace.events import Events
from nonet.stores.namespace.leadership import DeposedError
from nonet.tasks.overflow import Hook, Overflow

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
# Workers must be missing for so long before a hook is called: most backlogs are gone by then.
_PATIENCE_SECONDS = 1.0
# For so long a hook is waited for; it goes on, but is not called again until it ends.
_HOOK_SECONDS = 30.0


class DemandLoop:
    """What autoscalers read, and the hooks that start workers elsewhere.

    Args:
        hooks: by name, see `nonet.overflow`.
        default_slots: of one worker of each size, where none is there to ask, and none was.
        told_slots: the same for some sizes, whatever the last ones had.
        cooldown: after so many seconds the hooks are called again, if workers still are missing.
        hook_seconds: how long a hook may take.
    """

    def __init__(
        self,
        demands: Demands,
        events: Events,
        hooks: Mapping[str, Hook],
        default_slots: Mapping[str, int],
        cooldown: float,
        *,
        told_slots: Mapping[str, int] = MappingProxyType({}),
        hook_seconds: float = _HOOK_SECONDS,
    ) -> None:
        self._demands = demands
        self._events = events
        self._hooks = hooks
        self._default_slots = default_slots
        self._told_slots = told_slots
        self._hook_seconds = hook_seconds
        self._needs = {size: Need(_PATIENCE_SECONDS, cooldown) for size in default_slots}
        self._calls: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._failed = 0

    async def tick(self, term: str) -> float:
        """Look and publish, and call the hooks where workers have been missing for a moment.

        Raises:
            DeposedError: somebody else leads.
        """
        found = await self._demands.look_at_all()
        wanted = {item.size: desired(item, self._slots(item)) for item in found}
        slots = {item.size: round(item.slots(0)) for item in found}  # 0: nobody says so
        known = {item.size: item.known_slots for item in found}
        news = {size: number for size, number in slots.items() if number not in (0, known[size])}
        failed = self._failed
        if not await self._demands.publish(term, wanted, news, failed):
            raise DeposedError
        self._failed -= failed
        for item in found:
            self._call_for(item, wanted[item.size])
        return _LOOK_SECONDS

    def _slots(self, demand: Demand) -> int:
        """Of one worker, if none is there to ask."""
        told = self._told_slots.get(demand.size, 0)
        return told or demand.known_slots or self._default_slots[demand.size]

    def _call_for(self, demand: Demand, wanted: int) -> None:
        missing = wanted - demand.live
        if not self._hooks or not self._needs[demand.size].is_due(missing, time.monotonic()):
            return
        overflow = Overflow(demand.size, missing, wanted)
        for name, hook in self._hooks.items():
            key = (name, demand.size)
            if key in self._calls:
                logger.warning("overflow hook %s still runs: not called for %s", name, overflow)
                continue
            call = asyncio.create_task(self._call(name, hook, overflow), name=f"overflow {name}")
            self._calls[key] = call
            call.add_done_callback(partial(self._forget, key))

    def _forget(self, key: tuple[str, str], _: asyncio.Task[None]) -> None:
        del self._calls[key]

    async def _call(self, name: str, hook: Hook, overflow: Overflow) -> None:
        """One call, in a thread: whatever a hook does, the scheduler goes on."""
        words = f"{overflow.missing} more {overflow.size} workers, {overflow.desired} in all"
        logger.info("overflow hook %s: %s", name, words)
        await self._log(f"{name}: {words}")
        call = _in_thread(hook, overflow)
        await asyncio.wait({call}, timeout=self._hook_seconds)
        if not call.done():
            await self._tell_failure(name, f"it has not ended within {self._hook_seconds:g} s")
            await asyncio.wait({call})
        elif (error := call.result()) is not None:
            why = summarize(error)
            await self._tell_failure(name, why.brief)

    async def _tell_failure(self, name: str, problem: str) -> None:
        self._failed += 1
        logger.error("overflow hook %s failed, the tasks stay queued: %s", name, problem)
        await self._log(f"{name} failed: {problem}")

    async def _log(self, text: str) -> None:
        events = self._events
        try:
            await events.log("overflow-hook", who(), text)
        except NonetError as error:
            logger.warning("no event shows it: %s", error)


def _in_thread(hook: Hook, overflow: Overflow) -> asyncio.Future[BaseException | None]:
    # A thread of its own: those of the loop's executor may all be taken by code of others.
    threads = ThreadPoolExecutor(1, thread_name_prefix="nonet-task-overflow")
    call = asyncio.get_running_loop().run_in_executor(threads, _run, hook, overflow)
    threads.shutdown(wait=False)
    return call


def _run(hook: Hook, overflow: Overflow) -> BaseException | None:
    """What went wrong, of any kind; returned, as a future cannot hold each exception."""
    try:
        answer = hook(overflow)
        if inspect.isawaitable(answer):
            asyncio.run(_finish(answer))
    except BaseException as error:  # SystemExit of somebody's code ends no daemon
        return error
    return None


async def _finish(answer: Awaitable[object]) -> None:
    await answer
