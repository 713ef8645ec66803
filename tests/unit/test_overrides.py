"""What holds for a task class: of several that say something the right one counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from nonet import BaseTask, ExponentialBackoff, NoRetry, Priority, RetryPolicyBase, Size
from nonet.config import parse_config
from nonet.errors import ConfigurationError
from nonet.overrides import CLASS, NONE, Overrides, override_problems
from nonet.registry import Registry

FIELDS = ("priority", "size", "retry_policy", "soft_timeout", "hard_timeout", "dlq_eligible")


@dataclass
class Remove(BaseTask):
    priority = Priority.BACKGROUND
    size = Size.SMALL
    retry_policy = ExponentialBackoff(max_retries=9)
    soft_timeout = 20
    hard_timeout = 40
    dlq_eligible = True

    async def execute(self) -> None: ...


@dataclass
class Plain(BaseTask):
    async def execute(self) -> None: ...


@pytest.fixture
def registry() -> Registry:
    found = Registry()
    found.add(Remove, "files")
    found.add(Plain, "files")
    return found


def overrides(text: str) -> Overrides:
    return Overrides.of(parse_config(text, "c.yaml"))


def said(common: str = "", lhcb: str = "") -> str:
    """A configuration with what is said of the class in common and for one VO; empty: nothing."""
    sections = []
    if common:
        sections.append(f"common: {{tasks: {{Remove: {{{common}}}}}}}")
    if lhcb:
        sections.append(f"vo-overrides: {{lhcb: {{tasks: {{Remove: {{{lhcb}}}}}}}}}")
    return "\n".join(sections) or "{}"


def test_without_configuration_the_class_counts(registry: Registry) -> None:
    """Every value is that of the class, and says so."""
    for found in (NONE, overrides("{}"), overrides(said("priority: realtime"))):
        effective = found.effective(registry.get("Plain"), "lhcb")
        assert (effective.priority, effective.size) == (Priority.NORMAL, Size.MEDIUM)
        assert isinstance(effective.retry_policy, NoRetry)
        assert (effective.soft_timeout, effective.hard_timeout) == (None, None)
        assert effective.dlq_eligible is False
        assert effective.origins == dict.fromkeys(FIELDS, CLASS)


def test_every_value_can_be_overridden(registry: Registry) -> None:
    """All that is written counts instead of the class, false and short times included."""
    effective = overrides(
        said(
            "priority: realtime, size: large, retry-policy: {class: NoRetry}, soft-timeout: 1,"
            " hard-timeout: 2, dlq-eligible: false"
        )
    ).effective(registry.get("Remove"), "")
    assert (effective.priority, effective.size) == (Priority.REALTIME, Size.LARGE)
    assert effective.retry_policy == NoRetry()
    assert (effective.soft_timeout, effective.hard_timeout) == (1, 2)
    assert effective.dlq_eligible is False
    assert effective.origins == {
        name: f"common.tasks.Remove.{name.replace('_', '-')}" for name in FIELDS
    }


@pytest.mark.parametrize(
    ("text", "vo", "expected", "origin"),
    [
        (said(), "lhcb", Priority.BACKGROUND, CLASS),
        (said("priority: normal"), "", Priority.NORMAL, "common.tasks.Remove.priority"),
        (said("priority: normal"), "lhcb", Priority.NORMAL, "common.tasks.Remove.priority"),
        (
            said("priority: normal", "priority: realtime"),
            "lhcb",
            Priority.REALTIME,
            "vo-overrides.lhcb.tasks.Remove.priority",
        ),
        (said("priority: normal", "priority: realtime"), "", Priority.NORMAL, None),
        (said("priority: normal", "priority: realtime"), "gridpp", Priority.NORMAL, None),
        (said("", "priority: realtime"), "gridpp", Priority.BACKGROUND, CLASS),
        # The VO's section of a class replaces the common one as a whole.
        (said("priority: normal", "size: large"), "lhcb", Priority.BACKGROUND, CLASS),
        # Also one under the other of its names.
        (
            said("priority: normal") + "\nvo-overrides: {lhcb: {tasks: {'files:Remove': {}}}}",
            "lhcb",
            Priority.BACKGROUND,
            CLASS,
        ),
    ],
)
def test_the_vo_counts_before_common_before_the_class(
    registry: Registry, text: str, vo: str, expected: Priority, origin: str | None
) -> None:
    """One table of the rule of precedence; priority and size alone are found in the same way."""
    found, task_class = overrides(text), registry.get("Remove")
    effective = found.effective(task_class, vo)
    assert effective.priority == expected
    if origin is not None:
        assert effective.origins["priority"] == origin
    assert found.stream(task_class, vo) == (effective.priority, effective.size)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("soft-timeout: 5", (5, 40)),
        ("hard-timeout: 30", (20, 30)),
        # Shorter than the soft limit of the class: nothing lasts beyond the hard one.
        ("hard-timeout: 10", (10, 10)),
    ],
)
def test_the_soft_limit_is_never_the_longer_one(
    registry: Registry, text: str, expected: tuple[float, float]
) -> None:
    """Limits of class and configuration that do not fit each other: the hard one counts."""
    effective = overrides(said(text)).effective(registry.get("Remove"), "")
    assert (effective.soft_timeout, effective.hard_timeout) == expected


def test_a_policy_is_built_once(registry: Registry) -> None:
    """Each failed attempt asks for it."""
    found = overrides(said("retry-policy: {class: ExponentialBackoff, args: {max_retries: 1}}"))
    task_class = registry.get("Remove")
    policy = found.effective(task_class, "").retry_policy
    assert policy == ExponentialBackoff(max_retries=1)
    assert found.effective(task_class, "lhcb").retry_policy is policy


def test_a_policy_that_cannot_be_built_is_told(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has the class but not the policy says where it is named; others do not mind."""

    class Foreign(RetryPolicyBase): ...

    found = overrides(said(lhcb="retry-policy: {class: Foreign}"))
    monkeypatch.setattr("nonet.config.models.policy_class", _unknown)
    with pytest.raises(ConfigurationError, match=r"^vo-overrides\.lhcb\.tasks\.Remove\.retry"):
        found.check(registry)
    others = Registry()
    others.add(Plain, "files")
    found.check(others)


