"""What applications hold: submit tasks, look at them, wait for results, open groups."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args, overload

from nonet.base.errors import (
    AdmissionRejected,
    ConfigurationError,
    InvalidArgumentsError,
    NonetError,
    NotBoundError,
    NotFoundError,
    ResultUnavailable,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    UnknownTaskError,
)
from nonet.client.envelopes import Envelopes
from nonet.client.live import LiveConfig
from nonet.messages.message import is_id
from nonet.messages.repetition import Known
from nonet.messages.signing import Signer
from nonet.rules.explanation import Explanation, explain, explain_kept
from nonet.stores.namespace.cancellation import UNFINISHED, Cancellation, TaskFilter
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.lock_board import LockBoard
from nonet.stores.namespace.publication import Publication
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.groups import Groups, callback_id, child_id, failure_id
from nonet.stores.queue.results import Ended, Results
from nonet.stores.queue.submissions import Accepted, Submission
from nonet.tasks.execution import current_holders, running_context
from nonet.tasks.handles import ChildResult, Handle, R, TaskStatus, unknown_task
from nonet.tasks.registry import Registry
from nonet.tasks.task import (
    PLAIN,
    BaseTask,
    Options,
    SubmitManyOptions,
    SubmitOptions,
    TaskOf,
    current_submitter,
    ensure_task,
)
from nonet.telemetry.tracing import describe_sent, sending

if TYPE_CHECKING:
    from nonet.stores.sql.outbox import Kept, Outbox

Policy = Literal["all_success", "all_done"]
# Those of tasks that have not ended.
LIVE_STATES = (*UNFINISHED, "dying")

_LONGEST_TTL = 10 * 365 * 86400
# Between two looks at a task that is in SQL only; the relay works once a second.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
# One look is always granted, also to who does not want to wait.
_LOOK_SECONDS = 0.5
# So many who wait for results may ask SQL at a time: the others shall not time out behind them.
_ASK_SQL_AT_A_TIME = 4


class Client:
    """Submits to one namespace and reads from it: what an open `Nonet` has as ``client``.

    Args:
        broker: the open broker.
        registry: task names and classes of this process. What the configuration says of them
            instead is in ``live_config``.
        namespace: of all keys.
        message_limit: longest envelope, in bytes, its signature included.
        signer: signs the envelopes.
        outbox: opens the SQL store of durable tasks on first use; without it there are none.
        may_have_sql: whether there is a database in which a task may be that Redis does not know.
        who: says who acts in this process, ``user@host pid``, for the event stream.

    Attributes:
        envelopes: makes and reads messages.

    Example:
        client = app.client  # programs have it from an open application
        handle = await client.submit(Add(1, 2))
    """

    def __init__(
        self,
        broker: Broker,
        registry: Registry,
        namespace: str,
        *,
        message_limit: int,
        signer: Signer | None = None,
        outbox: Callable[[], Awaitable[Outbox]] | None = None,
        may_have_sql: Callable[[], bool] = lambda: False,
        who: Callable[[], str] = lambda: "",
    ) -> None:
        self.broker = broker
        self.registry = registry
        self.live_config: LiveConfig = LiveConfig(Publication(broker.client, namespace), registry)
        self.envelopes: Envelopes = Envelopes(
            registry, self.live_config, signer or Signer(), message_limit=message_limit
        )
        self.groups: Groups = Groups(broker.client, namespace)
        self.locks: LockBoard = LockBoard(broker.client, namespace, broker.crash_limit)
        self.results: Results = Results(broker.client, broker.scripts, broker.url, namespace)
        self._outbox = outbox
        self._may_have_sql = may_have_sql
        self._asking_sql = asyncio.Semaphore(_ASK_SQL_AT_A_TIME)
        self._who = who
        self.cancellation: Cancellation = Cancellation(broker, outbox, may_have_sql)
        self._namespace = namespace
        self._is_closed = False

    def __repr__(self) -> str:
        return f"Client({self._namespace!r})"

    async def aclose(self) -> None:
        """Close what this client opened itself; nothing can be asked of it any more."""
        self._is_closed = True
        await self.results.aclose()

    def _ensure_open(self, *ids: str) -> None:
        """Refuse to connect again: nobody would close that connection."""
        if self._is_closed:
            what = f"task {ids[0]}: the application that submitted it" if ids else "the application"
            raise NotBoundError(
                f"{what} is closed; use an open one: `async with Nonet.from_settings() as app`"
                + (", as app.status(id), app.result(id) or app.cancel([id])" if ids else "")
            )

    async def submit(self, task: TaskOf[R], **options: Unpack[SubmitOptions]) -> Handle[R]:
        """Submit one task; see `Nonet.submit`."""
        given: Any = task  # a `BaseTask`: what else has a `schedule` that gives a handle?
        said = Options(**options) if options else PLAIN
        self._ensure_open()
        durable = is_durable(given, said.transaction, self.registry)
        if self.live_config.is_due:
            await self.live_config.refresh()
        with sending() as trace:
            submission = self.envelopes.prepare(given, said, trace=trace)
            if trace:
                describe_sent([submission])
            if said.transaction is not None:
                await (await self._rows()).submit_within(said.transaction, [submission])
                return Handle(submission.id, self)
            return await self.send(submission, durable=durable, id_is_new=said.id is None)

    async def submit_many(
        self, tasks: Iterable[TaskOf[R]], **options: Unpack[SubmitManyOptions]
    ) -> list[Handle[R]]:
        """Submit many tasks in few round trips; see `Nonet.submit_many`."""
        said = Options(**options) if options else PLAIN
        self._ensure_open()
        if self.live_config.is_due:
            await self.live_config.refresh()
        durable: list[Submission] = []
        others: list[Submission] = []
        prepared: list[Submission] = []
        with sending() as trace:
            task: Any
            for task in tasks:
                rows_first = is_durable(task, said.transaction, self.registry)
                made = self.envelopes.prepare(task, said, trace=trace)
                prepared.append(made)
                (durable if rows_first else others).append(made)
            if trace:
                describe_sent(prepared)
            if said.transaction is not None:
                await (await self._rows()).submit_within(said.transaction, durable)
            elif durable:
                await (await self._rows()).submit(durable, ids_are_new=True)
            try:
                accepted = await self.broker.accept(others)
            except AdmissionRejected as error:
                raise error.after(len(durable)) from None
        if not durable:
            return [Handle(item.id, self, item.created) for item in accepted]
        found = dict(zip((item.id for item in others), accepted, strict=True))
        return [self._handle(found.get(item.id, Accepted(item.id, True))) for item in prepared]

    async def send(
        self, submission: Submission, *, durable: bool, id_is_new: bool = False
    ) -> Handle[Any]:
        """Submit what `prepare` gave, for the framework.

        Args:
            submission: the checked task.
            durable: keep it in SQL, as its class says.
            id_is_new: nobody can have submitted it before.
        """
        if durable:
            rows = await self._rows()
            (created,) = await rows.submit([submission], ids_are_new=id_is_new)
            return Handle(submission.id, self, created)
        (accepted,) = await self.broker.accept([submission])
        return self._handle(accepted)

    def _handle(self, accepted: Accepted) -> Handle[Any]:
        return Handle(accepted.id, self, accepted.created)

    async def _rows(self) -> Outbox:
        if self._outbox is None:
            raise NotBoundError("durable tasks need SQL: submit them through an open application")
        return await self._outbox()

    async def status(self, id: str) -> TaskStatus:
        """One task; see `Nonet.status`."""
        self._ensure_open(id)
        found = await self.results.status(id)
        if found is None and (kept := await self._kept(id)) is not None:
            return _status_of(kept)
        if found is None:  # it may have been handed over in between
            found = await self.results.status(id)
        if found is None:
            raise NotFoundError(unknown_task(id))
        return found

    async def recognise(self, id: str) -> Known | None:
        """What is known under an id, and which letter that repeats, for the framework."""
        found = await self.results.recognise(id)
        if found is None and (kept := await self._kept(id)) is not None:
            return Known("delayed", kept.mark)
        # It may have been handed over in between.
        return found or await self.results.recognise(id)

    async def _kept(self, id: str) -> Kept | None:
        """The row of a durable task. Ask Redis first, and again if there is none."""
        if self._outbox is None or not self._may_have_sql() or not is_id(id):
            return None
        async with self._asking_sql:
            try:
                return await (await self._outbox()).find(id)
            except ConfigurationError:  # no tables, no driver: nothing was kept from here
                return None

    async def explain(self, id: str) -> Explanation:
        """Where a task is, or the first thing that keeps it from running; see `Nonet.explain`."""
        self._ensure_open(id)
        try:
            return explain(await self.locks.facts(id))
        except NotFoundError:
            kept = await self._kept(id)
        if kept is None:  # it may have been handed over in between
            return explain(await self.locks.facts(id))
        return explain_kept(
            id,
            seconds=(datetime.now(UTC) - kept.created).total_seconds(),
            is_led=await self._is_led(),
            due=kept.due,
        )

    async def _is_led(self) -> bool:
        leader = await Leadership(self.broker, self._namespace).leader()
        return leader is not None and leader.expiry > await self.broker.logical_now()

    @overload
    async def result(self, id: Handle[R], *, timeout: float | None = None) -> R: ...

    @overload
    async def result(  # type: ignore[overload-cannot-match]  # it is, where R cannot be as wanted
        self, id: Handle[object], *, timeout: float | None = None
    ) -> object: ...

    @overload
    async def result(self, id: str, *, timeout: float | None = None) -> Any: ...

    async def result(self, id: str, *, timeout: float | None = None) -> Any:
        """What a task returned; see `Nonet.result`."""
        self._ensure_open(id)
        if timeout is not None and not isinstance(timeout, int | float):
            raise TypeError(
                f"task {id}: timeout={timeout!r:.100} must be a number of seconds, or None"
            )
        try:
            ended = await self._end_of(id, timeout)
        except TimeoutError:
            raise TimeoutError(
                f"task {id} has not ended after {timeout:g} s; 'task-run explain {id}' says why"
            ) from None
        if ended is None:
            raise ResultUnavailable(unknown_task(id))
        return self._value(id, ended)

    async def _end_of(self, id: str, timeout: float | None) -> Ended | None:
        """How a task ended, None if it is unknown; a durable one may be in SQL only at first."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        pause, is_kept, holders = _FIRST_PAUSE, True, current_holders()
        while True:
            left = deadline - time.monotonic()
            ended = await self.results.wait(id, None if timeout is None else left, holders)
            if ended is not None or not is_kept:
                return ended
            left = deadline - time.monotonic()
            async with asyncio.timeout(None if timeout is None else max(left, _LOOK_SECONDS)):
                is_kept = await self._kept(id) is not None
            if not is_kept:
                continue  # it may have been handed over in between: look once more
            if left <= 0:
                raise TimeoutError
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def live(
        self, *, state: str | None = None, task: str | None = None
    ) -> AsyncIterator[TaskStatus]:
        """Tasks that have not ended, in no order; see `Nonet.live`."""
        self._ensure_open()
        if state is not None and state not in LIVE_STATES:
            raise ValueError(f"live: state={state!r} is none of {LIVE_STATES}")
        return self.results.live(state=state, task=task)

    async def cancel(self, ids: Sequence[str], *, reason: str = "") -> dict[str, str]:
        """Cancel tasks, wherever they are; see `Nonet.cancel`."""
        named = [ids] if isinstance(ids, str) else ids  # a handle is a text, too
        self._ensure_open(*named)
        return await self.cancellation.cancel(named, self._who(), reason, running=True)

    async def cancel_group(self, group: str, *, reason: str = "") -> dict[str, str]:
        """Cancel all children of a group that have not ended; `cancel` says what it answers.

        They count as failed, and the group ends by its policy. Children that its parent is still
        submitting are left out while the group is ``building``.

        Args:
            group: its id.
            reason: why, for people.

        Raises:
            NotFoundError: there is no such group (any more).
            ServerUnreachableError: Redis does not answer. Some may be cancelled.
        """
        return await self.cancel(await self.groups.pending(group), reason=reason)

    async def cancel_not_running(self, ids: Sequence[str], *, reason: str = "") -> dict[str, str]:
        """Cancel tasks that are queued, delayed (for a retry, too) or waiting; others stay.

        Who awaits the result gets `TaskCancelled`; a group counts the child as failed. The event
        stream tells of it. Safe to repeat.

        Args:
            ids: of the tasks, or their handles.
            reason: why, for people.

        Returns:
            The state of each task now, by its id. ``cancelled``, also if it was before; that in
            which it stays (``running``, ``dying``, or how it has ended); empty if it is unknown.

        Raises:
            ServerUnreachableError: Redis does not answer, or does not know a task and SQL does
                not. Some may be cancelled.
        """
        return await self.cancellation.cancel(ids, self._who(), reason)

    async def cancel_many(
        self,
        *,
        task: type[BaseTask] | str | None = None,
        labels: Mapping[str, Any] | None = None,
        states: Sequence[str] = UNFINISHED,
        reason: str = "",
    ) -> int:
        """Cancel all tasks of a class, or with some labels, as `cancel` does; how many.

        Durable ones count that are still in SQL only. What is submitted meanwhile may be left
        out. Idempotent, so that a start-up hook may do it.

        Args:
            task: the class, or its name, full or bare.
            labels: all of these must be there, with these values.
            states: some of ``queued``, ``delayed``, ``waiting``, ``running``.
            reason: why, for people.

        Raises:
            ValueError: neither `task` nor `labels` is given, or there is no such state.
            TypeError: `task` is neither a class nor a name.
            RegistrationError: the class is not registered.
            UnknownTaskError: no class of this name is registered, and no task has it.
            ServerUnreachableError: no answer. Some may be cancelled.

        Example:
            await client.cancel_many(task=Transfer, labels={"campaign": "2026-07"})
        """
        if task is None and not labels:
            raise ValueError("cancel_many: give a task class or labels: it would cancel everything")
        if wrong := set(states) - set(UNFINISHED):
            raise ValueError(f"cancel_many: states {sorted(wrong)} are none of {UNFINISHED}")
        self._ensure_open()
        name = self._name_of(task)
        selection = TaskFilter(name, labels or {}, states)
        found = await self.cancellation.cancel_all(selection, self._who(), reason)
        if name and not found.number:
            self._ensure_known(name)
        return found.number

    def _name_of(self, task: type[BaseTask] | str | None) -> str:
        """What `cancel_many` was given; of any class: empty."""
        if task is None or isinstance(task, str):
            return task or ""
        if not isinstance(task, type):
            raise TypeError(f"cancel_many: task={task!r:.200} must be a task class or its name")
        return self.registry.of_class(task).name

    def _ensure_known(self, name: str) -> None:
        """Refuse the name of no class; who has loaded no classes cannot tell."""
        known = [item.name for item in self.registry]
        if known and name not in {*known, *(full.rpartition(":")[2] for full in known)}:
            raise UnknownTaskError(name, known)

    async def spawn_with_callback(
        self,
        children: Sequence[BaseTask],
        callback: BaseTask,
        *,
        on_failure: BaseTask | None = None,
        policy: Policy = "all_success",
        ttl_seconds: float = 86400,
    ) -> str:
        """Submit children and, once all have ended, exactly one of callback and `on_failure`.

        A parent that is executed again finds its group and its children; nothing is doubled.

        Args:
            children: any number; none fires the callback at once.
            callback: submitted if every child is done (``all_success``) or has ended
                (``all_done``). Reads ``context().group_results()``.
            on_failure: submitted instead if a child failed; without it the group shows as
                failed.
            policy: when the group is a success: ``all_success`` or ``all_done``.
            ttl_seconds: how long results are kept after the group fired, at most ten years.

        Returns:
            The group's id.

        Raises:
            TypeError: one of children, callback and `on_failure` is no task.
            ValueError: `policy` or `ttl_seconds` does not fit.
            InvalidArgumentsError: an argument of a task does not fit; nothing was submitted.
            ServerUnreachableError: Redis does not answer. A parent that is executed again goes on
                with this group; elsewhere some of the children may have been submitted.
            NonetError: Redis has lost the group meanwhile.

        Example:
            group = await client.spawn_with_callback([Hash(part) for part in parts], Report())
        """
        self._ensure_open()
        children = list(children)
        check_group(children, callback, on_failure, policy, ttl_seconds)
        running = running_context()
        if running:
            running.ensure_lease()
        parent = running.id if running else ""
        group = uuid.uuid4().hex
        if running:
            # Made of the parent's id, so that a re-run of the parent means the same group.
            name = f"{running.id}/{running.next_spawn()}"
            group = hashlib.sha256(name.encode()).hexdigest()[:32]
        await self.live_config.refresh()
        with sending() as trace:
            prepare = partial(self.envelopes.prepare, trace=trace)
            prepared = [
                prepare(child, Options(id=child_id(group, index)), child_of=group)
                for index, child in enumerate(children)
            ]
            if trace:
                describe_sent(prepared)
            state = await self.groups.open(
                group,
                parent,
                policy=policy,
                ttl_seconds=ttl_seconds,
                total=len(prepared),
                callback=prepare(callback, Options(id=callback_id(group)), callback_of=group),
                on_failure=(
                    prepare(on_failure, Options(id=failure_id(group)), callback_of=group)
                    if on_failure is not None
                    else None
                ),
            )
            if state == "building":
                await self.broker.submit(prepared)
                if running:  # what a voided attempt has opened fails with it
                    running.ensure_lease()
                if not await self.groups.seal(group, parent):
                    raise NonetError(
                        f"group {group} is gone: Redis lost it, or submitting {len(prepared)} "
                        "children took longer than a day"
                    )
        return group

    async def group_results(self, group: str) -> list[ChildResult]:
        """How the children of a group ended, in the order of spawning.

        Args:
            group: its id.
        """
        found = []
        for id, ended in await self.groups.results(group):
            if ended is None:
                found.append(ChildResult(id, "unknown", error="no result is kept"))
            elif ended.state == "done" and ended.document and not ended.document.note:
                found.append(ChildResult(id, "done", self._typed(ended)))
            else:
                found.append(ChildResult(id, ended.state, error=_failure(ended)))
        return found

    def _value(self, id: str, ended: Ended) -> Any:
        document = ended.document
        task = f"task {id} ({document.name})" if document else f"task {id}"
        if ended.state == "dead":
            reason = document.reason if document else ""
            error_type = document.error_type if document else ""
            raise TaskFailed(
                f"{task} is dead ({reason or 'no reason kept'}): {_failure(ended)}",
                error_type=error_type,
                reason=reason,
            )
        if ended.state == "cancelled":
            error = document.error if document else ""
            raise TaskCancelled(f"{task} was {error or 'cancelled'}")
        if ended.state == "expired":
            error = document.error if document else ""
            raise TaskExpired(f"{task} was {error or 'not started in time'}")
        if document is None:
            raise ResultUnavailable(
                f"task {id} is {ended.state}, but its result is not kept (NONET_RESULT_TTL=0)"
            )
        if document.note:
            raise ResultUnavailable(f"{task} is {ended.state}, but {document.note}")
        return self._typed(ended)

    def _typed(self, ended: Ended) -> Any:
        assert ended.document is not None
        task_class = self.registry.find(ended.document.name)
        value = ended.document.value
        return task_class.typed_result(value) if task_class else value


