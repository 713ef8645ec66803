"""Runs the start-up hooks of the application, once for each epoch of Redis."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from nonet.base.errors import NonetError, RegistrationError
from nonet.config.settings import Settings
from nonet.daemon.service import who
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
    """The hooks, and which of them have succeeded in this epoch.

    Args:
        hooks: by name, in the order in which they run.
        injector: provides their parameters.
        long_seconds: how long a hook may run before that is logged.
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
        """Why those who build on the hooks have to wait; empty: all have succeeded."""
        if 0 < self._done_in == self._leadership.epoch.since:
            return ""
        return self._problem or "the start-up hooks have not all run yet"

    async def tick(self, term: str) -> float:
        """Run what has not succeeded yet in this epoch; in order, the first failure ends it.

        Raises:
            NonetError: a hook failed, or somebody else leads.
        """
        epoch = self._leadership.epoch
        since, began = epoch.since, Epoch(epoch.began)
        if self._done_in == since:
            return _LOOK_SECONDS
        finished = await self._leadership.hooks_done(term, since)
        if finished is None:  # Redis was emptied, or somebody else is about to run them
            return _SHORTLY_SECONDS
        for name in self._hooks:
            if name not in finished:
                await self._run(name, began, term, since)
        await self._leadership.forget_hooks(term, self._hooks)  # of an earlier release
        self._done_in, self._problem = since, ""
        return _LOOK_SECONDS

    async def _run(self, name: str, epoch: Epoch, term: str, since: int) -> None:
        logger.info("start-up hook %s begins", name)
        self._problem = self._problem or f"start-up hook {name} runs"
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
            if problem != self._problem:  # it is tried again and again: where it failed, once
                logger.error("%s", problem, exc_info=error)
            self._problem = problem
            raise NonetError(f"start-up hook {name}: {text}") from error
        if not await self._leadership.hook_ended(term, since, name, who()):
            raise NonetError(f"start-up hook {name}: somebody else leads, or Redis was emptied")
        self._problem = ""
        logger.info("start-up hook %s is done", name)

    async def _outcome(self, name: str, epoch: Epoch) -> BaseException | None:
        """What the hook raised, as a value: nothing that it raises may end this process."""
        hook = self._hooks[name]
        threads = ThreadPoolExecutor(1, thread_name_prefix="nonet-task")

        def goes_on(_: Future[Any]) -> None:
            logger.warning("start-up hook %s goes on in its thread, which nothing can end", name)

        try:
            async with self._injector.open(hook, values={Epoch: epoch}) as arguments:
                await invoke(hook, arguments, threads, abandoned=goes_on)
        except BaseException as error:  # the application's own code
            return error
        finally:
            threads.shutdown(wait=False)
        return None

    async def _watch(
        self, name: str, hook: asyncio.Task[BaseException | None], term: str, since: int
    ) -> None:
        """Wait until it ends.

        Raises:
            NonetError: it is to be begun anew, for another epoch or by another leader.
        """
        began, told = time.monotonic(), False
        while not (await asyncio.wait({hook}, timeout=_LOOK_SECONDS))[0]:
            if await self._is_over(term, since):
                raise NonetError(
                    f"start-up hook {name} was cancelled: somebody else leads, or Redis was emptied"
                )
            seconds = time.monotonic() - began
            if seconds > self._long_seconds and not told:
                told = True
                logger.warning("start-up hook %s runs for %.0f s, and goes on", name, seconds)
                with suppress(NonetError):  # only for those who ask
                    await self._leadership.hook_runs(term, since, name, who())

    async def _is_over(self, term: str, since: int) -> bool:
        """Whether what runs for this term and epoch is to be begun anew."""
        if self._leadership.epoch.since != since:
            return True
        try:
            return await self._leadership.hooks_done(term, since) is None
        except NonetError:  # Redis is away: we shall see what it is when it is back
            return False


async def _end(name: str, hook: asyncio.Task[BaseException | None]) -> None:
    """Cancel it unless it has ended; one that does not care is left to itself."""
    if hook.done():
        return
    hook.cancel()
    if not (await asyncio.wait({hook}, timeout=_CANCEL_SECONDS))[0]:
        logger.warning("start-up hook %s does not end although it was cancelled", name)


def checked_hooks(
    settings: Settings, injector: Injector, hooks: Mapping[str, Hook] | None = None
) -> dict[str, Hook]:
    """The start-up hooks by name; the task modules have been imported.

    Args:
        injector: will provide their parameters.
        hooks: None: those that are installed or were imported.

    Raises:
        RegistrationError: one cannot be imported, or called: all others would wait for it, and the
            periodic tasks, too.
    """
    found = startup_hooks(settings.groups) if hooks is None else dict(hooks)
    for name, hook in found.items():
        if problems := injector.check(hook, (Epoch,)):
            raise RegistrationError(
                f"start-up hook {name!r} cannot be called: {'; '.join(problems)}"
            )
    return found
