"""What in a class is allowed and hardly meant, and what of it is refused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from nonet import BaseTask, PeriodicBaseTask, Size
from nonet.base.errors import RegistrationError
from nonet.config.reading import parse_config
from nonet.scheduler.configuration.configuration_loop import check
from nonet.tasks.registry import Registry
from nonet.tasks.schedules import CronSchedule

NIGHTLY = CronSchedule("0 2 * * *")


async def execute(self: Any) -> None: ...


def having(base: type[BaseTask] = BaseTask, **attributes: Any) -> type[BaseTask]:
    return type("Odd", (base,), {**attributes, "execute": execute, "__module__": "odd"})


class Model(BaseTask, BaseModel):
    dlq_eligable: ClassVar[bool] = True

    async def execute(self) -> None: ...


def warnings_about(cls: type[BaseTask]) -> list[str]:
    registry = Registry()
    registry.add(cls, "x")
    return registry.warnings()


RETRIES = "retry_policy = ExponentialBackoff(max_retries=…)"
PERIODIC = "the class is not periodic: give it PeriodicBaseTask as its base"


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (
            having(max_retries=3),
            f"max_retries has no effect: write {RETRIES}; if it is your own, annotate it: "
            "`max_retries: ClassVar = …`",
        ),
        (
            having(on_failure=lambda self: None),
            "on_failure is not called by Nonet: write a middleware (nonet.Middleware)",
        ),
        (having(schedule=NIGHTLY), f"schedule has no effect: {PERIODIC}"),
        (having(PeriodicBaseTask, schedule=NIGHTLY), "schedule has no effect: did you mean _sched"),
    ],
)
def test_an_attribute_without_effect_is_a_warning(cls: type[BaseTask], expected: str) -> None:
    (found,) = warnings_about(cls)
    assert found.startswith(f"{cls.__module__}.{cls.__qualname__}: {expected}")


@pytest.mark.parametrize(
    ("cls", "name", "right"),
    [
        (having(sizze=Size.SMALL), "sizze", "size"),
        (having(dlq_eligable=True), "dlq_eligable", "dlq_eligible"),
        (having(execution_lock=property(repr)), "execution_lock", "execution_locks"),
        (Model, "dlq_eligable", "dlq_eligible"),
    ],
)
def test_a_misspelt_attribute_is_refused(cls: type[BaseTask], name: str, right: str) -> None:
    """Attributes of the author stay: other words, plurals, and what is annotated."""
    with pytest.raises(RegistrationError, match=f"no attribute {name}: did you mean {right}?"):
        Registry().add(cls, "x")
    own = having(sizes=[1], colour="red", __annotations__={"sizze": ClassVar[int]}, sizze=1)
    assert warnings_about(own) == []


class Kinds(StrEnum):
    A = "a"


@dataclass
class Sound(BaseTask):
    timeout: float
    queue: str = "mine"
    retries: ClassVar[int] = 3

    size = Size.SMALL
    sizes = (1, 2)
    prefix = "x"
    _cache: ClassVar[dict[str, int]] = {}
    Kinds = Kinds

    async def execute(self) -> None: ...

    def unique_key(self) -> str:
        return self.queue

    def executed(self) -> bool:
        return True


def test_an_authors_own_attributes_are_no_warning() -> None:
    assert warnings_about(Sound) == []


@dataclass
class SizeOfDataclass(BaseTask):
    path: str
    size: Size = Size.SMALL  # type: ignore[misc]


class SizeOfClass(BaseTask):
    size: Size = Size.SMALL  # type: ignore[misc]


class Scheduled(PeriodicBaseTask):
    _schedule: CronSchedule = NIGHTLY  # type: ignore[misc]


@pytest.mark.parametrize("cls", [SizeOfDataclass, SizeOfClass, Scheduled])
def test_an_annotated_class_attribute_is_refused_as_an_argument(cls: type[BaseTask]) -> None:
    """It would be read from the class, whatever the task contains."""
    name = "_schedule" if cls is Scheduled else "size"
    cls.execute = execute  # type: ignore[attr-defined]
    problem = rf"{cls.__name__}: {name} is a field, .* write `{name} = …`"
    with pytest.raises(RegistrationError, match=problem):
        Registry().add(cls, "x")


def warnings_of(text: str, *classes: type[BaseTask]) -> tuple[str, ...]:
    registry = Registry()
    for cls in classes:
        registry.add(cls, "x", "installed")
    return check(parse_config(text, "c.yaml"), registry).warnings


NO_SCHEDULE = "x:Odd: has no schedule: give it `_schedule = …`, or `schedule` in the configuration"


def test_a_periodic_class_without_a_schedule_is_a_warning() -> None:
    """It would never fire. A base of other classes needs none."""
    assert warnings_of("{}", having(PeriodicBaseTask)) == (NO_SCHEDULE,)
    found = warnings_of("{}", having(PeriodicBaseTask, schedule=NIGHTLY))
    assert found == (NO_SCHEDULE, "odd.Odd: schedule has no effect: did you mean _schedule?")
    base = having(PeriodicBaseTask)
    registry = Registry()
    registry.add(base, "bases")
    registry.add(having(base, _schedule=NIGHTLY), "x")
    assert check(parse_config("{}", "c.yaml"), registry).warnings == ()


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("common: {periodic-tasks: {Odd: []}}", {}),
        ("common: {periodic-tasks: {Odd: [{schedule: {class: IntervalSeconds, arg: 60}}]}}", {}),
        ("{}", {"_enabled": False}),
        ("{}", {"_schedule": NIGHTLY}),
    ],
)
def test_a_periodic_class_that_is_configured_disabled_or_scheduled_is_no_warning(
    text: str, attributes: Any
) -> None:
    assert warnings_of(text, having(PeriodicBaseTask, **attributes)) == ()
