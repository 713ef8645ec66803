"""What holds for a task class: of several that say something the right one counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nonet import BaseTask, ExponentialBackoff, Isolation, NoRetry, Priority, RetryPolicyBase, Size
from nonet.base.errors import ConfigurationError
from nonet.config.overrides import CLASS, NONE, SIZE, Overrides, override_problems
from nonet.config.reading import parse_config
from nonet.tasks.registry import Registry, TaskClass

FIELDS = (
    *("priority", "size", "retry_policy", "soft_timeout", "hard_timeout", "dlq_eligible"),
    *("isolation", "memory_limit", "cpu_limit"),
)


def add(registry: Registry, name: str, **attributes: Any) -> TaskClass:
    """A class with these attributes, registered in the category ``files``."""

    async def execute(self: Any) -> None: ...

    return registry.add(type(name, (BaseTask,), attributes | {"execute": execute}), "files")


def made(**attributes: Any) -> TaskClass:
    return add(Registry(), "Made", **attributes)


@pytest.fixture
def registry() -> Registry:
    found = Registry()
    add(found, "Shared", isolation=Isolation.LOOP)
    add(found, "Limited", cpu_limit=5)
    add(found, "Plain")
    policy = ExponentialBackoff(max_retries=9)
    stream = {"priority": Priority.BACKGROUND, "size": Size.SMALL}
    limits = {"soft_timeout": 20, "hard_timeout": 40}
    add(found, "Remove", retry_policy=policy, dlq_eligible=True, **stream, **limits)
    return found


def overrides(text: str) -> Overrides:
    return Overrides.of(parse_config(text, "c.yaml"))


def said(common: str = "", lhcb: str = "") -> str:
    """A configuration with an override of the class in common and for one VO, unless empty."""
    sections = {"common: {%s}": common, "vo-overrides: {lhcb: {%s}}": lhcb}
    lines = [key % f"tasks: {{Remove: {{{text}}}}}" for key, text in sections.items() if text]
    return "\n".join(lines) or "{}"


def test_without_an_override_the_class_decides(registry: Registry) -> None:
    """Every value has the origin `class`, and the isolation that of its size."""
    for found in (NONE, overrides("{}"), overrides(said("priority: realtime"))):
        effective = found.effective(registry.get("Plain"), "lhcb")
        assert (effective.priority, effective.size) == (Priority.NORMAL, Size.MEDIUM)
        assert isinstance(effective.retry_policy, NoRetry)
        assert (effective.soft_timeout, effective.hard_timeout) == (None, None)
        assert effective.dlq_eligible is False
        assert effective.isolation == Isolation.CHILD
        assert (effective.memory_limit, effective.cpu_limit) == (None, None)
        assert effective.origins == dict.fromkeys(FIELDS, CLASS) | {"isolation": SIZE}


def test_every_value_can_be_overridden(registry: Registry) -> None:
    """A written value replaces that of the class, even if it is false or shorter."""
    effective = overrides(
        said(
            "priority: realtime, size: large, retry-policy: {class: NoRetry}, soft-timeout: 1,"
            " hard-timeout: 2, dlq-eligible: false, isolation: child, memory-limit: 64MiB,"
            " cpu-limit: 3"
        )
    ).effective(registry.get("Remove"), "")
    assert (effective.priority, effective.size) == (Priority.REALTIME, Size.LARGE)
    assert effective.retry_policy == NoRetry()
    assert (effective.soft_timeout, effective.hard_timeout) == (1, 2)
    assert effective.dlq_eligible is False
    assert effective.isolation == Isolation.CHILD
    assert (effective.memory_limit, effective.cpu_limit) == (64 * 2**20, 3)
    assert effective.origins == {
        name: f"common.tasks.Remove.{name.replace('_', '-')}" for name in FIELDS
    }


@pytest.mark.parametrize(
    ("text", "vo", "expected", "origin"),
    [
        (said(), "lhcb", Priority.BACKGROUND, CLASS),
        (said("priority: normal"), "", Priority.NORMAL, "common.tasks.Remove.priority"),
        (
            said("priority: normal", "priority: realtime"),
            "lhcb",
            Priority.REALTIME,
            "vo-overrides.lhcb.tasks.Remove.priority",
        ),
        (said("priority: normal", "priority: realtime"), "gridpp", Priority.NORMAL, None),
        (said("", "priority: realtime"), "gridpp", Priority.BACKGROUND, CLASS),
        (said("priority: normal", "size: large"), "lhcb", Priority.BACKGROUND, CLASS),
        # A section under the other name of the class does, too.
        (
            said("priority: normal") + "\nvo-overrides: {lhcb: {tasks: {'files:Remove': {}}}}",
            "lhcb",
            Priority.BACKGROUND,
            CLASS,
        ),
    ],
)
def test_the_vo_decides_before_common_before_the_class(
    registry: Registry, text: str, vo: str, expected: Priority, origin: str | None
) -> None:
    """The section of a VO replaces the common one of that class as a whole."""
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
def test_the_soft_timeout_is_never_longer_than_the_hard_one(
    registry: Registry, text: str, expected: tuple[float, float]
) -> None:
    """Where those of class and configuration do not fit each other, the hard one decides."""
    effective = overrides(said(text)).effective(registry.get("Remove"), "")
    assert (effective.soft_timeout, effective.hard_timeout) == expected


def test_a_configured_policy_keeps_the_errors_of_the_class() -> None:
    """The configuration cannot name them, so that more retries do not retry what is hopeless."""
    policy = ExponentialBackoff(give_up_on=(KeyError,))
    text = "retry-policy: {class: ExponentialBackoff, args: {max_retries: 9}}"
    found = overrides(said(text)).effective(add(Registry(), "Remove", retry_policy=policy), "")
    assert found.retry_policy == ExponentialBackoff(max_retries=9, give_up_on=(KeyError,))


def test_a_policy_is_built_once(registry: Registry) -> None:
    """Each failed attempt gets the same object."""
    found = overrides(said("retry-policy: {class: ExponentialBackoff, args: {max_retries: 1}}"))
    task_class = registry.get("Remove")
    policy = found.effective(task_class, "").retry_policy
    assert policy == ExponentialBackoff(max_retries=1)
    assert found.effective(task_class, "lhcb").retry_policy is policy


def test_a_missing_policy_is_an_error_only_where_its_class_is(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has the class but not the policy says where it is named."""

    class Foreign(RetryPolicyBase): ...

    def unknown(name: str) -> Any:
        raise ConfigurationError(f"unknown retry policy {name!r}")

    found = overrides(said(lhcb="retry-policy: {class: Foreign}"))
    monkeypatch.setattr("nonet.config.models.policy_class", unknown)
    with pytest.raises(ConfigurationError, match=r"^vo-overrides\.lhcb\.tasks\.Remove\.retry"):
        found.check(registry)
    found.check(Registry())


