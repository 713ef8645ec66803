"""Schedules that programs make: `Nonet.schedules` and `SyncNonet.schedules`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict

from nonet.base.actor import who
from nonet.base.errors import (
    ConfigurationError,
    ConflictError,
    InvalidArgumentsError,
    MalformedMessageError,
    NotFoundError,
    ServerUnreachableError,
)
from nonet.base.messages.message import Envelope
from nonet.base.synchronous import complete
from nonet.client.namespace import OpenNamespace
from nonet.rules.entry_names import DATABASE, key_of, name_problem
from nonet.rules.fairness import inherited_labels, tenant_labels, tenant_of
from nonet.rules.routing import namespace_of
from nonet.stores.stores import EMBEDDED
from nonet.tasks.execution import running_context
from nonet.tasks.task import BaseTask, ensure_task, vo_of

if TYPE_CHECKING:
    from nonet.rules.periodic import Put, StoredSchedule
    from nonet.stores.sql.schedules import ScheduleRows
    from nonet.tasks.schedules import CatchUp, TaskScheduleBase
    from nonet.tasks.task import TaskOf


class PutOptions(TypedDict, total=False):
    """The options of `Schedules.put`."""

    tenant: str | None
    catch_up: CatchUp | None
    misfire_grace: float | None
    must_be_new: bool


class Schedules:
    """The schedules that programs made. They are kept in SQL, and the leading scheduler fires them.

    Example:
        await app.schedules.put("digest-7", SendDigest(7), CronSchedule("0 8 * * *"))
        await app.schedules.remove("digest-7")
    """

    def __init__(self, home: OpenNamespace) -> None:
        self._home = home

    async def put(
        self,
        id: str,
        task: TaskOf[Any],
        schedule: TaskScheduleBase,
        *,
        tenant: str | None = None,
        catch_up: CatchUp | None = None,
        misfire_grace: float | None = None,
        must_be_new: bool = False,
    ) -> Put:
        """Make a schedule, or change the one with this id. The leader sees it within seconds.

        Args:
            id: 1 to 128 printable ASCII characters without blanks. Put it again as often as you
                like: the same class, arguments, schedule and tenant change nothing.
            task: an instance of a registered class, periodic or not.
            schedule: a `CronSchedule`, `RRuleSchedule` or `IntervalSecondsSchedule`.
            tenant: the tenant of the tasks; None: that of the running task, if there is one.
            catch_up: which occurrences to submit that were missed for longer than the misfire
                grace; None: as the class says.
            misfire_grace: how late an occurrence still counts as in time, in seconds; None: as the
                class says.
            must_be_new: refuse to change a schedule.

        Returns:
            ``created``, ``changed`` or ``unchanged``.

        Raises:
            ConfigurationError: there is no database, or its tables are missing.
            InvalidArgumentsError: an argument is invalid; nothing was changed.
            ConflictError: the class or the configuration has an entry with this name, or
                `must_be_new` and there is another schedule with this id.
            ServerUnreachableError: SQL does not answer. Put it again.

        Example:
            morning = CronSchedule("0 8 * * *", "Europe/Zurich")
            await app.schedules.put("digest-7", SendDigest(user=7), morning)
        """
        ensure_task(task, "schedules.put")
        assert isinstance(task, BaseTask)  # as `ensure_task` says
        await self._home.live_config.refresh()
        name, labels = self._home.registry.of(task).name, self._labels(task, tenant)
        by, vo = self._home.live_config.tenants_by, vo_of(task, labels)
        owner = tenant_of(by, name, vo, labels) if by != "class" else vo
        home = self._home.routing.opened(namespace_of(self._home.live_config.routes, owner))
        rows = await _rows(home)
        envelope = home.envelopes.stored(task, id, labels)
        wanted = rows.made(id, name, owner, schedule, envelope)
        if wanted is None:
            problem = f"schedule: only cron, RRULE and intervals are stored: {_OWN}"
            raise InvalidArgumentsError(name, [problem])
        if misfire_grace is not None and not 0 <= misfire_grace <= _LONGEST_SECONDS:
            problem = f"misfire_grace: 0 to {_LONGEST_SECONDS} seconds, not {misfire_grace}"
            raise InvalidArgumentsError(name, [problem])
        wanted = replace(wanted, catch_up=str(catch_up or ""), misfire_grace=misfire_grace)
        await _check_name(home, _key(wanted), id)
        contents = _contents(home, wanted)

        def is_same(before: StoredSchedule) -> bool:
            found = _contents(home, before) == contents
            if must_be_new and not found:
                raise ConflictError(f"there is a schedule {id} of {before.task} already: change it")
            return found

        done = await rows.put(wanted, is_same)
        for other in [self._home, *await self._home.routing.others()]:
            if other.namespace != home.namespace:  # its tenant has moved
                await (await _rows(other)).remove(id)
        return done

    async def pause(self, id: str, reason: str = "") -> bool:
        """Stop a schedule from firing until it is resumed; return False if it was paused before.

        Args:
            id: of the schedule.
            reason: shown to operators.

        Raises:
            NotFoundError: there is no such schedule.
            ServerUnreachableError: Redis or SQL does not answer.

        Example:
            await app.schedules.pause("digest-7", "the user is on holiday")
        """
        home, key = await self._find(id)
        return bool(await home.stores.periodic.pause([key], who(), reason))

    async def resume(self, id: str) -> bool:
        """Let a schedule fire again, from its next occurrence on.

        Returns False if it was not paused.

        Raises:
            NotFoundError, ServerUnreachableError: as `pause`.
        """
        home, key = await self._find(id)
        return bool(await home.stores.periodic.resume([key], who()))

    async def remove(self, id: str) -> bool:
        """Remove a schedule; return False if there is none.

        An occurrence that has not started is withdrawn, a running one continues.

        Raises:
            ConfigurationError, ServerUnreachableError: as `put`.

        Example:
            await app.schedules.remove("digest-7")
        """
        homes = [self._home, *await self._home.routing.others()]
        return any([await (await _rows(home)).remove(id) for home in homes])

    async def list(self) -> list[StoredSchedule]:
        """Return all schedules that programs made, by id.

        Raises:
            ConfigurationError, ServerUnreachableError: as `pause`.

        Example:
            for item in await app.schedules.list():
                print(item.id, item.task, item.schedule, item.paused)
        """
        found: list[StoredSchedule] = []
        for home in [self._home, *await self._home.routing.others()]:
            paused = await home.stores.periodic.paused()
            items = await (await _rows(home)).list()
            found += [replace(item, paused=_key(item) in paused) for item in items]
        return sorted(found, key=lambda item: item.id)

    async def content(self, id: str) -> tuple[StoredSchedule, Envelope]:
        """Return a schedule and its message with arguments and labels, for the framework.

        Raises:
            NotFoundError: there is no such schedule.
            MalformedMessageError: its message was changed, or this process lacks a key.
        """
        item = await _get(self._home, id)
        return item, self._home.envelopes.read_again(id, item.envelope)

    async def _find(self, id: str) -> tuple[OpenNamespace, str]:
        """Return the namespace of a schedule and the identity of its entry."""

        async def ask(home: OpenNamespace) -> tuple[OpenNamespace, str]:
            return home, _key(await _get(home, id))

        return await self._home.routing.find(ask)

    def _labels(self, task: BaseTask, tenant: str | None) -> dict[str, Any]:
        """Return the labels that give the task its tenant."""
        by, running = self._home.live_config.tenants_by, running_context()
        if tenant is None:
            return inherited_labels(by, running.vo, running.labels) if running else {}
        name = self._home.registry.of(task).name
        try:
            labels = tenant_labels(by, tenant)
        except ValueError as error:
            raise InvalidArgumentsError(name, [str(error)]) from None
        if tenant_of(by, name, vo_of(task, labels), labels) != tenant:
            problem = f"tenant: {tenant!r} differs from the vo of the task, {vo_of(task, {})!r}"
            raise InvalidArgumentsError(name, [problem])
        return labels


_LONGEST_SECONDS = 3653 * 86400
_OWN = "give a class of your own to a PeriodicBaseTask, as its `_schedule`"


class SyncSchedules:
    """`Schedules` for programs without an event loop: its methods block.

    Example:
        app.schedules.put("digest-7", SendDigest(7), CronSchedule("0 8 * * *"))
    """

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules

    def put(
        self,
        id: str,
        task: TaskOf[Any],
        schedule: TaskScheduleBase,
        *,
        tenant: str | None = None,
        catch_up: CatchUp | None = None,
        misfire_grace: float | None = None,
        must_be_new: bool = False,
    ) -> Put:
        """See `Schedules.put`."""
        putting = self._schedules.put(
            *(id, task, schedule),
            tenant=tenant,
            catch_up=catch_up,
            misfire_grace=misfire_grace,
            must_be_new=must_be_new,
        )
        return complete(putting)

    def pause(self, id: str, reason: str = "") -> bool:
        """See `Schedules.pause`."""
        return complete(self._schedules.pause(id, reason))

    def resume(self, id: str) -> bool:
        """See `Schedules.resume`."""
        return complete(self._schedules.resume(id))

    def remove(self, id: str) -> bool:
        """See `Schedules.remove`."""
        return complete(self._schedules.remove(id))

    def list(self) -> list[StoredSchedule]:
        """See `Schedules.list`."""
        return complete(self._schedules.list())


async def _rows(home: OpenNamespace) -> ScheduleRows:
    """Return the store of a namespace.

    Raises:
        ConfigurationError: there is no database.
    """
    settings = home.settings
    is_embedded = settings.redis_url.get_secret_value().startswith(EMBEDDED)
    if not (is_embedded or settings.may_have_sql()):
        raise ConfigurationError(
            "schedules that programs make are kept in SQL, and there is no database: set "
            "NONET_DB_URL, to the same for programs and schedulers, and run 'task-run db upgrade'"
        )
    return await home.stores.schedules()


async def _get(home: OpenNamespace, id: str) -> StoredSchedule:
    item = await (await _rows(home)).get(id)
    if item is None:
        raise NotFoundError(f"no schedule {id} in the database: see 'task-run schedules list'")
    return item


async def _check_name(home: OpenNamespace, key: str, id: str) -> None:
    """Refuse the name of another entry. Without Redis, the leader finds it when it plans."""
    try:
        origin = await home.stores.periodic.origin(key)
    except ServerUnreachableError:
        return
    if origin not in ("", DATABASE):
        raise ConflictError(name_problem(id, origin))


def _key(item: StoredSchedule) -> str:
    return key_of(item.task, item.tenant, item.id)


def _contents(home: OpenNamespace, item: StoredSchedule) -> object:
    """Return what makes two schedules with one id the same; unequal to all if it is unreadable."""
    try:
        content = home.envelopes.read_again(item.id, item.envelope)
    except MalformedMessageError:
        return object()
    options = item.task, item.tenant, item.schedule, item.catch_up, item.misfire_grace
    return *options, content.args, content.labels
