"""Run the start-up hooks of the application, once in each epoch of Redis."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from nonet.base.actor import who
from nonet.base.errors import NonetError, RegistrationError
from nonet.config.settings import Settings
from nonet.rules.outcomes import summarize
from nonet.stores.namespace.leadership import Leadership
from nonet.tasks.hooks import Epoch, Hook, startup_hooks
from nonet.tasks.injection import Injector
from nonet.tasks.invoke import invoke

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_SHORTLY_SECONDS = 0.2
_LONG_SECONDS = 60.0
# How long a cancelled hook may take to close what it has opened.
_CANCEL_SECONDS = 1.0


class StartUp:
    """Run the hooks, and remember which of them have succeeded in this epoch.

    Args:
        hooks: hooks by name, in the order in which they run.
        injector: provides their parameters.
        long_seconds: how long a hook may run before a warning is logged.
    """

    def __init__(
        self,
        hooks: Mapping[str, Hook],
        leadership: Leadership,
        injector: Injector,
        long_seconds: float = _LONG_SECONDS,
    ) -> None:
        self._hooks = hooks
        self._leadership = leadership
        self._injector = injector
        self._long_seconds = long_seconds
        self._done_in = 0
        self._problem = ""

    def not_ready(self) -> str:
        """Why periodic tasks must wait for the hooks; empty if all have succeeded."""
        if 0 < self._done_in == self._leadership.epoch.since:
            return ""
        return self._problem or "not all start-up hooks have run yet"

    async def tick(self, term: str) -> float:
        """Run the hooks that have not succeeded in this epoch, in order; stop at the first failure.

        Raises:
            NonetError: a hook failed, or another scheduler leads.
        """
        epoch = self._leadership.epoch
        since, began = epoch.since, Epoch(epoch.began)
        if self._done_in == since:
            return _LOOK_SECONDS
        finished = await self._leadership.hooks_done(term, since)
        if finished is None:  # Redis was emptied, or another scheduler is about to run them
            return _SHORTLY_SECONDS
        for name in self._hooks:
            if name not in finished:
                await self._run(name, began, term, since)
        await self._leadership.forget_hooks(term, self._hooks)  # drop hooks of an earlier release
        self._done_in, self._problem = since, ""
        return _LOOK_SECONDS

    async def _run(self, name: str, epoch: Epoch, term: str, since: int) -> None:
        logger.info("start-up hook begins: hook=%s", name)
        self._problem = self._problem or f"start-up hook {name} is running"
        hook = asyncio.create_task(self._outcome(name, epoch), name=f"start-up hook {name}")
        try:
            await self._watch(name, hook, term, since)
        finally:
            await _end(name, hook)
        error = hook.result()
        if error is not None:
            why = summarize(error)
            text = why.brief
            await self._leadership.hook_ended(term, since, name, who(), text)
            problem = f"start-up hook {name} failed: {text}"
            if problem != self._problem:  # it is retried: log the traceback once
                logger.error("%s", problem, exc_info=error)
            self._problem = problem
            raise NonetError(f"start-up hook {name}: {text}") from error
        if not await self._leadership.hook_ended(term, since, name, who()):
            raise NonetError(f"start-up hook {name}: another scheduler leads, or Redis was emptied")
        self._problem = ""
        logger.info("start-up hook done: hook=%s", name)

    async def _outcome(self, name: str, epoch: Epoch) -> BaseException | None:
        """Run a hook and return its exception, because no exception of it may end this process."""
        hook = self._hooks[name]
        threads = ThreadPoolExecutor(1, thread_name_prefix="nonet-task")

        def log_abandoned(_: Future[Any]) -> None:
            logger.warning("start-up hook continues in its thread: hook=%s", name)

        try:
            async with self._injector.open(hook, values={Epoch: epoch}) as arguments:
                await invoke(hook, arguments, threads, abandoned=log_abandoned)
        except BaseException as error:  # the application's own code
            return error
        finally:
            threads.shutdown(wait=False)
        return None

    async def _watch(
        self, name: str, hook: asyncio.Task[BaseException | None], term: str, since: int
    ) -> None:
        """Wait until the hook ends.

        Raises:
            NonetError: it must run again, in another epoch or in another leader.
        """
        began, is_logged = time.monotonic(), False
        while not (await asyncio.wait({hook}, timeout=_LOOK_SECONDS))[0]:
            if await self._is_over(term, since):
                raise NonetError(
                    f"start-up hook {name} cancelled: another scheduler leads, or Redis was emptied"
                )
            seconds = time.monotonic() - began
            if seconds > self._long_seconds and not is_logged:
                is_logged = True
                logger.warning("start-up hook still runs: hook=%s seconds=%.0f", name, seconds)
                with suppress(NonetError):  # only shown by commands
                    await self._leadership.hook_runs(term, since, name, who())

    async def _is_over(self, term: str, since: int) -> bool:
        """Whether another epoch or another leader makes this run pointless."""
        if self._leadership.epoch.since != since:
            return True
        try:
            return await self._leadership.hooks_done(term, since) is None
        except NonetError:  # unknown while Redis does not answer
            return False


async def _end(name: str, hook: asyncio.Task[BaseException | None]) -> None:
    """Cancel a hook unless it has ended; abandon it if it ignores the cancellation."""
    if hook.done():
        return
    hook.cancel()
    if not (await asyncio.wait({hook}, timeout=_CANCEL_SECONDS))[0]:
        logger.warning("start-up hook ignores its cancellation: hook=%s", name)


def checked_hooks(
    settings: Settings, injector: Injector, hooks: Mapping[str, Hook] | None = None
) -> dict[str, Hook]:
    """Check the start-up hooks, and return them by name. Task modules must be imported already.

    Args:
        injector: will provide their parameters.
        hooks: None takes those that are installed or were imported.

    Raises:
        RegistrationError: a hook cannot be imported or called. All others and the periodic tasks
            would wait for it.
    """
    found = startup_hooks(settings.groups) if hooks is None else dict(hooks)
    for name, hook in found.items():
        if problems := injector.check(hook, (Epoch,)):
            raise RegistrationError(
                f"start-up hook {name!r} cannot be called: {'; '.join(problems)}"
            )
    return found
