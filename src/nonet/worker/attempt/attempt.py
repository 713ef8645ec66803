"""The state of one delivery in a worker: its stage, its lease, and why it must end early."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from enum import Enum, auto
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from nonet.base.errors import InvalidArgumentsError, NonetError, TaskTimeoutError
from nonet.base.loop import uncancel
from nonet.base.messages.message import Envelope, Usage, encode
from nonet.base.streams import Priority, Size
from nonet.client.client import Client
from nonet.client.workflows import step_inputs
from nonet.config.overrides import Effective
from nonet.rules.fairness import tenant_of
from nonet.rules.outcomes import Cancelled, HandedBack, Lost, Outcome, shortened
from nonet.rules.routing import away_problem, namespace_of, tenant_in
from nonet.stores.queue.deliveries import Delivery, takes_slot
from nonet.stores.queue.leases import Lease
from nonet.stores.queue.submissions import Submission
from nonet.tasks.execution import Prepared, TaskContext, enter_subject
from nonet.tasks.middleware import RunningTask
from nonet.tasks.progress import Said, written
from nonet.tasks.registry import TaskClass
from nonet.tasks.task import BaseTask, Given, Options
from nonet.telemetry.masking import fields_without_secrets, without_secrets
from nonet.telemetry.running_middleware import within_middleware
from nonet.telemetry.tracing import current_trace
from nonet.worker.attempt.around import Around
from nonet.worker.attempt.progress_pace import Pace, Send

if TYPE_CHECKING:
    from nonet.telemetry.spans import AttemptSpan

logger = logging.getLogger(__name__)


class AttemptContext(TaskContext):
    """What `context()` returns in a worker.

    Attributes:
        reported: the newest report of progress, or None.
    """

    reported: tuple[float | None, Said] | None = None

    _delivery: Delivery
    _client: Client
    _pace: Pace | None = None
    _pass_on: Send | None = None
    _reporting: asyncio.Task[None] | None = None

    def serve_with(self, client: Client) -> None:
        """Enable saving, submitting and reading, in the running event loop."""
        self._client = client
        self.namespace: str = client.namespace
        self._loop = asyncio.get_running_loop()

    async def _read_group(self, group: str) -> Sequence[Any]:
        return await self._client.group_results(group)

    async def _read_inputs(self) -> Sequence[Any]:
        return await step_inputs(self._client, self.id)

    def _prepare(
        self, task: BaseTask | Given[Any], options: Options, *, is_step: bool = False
    ) -> Prepared:
        # The settle of this attempt sends the task, so the submission needs no span of its own.
        with within_middleware(nullcontext()):
            prepared = self._client.envelopes.prepare(
                task, options, trace=current_trace(), is_step=is_step
            )
        if self._client.live_config.routes:
            self._check_home(prepared)
        return prepared

    def _check_home(self, prepared: Submission) -> None:
        """Refuse a task of a tenant in another namespace: one script settles and submits."""
        live = self._client.live_config
        tenant = tenant_of(live.tenants_by, self.name, self.vo, self.labels)
        here = namespace_of(live.routes, tenant)
        home = namespace_of(live.routes, tenant_in(prepared.terms))
        if home != here:
            problem = away_problem("task", here or self.namespace, home or self.namespace)
            raise InvalidArgumentsError(prepared.name, [problem])

    async def _save(self, data: bytes) -> bool:
        if self.is_encrypted:
            data = encode(self._client.cipher.encrypt(data, self.id, "saved"))
        limit = self._client.settings.message_limit
        if len(data) > limit:
            raise ValueError(
                f"the checkpoint has {len(data)} bytes, the limit is {limit} "
                "(NONET_MESSAGE_LIMIT); save a reference to large data instead"
            )
        return await self._client.stores.broker.checkpoint(self._delivery, data)

    def pass_progress_to(self, send: Send) -> None:
        """Send the progress to the worker instead of Redis: this is a child process."""
        self._pass_on = send

    def _report(self, fraction: float | None, said: Said) -> None:
        if self._pace is None:
            assert self._loop is not None  # set before the code of the task begins
            self._pace = Pace(self._pass_on or self._store_soon, self._loop)
        self.reported = fraction, said
        self._pace.report(fraction, said)

    def kept(self, fraction: float | None, said: Said) -> tuple[float | None, str]:
        """Return a report as it is stored: rounded, masked, and encrypted if the task is."""
        if isinstance(said, str):
            text = shortened(without_secrets(said, self.secrets))
        else:
            text = written(fields_without_secrets(said, self.secrets))
        if self.is_encrypted:
            text = self._client.cipher.encrypt_text(text, self.id, "doing")
        return None if fraction is None else round(fraction, 4), text

    def _store_soon(self, fraction: float | None, said: Said) -> None:
        self._reporting = asyncio.create_task(self._store(fraction, said))

    async def _store(self, fraction: float | None, said: Said) -> None:
        try:
            await self._client.stores.broker.report_progress(
                self._delivery, *self.kept(fraction, said)
            )
        except NonetError as error:  # it must not fail the task
            logger.debug("task %s: its progress was not stored: %s", self.id, error)


class Stage(Enum):
    """The stages of an attempt."""

    BEGINNING = auto()  # being identified and placed
    WAITING = auto()  # for a child process or a thread, or for its turn
    IN_LOOP = auto()  # the author's code may run in this event loop: execute or the retry policy
    IN_CHILD = auto()
    SETTLING = auto()  # the code has ended; the attempt uses no slot any more
    BURYING = auto()  # dead, and being written to SQL


class Attempt(Struct, eq=False):
    """One execution of a task by this process.

    The fields from `cut_off` to `lost` are the reasons why it must end early. They are independent,
    as several may apply and any thread may set one.

    Attributes:
        delivery: the delivery that it executes.
        since: monotonic time before its locks were requested.
        locks, held: the locks that it holds, see `nonet.tasks.locks.encode_locks`.
        context: what `context()` returns inside the task.
        size: size of the stream that it came from.
        takes_slot: whether it takes a slot of its worker.
        lease: the lease that the watchdog renews.
        deadline: when that lease expires (monotonic).
        task_class: None if this worker does not know the class, or has not identified it yet.
        envelope: the message, once read.
        effective: the options of the class, with overrides. The overrides for its VO are missing
            if only the task object knows the VO.
        stage: its current stage.
        cut_off: why this worker hands the task back, usually because the worker stops, or None.
        timed_out: the time limit that it exceeded, or None.
        cancelled: who cancelled the task, and why, or None.
        lost: why the lease is gone, or None. The attempt is void.
        task: the asyncio task of this process that carries it from start to end, if known.
        started: whether ``execute`` was called.
        in_thread: whether ``execute`` runs in a thread, which cannot be cancelled.
        hard_at: when its hard timeout expires (monotonic), or None.
        span: its open span, if spans are collected.
        around: the middleware around it, if there is any and its first part has run.
        crash: what the retry policy got because its process died, or None.
        usage: resources that it took, if known; the child that ran it says so in its conclusion.
        tallied: the counters to update when it ends, see `nonet.worker.tally`; None: no counters.
        left: threads and asyncio tasks that still run its code after their cancellation.
        locks_kept_at: monotonic time before a settle that kept its locks for `left`, or None.

    Example:
        >>> attempt = Attempt(Delivery("id", "1", "2", "tasks:normal:small", "3-0", b"", ""), 0.0)
        >>> attempt.cut_off, attempt.cancelled = "the worker stopped", "by ann: wrong data"
        >>> attempt.stopped()
        Cancelled(reason='by ann: wrong data')
    """

    delivery: Delivery
    since: float
    locks: str = ""
    held: str = ""
    context: AttemptContext = None  # type: ignore[assignment]  # see __post_init__
    size: Size = Size.SMALL
    takes_slot: bool = True
    lease: Lease = None  # type: ignore[assignment]  # set before anything else can see it
    deadline: float = 0.0
    task_class: TaskClass | None = None
    envelope: Envelope = None  # type: ignore[assignment]
    effective: Effective = None  # type: ignore[assignment]
    stage: Stage = Stage.BEGINNING
    cut_off: str | None = None
    timed_out: TaskTimeoutError | None = None
    cancelled: str | None = None
    lost: str | None = None
    task: asyncio.Task[None] | None = None
    started: bool = False
    in_thread: bool = False
    hard_at: float | None = None
    span: AttemptSpan | None = None
    around: Around | None = None
    crash: BaseException | None = None
    usage: Usage | None = None
    tallied: Any = None
    left: tuple[Future[Any] | asyncio.Task[Any], ...] = ()
    locks_kept_at: float | None = None
    _share: Callable[[float], None] | None = None
    _cancellable: asyncio.Task[Any] | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def __post_init__(self) -> None:
        delivery = self.delivery
        self.locks, self.held = delivery.locks, delivery.held
        context = AttemptContext(delivery.id, "", delivery.used + 1, int(delivery.fence), {})
        context._delivery, self.context = delivery, context
        self.size = _size_of(delivery.stream_key)
        self.takes_slot = takes_slot(delivery.stream_key)
        self._loop = asyncio._get_running_loop()

    @property
    def code(self) -> asyncio.Task[Any] | None:
        """The asyncio task that runs the author's code in this event loop, if any does."""
        return self._cancellable if self._share is None else None

    @property
    def still_runs(self) -> bool:
        """Whether any code in `left` still runs."""
        return any(not left.done() for left in self.left)

    @property
    def is_asked(self) -> bool:
        """Whether this process stopped the attempt for a reason other than a time limit."""
        return not (self.lost is self.cut_off is self.cancelled is None)

    def stopped(self) -> Outcome:
        """Return the outcome of an attempt that this process stopped."""
        if self.lost is not None:
            return Lost(self.lost)
        if self.cancelled is not None:
            return Cancelled(self.cancelled)
        return HandedBack(self.cut_off or "", started=self.started)

    def renewed(self, deadline: float) -> None:
        """Record a renewed deadline (monotonic). The watchdog calls this, in any thread."""
        self.deadline = deadline
        if (share := self._share) is not None:
            share(deadline)

    def share_deadline(self, share: Callable[[float], None] | None) -> None:
        """Call `share` with the current deadline and with each later one; None stops that."""
        self._share = share
        if share is not None:
            share(self.deadline)

    def relock(self, locks: str, held: str, since: float) -> None:
        """Record that the task no longer holds the locks of its delivery, but these."""
        self.locks, self.held, self.since = locks, held, since

    def describe(self, envelope: Envelope) -> None:
        """Copy the envelope's fields; log lines name the task and attempt from now on."""
        self.envelope, context = envelope, self.context
        context.name, context.labels, context.group = envelope.name, envelope.labels, envelope.group
        # Provisional: once the task object exists, its own VO counts.
        context.vo = str(envelope.args.get("vo") or envelope.labels.get("vo") or "")
        enter_subject(context)

    def running_task(self) -> RunningTask:
        """Return what middleware learns of this attempt, once it is identified."""
        assert self.task_class is not None
        priority, _ = self.delivery.stream_key.rsplit(":", 2)[1:]
        return RunningTask(
            self.context,
            self.task_class.cls,
            self.envelope.args,
            Priority(priority),
            self.size,
            self.envelope.parent,
            datetime.fromtimestamp(self.envelope.submitted, UTC),
        )

    def enter(self, cancellable: asyncio.Task[Any] | None = None) -> None:
        """Let `cut` and `time_out` cancel this asyncio task; None: the current one."""
        self._cancellable = cancellable or self.task or asyncio.current_task()
        if self.cut_off is not None or self.cancelled is not None:
            self._stop()

    def leave(self) -> None:
        """Protect the attempt from cancellation: a settle must not be interrupted."""
        self._cancellable = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let a stop end the block, which waits for a thread, or for a child and its attempt."""
        self.stage = Stage.WAITING
        self.enter()
        try:
            yield
        except asyncio.CancelledError:
            if not self.is_asked:  # the event loop ends
                raise
            uncancel()
        finally:
            self.leave()
            self.stage = Stage.BEGINNING
            self.share_deadline(None)

    def time_out(self, error: TaskTimeoutError, *, for_good: bool = False) -> None:
        """Fail the attempt with `error` and cancel its code, unless it was cut off before.

        Args:
            for_good: also void the attempt. Otherwise code in a thread, which cannot be cancelled,
                only sees the timeout when it asks its context.
        """
        if self.cut_off is not None:
            return
        self.timed_out = error
        self.context.time_out(error)
        if for_good:
            self.context.lose_lease(str(error))
        if for_good or not self.in_thread:
            self._stop()

    def leave_thread(self) -> None:
        """Record that the thread of ``execute`` has ended.

        Raises:
            TaskTimeoutError: it exceeded the soft limit.
        """
        self.in_thread = False
        if self.timed_out is not None:
            raise self.timed_out

    def lose(self, reason: str) -> None:
        """Void the attempt at once and cancel it soon; from any thread."""
        self.lost = reason
        self.context.lose_lease(reason)
        # A thread of the task may outlive the loop.
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.cut, reason)

    def cancel(self, reason: str) -> None:
        """Cancel the attempt as an operator asked; a second call changes nothing.

        Args:
            reason: who asked, and why.
        """
        if self.cancelled is None and self.cut_off is None:
            self.cancelled = reason
            if self.in_thread:  # a thread only sees this when it asks its context
                self.context.lose_lease(f"cancelled {reason}")
            self._stop()

    def cut(self, reason: str) -> None:
        """Cancel the attempt so that its task is handed back."""
        if self.cut_off is None:
            self.cut_off = reason
            self._stop()

    def _stop(self) -> None:
        if self._cancellable is not None:
            self._cancellable.cancel()


@cache
def _size_of(stream_key: str) -> Size:
    return Size(stream_key.rpartition(":")[2])
