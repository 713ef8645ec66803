"""Configured limits: what one applies to, its value, and the section ``limits:`` of the YAML file.

`LimitAddress` and `Limit` are what Redis keeps in the hash ``limits``. `read_limits` reads what
an administrator wrote; `resolve_limits` needs to know the registered types and classes as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from nonet.base.errors import hint_of_task, suggestion
from nonet.base.keys import escape, unescape
from nonet.tasks.locks import (
    LEAST_WINDOW_SECONDS,
    MOST_ITEMS,
    MOST_WINDOW_SECONDS,
    TASK,
    ConcurrencyLimiter,
    LockedObjectType,
    RateLimiter,
)

CONCURRENCY, RATE = "concurrency", "rate"
DEFAULT = "default"

Location: TypeAlias = tuple[str | int, ...]
Problem: TypeAlias = tuple[Location, str]

_LETTERS = {CONCURRENCY: ConcurrencyLimiter.kind, RATE: RateLimiter.kind}
_LIMITERS = {ConcurrencyLimiter.__name__: CONCURRENCY, RateLimiter.__name__: RATE}
_SETTINGS = {CONCURRENCY: ("limit",), RATE: ("limit", "window_seconds")}
_SETTING_NAMES = frozenset(name for names in _SETTINGS.values() for name in names)


@dataclass(frozen=True, order=True, slots=True)
class LimitAddress:
    """What a configured limit applies to.

    Attributes:
        object_type: registered name, e.g. ``storage_element``.
        key: of the limiter, or ``default`` for those without a limit of their own.
        action: the limiter's extra key, or empty.
        limiter: ``concurrency`` or ``rate``.
        vo: the VO whose own limit it is, or empty.

    Example:
        >>> LimitAddress("storage_element", "CERN-DST", "RemoveFile").field
        'C||storage_element|CERN-DST|RemoveFile'
    """

    object_type: str
    key: str
    action: str = ""
    limiter: str = CONCURRENCY
    vo: str = ""

    @property
    def field(self) -> str:
        """The field of the hash ``limits``."""
        parts = map(escape, (self.vo, self.object_type, self.key, self.action))
        return "|".join((_LETTERS[self.limiter], *parts))

    @classmethod
    def of_field(cls, field: str) -> LimitAddress:
        """The address that has this `field`."""
        letter, *parts = field.split("|")
        vo, object_type, key, action = map(unescape, parts)
        limiter = RATE if letter == RateLimiter.kind else CONCURRENCY
        return cls(object_type, key, action, limiter, vo)

    @property
    def counter(self) -> str:
        """The limiter in Redis that counts for exactly this key and action."""
        made = RateLimiter if self.limiter == RATE else ConcurrencyLimiter
        parts = [self.object_type, self.key, *([self.action] if self.action else [])]
        vo = [f"@{escape(self.vo)}"] if self.vo else []
        return ":".join([made._prefix, *vo, *map(escape, parts)])


@dataclass(frozen=True, slots=True)
class Limit:
    """A configured value.

    Attributes:
        limit: None lifts every limit, also that of the class.
        window_seconds: of a rate.

    Example:
        >>> Limit(10, 60).encode(), Limit(8).encode(), Limit(None).encode()
        ('10|60000', '8', 'off')
    """

    limit: int | None
    window_seconds: float | None = None

    def encode(self) -> str:
        """The value in the hash ``limits``."""
        if self.limit is None:
            return "off"
        if self.window_seconds is None:
            return str(self.limit)
        return f"{self.limit}|{round(self.window_seconds * 1000)}"

    @classmethod
    def decode(cls, text: str) -> Limit:
        """What `encode` made."""
        limit, _, window = text.partition("|")
        return cls(None if limit == "off" else int(limit), int(window) / 1000 if window else None)


def limit_problem(limit: object) -> str:
    """Why `limit` is no number of items or executions; empty if it is one."""
    if isinstance(limit, int) and not isinstance(limit, bool) and 1 <= limit <= MOST_ITEMS:
        return ""
    return f"must be a whole number, 1 at least and {MOST_ITEMS} at most, not {limit!r:.40}"


def window_problem(seconds: object) -> str:
    """Why `seconds` is no window of a rate; empty if it is one."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if number and LEAST_WINDOW_SECONDS <= seconds <= MOST_WINDOW_SECONDS:  # type: ignore[operator]  # a number, as said
        return ""
    return (
        f"must be a number of seconds, {LEAST_WINDOW_SECONDS} at least and "
        f"{MOST_WINDOW_SECONDS} (366 days) at most, not {seconds!r:.40}"
    )


