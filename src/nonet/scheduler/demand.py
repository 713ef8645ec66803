"""Publish how many workers each size needs, and call the overflow hooks; runs in the leader."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Mapping
from functools import partial
from types import MappingProxyType

from nonet.base.actor import who
from nonet.base.errors import NonetError
from nonet.rules.demand import Demand, Need, desired
from nonet.rules.outcomes import summarize
from nonet.scheduler.own_thread import in_thread_of_its_own
from nonet.stores.namespace.demand import Demands
from nonet.stores.namespace.events import Events
from nonet.stores.namespace.leadership import DeposedError
from nonet.tasks.overflow import Hook, Overflow

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
# How long workers must be missing before a hook is called: most backlogs are gone by then.
_MISSING_SECONDS = 1.0
# How long a hook may run before it counts as failed. It is not called again until it ends.
_HOOK_SECONDS = 30.0


class DemandLoop:
    """Publish the demand for autoscalers, and call hooks that start workers elsewhere.

    Args:
        hooks: overflow hooks by name, see `nonet.overflow`.
        default_slots: slots of one worker of each size, if no worker has ever registered.
        configured_slots: slots from the settings; they override the slots of the last workers.
        cooldown: seconds between two calls of a hook while workers are still missing.
    """

    def __init__(
        self,
        demands: Demands,
        events: Events,
        hooks: Mapping[str, Hook],
        default_slots: Mapping[str, int],
        cooldown: float,
        *,
        configured_slots: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._demands = demands
        self._events = events
        self._hooks = hooks
        self._default_slots = default_slots
        self._configured_slots = configured_slots
        self._needs = {size: Need(_MISSING_SECONDS, cooldown) for size in default_slots}
        self._calls: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._failed = 0

    async def tick(self, term: str) -> float:
        """Publish the demand, and call the hooks where workers have been missing for a moment.

        Raises:
            DeposedError: another scheduler leads.
        """
        found = await self._demands.look_at_all()
        wanted = {item.size: desired(item, self._slots(item)) for item in found}
        slots = {item.size: round(item.slots(0)) for item in found}  # 0: unknown
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
        """Return the slots of one worker, for a size without workers."""
        configured = self._configured_slots.get(demand.size, 0)
        return configured or demand.known_slots or self._default_slots[demand.size]

    def _call_for(self, demand: Demand, wanted: int) -> None:
        missing = wanted - demand.live
        if not self._hooks or not self._needs[demand.size].is_due(missing, time.monotonic()):
            return
        overflow = Overflow(demand.size, missing, wanted)
        for name, hook in self._hooks.items():
            key = (name, demand.size)
            if key in self._calls:
                logger.warning(
                    "overflow hook still runs, not called again: hook=%s size=%s", name, key[1]
                )
                continue
            call = asyncio.create_task(self._call(name, hook, overflow), name=f"overflow {name}")
            self._calls[key] = call
            call.add_done_callback(partial(self._forget, key))

    def _forget(self, key: tuple[str, str], _: asyncio.Task[None]) -> None:
        del self._calls[key]

    async def _call(self, name: str, hook: Hook, overflow: Overflow) -> None:
        """Call a hook in a thread; a hook that fails or hangs does not affect the scheduler."""
        words = f"{overflow.missing} more {overflow.size} workers, {overflow.desired} in all"
        logger.info("called overflow hook: hook=%s demand=%s", name, words)
        await self._log(f"{name}: {words}")
        call = in_thread_of_its_own(partial(_run, hook, overflow))
        await asyncio.wait({call}, timeout=_HOOK_SECONDS)
        if not call.done():
            await self._report_failure(name, f"it has not returned within {_HOOK_SECONDS:g} s")
            await asyncio.wait({call})
        elif (error := call.result()) is not None:
            why = summarize(error)
            await self._report_failure(name, why.brief)

    async def _report_failure(self, name: str, problem: str) -> None:
        self._failed += 1
        logger.error("overflow hook failed, the tasks stay queued: hook=%s error=%s", name, problem)
        await self._log(f"{name} failed: {problem}")

    async def _log(self, text: str) -> None:
        try:
            await self._events.log("overflow-hook", who(), text)
        except NonetError as error:
            logger.warning("event of overflow hook not written: error=%s", error)


def _run(hook: Hook, overflow: Overflow) -> BaseException | None:
    """Call a hook and return its exception, because a future cannot hold every exception."""
    try:
        answer = hook(overflow)
        if inspect.isawaitable(answer):
            asyncio.run(_finish(answer))
    except BaseException as error:  # a SystemExit of a hook must not end the scheduler
        return error
    return None


async def _finish(answer: Awaitable[object]) -> None:
    await answer
