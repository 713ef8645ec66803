"""A pool of child processes: lent for an attempt, reused or ended afterwards.

While an attempt runs in a fresh child, the next one is forked: the spare. It has received nothing,
so it belongs to no attempt.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nonet.config.settings import Settings
from nonet.daemon.service import retrieve
from nonet.tasks.middleware import Middlewares
from nonet.worker.children.forking import Child, ForkServer, ForkServerError
from nonet.worker.children.process_usage import children_of, resident
from nonet.worker.children.wire import Exited, Kill, Run

logger = logging.getLogger(__name__)

# How long a child may take to exit, and a fork server to report its exit.
_EXIT_SECONDS = 5.0
_BACK_OFF_SECONDS = 2.0
# A child is ended instead of reused if its tasks left more processes than this.
_MOST_LEFT = 50


class Children:
    """A pool of child processes, and the fork server that starts them.

    Args:
        settings: settings of the worker.
        redis_url: URL of its broker.
        middlewares: those of its application, of which children make their own.
    """

    def __init__(self, settings: Settings, redis_url: str, middlewares: Middlewares) -> None:
        self._settings = settings
        self._redis_url = redis_url
        self._middlewares = middlewares
        self._server: ForkServer | None = None
        self._starting = asyncio.Lock()
        self._not_before = 0.0
        self._idle: list[Child] = []
        self._spare: asyncio.Task[Child] | None = None
        self._is_closed = False
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def pids(self) -> list[int]:
        """Process ids of the living children."""
        return self._server.pids if self._server is not None else []

    async def start(self) -> None:
        """Start the fork server, which otherwise starts on first use.

        Raises:
            ForkServerError: the fork server did not start.
        """
        await self._living_server()

    async def close(self) -> None:
        """Kill all children and end the fork server."""
        self._is_closed = True
        for task in list(self._ending):
            task.cancel()
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    @asynccontextmanager
    async def lent(self, *, fresh: bool) -> AsyncIterator[Child]:
        """Lend a child for one attempt; a child that is busy at the end of the block is killed.

        Args:
            fresh: start a new child, and end it with the block.

        Raises:
            ForkServerError: no child could be started.
        """
        child = (None if fresh else self._idle_child()) or await self._spawned(fresh=fresh)
        try:
            yield child
        finally:
            await self._give_back(child, fresh=fresh)

    @staticmethod
    def begin(child: Child, message: Run) -> None:
        """Send an attempt to a child."""
        child.attempts += 1
        child.server.in_flight += 1
        child.is_busy = True
        child.channel.send(message)

    @staticmethod
    def end(child: Child) -> None:
        """Record that an attempt has ended; its deadline stays until the pool has the child."""
        if child.server.is_alive:
            child.server.in_flight -= 1

    @staticmethod
    def ask_to_kill(child: Child) -> None:
        """Tell the fork server to kill a child and all processes that it started."""
        child.server.ask(Kill(child.number))

    async def kill(self, child: Child) -> None:
        """Kill a child and wait until it is dead."""
        self.ask_to_kill(child)
        await self.exit_of(child)

    async def exit_of(self, child: Child) -> Exited | None:
        """Wait for the end of a child that was killed or has disconnected.

        Returns:
            How it ended, or None if its fork server died, too.
        """
        # Escalate: ask the fork server, kill the group from here, kill the fork server.
        for act in (self.ask_to_kill, ForkServer.kill_group, lambda child: child.server.kill()):
            try:
                async with asyncio.timeout(_EXIT_SECONDS):
                    return await asyncio.shield(child.exited)
            except TimeoutError:
                logger.error("child process %d: no report of its end", child.pid)
                act(child)
        return await asyncio.shield(child.exited)

    # ---- the pool -------------------------------------------------------------------------------

    def _idle_child(self) -> Child | None:
        while self._idle:
            child = self._idle.pop()
            if child.server.is_alive and not child.exited.done():
                return child
        return None

    async def _spawned(self, *, fresh: bool) -> Child:
        spawning = asyncio.ensure_future(self._spawn(fresh=fresh))
        try:
            return await asyncio.shield(spawning)
        except asyncio.CancelledError:
            spawning.add_done_callback(self._return_unused)
            raise
        except (OSError, RuntimeError) as error:  # too many files, processes or threads
            raise ForkServerError(f"no child process: {error}") from None

    async def _spawn(self, *, fresh: bool) -> Child:
        server = await self._living_server()
        if not fresh:
            return await server.spawn(is_fresh=False)
        child = await self._take_spare(server) or await server.spawn(is_fresh=True)
        if self._spare is None and not self._is_closed:
            self._spare = asyncio.create_task(server.spawn(is_fresh=True), name="spare child")
            self._spare.add_done_callback(retrieve)
        return child

    async def _take_spare(self, server: ForkServer) -> Child | None:
        """Return the spare, unless it has ended, could not be forked or is of an older server."""
        spare, self._spare = self._spare, None
        if spare is None:
            return None
        try:
            child = await spare
        except (ForkServerError, OSError, RuntimeError):
            return None
        return child if child.server is server and not child.exited.done() else None

    def _return_unused(self, taking: asyncio.Future[Child]) -> None:
        """End a child whose attempt was cancelled before the child was ready."""
        if not taking.cancelled() and taking.exception() is None:
            self._let_end(taking.result())

    async def _give_back(self, child: Child, *, fresh: bool) -> None:
        """Put a child back or end it. A cancellation kills a child that exits too slowly."""
        if not (fresh or child.is_busy or child.exited.done() or self._is_worn_out(child)):
            child.server.board.clear(child.number)
            self._idle.append(child)
            return
        ending = asyncio.ensure_future(self._end(child, fresh=fresh))
        cancelled = None
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError as error:
                cancelled = error
                self.ask_to_kill(child)
        if cancelled is not None:
            raise cancelled
        ending.result()

    async def _end(self, child: Child, *, fresh: bool) -> None:
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
        # Zombies count, too.
        if child.has_processes and len(children_of(child.pid)) > _MOST_LEFT:
            return True
        # Reading its memory takes longer than a short task.
        limit = settings.child_max_rss
        return 0 < limit < child.peak and limit < resident(child.pid)

    def _let_end(self, child: Child) -> None:
        """Let a child exit in the background."""
        child.channel.close()
        task = asyncio.create_task(self._await_exit(child), name=f"end of child {child.number}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _await_exit(self, child: Child) -> None:
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                await asyncio.shield(child.exited)
        except TimeoutError:
            logger.warning("child process %d does not exit: killed", child.pid)
            await self.kill(child)

    # ---- the fork server ------------------------------------------------------------------------

    async def _living_server(self) -> ForkServer:
        async with self._starting:
            if self._server is not None and self._server.is_alive:
                return self._server
            if self._server is not None:
                logger.error("the fork server has died: starting another one")
                await self._server.close()
                self._server, self._idle = None, []
            if time.monotonic() < self._not_before:
                raise ForkServerError("its fork server could not be started a moment ago")
            if self._is_closed:
                raise ForkServerError("the worker is stopping")
            self._not_before = time.monotonic() + _BACK_OFF_SECONDS
            # Stored before it has started, so that `close` ends it.
            self._server = server = ForkServer(self._settings, self._redis_url, self._middlewares)
            await server.start()
            return server