def problems(registry: Registry, text: str) -> list[str]:
    found = override_problems(parse_config(text, "c.yaml"), registry)
    return [f"{place}: {'.'.join(map(str, at))}: {reason}" for place, at, reason in found]


SMALL, LARGE = {"size": Size.SMALL}, {"size": Size.LARGE}
TASKS = "common: {tasks: {Made: {%s}}}"
SIZES = "common: {sizes: {%s}}"
AT = "common.tasks.Made"


@pytest.mark.parametrize(
    ("attributes", "text", "expected", "origin"),
    [
        (SMALL, "{}", Isolation.LOOP, SIZE),
        ({}, "{}", Isolation.CHILD, SIZE),
        (LARGE, "{}", Isolation.FRESH, SIZE),
        ({}, TASKS % "size: small", Isolation.LOOP, SIZE),
        (SMALL, TASKS % "size: large", Isolation.FRESH, SIZE),
        (SMALL | {"isolation": "fresh"}, "{}", Isolation.FRESH, CLASS),
        (LARGE | {"isolation": Isolation.LOOP}, "{}", Isolation.LOOP, CLASS),
        (LARGE | {"isolation": "loop"}, TASKS % "isolation: child", Isolation.CHILD, f"{AT}.is"),
        # A class with a limit of a process gets a process.
        (SMALL | {"memory_limit": "1GiB"}, "{}", Isolation.CHILD, CLASS),
        (SMALL, TASKS % "memory-limit: 1GiB", Isolation.CHILD, f"{AT}.memory-limit"),
        (LARGE | {"memory_limit": "1GiB"}, "{}", Isolation.FRESH, SIZE),
        # The limit of a size moves no class.
        ({"isolation": "loop"}, SIZES % "medium: {memory-limit: 1GiB}", Isolation.LOOP, CLASS),
        (SMALL, SIZES % "medium: {memory-limit: 1GiB}", Isolation.LOOP, SIZE),
        # A newer class may have a limit where the published configuration says `loop`.
        (SMALL | {"cpu_limit": 5}, TASKS % "isolation: loop", Isolation.CHILD, CLASS),
    ],
)
def test_where_an_attempt_runs(
    attributes: dict[str, Any], text: str, expected: Isolation, origin: str
) -> None:
    """The section of the class decides before the class, and the class before its size."""
    found = overrides(text).effective(made(**attributes), "")
    assert found.isolation is expected
    assert found.origins["isolation"].startswith(origin)
    if expected is Isolation.LOOP:  # no limit of a process holds there
        assert (found.memory_limit, found.cpu_limit) == (None, None)


