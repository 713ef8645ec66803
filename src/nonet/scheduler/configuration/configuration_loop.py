"""Read the central configuration, check it as a whole, apply and publish it; runs in the leader.

The published configuration is the last good one: a scheduler that starts with a bad source uses it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from nonet.base.actor import who
from nonet.base.errors import ConfigurationError
from nonet.config.entries import (
    NO_SCHEDULE,
    Entry,
    PeriodicClass,
    all_vos,
    default_schedule,
    entries,
    entries_of,
    find_class,
    is_enabled,
    periodic_classes,
)
from nonet.config.models import CeilingsConfig, Config, FairnessConfig
from nonet.config.overrides import override_problems
from nonet.config.reading import problems_error
from nonet.config.sources import Source
from nonet.rules.limits import Limit, LimitAddress
from nonet.rules.outcomes import summarize
from nonet.scheduler.configuration.limits import (
    ceilings_by_scope,
    configured_ceilings,
    configured_limits,
)
from nonet.scheduler.periodic.entry_arguments import argument_problems, refusal
from nonet.stores.namespace.ceilings import ceilings_version
from nonet.stores.namespace.fairness import fairness_version
from nonet.stores.namespace.leadership import DeposedError
from nonet.stores.namespace.limits import limits_version
from nonet.stores.stores import Stores
from nonet.tasks.registry import Registry
from nonet.tasks.schedules import TaskScheduleBase, next_after, takes_after
from nonet.tasks.schedules.description import describe

logger = logging.getLogger(__name__)

_Made = TypeVar("_Made")

_PUBLISH_SECONDS = 1.0
_VERSION_DIGITS = 12


@dataclass(frozen=True)
class Checked:
    """A configuration that fits the registered classes, with the entries and limits it sets.

    Attributes:
        entries: all periodic entries, disabled ones too.
        limits: all limits, by their addresses.
        ceilings: all ceilings, with full class names.
        warnings: valid settings that may be mistakes.
        never_fire: number of enabled entries without any future occurrence.
    """

    config: Config
    entries: list[Entry]
    limits: Mapping[LimitAddress, Limit]
    ceilings: CeilingsConfig
    warnings: tuple[str, ...] = ()
    never_fire: int = 0

    @property
    def number_of_ceilings(self) -> int:
        """Number of ceilings."""
        return len(ceilings_by_scope(self.ceilings))

    @property
    def version(self) -> str:
        """Identifies a configuration."""
        return self.config.fingerprint()[:_VERSION_DIGITS]


def check(config: Config, registry: Registry, vos: Iterable[str] = ()) -> Checked:
    """Check a configuration against the classes of this process.

    Args:
        vos: further virtual organisations, from entry points.

    Raises:
        ConfigurationError: all problems at once, each with its place.
    """
    try:
        return _checked(config, registry, vos)
    except ConfigurationError:
        raise
    except BaseException as error:  # code of authors runs here
        why = summarize(error)
        reason = f"{why.type}: {why.text}".removesuffix(": ")
        raise ConfigurationError(f"{config.source}: cannot be used: {reason}") from error


def _checked(config: Config, registry: Registry, vos: Iterable[str]) -> Checked:
    problems: list[str] = []

    def tried(make: Callable[[], _Made], otherwise: _Made) -> _Made:
        """Collect the problems, so that all of them are reported at once."""
        try:
            return make()
        except ConfigurationError as error:
            problems.append(str(error))
            return otherwise

    vos = tuple(vos)
    classes = periodic_classes(registry)
    names = {item.name for item in registry}
    others = names - classes.keys()
    found = tried(lambda: entries(config, classes, vos, others), list[Entry]())
    if wrong := argument_problems(config, registry, vos):
        problems.append(str(problems_error(wrong)))
    bare = {name.rpartition(":")[2] for name in names}
    limits = tried(lambda: configured_limits(config, bare), dict[LimitAddress, Limit]())
    ceilings = tried(lambda: configured_ceilings(config, registry), CeilingsConfig())
    if wrong := override_problems(config, registry):
        problems.append(str(problems_error(wrong)))
    if problems:
        raise ConfigurationError("\n".join(problems))
    planned, warnings = _constructible(found, registry)
    if lacking := _lacking_a_vo(config, classes, vos):
        warnings.append(
            f"{', '.join(lacking)}: nothing is planned, because no VO is configured: list them"
            " under vos"
        )
    over = [entry for entry in planned if entry.enabled and _is_over(entry.schedule)]
    warnings += dict.fromkeys(map(_never_fires, over))
    warnings += [*_without_schedule(config, registry), *registry.warnings()]
    return Checked(config, planned, limits, ceilings, tuple(warnings), len(over))


def _is_over(schedule: TaskScheduleBase) -> bool:
    """Whether a schedule has no future occurrence.

    Do not ask an author's schedule without an `after` parameter: it may be asked only once per
    firing. A failing schedule is reported when it is planned.
    """
    with suppress(BaseException):  # code of an author
        return takes_after(schedule) and next_after(schedule, datetime.now(UTC)) is None
    return False


def _never_fires(entry: Entry) -> str:
    where = entry.task_name if entry.origin == "class" else f"{entry.origin}, entry {entry.name}"
    return (
        f"{where}: never fires: {describe(entry.schedule)} has no future occurrence; correct the "
        "schedule, or disable the entry"
    )


def _without_schedule(config: Config, registry: Registry) -> Iterator[str]:
    """Warn about each enabled periodic class that has no schedule and is not configured."""
    classes = periodic_classes(registry)
    written = {find_class(name, classes) for *_, s in config.sections for name in s.periodic_tasks}
    for item in registry:
        cls = classes.get(item.name)
        # A base class may lack a schedule, unless it is exported as a class of its own.
        is_base = item.package == item.cls.__module__ and bool(item.cls.__subclasses__())
        if cls is None or item.name in written or is_base or not is_enabled(cls):
            continue
        if default_schedule(cls) is None:
            yield f"{item.name}: {NO_SCHEDULE}"


def _constructible(found: Iterable[Entry], registry: Registry) -> tuple[list[Entry], list[str]]:
    """Drop the entries of unconfigured classes that need arguments; return the others and warnings.

    Configured entries were checked by `argument_problems`. A class that is not configured must not
    block all others.
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
            text = f"{entry.task_name}: not planned until it is configured: {why}"
            warnings[text] = None
    return planned, list(warnings)


