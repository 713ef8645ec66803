"""Configured limits: their addresses and values, and the section ``limits:`` of the YAML file.

The hash ``limits`` in Redis maps a `LimitAddress` to a `Limit`. `read_limits` parses the section,
and `resolve_limits` checks it against the registered types and classes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from nonet.base.errors import hint_of_task, suggestion
from nonet.base.keys import escape, unescape
from nonet.tasks.locks import (
    KINDS,
    LEAST_WINDOW_SECONDS,
    MOST_ITEMS,
    MOST_WINDOW_SECONDS,
    TASK,
    ConcurrencyLimiter,
    LockedObjectType,
    LockKind,
    RateLimiter,
)

CONCURRENCY, RATE = ConcurrencyLimiter.kind.word, RateLimiter.kind.word
DEFAULT = "default"
OFF = "off"

Location: TypeAlias = tuple[str | int, ...]
Problem: TypeAlias = tuple[Location, str]

_LIMITERS = {made.__name__: made.kind for made in (ConcurrencyLimiter, RateLimiter)}
_BY_WORD = {kind.word: kind for kind in _LIMITERS.values()}
_SETTING_NAMES = ("limit", "window_seconds")


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

    def __str__(self) -> str:
        """Name what it applies to.

        >>> str(LimitAddress("job", "7", "copy", vo="lhcb"))
        'concurrency job 7 copy of VO lhcb'
        """
        vo = f"of VO {self.vo}" if self.vo else ""
        return " ".join(filter(None, (self.limiter, self.object_type, self.key, self.action, vo)))

    @property
    def field(self) -> str:
        """The field of the hash ``limits``."""
        parts = map(escape, (self.vo, self.object_type, self.key, self.action))
        return "|".join((_BY_WORD[self.limiter].letter, *parts))

    @classmethod
    def of_field(cls, field: str) -> LimitAddress:
        """Parse a `field`."""
        letter, *parts = field.split("|")
        vo, object_type, key, action = map(unescape, parts)
        return cls(object_type, key, action, KINDS[letter].word, vo)

    @property
    def counter(self) -> str:
        """The name in Redis of the counter for exactly this key and action."""
        parts = [self.object_type, self.key, *([self.action] if self.action else [])]
        vo = [f"@{escape(self.vo)}"] if self.vo else []
        return ":".join([_BY_WORD[self.limiter].prefix, *vo, *map(escape, parts)])

    @classmethod
    def of_counter(cls, name: str) -> LimitAddress | None:
        """Parse a name that ``task-run locks`` shows; None if it is not the name of a limiter.

        A limit names at most one action: for a limiter with several extra keys, return the address
        of its key, whose limit then applies to each of its counters.

        Example:
            >>> LimitAddress.of_counter("limiter:rate:@lhcb:job:a%3Ab")
            LimitAddress(object_type='job', key='a:b', action='', limiter='rate', vo='lhcb')
            >>> LimitAddress.of_counter("limiter:conc:job:7:copy:fast").key
            '7'
        """
        kind = next((k for k in _BY_WORD.values() if name.startswith(f"{k.prefix}:")), None)
        if kind is None:
            return None
        parts = name.removeprefix(f"{kind.prefix}:").split(":")
        vo = unescape(parts.pop(0)[1:]) if parts[0].startswith("@") else ""
        if len(parts) < len(("object_type", "key")) or not all(parts):
            return None
        object_type, key, *actions = map(unescape, parts)
        action = actions[0] if len(actions) == 1 else ""
        return cls(object_type, key, action, kind.word, vo)


def applying(counter: LimitAddress) -> list[LimitAddress]:
    """Return the addresses whose limits apply to a counter; the first that has a limit decides.

    >>> [item.key for item in applying(LimitAddress("job", "7"))]
    ['7', 'default']
    """
    actions = dict.fromkeys((counter.action, ""))
    return [
        replace(counter, key=key, action=action)
        for key in dict.fromkeys((counter.key, DEFAULT))
        for action in actions
    ]


@dataclass(frozen=True, slots=True)
class Limit:
    """A configured value.

    Attributes:
        limit: None removes the limit, including the one that the class declares.
        window_seconds: window of a rate.

    Example:
        >>> Limit(10, 60).encode(), Limit(8).encode(), Limit(None).encode()
        ('10|60000', '8', 'off')
    """

    limit: int | None
    window_seconds: float | None = None

    def __str__(self) -> str:
        """Put it into words.

        >>> print(Limit(8), Limit(10, 60.0), Limit(None), sep=", ")
        8, 10 per 60 s, off
        """
        if self.limit is None:
            return OFF
        if self.window_seconds is None:
            return str(self.limit)
        return f"{self.limit} per {self.window_seconds:g} s"

    def is_narrower(self, other: Limit) -> bool:
        """Whether it lets fewer tasks run, or start in a time, than another one.

        >>> Limit(1).is_narrower(Limit(None)), Limit(10, 60.0).is_narrower(Limit(10, 600.0))
        (True, False)
        """
        if self.limit is None or other.limit is None:
            return self.limit is not None
        return self.limit / (self.window_seconds or 1) < other.limit / (other.window_seconds or 1)

    def encode(self) -> str:
        """The value in the hash ``limits``."""
        if self.limit is None:
            return OFF
        if self.window_seconds is None:
            return str(self.limit)
        return f"{self.limit}|{round(self.window_seconds * 1000)}"

    @classmethod
    def decode(cls, text: str) -> Limit:
        """Parse what `encode` made."""
        limit, _, window = text.partition("|")
        if limit != OFF and int(limit) > MOST_ITEMS:
            raise ValueError(limit_problem(int(limit)))
        return cls(None if limit == OFF else int(limit), int(window) / 1000 if window else None)


def limit_problem(limit: object) -> str:
    """Return why `limit` is invalid; empty if it is valid."""
    if isinstance(limit, int) and not isinstance(limit, bool) and 1 <= limit <= MOST_ITEMS:
        return ""
    return f"must be a whole number, 1 at least and {MOST_ITEMS} at most, not {limit!r:.40}"


def window_problem(seconds: object) -> str:
    """Return why `seconds` is not a valid window; empty if it is."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if number and LEAST_WINDOW_SECONDS <= seconds <= MOST_WINDOW_SECONDS:  # type: ignore[operator]  # a number, as said
        return ""
    return (
        f"must be a number of seconds, {LEAST_WINDOW_SECONDS} at least and "
        f"{MOST_WINDOW_SECONDS} (366 days) at most, not {seconds!r:.40}"
    )