def is_durable(task: BaseTask, transaction: Any, registry: Registry) -> bool:
    """Whether a task is kept in SQL when it is submitted, as its class says.

    Raises:
        TypeError: it is no task.
        InvalidArgumentsError: its class is not durable, and there is a transaction.
    """
    if not isinstance(task, BaseTask):
        ensure_task(task, "submit")
    durable = type(task).durable
    if transaction is not None and not durable:
        problem = "transaction: the class is not durable; set durable = True in it"
        raise InvalidArgumentsError(registry.of(task).name, [problem])
    return durable


def check_group(
    children: Sequence[BaseTask],
    callback: BaseTask,
    on_failure: BaseTask | None,
    policy: str,
    ttl_seconds: float,
) -> None:
    """Refuse what is no group; the arguments are those of `Client.spawn_with_callback`.

    Raises:
        TypeError: a task is none.
        ValueError: an option does not fit.
    """
    for index, child in enumerate(children):
        ensure_task(child, f"spawn_with_callback: children[{index}]")
    ensure_task(callback, "spawn_with_callback: callback")
    if on_failure is not None:
        ensure_task(on_failure, "spawn_with_callback: on_failure")
    if policy not in get_args(Policy):
        raise ValueError(f"spawn_with_callback: policy={policy!r} is none of {get_args(Policy)}")
    if not 0 < ttl_seconds <= _LONGEST_TTL:
        raise ValueError(
            f"spawn_with_callback: ttl_seconds={ttl_seconds!r} must be above 0, and "
            f"{_LONGEST_TTL} (ten years) at most"
        )