def _lacking_a_vo(
    config: Config, classes: Mapping[str, PeriodicClass], vos: Iterable[str]
) -> list[str]:
    """Return the enabled per-VO classes that are not planned because no VO is configured."""
    if all_vos(config, vos):
        return []
    with_one = entries(config, classes, ["any"])
    return sorted({entry.task_name for entry in with_one if entry.vo and entry.enabled})


class ConfigurationLoop:
    """Follow the source of the configuration.

    Args:
        fits: raises `ConfigurationError` if a configuration does not fit, see `check`.
        stores: those of the namespace to which the configuration is published.
        adopt: receives the periodic entries of the tenants of this namespace, to plan from now on.

    Attributes:
        current: the applied configuration; None before the first one.
        problem: why the current state of the source is not applied; empty if it is applied.
    """

    def __init__(
        self,
        source: Source,
        fits: Callable[[Config], Checked],
        stores: Stores,
        adopt: Callable[[list[Entry]], None],
    ) -> None:
        self.current: Checked | None = None
        self.problem: str = ""
        self._source = source
        self._fits = fits
        self._stores = stores
        self._on_adopt = adopt
        self._read_at = 0.0
        self._known_in = ""
        self._revision = ""
        self._reported: tuple[str, str] | None = None

    async def start(self) -> None:
        """Load a first configuration.

        Raises:
            ConfigurationError: the source is bad, and no good configuration is published.
        """
        try:
            self._adopt(self._fits(await self._source.read()))
        except ConfigurationError as error:
            logger.error("configuration not applied, trying the published one: error=%s", error)
            if not await self._adopt_published():
                raise
            self.problem = str(error)

    async def tick(self, term: str) -> float:
        """Read the source if it is due, and publish the current configuration."""
        if term != self._known_in:
            # The previous leader may have applied a newer configuration and planned its entries.
            await self._adopt_published()
            self._known_in, self._read_at = term, 0.0
        if time.monotonic() >= self._read_at:
            await self._read()
            self._read_at = time.monotonic() + self._source.poll_seconds
        await self._publish(term)
        return min(_PUBLISH_SECONDS, max(0.0, self._read_at - time.monotonic()))

    def is_known_in(self, term: str) -> bool:
        """Whether this leader's configuration is at least as new as the previous leader's."""
        return term == self._known_in

    @property
    def is_published(self) -> bool:
        """Whether the current configuration is published completely."""
        return self._known_in != "" and self._reported == (self._known_in, self.problem)

    async def _read(self) -> None:
        problem = ""
        try:
            config = await self._source.read()
            if self.current is None or config.fingerprint() != self.current.config.fingerprint():
                self._adopt(self._fits(config))
            self._revision = self._source.revision
        except ConfigurationError as error:
            problem = str(error)
        if problem and problem != self.problem:
            logger.error("configuration not applied, the last good one stays: error=%s", problem)
        elif self.problem and not problem:
            logger.info("configuration is good again")
        self.problem = problem

    def _adopt(self, checked: Checked) -> None:
        """Apply a configuration."""
        self.current = checked
        own = entries_of(self._stores.namespace, checked.config, checked.entries)
        self._on_adopt(own)
        for warning in checked.warnings:
            logger.warning("%s", warning)
        logger.info(
            "configuration %s applied: periodic_entries=%d limits=%d",
            checked.version,
            sum(entry.enabled for entry in own),
            len(checked.limits),
        )

    async def _adopt_published(self) -> bool:
        """Apply the published configuration if it fits; return whether it did."""
        published = await self._stores.publication.read()
        if published is None or not published.document:
            return False
        if self.current is not None and self.current.version == published.version:
            return True
        try:
            config = Config.from_document(published.document)
            self._adopt(self._fits(config.read_from(published.source)))
        except ConfigurationError as error:
            logger.error("published configuration does not fit this version: error=%s", error)
            return False
        self._revision = published.revision
        return True

    async def _publish(self, term: str) -> None:
        """Publish the parts of the configuration that Redis lacks, or has in an old version."""
        current = self.current
        if current is None:
            return
        if await self._stores.publication.version() != current.version:
            document, source = current.config.document(), current.config.source
            is_leader = await self._stores.publication.publish(
                term, current.version, document, source=source, revision=self._revision, who=who()
            )
            self._reported = None
            if not is_leader:
                raise DeposedError
            logger.info("configuration %s published", current.version)
        if await self._stores.limits.published() != limits_version(current.limits):
            if not await self._stores.limits.publish(term, current.limits, who()):
                raise DeposedError
            logger.info("limits published: number=%d", len(current.limits))
        ceilings = ceilings_by_scope(current.ceilings)
        if await self._stores.ceilings.published() != ceilings_version(ceilings):
            if not await self._stores.ceilings.publish(term, ceilings, who()):
                raise DeposedError
            logger.info("ceilings published: number=%d", len(ceilings))
        await self._publish_fairness(term, current.config.fairness)
        if self._reported != (term, self.problem):
            if not await self._stores.publication.report(term, self.problem, who()):
                raise DeposedError
            self._reported = (term, self.problem)

    async def _publish_fairness(self, term: str, wanted: FairnessConfig | None) -> None:
        streams, weights = (wanted.shared, wanted.weights) if wanted else ((), {})
        if await self._stores.fairness.published() == fairness_version(streams, weights):
            return
        left = await self._stores.fairness.publish(term, streams, weights, who())
        if left is None:
            raise DeposedError
        if left == 0:
            logger.info("fair shares published: streams=%d weights=%d", len(streams), len(weights))
