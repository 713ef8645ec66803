"""Limits that operators set by hand: read what they wrote, and put limits into words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, TypeAlias

from nonet.base.errors import ConfigurationError
from nonet.rules.limits import (
    CONCURRENCY,
    OFF,
    RATE,
    Limit,
    LimitAddress,
    applying,
    limit_problem,
    window_problem,
)

# Tasks of a limiter that are searched for the limit that their class declares.
SHOWN = 50


@dataclass(frozen=True, slots=True)
class ParsedAddress:
    """What an operator wants to limit.

    Attributes:
        limiters: the possible kinds of limiters; one if the limiter was named in full.
        note: a remark for the operator; may be empty.
    """

    address: LimitAddress
    limiters: tuple[str, ...]
    note: str = ""


Source: TypeAlias = Literal["configuration", "override", "class"]


@dataclass(frozen=True, slots=True)
class EffectiveLimit:
    """An effective limit and its origin.

    Attributes:
        source: ``configuration``, ``override`` (set by hand) or ``class`` (declared by a class
            whose tasks hold it or wait for it).
        by, since: the operator and time of an override; empty and None without one.
        configured: the configured limit that is overridden, if any.
    """

    address: LimitAddress
    limit: Limit
    source: Source = "configuration"
    by: str = ""
    since: datetime | None = None
    configured: Limit | None = None


@dataclass(frozen=True, slots=True)
class Override:
    """A limit that an operator set by hand, and that refuses a task now.

    Attributes:
        name: of the limit, as ``task-run limits unset`` takes it.
        by, since: who set it, and when.
        otherwise: the limit that applies without it, as configured or as the class declares it;
            None: none is known.
    """

    name: str
    limit: Limit
    by: str
    since: datetime | None = None
    otherwise: Limit | None = None

    @property
    def is_narrower(self) -> bool:
        """Whether it lets fewer tasks run than the limit without it."""
        return self.otherwise is not None and self.limit.is_narrower(self.otherwise)


def override_of(
    counter: str, limits: Mapping[LimitAddress, EffectiveLimit], declared: Limit | None = None
) -> Override | None:
    """Return the manual limit in force at a counter; None if another limit is in force.

    Args:
        counter: its name, as ``task-run locks`` shows it.
        declared: the limit that its tasks declare.

    >>> at = LimitAddress("job", "7")
    >>> one = EffectiveLimit(at, Limit(1), "override", "ann@host 7", configured=Limit(50))
    >>> override_of("limiter:conc:job:7", {at: one}).otherwise
    Limit(limit=50, window_seconds=None)
    """
    address = LimitAddress.of_counter(counter)
    if address is None:
        return None
    found = [limits[at] for at in applying(address) if at in limits]
    if not found or found[0].source != "override":
        return None
    first, *others = found
    known = [
        first.configured,
        *(it.configured or (it.limit if it.source == "configuration" else None) for it in others),
        declared,
    ]
    otherwise = next((limit for limit in known if limit is not None), None)
    return Override(first.address.counter, first.limit, first.by, first.since, otherwise)


def parse_address(written: str, key: str | None, action: str = "", vo: str = "") -> ParsedAddress:
    """Return the address that an operator wrote.

    Args:
        written: an object type; without a `key` a whole limiter, as ``task-run locks`` shows it or
            as ``TYPE:KEY:ACTION``.

    Raises:
        ConfigurationError: it is no limiter, or of another VO.

    Example:
        >>> parse_address("limiter:rate:@lhcb:job:7", None).address
        LimitAddress(object_type='job', key='7', action='', limiter='rate', vo='lhcb')
        >>> parse_address("Job", "7", "copy").limiters
        ('concurrency', 'rate')
    """
    if key is not None:
        return ParsedAddress(LimitAddress(written, key, action, vo=vo), (CONCURRENCY, RATE))
    named = LimitAddress.of_counter(written)
    limiters = (CONCURRENCY, RATE) if named is None else (named.limiter,)
    named = named or LimitAddress.of_counter(f"limiter:conc:{written}")
    if named is None:
        raise ConfigurationError(
            f"KEY is missing: give it after {written!r}, or give the name of a limiter as "
            "'task-run locks' shows it"
        )
    if vo and named.vo not in ("", vo):
        raise ConfigurationError(f"--vo {vo}: {written} is of VO {named.vo}")
    note = ""
    if limiters == (named.limiter,) and named.counter != written:
        note = f"a limit names one action at most: this one is for all actions of {named.key}"
    return ParsedAddress(replace(named, vo=vo or named.vo), limiters, note)


def limit_of(limiter: str, number: str, window: float | None) -> Limit:
    """Read a limit.

    Args:
        limiter: ``concurrency`` or ``rate``.
        number: a whole number, or ``off``.
        window: seconds, of a rate with a number.

    Raises:
        ConfigurationError: the number or the window is invalid.

    Example:
        >>> limit_of("rate", "10", 60.0), limit_of("concurrency", "off", None)
        (Limit(limit=10, window_seconds=60.0), Limit(limit=None, window_seconds=None))
    """
    if number == OFF:
        return Limit(None)
    value: object = int(number) if number.isascii() and number.isdigit() else number
    if problem := limit_problem(value):
        raise ConfigurationError(f"{limiter}: {problem}; or '{OFF}'")
    if limiter != RATE:
        return Limit(int(number))
    if problem := window_problem(window):
        raise ConfigurationError(f"window: {problem}")
    return Limit(int(number), window)


def effects(limit: Limit, used: int | None, waiting: int | None) -> list[str]:
    """Describe the effects of a limit that an operator sets by hand.

    Args:
        used, waiting: of the limiter now; None for a limit of many limiters.

    >>> effects(Limit(2), 4, 7)[0]
    '4 count now: they continue, and none starts until fewer than 2 do'
    >>> effects(Limit(9), 4, 7)[0]
    'up to 5 of the 7 waiting tasks can start at once'
    """
    lines = []
    if limit.limit is None:
        lines.append("there is no limit then, not even the one that the class declares")
    elif used is not None and used >= limit.limit:
        lines.append(
            f"{used} count now: they continue, and none starts until fewer than {limit.limit} do"
        )
    elif used is not None and waiting:
        free = min(waiting, limit.limit - used)
        lines.append(f"up to {free} of the {waiting} waiting tasks can start at once")
    if waiting and limit.limit is None:
        lines.append(f"all of the {waiting} waiting tasks can start, as far as workers are free")
    lines.append(
        "it lasts until it is unset, or until Redis loses its data: put a permanent limit into "
        "the configuration"
    )
    return lines
