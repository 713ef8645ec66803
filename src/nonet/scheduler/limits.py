"""Which limits a configuration sets, once all types and classes are known. Pure."""

from __future__ import annotations

from collections.abc import Collection

from nonet.config import Config, Location, SectionConfig, problems_error
from nonet.limits import Limit, LimitAddress, resolve_limits


def configured_limits(config: Config, task_classes: Collection[str]) -> dict[LimitAddress, Limit]:
    """All limits of the configuration, by their addresses.

    Args:
        task_classes: the bare names of all registered task classes.

    Raises:
        ConfigurationError: all problems at once, each with its path in the configuration.
    """
    sections: list[tuple[Location, str, SectionConfig]] = [(("common",), "", config.common)]
    sections += [(("vo-overrides", vo), vo, section) for vo, section in config.vo_overrides.items()]
    limits: dict[LimitAddress, Limit] = {}
    problems: list[tuple[str, Location, str]] = []
    for at, vo, section in sections:
        found, wrong = resolve_limits(section.limits, vo, task_classes)
        limits |= found
        for place, reason in wrong:
            here = (*at, "limits", *place)
            problems.append((config.where(here), here, reason))
    if problems:
        raise problems_error(problems)
    return limits