def test_the_size_of_a_submission_decides() -> None:
    """A label gives a task the limits and the isolation of another size."""
    found = overrides(SIZES % "large: {memory-limit: 1GiB}, small: {hard-timeout: 5}")
    task_class = made()
    plain, large = found.effective(task_class, ""), found.effective(task_class, "", Size.LARGE)
    assert (plain.size, plain.isolation, plain.memory_limit) == (Size.MEDIUM, Isolation.CHILD, None)
    assert (large.size, large.isolation, large.memory_limit) == (Size.LARGE, "fresh", 2**30)
    assert large.origins["size"] == SIZE
    small = found.effective(task_class, "", Size.SMALL)
    assert (small.isolation, small.hard_timeout, small.memory_limit) == (Isolation.LOOP, 5, None)
    assert small.origins["hard_timeout"] == "common.sizes.small.hard-timeout"


@pytest.mark.parametrize("is_of_vo", [False, True])
@pytest.mark.parametrize("name", ["soft_timeout", "hard_timeout", "memory_limit", "cpu_limit"])
@pytest.mark.parametrize(
    ("of_class", "of_size", "of_section", "expected"),
    [(0, 0, 0, 0), (0, 1, 0, 1), (2, 0, 0, 2), (2, 1, 0, 2), (0, 1, 3, 3), (2, 1, 3, 3)],
)
def test_the_most_specific_limit_holds(
    name: str, is_of_vo: bool, of_class: int, of_size: int, of_section: int, expected: int
) -> None:
    """The section of the class comes before the class, and the class before its size.

    A section of the VO replaces the common one.
    """
    unit = 2**25 if name == "memory_limit" else 1

    def section(of_size: int, of_class: int) -> dict[str, Any]:
        size, tasks = ({name.replace("_", "-"): n * unit} if n else {} for n in (of_size, of_class))
        return {"sizes": {"medium": size}, "tasks": {"Made": tasks}}

    said: dict[str, Any] = {"common": section(of_size, of_section)}
    if is_of_vo:
        said = {"common": section(4, 5), "vo-overrides": {"lhcb": said["common"]}}
    task_class = made(**({name: of_class * unit} if of_class else {}))
    found = overrides(json.dumps(said)).effective(task_class, "lhcb")
    assert getattr(found, name) == (expected * unit or None)


def test_a_class_is_named_by_its_full_or_unique_name(registry: Registry) -> None:
    """A bare name that two classes have is refused with both full names."""
    assert problems(registry, "common: {tasks: {Remove: {}, 'files:Plain': {}}}") == []

    class _Other(BaseTask):
        async def execute(self) -> None: ...

    _Other.__name__ = "Remove"
    registry.add(_Other, "other")
    (found,) = problems(registry, said("priority: normal"))
    assert "'Remove' is ambiguous: write files:Remove or other:Remove" in found


PROBLEMS = """
common:
  tasks:
    Remov: {}
    Shared: {memory-limit: 1GiB}
    Remove: {soft-timeout: 50}
    'files:Remove': {}
vo-overrides:
  lhcb: {tasks: {Limited: {isolation: loop}, files:Plane: {}}}
"""


def test_all_problems_with_the_classes_are_reported(registry: Registry) -> None:
    """Each has its line, its reason and the next step."""
    expected = {
        "c.yaml:4: common.tasks.Remov": "unknown task 'Remov'. Did you mean files:Remove?",
        "c.yaml:5: common.tasks.Shared.memory-limit": "write 'isolation: child' beside it",
        "c.yaml:6: common.tasks.Remove.soft-timeout": "of the class, 40 s: set hard-timeout",
        "c.yaml:7: common.tasks.files:Remove": "is the same class as 'Remove': write it once",
        "c.yaml:9: vo-overrides.lhcb.tasks.Limited.isolation": "must be child or fresh: cpu_limit",
        "c.yaml:9: vo-overrides.lhcb.tasks.files:Plane": "Did you mean files:Plain",
    }
    for line, (place, reason) in zip(
        sorted(problems(registry, PROBLEMS)), expected.items(), strict=True
    ):
        assert line.startswith(f"{place}: ") and reason in line
