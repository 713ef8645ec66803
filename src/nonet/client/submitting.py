"""Submit tasks and groups: `submit`, `submit_many`, `spawn_with_callback`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from nonet.base.errors import InvalidArgumentsError, NonetError
from nonet.client.envelopes import Unloaded
from nonet.client.groups import Policy, Spawned, open_group
from nonet.client.namespace import InNamespace
from nonet.stores.queue.submissions import Submission
from nonet.tasks.handles import Handle, R
from nonet.tasks.registry import Registry, TaskClass
from nonet.tasks.task import (
    NO_OPTIONS,
    BaseTask,
    Options,
    SubmitManyOptions,
    SubmitOptions,
    TaskOf,
    TaskWithOptions,
    ensure_task,
    task_and_options,
)
from nonet.telemetry.tracing import describe_sent, sending


class Submitting(InNamespace):
    """Submits tasks to a namespace."""

    async def submit(self, task: TaskOf[R], **options: Unpack[SubmitOptions]) -> Handle[R]:
        """Submit one task.

        Args:
            task: an instance of a registered class.
            options: ``delay``, ``at_time``, ``id``, ``labels``, ``transaction``, ``start_by`` and
                ``unique``; see `BaseTask.schedule`.

        Returns:
            A `Handle`, which is the id (a ``str``). Its ``created`` is False if the task existed
            before, under the same id or unique key.

        Raises:
            NotBoundError: the application is not open.
            TypeError: `task` is not a task instance.
            RegistrationError: its class is not registered.
            InvalidArgumentsError: an argument or option is invalid; nothing was submitted.
            AdmissionRejected: a ceiling of the configuration is reached.
            BrokerFullError: Redis is out of memory.
            ServerUnreachableError: Redis, or SQL for a durable class, does not answer. The task may
                or may not have been submitted: with an `id` of your own you can safely submit it
                    again.

        Example:
            handle = await app.submit(Add(1, 2), id="sum-1-2", labels={"customer": "acme"})
            assert await handle.result(timeout=30) == 3
        """
        given, chosen = task_and_options(task, options)
        home = self._open()
        durable = is_durable(given, chosen.transaction, home.registry)
        if home.live_config.is_due:
            await home.live_config.refresh()
        with sending() as trace:
            submission = home.envelopes.prepare(given, chosen, trace=trace)
            if trace:
                describe_sent([submission])
            if chosen.transaction is not None:
                return (await home.send_within(chosen.transaction, [submission]))[0]
            return await home.send(submission, durable=durable, id_is_new=chosen.id is None)

    async def submit_by_name(
        self, name: str, arguments: Mapping[str, Any], **options: Unpack[SubmitOptions]
    ) -> Handle[Any]:
        """Submit a task of a class that this program need not have.

        If the class is loaded here, this is `submit` with an instance of it. If not, nothing checks
        the arguments before a worker does: a task with wrong ones ends dead, with reason
        ``arguments``. They are encrypted if this process has a key. A task of a name that no worker
        takes waits; ``task-run explain`` names similar classes that they take. A worker takes the
        locks, and the program says what the class would:

        - ``labels={"size": "small"}``, unless the configuration sets the size of the class;
          ``priority`` is NORMAL unless a label or the configuration sets it;
        - `start_by` and `unique`, if it has any. A durable class is not kept in SQL.

        Args:
            name: full name of the class, ``category:Class``; a bare name if the class is loaded.
            arguments: the arguments of its constructor by name.
            options: as for `submit`.

        Raises:
            UnknownTaskError: the name is not a full one, and no such class is loaded here.
            InvalidArgumentsError: an argument or option is invalid; nothing was submitted.
            NotBoundError, AdmissionRejected, BrokerFullError, ServerUnreachableError: as `submit`.

        Example:
            await app.submit_by_name("mail:SendMail", {"to": "ann"}, labels={"size": "small"})
        """
        home = self._open()
        if not isinstance(arguments, Mapping):
            problem = f"arguments: pass them by name, as {{'to': 'ann'}}, not as {arguments!r:.100}"
            raise InvalidArgumentsError(name, [problem])
        known = home.registry.find(name)
        if known is None and ":" not in name:
            known = home.registry.get(name)
        if known is not None:
            return await self.submit(bound(known, [], arguments), **options)
        chosen = Options.from_mapping(options)
        if chosen.transaction is not None:
            problem = "transaction: only durable classes that are loaded here are kept in SQL"
            raise InvalidArgumentsError(name, [problem])
        if home.live_config.is_due:
            await home.live_config.refresh()
        with sending() as trace:
            submission = home.envelopes.prepare(Unloaded(name, arguments), chosen, trace=trace)
            if trace:
                describe_sent([submission])
            return await home.send(submission, durable=False, id_is_new=chosen.id is None)

    async def submit_many(
        self, tasks: Iterable[TaskOf[R]], **options: Unpack[SubmitManyOptions]
    ) -> list[Handle[R]]:
        """Submit many tasks in few round trips; return their handles in the same order.

        All tasks are validated before the first is submitted. They are sent in batches of up to 500
        tasks and 1 MiB; each batch is submitted completely or not at all.

        Args:
            tasks: any number, of any classes. `BaseTask.with_options` gives a task its own options.
            options: the options of `Nonet.submit` except ``id``, for all tasks. With a
                ``transaction`` all classes must be durable; the tasks exist once it is committed.

        Raises:
            NotBoundError: the application is not open.
            TypeError: an item is not a task instance; nothing was submitted.
            RegistrationError: a class is not registered; nothing was submitted.
            InvalidArgumentsError: an argument or option is invalid; nothing was submitted.
            AdmissionRejected: a ceiling refused a batch, and later batches were not sent. Its
                ``accepted`` is the number of tasks submitted before. Durable tasks come first.
            BrokerFullError: Redis is out of memory; earlier batches may be submitted.
            ServerUnreachableError: Redis or SQL does not answer; any of the tasks may be submitted.

        Example:
            handles = await app.submit_many(Add(n, n) for n in range(3))
            assert [await handle.result(timeout=30) for handle in handles] == [0, 2, 4]
            await app.submit_many(Add(n, n).with_options(delay=n) for n in range(3))
        """
        shared = Options.from_mapping(options) if options else NO_OPTIONS
        home = self._open()
        if home.live_config.is_due:
            await home.live_config.refresh()
        prepared: list[Submission] = []
        durable: list[bool] = []
        ids_are_new = True
        with sending() as trace:
            task: Any
            for task in tasks:
                chosen = shared
                if isinstance(task, TaskWithOptions):
                    task, chosen = task.task, task.merged_with(options)
                    ids_are_new = ids_are_new and chosen.id is None
                durable.append(is_durable(task, shared.transaction, home.registry))
                prepared.append(home.envelopes.prepare(task, chosen, trace=trace))
            if trace:
                describe_sent(prepared)
            if shared.transaction is not None:
                return await home.send_within(shared.transaction, prepared)
            return await home.send_many(prepared, durable, ids_are_new=ids_are_new)

    async def spawn_with_callback(
        self,
        children: Sequence[TaskOf[Any]],
        callback: TaskOf[Any],
        *,
        on_failure: TaskOf[Any] | None = None,
        policy: Policy = "all_success",
        ttl_seconds: float = 86400,
    ) -> str:
        """Submit children and, once all have ended, either the callback or `on_failure`.

        Exactly one of the two is submitted, once. A parent task that runs again finds its group and
        children, and submits nothing twice.

        Args:
            children: any number of tasks; with none the callback is submitted at once. Like the
                callback and `on_failure`, each may have options: `BaseTask.with_options`.
            callback: submitted if all children are done (``all_success``) or have ended
                (``all_done``). It reads ``context().group_results()``.
            on_failure: submitted instead if a child failed; None: the group only shows as failed.
            policy: ``all_success`` or ``all_done``.
            ttl_seconds: how long to keep the results after the group has ended, at most ten years.

        Returns:
            The id of the group.

        Raises:
            TypeError: a child, the callback or `on_failure` is not a task, or has an id of its own.
            ValueError: `policy` or `ttl_seconds` is invalid.
            InvalidArgumentsError: an argument of a task is invalid; nothing was submitted.
            ServerUnreachableError: Redis does not answer. A parent task that runs again continues
                this group; otherwise some children may have been submitted.
            NonetError: Redis lost the group while the children were submitted.

        Example:
            group = await client.spawn_with_callback([Hash(part) for part in parts], Report())
        """
        home = self._open()
        spawned = Spawned.of(children, callback, on_failure, policy, ttl_seconds)
        return await open_group(home, spawned)


def bound(task_class: TaskClass, positional: list[Any], named: Mapping[str, Any]) -> BaseTask:
    """Create a task from positional and named arguments.

    Raises:
        InvalidArgumentsError: they do not fit, or the constructor rejects them.
    """
    try:
        task: BaseTask = task_class.arguments.bind(positional, named)
    except NonetError:
        raise
    except Exception as error:  # the constructor of the class rejects them
        problem = f"{type(error).__name__}: {error}"
        raise InvalidArgumentsError(task_class.name, [problem]) from error
    return task


def is_durable(task: BaseTask, transaction: Any, registry: Registry) -> bool:
    """Return whether the class of a task is durable.

    Raises:
        TypeError: `task` is not a task.
        InvalidArgumentsError: a transaction is given, but the class is not durable.
    """
    if not isinstance(task, BaseTask):
        ensure_task(task, "submit")
    durable = type(task).durable
    if transaction is not None and not durable:
        problem = "transaction: the class is not durable: set durable = True in the class"
        raise InvalidArgumentsError(registry.of(task).name, [problem])
    return durable