class CallbackSpawner:
    """`nonet.spawn_with_callback` as a parameter of ``execute``: annotate one with this class.

    Example:
        class HashAll(BaseTask):
            async def execute(self, spawn: CallbackSpawner) -> str:
                return await spawn([Hash("a"), Hash("b")], Report())
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(
        self,
        children: Sequence[BaseTask],
        callback: BaseTask,
        *,
        on_failure: BaseTask | None = None,
        policy: Policy = "all_success",
        ttl_seconds: float = 86400,
    ) -> str:
        """Open a group; see `Client.spawn_with_callback`."""
        return await self._client.spawn_with_callback(
            children, callback, on_failure=on_failure, policy=policy, ttl_seconds=ttl_seconds
        )


async def cancel_many(
    *,
    task: type[BaseTask] | str | None = None,
    labels: Mapping[str, Any] | None = None,
    states: Sequence[str] = UNFINISHED,
    reason: str = "",
) -> int:
    """Cancel many tasks in the open application; see `Client.cancel_many`.

    Raises:
        NotBoundError: no application is open in this process.

    Example:
        @startup_hook
        async def drop_stale(epoch: Epoch) -> None:
            await cancel_many(task=Refresh, reason="all is read anew")
    """
    client = current_submitter()
    if not isinstance(client, Client):
        raise NotBoundError(
            "cancel_many() works where an application is open, not in run_inline(): use a "
            "nonet.testing.System"
        )
    return await client.cancel_many(task=task, labels=labels, states=states, reason=reason)


async def spawn_with_callback(
    children: Sequence[BaseTask],
    callback: BaseTask,
    *,
    on_failure: BaseTask | None = None,
    policy: Policy = "all_success",
    ttl_seconds: float = 86400,
) -> str:
    """Open a group in the open application; see `Client.spawn_with_callback`.

    Returns:
        The group's id.

    Raises:
        NotBoundError: no application is open in this process.

    Example:
        await spawn_with_callback([Hash(part) for part in parts], Report())
    """
    client = current_submitter()
    if not isinstance(client, Client):
        raise NotBoundError(
            "spawn_with_callback() works where an application is open, not in run_inline(): "
            "annotate a parameter of execute with CallbackSpawner, or use a nonet.testing.System"
        )
    return await client.spawn_with_callback(
        children, callback, on_failure=on_failure, policy=policy, ttl_seconds=ttl_seconds
    )


def _failure(ended: Ended) -> str:
    document = ended.document
    if document is None:
        return "no error kept"
    if document.note:
        return document.note
    return f"{document.error_type}: {document.error}" if document.error_type else document.error


def _status_of(kept: Kept) -> TaskStatus:
    return TaskStatus(
        id=kept.id,
        name=kept.name,
        state="delayed",
        stream=kept.stream,
        submitted=kept.created,
        due=kept.due,
        blocker="kept in SQL: the leading task-scheduler hands it over within a second",
    )