def find_object_type(written: str, known: Collection[str]) -> str | None:
    """The registered type that `written` names, as registered or in CamelCase; None: there is none.

    Example:
        >>> find_object_type("StorageElement", {"storage_element", "job"})
        'storage_element'
    """
    if written in known:
        return written
    matching = [name for name in known if _folded(name) == _folded(written)]
    return matching[0] if len(matching) == 1 else None


def class_problem(key: str, task_classes: Collection[str]) -> str:
    """Why limits of object type ``task`` cannot have this key; empty if they can.

    Args:
        task_classes: the bare names of all known task classes.

    Example:
        >>> class_problem("Audit", {"Audit"}), class_problem("default", ())
        ('', '')
        >>> class_problem("files:Audit", {"Audit"})
        "limits go by the bare class name, which classes of one name share: write 'Audit'"
    """
    if key in task_classes or key == DEFAULT:
        return ""
    if ":" in key:
        bare = key.rpartition(":")[2]
        return f"limits go by the bare class name, which classes of one name share: write {bare!r}"
    return f"unknown task class {key!r}.{hint_of_task(key, task_classes)}"


def snake_case(written: str) -> str:
    """The name under which a type written in CamelCase is registered by custom.

    >>> snake_case("StorageElement"), snake_case("job")
    ('storage_element', 'job')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", written).lower()


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


@dataclass(frozen=True, order=True, slots=True)
class LimitRule:
    """One limiter in the configuration.

    Attributes:
        place: path of the limiter below ``limits``.
        object_type: as it is written.
    """

    place: Location
    object_type: str
    key: str
    action: str
    limiter: str
    limit: int
    window_seconds: float | None = None


def read_limits(section: object) -> tuple[list[LimitRule], list[Problem]]:
    """The limiters of a section ``limits:``, and everything that is wrong with it.

    Object type → key or ``default`` → limiters, and actions → limiters.

    Example:
        >>> rules, problems = read_limits({"Job": {7: {"ConcurrencyLimiter": {"limit": 2}}}})
        >>> rules[0].key, rules[0].limit, problems
        ('7', 2, [])
    """
    reader = _Reader()
    reader.read(section)
    return sorted(reader.rules, key=lambda rule: tuple(map(str, rule.place))), reader.problems


def written_limits(rules: Iterable[LimitRule]) -> dict[str, Any]:
    """A section ``limits:`` that `read_limits` reads as these rules.

    Example:
        >>> rules, _ = read_limits({"Job": {7: {"ConcurrencyLimiter": {"limit": 2}}}})
        >>> written_limits(rules)
        {'Job': {'7': {'ConcurrencyLimiter': {'limit': 2}}}}
    """
    section: dict[str, Any] = {}
    for rule in rules:
        node = section
        for part in rule.place:
            node = node.setdefault(str(part), {})
        node["limit"] = rule.limit
        if rule.window_seconds is not None:
            node["window_seconds"] = rule.window_seconds
    return section


class _Reader:
    """Collects limiters and problems in one pass."""

    def __init__(self) -> None:
        self.rules: list[LimitRule] = []
        self.problems: list[Problem] = []

    def read(self, section: object) -> None:
        for at, object_type, keys in self._items((), section, "object types"):
            if object_type in _LIMITERS:
                self._problem(at, _out_of_place(object_type, "an object type, such as Task,"))
                continue
            for here, key, node in self._items(at, keys, f"keys, or {DEFAULT!r}"):
                if key in _LIMITERS and not _has_limiters(node):
                    reason = _out_of_place(key, f"a key of {object_type}, or {DEFAULT!r},")
                    self._problem(here, reason)
                    continue
                self._read_key(here, object_type, key, node)

    def _read_key(self, at: Location, object_type: str, key: str, node: object) -> None:
        for here, name, item in self._items(at, node, "limiters or actions"):
            if _is_limiter(name, item):
                self._read_limiter(here, object_type, key, "", name, item)
            else:
                for there, limiter, values in self._items(here, item, "limiters"):
                    self._read_limiter(there, object_type, key, name, limiter, values)

    def _read_limiter(
        self, at: Location, object_type: str, key: str, action: str, name: str, values: object
    ) -> None:
        limiter = _LIMITERS.get(name)
        if limiter is None:
            known = ", ".join(_LIMITERS)
            reason = f"unknown limiter {name!r}, known are {known}."
            self._problem(at, reason + suggestion(name, _LIMITERS))
            return
        found = self._settings(at, limiter, values)
        if found is not None:
            limit, window = found
            self.rules.append(LimitRule(at, object_type, key, action, limiter, limit, window))

    def _settings(
        self, at: Location, limiter: str, values: object
    ) -> tuple[int, float | None] | None:
        """Limit and window of one limiter, or None if something is wrong with them."""
        wanted, before = _SETTINGS[limiter], len(self.problems)
        found: dict[str, Any] = {}
        for here, name, value in self._items(at, values, " and ".join(wanted)):
            if name not in wanted:
                reason = f"unknown key {name!r}, known are {', '.join(wanted)}."
                self._problem(here, reason + suggestion(name, wanted))
                continue
            problem = limit_problem(value) if name == "limit" else window_problem(value)
            if problem:
                self._problem(here, problem)
            found[name] = value
        if isinstance(values, dict):
            for name in wanted:
                if name not in found:
                    self._problem((*at, name), "is missing")
        if len(self.problems) > before:
            return None
        return found["limit"], found.get("window_seconds")

    def _items(
        self, at: Location, value: object, content: str
    ) -> Iterator[tuple[Location, str, object]]:
        """Each item of a mapping with its place and its key as text."""
        if not isinstance(value, dict):
            self._problem(at, f"must be a mapping of {content}, not {value!r:.40}")
            return
        seen: set[str] = set()
        for written, item in value.items():
            # YAML reads 12345 as a number, and ids of transformations and jobs are numbers.
            whole = isinstance(written, int) and not isinstance(written, bool)
            text = str(written) if whole else written
            if text == "":
                self._problem(at, "a key must not be empty")
            elif not isinstance(text, str):
                self._problem(at, f"the key {written!r} must be text: write it in quotes")
            elif text in seen:
                self._problem((*at, written), "is written twice")
            else:
                seen.add(text)
                yield (*at, written), text, item

    def _problem(self, at: Location, reason: str) -> None:
        self.problems.append((at, reason))


def _is_limiter(name: str, value: object) -> bool:
    """Whether an item below a key is a limiter, a misspelt one included, and not an action."""
    return name in _LIMITERS or (isinstance(value, dict) and not _SETTING_NAMES.isdisjoint(value))


def _has_limiters(value: object) -> bool:
    return isinstance(value, dict) and any(isinstance(item, dict) for item in value.values())


def _out_of_place(limiter: str, missing: str) -> str:
    return (
        f"is a limiter: {missing} comes first, as in"
        f" 'Task: {{RemoveFile: {{{limiter}: {{limit: 5}}}}}}'"
    )


def resolve_limits(
    rules: Iterable[LimitRule], vo: str, task_classes: Collection[str]
) -> tuple[dict[LimitAddress, Limit], list[Problem]]:
    """The limits that rules set, and what is wrong with them.

    Args:
        vo: whose rules they are, empty for all.
        task_classes: the bare names of all registered task classes.
    """
    limits: dict[LimitAddress, Limit] = {}
    problems: dict[Location, str] = {}
    for rule in rules:
        found = find_problem(rule.place, rule.object_type, rule.key, task_classes)
        if isinstance(found, str):
            address = LimitAddress(found, rule.key, rule.action, rule.limiter, vo)
            if address in limits:
                problems[rule.place] = f"is written twice, for object type {found}"
            limits[address] = Limit(rule.limit, rule.window_seconds)
        else:
            problems.setdefault(*found)
    return limits, list(problems.items())


def find_problem(
    place: Location, written: str, key: str | None, task_classes: Collection[str]
) -> str | Problem:
    """The registered object type that is meant, or why there can be no limits here.

    Args:
        place: where object type and key are written, below ``limits``.
        key: None: only the object type is written.
    """
    known = LockedObjectType.registered()
    object_type = find_object_type(written, known)
    if object_type is None:
        hint = suggestion(written, known) or " Is the module that registers it in NONET_TASKS?"
        reason = f"unknown object type {written!r}, known are {', '.join(sorted(known))}.{hint}"
        return place[:1], reason
    if object_type == TASK and key is not None and (wrong := class_problem(key, task_classes)):
        return place[:2], wrong
    return object_type