def _unknown(name: str) -> Any:
    raise ConfigurationError(f"unknown retry policy {name!r}")


def problems(registry: Registry, text: str) -> list[str]:
    found = override_problems(parse_config(text, "c.yaml"), registry)
    return [f"{place}: {'.'.join(map(str, at))}: {reason}" for place, at, reason in found]


def test_good_names(registry: Registry) -> None:
    """A class is named by its full name, or by its own where that is unique."""
    assert problems(registry, "common: {tasks: {Remove: {}, 'files:Plain': {}}}") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "common: {tasks: {Remov: {}}}",
            "c.yaml:1: common.tasks.Remov: unknown task 'Remov'. Did you mean files:Remove?",
        ),
        (
            "vo-overrides:\n  lhcb:\n    tasks:\n      files:Plane: {}",
            "c.yaml:4: vo-overrides.lhcb.tasks.files:Plane: unknown task 'files:Plane'. "
            "Did you mean files:Plain or files:Remove?",
        ),
        (
            "common:\n  tasks:\n    Remove: {}\n    'files:Remove': {}",
            "c.yaml:4: common.tasks.files:Remove: is the same class as 'Remove': write it once",
        ),
        (
            "common: {tasks: {Remove: {soft-timeout: 50}}}",
            "c.yaml:1: common.tasks.Remove.soft-timeout: is longer than the hard timeout of the "
            "class, 40 s: set hard-timeout",
        ),
    ],
)
def test_what_does_not_fit_the_classes(registry: Registry, text: str, expected: str) -> None:
    """Each is named with its place, its reason and the next step."""
    assert problems(registry, text) == [expected]


def test_an_ambiguous_name(registry: Registry) -> None:
    """A bare name of two classes is refused with both full names."""

    class _Other(BaseTask):
        async def execute(self) -> None: ...

    _Other.__name__ = "Remove"
    registry.add(_Other, "other")
    (found,) = problems(registry, said("priority: normal"))
    assert "'Remove' is ambiguous: write files:Remove or other:Remove" in found


def test_all_problems_are_told(registry: Registry) -> None:
    """Of all sections."""
    found = problems(
        registry, "common: {tasks: {A: {}, B: {}}}\nvo-overrides: {x: {tasks: {C: {}}}}"
    )
    assert len(found) == 3
