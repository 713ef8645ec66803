"""Run attempts in a child process, as the worker requests; suspects may share one child.

The child executes and concludes with the same code as the worker. To change the locks of a task, it
asks the worker.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import resource
import socket
import time
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from nonet.base.errors import NonetError
from nonet.base.loop import run
from nonet.base.messages.message import Usage
from nonet.client.async_application import AsyncApplication
from nonet.rules.outcomes import DONE, Failed, HandedBack, Outcome
from nonet.tasks.injection import Injector
from nonet.tasks.progress import Said
from nonet.telemetry.logs import keep_logs, process_description
from nonet.telemetry.running_middleware import take_failures
from nonet.telemetry.tracing import CHILD_FLUSH_SECONDS, continue_trace, exporting_traces
from nonet.worker.attempt.around import error_of
from nonet.worker.attempt.attempt import Attempt
from nonet.worker.attempt.conclusion import Concluder, Conclusion
from nonet.worker.attempt.execute import Tools, carry_out, identify
from nonet.worker.attempt.log_keeping import INTERVAL_SECONDS, with_new_lines
from nonet.worker.children.board import Board
from nonet.worker.children.process_usage import begin_peak, has_children, peak
from nonet.worker.children.wire import (
    FOR_CHILD,
    Admit,
    Admitted,
    Channel,
    Concluded,
    Cut,
    Hello,
    Judge,
    Logged,
    Message,
    Progressed,
    Run,
)

logger = logging.getLogger(__name__)


def serve(app: AsyncApplication, connection: socket.socket, board: Board, number: int) -> None:
    """Run attempts for the worker at the other end of `connection` until it closes it."""
    serving = _serve(app, connection, board, number)
    run(serving, with_uvloop=app.settings.uvloop)


async def _serve(
    app: AsyncApplication, connection: socket.socket, board: Board, number: int
) -> None:
    connection.setblocking(False)
    # Opened in the child: exporters use a thread, and threads do not survive a fork.
    traces = exporting_traces(
        "nonet-worker", process_description(), flush_seconds=CHILD_FLUSH_SECONDS
    )
    logging.getLogger("nonet.telemetry.tracing").setLevel(logging.ERROR)  # the worker logs it
    async with traces, app, app.injector() as injector:
        app.client.live_config.log_level = logging.DEBUG  # the worker logs it already
        with ThreadPoolExecutor(2, thread_name_prefix="nonet-task") as threads:
            await _Serving(app, injector, threads, board, number).run(connection)


class _Serving:
    def __init__(
        self,
        app: AsyncApplication,
        injector: Injector,
        threads: ThreadPoolExecutor,
        board: Board,
        number: int,
    ) -> None:
        self._client = app.client
        self._concluder = Concluder(app.client)
        self._channel = Channel(FOR_CHILD, self._process)
        self._closed = asyncio.Event()
        self._board = board
        self._number = number
        self._attempts: dict[str, Attempt] = {}  # by fence
        self._admitted: dict[str, asyncio.Future[Admitted]] = {}
        self._left_over: set[str] = set()
        self._work: set[asyncio.Task[None]] = set()
        self._tools = Tools(
            app.client, injector, threads, self._admit, self._leave_over, obey_seconds=None
        )

    async def run(self, connection: socket.socket) -> None:
        """Process messages until the worker closes the connection."""
        await self._channel.open(connection)
        self._channel.send(Hello())
        logs = asyncio.create_task(self._send_logs())
        await self._closed.wait()
        logs.cancel()
        for work in self._work:
            work.cancel()

    def _process(self, message: Message | None) -> None:
        if isinstance(message, Run):
            self._begin(self._run(message), message.delivery.id)
        elif isinstance(message, Judge):
            self._begin(self._judge(message), message.delivery.id)
        elif isinstance(message, Cut):
            self._cut(message)
        elif isinstance(message, Admitted):
            if (admitted := self._admitted.pop(message.fence, None)) and not admitted.done():
                admitted.set_result(message)
        else:
            self._closed.set()

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        # A new context, so that no attempt sees the context variables of another one.
        task = asyncio.create_task(work, name=name, context=contextvars.Context())
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        task.add_done_callback(_end_if_broken)

    async def _run(self, message: Run) -> None:
        keep_logs()  # an earlier attempt in this process may have configured logging
        delivery = message.delivery
        self._board.receive(self._number)
        attempt = Attempt(delivery, message.since)
        self._attempts[delivery.fence] = attempt
        attempt.context.is_alone = not message.is_shared
        continue_trace(message.trace)
        attempt.context.check_lease_with(lambda: self._check(attempt))
        attempt.context.make_workdir_in(message.workdir)
        attempt.context.pass_progress_to(partial(self._report, delivery.fence))
        begin_peak()
        began, cpu = time.monotonic(), _cpu_seconds()
        outcome = await self._outcome(attempt, message.config_version)
        wall = time.monotonic() - began
        # CPU time and memory of a shared process belong to no attempt.
        of_process = () if message.is_shared else (round(_cpu_seconds() - cpu, 6), peak())
        attempt.usage = Usage(wall, *of_process)
        del self._attempts[delivery.fence]
        conclusion = self._concluder.conclude(attempt, outcome)
        if attempt.around is not None:
            await attempt.around.close(
                conclusion.settlement, error_of(outcome), is_lost=bool(conclusion.lost)
            )
            conclusion.middleware_failures = take_failures()
        is_left_over = delivery.fence in self._left_over
        if is_left_over or attempt.is_asked or attempt.timed_out is not None:
            conclusion.is_left_over = True
        else:
            attempt.context.remove_workdir()
        self._send_log(attempt)
        if conclusion.settlement is not DONE and attempt.context.reported is not None:
            # The worker makes this result document. The newest report may still wait in here.
            self._report(delivery.fence, *attempt.context.reported)
        self._end(attempt, conclusion)

    def _report(self, fence: str, fraction: float | None, said: Said) -> None:
        # Sent at once, even if the code of the attempt blocks this event loop.
        self._channel.send(Progressed(fence, fraction, said))

    async def _send_logs(self) -> None:
        """Send what running attempts log, so that the worker has it if this process dies."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            for attempt in with_new_lines(self._attempts.values()):
                self._send_log(attempt)

    def _send_log(self, attempt: Attempt) -> None:
        if attempt.context.log is not None:
            self._channel.send(Logged(attempt.delivery.fence, attempt.context.log.take()))

    async def _outcome(self, attempt: Attempt, version: str) -> Outcome:
        try:
            await self._client.live_config.follow(version)
        except NonetError as error:
            return HandedBack(f"no configuration: {error}")
        try:
            return await carry_out(attempt, self._tools)
        except GeneratorExit as error:  # see Runner._run
            return Failed(error)

    async def _judge(self, message: Judge) -> None:
        attempt = Attempt(message.delivery, time.monotonic())
        await self._client.live_config.follow(message.config_version)
        if identify(attempt, self._tools) is None:
            outcome = Failed(message.crash.error(), crashed=not message.is_counted)
            self._end(attempt, self._concluder.conclude(attempt, outcome))

    def _end(self, attempt: Attempt, conclusion: Conclusion) -> None:
        self._channel.send(Concluded(attempt.delivery.fence, conclusion, has_children()))

    def _cut(self, message: Cut) -> None:
        attempt = self._attempts.get(message.fence)
        if attempt is not None and message.is_cancelled:
            attempt.cancel(message.reason)
        elif attempt is not None:
            attempt.cut(message.reason)

    def _check(self, attempt: Attempt) -> None:
        if time.monotonic() >= self._board.lease(self._number):
            attempt.context.lose_lease("the lease could not be renewed in time")

    async def _admit(self, attempt: Attempt, lines: str) -> str | None:
        fence = attempt.delivery.fence
        admitted = self._admitted[fence] = asyncio.get_running_loop().create_future()
        self._channel.send(Admit(fence, lines))
        answer: Admitted = await admitted
        if answer.refused is None:
            attempt.relock(answer.locks, answer.held, time.monotonic())
        return answer.refused

    def _leave_over(self, attempt: Attempt, left: Future[Any] | asyncio.Task[Any]) -> None:
        """Record code that ignores its cancellation: this process must end before its locks do."""
        self._left_over.add(attempt.delivery.fence)


def _end_if_broken(task: asyncio.Task[None]) -> None:
    """End this process after an error of Nonet itself, so that the worker stops waiting."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("task %s: its child process failed", task.get_name(), exc_info=error)
        logging.shutdown()
        os._exit(1)


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its dead children."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime
