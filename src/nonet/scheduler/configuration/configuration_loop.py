"""The central configuration in the scheduler: read, checked as a whole, adopted and published.

Only the leader does so. What it has published is the last good configuration: a scheduler that
starts while its source is bad goes on with that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from nonet.base.errors import ConfigurationError
from nonet.config.models import CeilingsConfig, Config
from nonet.config.overrides import override_problems
from nonet.config.reading import problems_error
from nonet.config.sources import Source
from nonet.daemon.service import who
from nonet.rules.limits import Limit, LimitAddress
from nonet.rules.outcomes import summarize
from nonet.scheduler.configuration.limits import (
    ceilings_by_scope,
    configured_ceilings,
    configured_limits,
)
from nonet.scheduler.periodic.entry_arguments import argument_problems, refusal
from nonet.scheduler.periodic.plan import (
    NO_SCHEDULE,
    Entry,
    PeriodicClass,
    all_vos,
    default_schedule,
    describe,
    entries,
    find_class,
    is_enabled,
    periodic_classes,
)
from nonet.stores.namespace.ceilings import Ceilings, ceilings_version
from nonet.stores.namespace.leadership import DeposedError
from nonet.stores.namespace.limits import Limits, limits_version
from nonet.stores.namespace.publication import Publication
from nonet.tasks.registry import Registry
from nonet.tasks.schedules import TaskScheduleBase, next_after, takes_after

logger = logging.getLogger(__name__)

_PUBLISH_SECONDS = 1.0
_VERSION_DIGITS = 12


@dataclass(frozen=True)
class Checked:
    """A configuration that fits the registered classes, and what follows from it.

    Attributes:
        entries: all periodic entries, disabled ones too.
        limits: all limits, by their addresses.
        ceilings: all ceilings, those of classes by their full names.
        warnings: what is fine and still may not be meant.
        never_fire: how many enabled entries have no occurrence any more.
    """

    config: Config
    entries: list[Entry]
    limits: Mapping[LimitAddress, Limit]
    ceilings: CeilingsConfig
    warnings: tuple[str, ...] = ()
    never_fire: int = 0

    @property
    def number_of_ceilings(self) -> int:
        """How many ceilings there are."""
        found = self.ceilings
        return (found.namespace is not None) + len(found.streams) + len(found.tasks)

    @property
    def version(self) -> str:
        """Tells configurations apart."""
        return self.config.fingerprint()[:_VERSION_DIGITS]


def check(config: Config, registry: Registry, vos: Iterable[str] = ()) -> Checked:
    """See whether a configuration fits the classes of this process.

    Args:
        vos: further virtual organisations, from entry points.

    Raises:
        ConfigurationError: all problems at once, each with its place.
    """
    try:
        return _checked(config, registry, vos)
    except ConfigurationError:
        raise
    except BaseException as error:  # it runs code of authors, and waits for nothing
        why = summarize(error)
        reason = f"{why.type}: {why.text}".removesuffix(": ")
        raise ConfigurationError(f"{config.source}: cannot be used: {reason}") from error


def _checked(config: Config, registry: Registry, vos: Iterable[str]) -> Checked:
    found: list[Entry] = []
    limits: dict[LimitAddress, Limit] = {}
    ceilings = CeilingsConfig()
    problems: list[str] = []
    vos = tuple(vos)
    classes = periodic_classes(registry)
    names = {item.name for item in registry}
    with _noting(problems):
        found = entries(config, classes, vos, names - classes.keys())
    with _noting(problems):
        if wrong := argument_problems(config, registry, vos):
            raise problems_error(wrong)
    with _noting(problems):
        limits = configured_limits(config, {name.rpartition(":")[2] for name in names})
    with _noting(problems):
        ceilings = configured_ceilings(config, registry)
    with _noting(problems):
        if wrong := override_problems(config, registry):
            raise problems_error(wrong)
    if problems:
        raise ConfigurationError("\n".join(problems))
    planned, warnings = _that_can_be_made(found, registry)
    if lacking := _lacking_a_vo(config, classes, vos):
        warnings.append(
            f"{', '.join(lacking)}: nothing is planned, because no VO is configured: list them"
            " under vos"
        )
    over = [entry for entry in planned if entry.enabled and _is_over(entry.schedule)]
    warnings += dict.fromkeys(map(_never_fires, over))
    warnings += [*config.warnings, *_without_schedule(config, registry), *registry.oversights()]
    return Checked(config, planned, limits, ceilings, tuple(warnings), len(over))


def _is_over(schedule: TaskScheduleBase) -> bool:
    """Whether a schedule has no occurrence any more.

    An author's schedule that only tells the next one is asked once for each firing, and so not
    here; one that fails is reported when it is planned.
    """
    with suppress(BaseException):  # it is an author's code
        return takes_after(schedule) and next_after(schedule, datetime.now(UTC)) is None
    return False


def _never_fires(entry: Entry) -> str:
    where = entry.task_name if entry.origin == "class" else f"{entry.origin}, entry {entry.name}"
    return (
        f"{where}: never fires: {describe(entry.schedule)} has no occurrence any more; correct the "
        "schedule, or disable the entry"
    )


def _without_schedule(config: Config, registry: Registry) -> Iterator[str]:
    """Of each periodic class that never fires, and is meant to: it is configured nowhere."""
    classes = periodic_classes(registry)
    written = {find_class(name, classes) for *_, s in config.sections for name in s.periodic_tasks}
    for item in registry:
        cls = classes.get(item.name)
        # A base of others may have no schedule, unless it is offered as a class of its own.
        is_base = item.package == item.cls.__module__ and bool(item.cls.__subclasses__())
        if cls is None or item.name in written or is_base or not is_enabled(cls):
            continue
        if default_schedule(cls) is None:
            yield f"{item.name}: {NO_SCHEDULE}"


def _that_can_be_made(found: Iterable[Entry], registry: Registry) -> tuple[list[Entry], list[str]]:
    """The entries without those of classes that need arguments, and what to say of these.

    What is configured can be made, see `argument_problems`. A class that nobody configures is left
    out, so that it does not stop all others.
    """
    planned: list[Entry] = []
    warnings: dict[str, None] = {}
    for entry in found:
        why = ""
        if entry.origin == "class":
            why = refusal(registry.get(entry.task_name), entry.args)
        if not why:
            planned.append(entry)
        elif entry.enabled:
            text = f"{entry.task_name}: is not planned until it is configured: {why}"
            warnings[text] = None
    return planned, list(warnings)


def _lacking_a_vo(
    config: Config, classes: Mapping[str, PeriodicClass], vos: Iterable[str]
) -> list[str]:
    """The classes that run per VO, and would run if there was one."""
    if all_vos(config, vos):
        return []
    with_one = entries(config, classes, ["any"])
    return sorted({entry.task_name for entry in with_one if entry.vo and entry.enabled})


class ConfigurationLoop:
    """Follows the source of the configuration.

    Args:
        fits: raises `ConfigurationError` if a configuration does not fit, see `check`.
        adopt: told of the periodic entries that are to be planned from now on.

    Attributes:
        current: what holds; None before the first one was adopted.
        problem: why the source is not applied as it is now; empty if it is.
    """

    def __init__(
        self,
        source: Source,
        fits: Callable[[Config], Checked],
        limits: Limits,
        ceilings: Ceilings,
        publication: Publication,
        adopt: Callable[[list[Entry]], None],
    ) -> None:
        self.current: Checked | None = None
        self.problem: str = ""
        self._source = source
        self._fits = fits
        self._limits = limits
        self._ceilings = ceilings
        self._publication = publication
        self._adopt_them = adopt
        self._read_at = 0.0
        self._known_in = ""
        self._revision = ""
        self._reported: tuple[str, str] | None = None

    async def start(self) -> None:
        """Have a configuration before anything else.

        Raises:
            ConfigurationError: the source is bad, and no good configuration is published.
        """
        try:
            self._adopt(self._fits(await self._source.read()))
        except ConfigurationError as error:
            logger.error(
                "the configuration is bad, the last one published is looked for: %s", error
            )
            if not await self._adopt_published():
                raise
            self.problem = str(error)

    async def tick(self, term: str) -> float:
        """Look for a new configuration, and let Redis have the current one."""
        if term != self._known_in:
            # The leader before us may have had a newer one than we, and its entries are planned.
            await self._adopt_published()
            self._known_in, self._read_at = term, 0.0
        if time.monotonic() >= self._read_at:
            await self._read()
            self._read_at = time.monotonic() + self._source.poll_seconds
        await self._publish(term)
        return min(_PUBLISH_SECONDS, max(0.0, self._read_at - time.monotonic()))

    def is_known_in(self, term: str) -> bool:
        """Whether what this leader goes by is as new as what the leader before it went by."""
        return term == self._known_in

    @property
    def is_published(self) -> bool:
        """Whether Redis has all that holds now."""
        return self._known_in != "" and self._reported == (self._known_in, self.problem)

    async def _read(self) -> None:
        try:
            config = await self._source.read()
            if self.current is None or config.fingerprint() != self.current.config.fingerprint():
                self._adopt(self._fits(config))
            self._revision = self._source.revision
            problem = self._source.problem
        except ConfigurationError as error:
            problem = str(error)
        if problem and problem != self.problem:
            logger.error("configuration not applied, the last good one stays: %s", problem)
        elif self.problem and not problem:
            logger.info("the configuration is good again")
        self.problem = problem

    def _adopt(self, checked: Checked) -> None:
        """Let a configuration hold from now on."""
        self._adopt_them(checked.entries)
        self.current = checked
        for warning in checked.warnings:
            logger.warning("%s", warning)
        logger.info(
            "configuration %s applied: %d periodic entries, %d limits",
            checked.version,
            sum(entry.enabled for entry in checked.entries),
            len(checked.limits),
        )

    async def _adopt_published(self) -> bool:
        """Go on with what a leader has published last, if it fits; whether it does."""
        published = await self._publication.read()
        if published is None or not published.document:
            return False
        if self.current is not None and self.current.version == published.version:
            return True
        try:
            config = Config.from_document(published.document)
            self._adopt(self._fits(config.read_from(published.source)))
        except ConfigurationError as error:
            logger.error("the published configuration does not fit this version: %s", error)
            return False
        self._revision = published.revision
        return True

    async def _publish(self, term: str) -> None:
        """Let the configuration hold, unless it does: it changes, and Redis may lose it."""
        current = self.current
        if current is None:
            return
        if await self._publication.version() != current.version:
            document, source = current.config.document(), current.config.source
            is_leader = await self._publication.publish(
                term,
                current.version,
                document,
                source=source,
                revision=self._revision,
                who=who(),
            )
            self._reported = None
            if not is_leader:
                raise DeposedError
            logger.info("configuration %s published", current.version)
        if await self._limits.published() != limits_version(current.limits):
            if not await self._limits.publish(term, current.limits, who()):
                raise DeposedError
            logger.info("limits published: %d", len(current.limits))
        ceilings = ceilings_by_scope(current.ceilings)
        if await self._ceilings.published() != ceilings_version(ceilings):
            if not await self._ceilings.publish(term, ceilings, who()):
                raise DeposedError
            logger.info("ceilings published: %d", len(ceilings))
        if self._reported != (term, self.problem):
            if not await self._publication.report(term, self.problem, who()):
                raise DeposedError
            self._reported = (term, self.problem)


@contextmanager
def _noting(problems: list[str]) -> Iterator[None]:
    """Note what is wrong with the configuration and go on: all of it is told at once."""
    try:
        yield
    except ConfigurationError as error:
        problems.append(str(error))
