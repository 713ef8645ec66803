"""Runs the start-up hooks of the application, once for each epoch of Redis."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from nonet.errors import NonetError
from nonet.hooks import Epoch, Hook
from nonet.injection import Injector
from nonet.invoke import invoke
from nonet.outcomes import summarize
from nonet.service import who
from nonet.stores.leadership import Leadership

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_SHORTLY_SECONDS = 0.2


class StartUp:
    """The hooks, and which of them have succeeded in this epoch.

    Args:
        hooks: by name, in the order in which they run.
        injector: provides their parameters.
    """

    def __init__(
        self, hooks: Mapping[str, Hook], leadership: Leadership, injector: Injector
    ) -> None:
        self._hooks = hooks
        self._leadership = leadership
        self._injector = injector
        self._done_in = 0

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
        self._done_in = since
        return _LOOK_SECONDS

    async def _run(self, name: str, epoch: Epoch, term: str, since: int) -> None:
        logger.info("start-up hook %s begins", name)
        threads = ThreadPoolExecutor(1, thread_name_prefix="nonet-task")
        hook = self._hooks[name]
        try:
            async with self._injector.open(hook, values={Epoch: epoch}) as arguments:
                await invoke(hook, arguments, threads)
        except Exception as error:  # the application's own code
            why = summarize(error)
            text = f"{why.type}: {why.text}"
            await self._leadership.hook_ended(term, since, name, who(), text)
            raise NonetError(f"start-up hook {name}: {text}") from error
        finally:
            threads.shutdown(wait=False)
        if not await self._leadership.hook_ended(term, since, name, who()):
            raise NonetError(f"start-up hook {name}: somebody else leads, or Redis was emptied")
        logger.info("start-up hook %s is done", name)
