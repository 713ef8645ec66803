"""Limits and ceilings of a configuration, with all types and classes resolved. Pure."""

from __future__ import annotations

from collections.abc import Collection

from nonet.base.errors import UnknownTaskError
from nonet.config.models import CeilingsConfig, Config
from nonet.config.reading import problems_error
from nonet.rules.limits import Limit, LimitAddress, Location, resolve_limits
from nonet.tasks.registry import Registry


def configured_limits(config: Config, task_classes: Collection[str]) -> dict[LimitAddress, Limit]:
    """Return the limits of the configuration by their addresses.

    Args:
        task_classes: the bare names of all registered task classes.

    Raises:
        ConfigurationError: all problems at once, each with its path in the configuration.
    """
    limits: dict[LimitAddress, Limit] = {}
    problems: dict[Location, str] = {}
    for at, vo, section in config.sections:
        found, wrong = resolve_limits(section.limits, vo, task_classes)
        limits |= found
        problems |= {(*at, "limits", *place): reason for place, reason in wrong}
    if problems:
        raise problems_error((config.where(at), at, reason) for at, reason in problems.items())
    return limits


def configured_ceilings(config: Config, registry: Registry) -> CeilingsConfig:
    """Return the ceilings of the configuration, with full class names.

    Raises:
        ConfigurationError: all problems at once, each with its path in the configuration.
    """
    tasks: dict[str, int] = {}
    written: dict[str, str] = {}
    problems: dict[Location, str] = {}
    for name, ceiling in config.ceilings.tasks.items():
        at = ("ceilings", "tasks", name)
        try:
            full = registry.get(name).name
        except UnknownTaskError as error:
            problems[at] = str(error)
            continue
        if full in tasks:
            problems[at] = f"is the same class as {written[full]!r}: write it once"
        tasks[full], written[full] = ceiling, name
    if problems:
        raise problems_error((config.where(at), at, reason) for at, reason in problems.items())
    return config.ceilings.model_copy(update={"tasks": tasks})


def ceilings_by_scope(ceilings: CeilingsConfig) -> dict[str, int]:
    """Return the ceilings by scope, see `nonet.stores.namespace.ceilings.Load`."""
    of_streams = {f"stream:{name}": ceiling for name, ceiling in ceilings.streams.items()}
    of_tasks = {f"task:{name}": ceiling for name, ceiling in ceilings.tasks.items()}
    of_all = {"namespace": ceilings.namespace} if ceilings.namespace is not None else {}
    of_tenants = {
        f"{kind}:{name}": ceiling
        for kind, those in (
            ("tenant", ceilings.tenants),
            ("tenant-bytes", ceilings.tenant_bytes),
            ("tenant-rate", ceilings.tenant_rates),
        )
        for name, ceiling in those.items()
    }
    return {**of_all, **of_streams, **of_tasks, **of_tenants}