def find_object_type(written: str, known: Collection[str]) -> str | None:
    """Find a registered type by its name, as registered or in CamelCase.

    Example:
        >>> find_object_type("StorageElement", {"storage_element", "job"})
        'storage_element'
    """
    if written in known:
        return written
    matching = [name for name in known if _folded(name) == _folded(written)]
    return matching[0] if len(matching) == 1 else None


def class_problem(key: str, task_classes: Collection[str]) -> str:
    """Return why a limit of object type ``task`` cannot have this key; empty if it can.

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
    """Convert CamelCase to the usual name of a registered type.

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
        object_type: as written in the file.
    """

    place: Location
    object_type: str
    key: str
    action: str
    limiter: str
    limit: int
    window_seconds: float | None = None


def read_limits(section: object) -> tuple[list[LimitRule], list[Problem]]:
    """Parse a section ``limits:`` into limiters and problems.

    The section maps object types to keys or ``default``, and these to limiters, or to actions that
    map to limiters.

    Example:
        >>> rules, problems = read_limits({"Job": {7: {"ConcurrencyLimiter": {"limit": 2}}}})
        >>> rules[0].key, rules[0].limit, problems
        ('7', 2, [])
    """
    reader = _Reader()
    reader.read(section)
    return sorted(reader.rules, key=lambda rule: tuple(map(str, rule.place))), reader.problems


def written_limits(rules: Iterable[LimitRule]) -> dict[str, Any]:
    """Write a section ``limits:`` that `read_limits` parses into these rules.

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
            for here, key, node in self._items(at, keys, f"keys, or {DEFAULT!r}"):
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
            self.rules.append(LimitRule(at, object_type, key, action, limiter.word, limit, window))

    def _settings(
        self, at: Location, limiter: LockKind, values: object
    ) -> tuple[int, float | None] | None:
        """Limit and window of one limiter; None if one of them is invalid."""
        wanted = _SETTING_NAMES if limiter.windowed else _SETTING_NAMES[:1]
        before = len(self.problems)
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
        """Yield each item of a mapping with its place and its key as text."""
        if not isinstance(value, dict):
            self._problem(at, f"must be a mapping of {content}, not {value!r:.40}")
            return
        seen: set[str] = set()
        for written, item in value.items():
            # YAML parses 12345 as a number, and keys such as ids of jobs are numbers.
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
    """Whether an item below a key is a limiter, or a misspelt one, and not an action."""
    if name in _LIMITERS:
        return True
    return isinstance(value, dict) and any(setting in value for setting in _SETTING_NAMES)


def resolve_limits(
    rules: Iterable[LimitRule], vo: str, task_classes: Collection[str]
) -> tuple[dict[LimitAddress, Limit], list[Problem]]:
    """Resolve rules to limits, and collect their problems.

    Args:
        vo: the VO to which the rules apply; empty for all.
        task_classes: the bare names of all registered task classes.
    """
    limits: dict[LimitAddress, Limit] = {}
    problems: dict[Location, str] = {}
    for rule in rules:
        found = _find_type(rule, task_classes)
        if isinstance(found, str):
            address = LimitAddress(found, rule.key, rule.action, rule.limiter, vo)
            if address in limits:
                problems[rule.place] = f"is written twice, for object type {found}"
            limits[address] = Limit(rule.limit, rule.window_seconds)
        else:
            problems.setdefault(*found)
    return limits, list(problems.items())


def _find_type(rule: LimitRule, task_classes: Collection[str]) -> str | Problem:
    """Return the registered object type of a rule, or the problem with its type or key."""
    known = LockedObjectType.registered()
    object_type = find_object_type(rule.object_type, known)
    if object_type is None:
        written = rule.object_type
        hint = suggestion(written, known) or " Is the module that registers it in NONET_TASKS?"
        reason = f"unknown object type {written!r}, known are {', '.join(sorted(known))}.{hint}"
        return rule.place[:1], reason
    if object_type == TASK and (wrong := class_problem(rule.key, task_classes)):
        return rule.place[:2], wrong
    return object_type
