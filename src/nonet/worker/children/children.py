"""The child processes of one worker: lent for an attempt, used again or ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nonet.config.settings import Settings
from nonet.worker.children.forking import Child, ForkServer, ForkServerError
from nonet.worker.children.processes import children_of, resident
from nonet.worker.children.wire import Exited, Kill, Run

logger = logging.getLogger(__name__)

# How long a child may take to end by itself, and a fork server to see that one has ended.
_EXIT_SECONDS = 5.0
_BACK_OFF_SECONDS = 2.0
# So many processes may be left of the tasks of a reusable child.
_MOST_LEFT = 50


class Children:
    """A pool of child processes, and the fork server that makes them.

    Args:
        settings: of the worker.
        redis_url: where its broker is.
    """

    def __init__(self, settings: Settings, redis_url: str) -> None:
        self._settings = settings
        self._redis_url = redis_url
        self._server: ForkServer | None = None
        self._starting = asyncio.Lock()
        self._not_before = 0.0
        self._idle: list[Child] = []
        self._is_closed = False
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def pids(self) -> list[int]:
        """Of the child processes that live."""
        return self._server.pids if self._server is not None else []

    async def start(self) -> None:
        """Start the fork server; without this it is started when it is needed.

        Raises:
            ForkServerError: it cannot be started.
        """
        await self._living_server()

    async def close(self) -> None:
        """Kill all that is left."""
        self._is_closed = True
        for task in list(self._ending):
            task.cancel()
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    @asynccontextmanager
    async def lent(self, *, fresh: bool) -> AsyncIterator[Child]:
        """A child for one attempt; one that is busy at the end of the block is killed.

        Args:
            fresh: it has made no attempt and will make no other; at the end it has ended.

        Raises:
            ForkServerError: there is none to be had.
        """
        taking = asyncio.ensure_future(self._take(fresh=fresh))
        try:
            child = await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._return_unused)
            raise
        except (OSError, RuntimeError) as error:  # too many files, processes, threads
            raise ForkServerError(f"no child process: {error}") from None
        try:
            yield child
        finally:
            await self._surely_give_back(child, fresh=fresh)

    @staticmethod
    def begin(child: Child, message: Run) -> None:
        """Let a child make an attempt."""
        child.attempts += 1
        child.server.in_flight += 1
        child.is_busy = True
        child.channel.send(message)

    @staticmethod
    def end(child: Child) -> None:
        """An attempt of a child is over; its lease lasts until the child is given back."""
        if child.server.is_alive:
            child.server.in_flight -= 1

    @staticmethod
    def ask_to_kill(child: Child) -> None:
        """Have a child killed, with all that it has started."""
        child.server.ask(Kill(child.number))

    async def kill(self, child: Child) -> None:
        """Kill a child, and see that it is dead."""
        self.ask_to_kill(child)
        await self.exit_of(child)

    async def exit_of(self, child: Child) -> Exited | None:
        """How a child ended that has closed its connection, or was killed; None: nobody knows."""
        for act in (self.ask_to_kill, ForkServer.kill_group, _end_server):
            try:
                async with asyncio.timeout(_EXIT_SECONDS):
                    return await asyncio.shield(child.exited)
            except TimeoutError:
                logger.error("child process %d: nobody tells of its end", child.pid)
                act(child)
        return await asyncio.shield(child.exited)

    # ---- the pool -------------------------------------------------------------------------------

    async def _take(self, *, fresh: bool) -> Child:
        while self._idle and not fresh:
            child = self._idle.pop()
            if not child.exited.done():
                return child
        return await (await self._living_server()).spawn(is_fresh=fresh)

    def _return_unused(self, taking: asyncio.Future[Child]) -> None:
        """Nobody wants it any more."""
        if not taking.cancelled() and taking.exception() is None:
            self._let_end(taking.result())

    async def _surely_give_back(self, child: Child, *, fresh: bool) -> None:
        """Who is cancelled meanwhile waits all the same, but not for a child that lingers."""
        if not (fresh or child.is_busy or child.exited.done() or self._is_worn_out(child)):
            child.server.board.clear(child.number)
            self._idle.append(child)
            return
        giving = asyncio.ensure_future(self._give_back(child, fresh=fresh))
        cancelled = None
        while not giving.done():
            try:
                await asyncio.shield(giving)
            except asyncio.CancelledError as error:
                cancelled = error
                self.ask_to_kill(child)
        if cancelled is not None:
            raise cancelled
        giving.result()

    async def _give_back(self, child: Child, *, fresh: bool) -> None:
        try:
            if child.is_busy:
                await self.kill(child)
            elif fresh:
                child.channel.close()
                await self._await_exit(child)
            else:
                self._let_end(child)
        finally:
            child.server.board.clear(child.number)

    def _is_worn_out(self, child: Child) -> bool:
        settings = self._settings
        if 0 < settings.child_max_tasks <= child.attempts:
            return True
        if len(children_of(child.pid)) > _MOST_LEFT:  # zombies too, which nobody there waits for
            return True
        return 0 < settings.child_max_rss < resident(child.pid)

    def _let_end(self, child: Child) -> None:
        """Let a child end by itself, while the work goes on."""
        child.channel.close()
        task = asyncio.create_task(self._await_exit(child), name=f"end of child {child.number}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _await_exit(self, child: Child) -> None:
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                await asyncio.shield(child.exited)
        except TimeoutError:
            logger.warning("child process %d does not end by itself: killed", child.pid)
            await self.kill(child)

    # ---- the fork server ------------------------------------------------------------------------

    async def _living_server(self) -> ForkServer:
        async with self._starting:
            if self._server is not None and self._server.is_alive:
                return self._server
            if self._server is not None:
                logger.error("the fork server is gone: another one is started")
                await self._server.close()
                self._server, self._idle = None, []
            if time.monotonic() < self._not_before:
                raise ForkServerError("its fork server could not be started a moment ago")
            if self._is_closed:
                raise ForkServerError("the worker stops")
            self._not_before = time.monotonic() + _BACK_OFF_SECONDS
            # Kept before it has started: who closes the pool meanwhile ends it.
            self._server = server = ForkServer(self._settings, self._redis_url)
            await server.start()
            return server


def _end_server(child: Child) -> None:
    """It does nothing any more; another one is started when it is needed."""
    child.server.kill()
