"""What the file may contain. Every class here is one mapping of the document."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, to_json

from nonet.base.amounts import UNITS, format_bytes, parse_bytes
from nonet.base.errors import ConfigurationError, suggestion, unknown_argument
from nonet.base.streams import Priority, Size
from nonet.config.wording import value_reason
from nonet.rules.limits import LimitRule, Location, read_limits, written_limits
from nonet.rules.outcomes import summarize
from nonet.tasks.locks import MOST_ITEMS
from nonet.tasks.retry import RetryPolicyBase
from nonet.tasks.schedules import (
    CatchUp,
    Overlap,
    TaskScheduleBase,
    build_schedule,
    schedule_class,
    zone,
)
from nonet.tasks.task import LEAST_MEMORY_LIMIT, Isolation

Name: TypeAlias = Annotated[StrictStr, Field(min_length=1)]

# Keys on top that have another name now; files may still have the old one.
RENAMED = {"admission": "ceilings"}

MOST_SECONDS = 366 * 86_400
MOST_JITTER_SECONDS = 86_400
MOST_CAUGHT_UP = 1_000
SHARED = "where many tasks share a process"

# Where a document comes from: the context of its validation.
WRITTEN = "written"
PUBLISHED = "published"


def _is(context: str, info: ValidationInfo) -> bool:
    return info.context == context


def _given(value: object, info: ValidationInfo) -> object:
    """In a file a key without a value is more likely half-written than a wish."""
    if value is None and _is(WRITTEN, info):
        raise ValueError("has no value: write one, or remove the key")
    return value


_Given = BeforeValidator(_given)
_Seconds: TypeAlias = Annotated[
    Annotated[StrictFloat, Field(gt=0, le=MOST_SECONDS, allow_inf_nan=False)] | None, _Given
]
_Grace: TypeAlias = Annotated[
    Annotated[StrictFloat, Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)] | None, _Given
]
_Jitter: TypeAlias = Annotated[
    Annotated[StrictFloat, Field(ge=0, le=MOST_JITTER_SECONDS, allow_inf_nan=False)] | None, _Given
]


def _memory(value: object) -> int:
    found = parse_bytes(value)  # type: ignore[arg-type]  # it refuses what does not fit
    if found < LEAST_MEMORY_LIMIT:
        raise ValueError(f"must be {format_bytes(LEAST_MEMORY_LIMIT)} at least: a process needs so")
    return found


_Memory: TypeAlias = Annotated[
    Annotated[
        int,
        BeforeValidator(_memory),
        WithJsonSchema(
            {
                "type": ["integer", "string"],
                "minimum": LEAST_MEMORY_LIMIT,
                "pattern": rf"^ *[0-9]+(\.[0-9]+)? ?({'|'.join(UNITS)})? *$",
            }
        ),
    ]
    | None,
    _Given,
]
_Count: TypeAlias = Annotated[Annotated[StrictInt, Field(ge=1, le=MOST_CAUGHT_UP)] | None, _Given]


class Section(BaseModel):
    """Base of every mapping of the document: unknown keys are refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, ser_json_bytes="base64"
    )


class ScheduleConfig(Section):
    """``schedule: {class: CronSchedule, arg: "0 */6 * * *", timezone: Europe/Zurich}``."""

    # The order matters: `arg` is checked with the two others.
    class_: StrictStr = Field(alias="class")
    timezone: Annotated[StrictStr | None, _Given] = None
    arg: str | int | float

    @field_validator("class_")
    @classmethod
    def _known_class(cls, value: str) -> str:
        _as_value_error(lambda: schedule_class(value))
        return value

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str | None) -> str | None:
        if value is not None:
            _as_value_error(lambda: zone(value))
        return value

    @field_validator("arg", mode="plain")  # the schedule classes check its type
    @classmethod
    def _fits_class(cls, value: str | int | float, info: ValidationInfo) -> str | int | float:
        if "class_" in info.data and "timezone" in info.data:
            _as_value_error(
                lambda: build_schedule(info.data["class_"], value, info.data["timezone"])
            )
        return value

    def build(self) -> TaskScheduleBase:
        """The schedule described here."""
        return build_schedule(self.class_, self.arg, self.timezone)


class TaskConfig(Section):
    """One entry of a periodic class; `PeriodicBaseTask.validate_config` gets a list of these.

    Attributes:
        name: tells entries of one class apart; may be missing when there is one.
        schedule: None for the default of the class.
        args: keyword arguments of the constructor.
        enabled: None for the default of the class.
        overlap: what an occurrence does while the one before still runs; None as above.
        catch_up: what becomes of occurrences missed for long; None as above.
        catch_up_limit: with catch-up ``all``, how many at most; None as above.
        jitter: seconds; each occurrence is late by up to so much, by chance; None as above.
        misfire_grace: seconds by which one may be late and still be submitted for itself; None for
            that of the class.

    Example:
        entry = TaskConfig(name="everywhere", args={"ce_regex": ".*"}, jitter=5)
        SubmitPilots.validate_config([entry])
    """

    name: Annotated[Name | None, _Given] = None
    schedule: Annotated[ScheduleConfig | None, _Given] = None
    args: dict[StrictStr, Any] = Field(default_factory=dict)
    enabled: Annotated[StrictBool | None, _Given] = None
    overlap: Annotated[Overlap | None, _Given] = None
    catch_up: Annotated[CatchUp | None, _Given] = Field(default=None, alias="catch-up")
    # The order matters: `catch_up_limit` is checked with `catch_up`.
    catch_up_limit: _Count = Field(default=None, alias="catch-up-limit")
    jitter: _Jitter = None
    misfire_grace: _Grace = Field(default=None, alias="misfire-grace")

    @field_validator("catch_up_limit")
    @classmethod
    def _has_what_it_limits(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("catch_up", CatchUp.ALL) != CatchUp.ALL:
            raise ValueError("limits only catch-up all: write 'catch-up: all' beside it")
        return value


class RetryPolicyConfig(Section):
    """``retry-policy: {class: ExponentialBackoff, args: {max_retries: 3}}``.

    Attributes:
        class_: bare name of a built-in policy, or of one that is defined in a loaded module.
        args: its fields.
    """

    # The order matters: `args` is checked with `class_`.
    class_: StrictStr = Field(alias="class")
    args: dict[StrictStr, Any] = Field(default_factory=dict, validate_default=True)

    @field_validator("class_")
    @classmethod
    def _known_class(cls, value: str, info: ValidationInfo) -> str:
        if not _is(PUBLISHED, info):
            _as_value_error(lambda: policy_class(value))
        return value

    @field_validator("args")
    @classmethod
    def _fit_class(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "class_" in info.data and not _is(PUBLISHED, info):
            _raise_problems(_made(policy_class(info.data["class_"]), value)[1])
        return value

    def build(self) -> RetryPolicyBase:
        """The policy described here.

        Raises:
            ConfigurationError: its class is not loaded in this process, or refuses the arguments.
        """
        made, problems = _made(policy_class(self.class_), self.args)
        if made is None:
            place, reason = problems[0]
            raise ConfigurationError(f"retry policy {self.class_}: {dotted(place)}: {reason}")
        return made


class TaskOverride(Section):
    """What is said of a class under ``tasks``; None leaves it to the class.

    Attributes:
        soft_timeout: seconds after which an attempt is cancelled.
        hard_timeout: seconds after which one is given up that did not end when cancelled.
        memory_limit: bytes that the process of an attempt may have.
        cpu_limit: seconds of CPU time that an attempt may use.
    """

    priority: Annotated[Priority | None, _Given] = None
    size: Annotated[Size | None, _Given] = None
    retry_policy: Annotated[RetryPolicyConfig | None, _Given] = Field(
        default=None, alias="retry-policy"
    )
    # The order matters: `hard_timeout` is checked with `soft_timeout`.
    soft_timeout: _Seconds = Field(default=None, alias="soft-timeout")
    hard_timeout: _Seconds = Field(default=None, alias="hard-timeout")
    dlq_eligible: Annotated[StrictBool | None, _Given] = Field(default=None, alias="dlq-eligible")
    # The order matters: limits are checked with `isolation`.
    isolation: Annotated[Isolation | None, _Given] = None
    memory_limit: _Memory = Field(default=None, alias="memory-limit")
    cpu_limit: _Seconds = Field(default=None, alias="cpu-limit")

    @field_validator("hard_timeout")
    @classmethod
    def _not_before_soft(cls, value: float | None, info: ValidationInfo) -> float | None:
        return _not_shorter(value, info.data.get("soft_timeout"))

    @field_validator("memory_limit", "cpu_limit")
    @classmethod
    def _can_hold(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("isolation") == Isolation.LOOP:
            raise ValueError(f"cannot hold with isolation loop, {SHARED}: write child or fresh")
        return value


class SmallConfig(Section):
    """What is said of size small under ``sizes``: limits of classes that have none of their own.

    Attributes:
        soft_timeout, hard_timeout: as in `TaskOverride`.
    """

    # The order matters: `hard_timeout` is checked with `soft_timeout`.
    soft_timeout: _Seconds = Field(default=None, alias="soft-timeout")
    hard_timeout: _Seconds = Field(default=None, alias="hard-timeout")

    @field_validator("hard_timeout")
    @classmethod
    def _not_before_soft(cls, value: float | None, info: ValidationInfo) -> float | None:
        return _not_shorter(value, info.data.get("soft_timeout"))


class SizeConfig(SmallConfig):
    """The same of a size whose attempts have a process each: limits of this, too.

    Attributes:
        memory_limit, cpu_limit: as in `TaskOverride`.
    """

    memory_limit: _Memory = Field(default=None, alias="memory-limit")
    cpu_limit: _Seconds = Field(default=None, alias="cpu-limit")


class SizesConfig(Section):
    """``sizes: {medium: {memory-limit: 512MiB}}``; a size that is not there has no limits."""

    small: SmallConfig = SmallConfig()
    medium: SizeConfig = SizeConfig()
    large: SizeConfig = SizeConfig()

    def get(self, size: Size) -> SmallConfig:
        """What is said of a size."""
        found: SmallConfig = getattr(self, size)
        return found


def _not_shorter(hard: float | None, soft: float | None) -> float | None:
    if hard is not None and soft is not None and hard < soft:
        raise ValueError(f"must not be shorter than soft-timeout: {hard:g} s < {soft:g} s")
    return hard


STREAMS = tuple(f"{priority}:{size}" for priority in Priority for size in Size)


def _stream(name: str) -> str:
    if name not in STREAMS:
        known = ", ".join(STREAMS)
        raise ValueError(f"unknown stream, known are {known}.{suggestion(name, STREAMS)}")
    return name


_Ceiling: TypeAlias = Annotated[StrictInt, Field(ge=1, le=MOST_ITEMS)]
_Stream: TypeAlias = Annotated[
    StrictStr, AfterValidator(_stream), WithJsonSchema({"type": "string", "enum": list(STREAMS)})
]


class CeilingsConfig(Section):
    """``ceilings: {namespace: 100000, tasks: {RemoveFile: 5000}}``; what is not there has none.

    Attributes:
        namespace: of all tasks together.
        streams: by ``priority:size``.
        tasks: by class.
    """

    namespace: Annotated[_Ceiling | None, _Given] = None
    streams: dict[_Stream, _Ceiling] = Field(default_factory=dict)
    tasks: dict[Name, _Ceiling] = Field(default_factory=dict)


def _distinct_names(entries: list[TaskConfig]) -> list[TaskConfig]:
    names = [entry.name for entry in entries]
    problems: list[tuple[Location, str]] = []
    for index, name in enumerate(names):
        if name is None and len(names) > 1:
            problems.append(((index,), "needs a name, because there are several entries"))
        elif name in names[:index]:
            before = names.index(name)
            problems.append(((index,), f"has the same name as entry [{before}]: {name}"))
    _raise_problems(problems)
    return entries


def _limit_rules(section: object) -> tuple[LimitRule, ...]:
    rules, problems = read_limits(section)
    _raise_problems(problems)
    return tuple(rules)


class SectionConfig(Section):
    """What ``common`` and each VO under ``vo-overrides`` may contain.

    Attributes:
        limits: one rule for each limiter that is written there.
        tasks: by class; one that a VO names replaces the common one as a whole for this VO.
        sizes: limits by size; one that a VO names replaces the common one as a whole, as above.
    """

    periodic_tasks: dict[
        StrictStr, Annotated[list[TaskConfig], AfterValidator(_distinct_names)]
    ] = Field(default_factory=dict, alias="periodic-tasks")
    limits: Annotated[
        tuple[LimitRule, ...], BeforeValidator(_limit_rules), PlainSerializer(written_limits)
    ] = ()
    tasks: dict[Name, TaskOverride] = Field(default_factory=dict)
    sizes: SizesConfig = SizesConfig()


@dataclass(frozen=True, slots=True)
class Unplaced:
    """What stands in a file and is not among the values, so that mistakes in it are found too.

    Attributes:
        arguments: place and value of ``args`` of entries whose class was left out, because
            something else is wrong with one of them.
        limits: places of object types and keys below which no limiter is written.
    """

    arguments: tuple[tuple[Location, Mapping[str, Any]], ...] = ()
    limits: tuple[Location, ...] = ()


class Config(Section):
    """The whole document.

    Attributes:
        vos: virtual organisations, besides those named under `vo_overrides`.
        common: what holds for the installation and for every VO.
        vo_overrides: per VO; a class named there replaces its common entries for this VO.
        ceilings: how many tasks there may be at a time before a submission is refused.
    """

    vos: list[Name] = Field(default_factory=list)
    common: SectionConfig = SectionConfig()
    vo_overrides: dict[Name, SectionConfig] = Field(default_factory=dict, alias="vo-overrides")
    ceilings: CeilingsConfig = CeilingsConfig()
    _source: str = PrivateAttr("configuration")
    _where: Callable[[Location], str] | None = PrivateAttr(None)
    _unplaced: Unplaced = PrivateAttr(Unplaced())
    _warnings: tuple[str, ...] = PrivateAttr(())

    @field_validator("vos")
    @classmethod
    def _distinct_vos(cls, value: list[str]) -> list[str]:
        if twice := _twice(value):
            raise ValueError(f"listed twice: {twice}")
        return value

    @property
    def source(self) -> str:
        """The file or directory this came from, for messages."""
        return self._source

    def where(self, location: Location) -> str:
        """``FILE:LINE`` of what is written at `location`, or of what surrounds it.

        The line is left out where it is not known.
        """
        return self._where(location) if self._where else self._source

    @property
    def unplaced(self) -> Unplaced:
        """What the file says besides; nothing if this is no file but what was published."""
        return self._unplaced

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the file says in an old way, and where."""
        return self._warnings

    def read_from(
        self,
        source: str,
        where: Callable[[Location], str] | None = None,
        unplaced: Unplaced | None = None,
        warnings: tuple[str, ...] = (),
    ) -> Config:
        """This document, which came from `source`; `where` is asked by the method of that name."""
        self._source, self._where = source, where
        self._unplaced, self._warnings = unplaced or Unplaced(), warnings
        return self

    @property
    def sections(self) -> list[tuple[Location, str, SectionConfig]]:
        """``common`` and the sections of the VOs: place, VO (empty for common), section."""
        of_vos = [(("vo-overrides", vo), vo, item) for vo, item in self.vo_overrides.items()]
        return [(("common",), "", self.common), *of_vos]

    def document(self) -> str:
        """The document as one line of JSON, which `from_document` reads.

        Comments, the order of keys and defaults that are written out do not change it.
        """
        found = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        for old, new in RENAMED.items():  # workers of the version before read it, too
            if new in found:
                found[old] = found.pop(new)
        return json.dumps(found, sort_keys=True)

    @classmethod
    def from_document(cls, text: str) -> Config:
        """What `document` wrote, perhaps in a process that knows other classes.

        Classes of retry policies are looked up when one is built: who does not need them need
        not know them.

        Raises:
            ConfigurationError: it is of another version, and uses what this one does not know.
        """
        try:
            found = json.loads(text)
            for old, new in RENAMED.items():
                if old in found:
                    found[new] = found.pop(old)
            return cls.model_validate(found, context=PUBLISHED)
        except ValidationError as error:
            wrong = error.errors()[0]
            reason = f"{dotted(wrong['loc'])}: {wrong['msg']}; update this process"
        except Exception as error:  # JSON that is cut, too deep, too long
            reason = str(error) or type(error).__name__
        raise ConfigurationError(
            f"the published configuration cannot be read by this version of nonet: {reason}"
        )

    def fingerprint(self) -> str:
        """A hash of the meaning: comments and the order of keys do not change it."""
        return hashlib.sha256(self.document().encode()).hexdigest()


def policy_class(name: str) -> type[RetryPolicyBase]:
    """The retry policy of this bare name, built in or of a loaded module.

    Raises:
        ConfigurationError: there is none, or there are several.
    """
    known = {(item.__module__, item.__qualname__): item for item in _below(RetryPolicyBase)}
    matching = [item for item in known.values() if item.__name__ == name]
    if len(matching) == 1:
        return matching[0]
    if matching:
        places = " and ".join(f"{item.__module__}.{item.__qualname__}" for item in matching)
        raise ConfigurationError(f"retry policy {name!r} is ambiguous: {places}; rename one")
    names = list(dict.fromkeys(item.__name__ for item in known.values()))
    raise ConfigurationError(
        f"unknown retry policy {name!r}, known are {', '.join(names)}.{suggestion(name, names)}"
    )


def _below(cls: type[RetryPolicyBase]) -> Iterator[type[RetryPolicyBase]]:
    for item in cls.__subclasses__():
        yield item
        yield from _below(item)


def _made(
    policy: type[RetryPolicyBase], args: dict[str, Any]
) -> tuple[RetryPolicyBase | None, list[tuple[Location, str]]]:
    """A policy with these arguments, or what is wrong with them."""
    try:
        try:
            # As JSON: strict about numbers and texts, and a text can still be a timedelta.
            return policy.model_validate_json(to_json(args), strict=True), []
        except ValidationError as error:
            return None, [_policy_problem(policy, details) for details in error.errors()]
    except BaseException as error:  # the author's code may raise anything
        why = summarize(error)
        return None, [((), f"refused by {policy.__name__}: {why.text or why.type}")]


def _policy_problem(policy: type[RetryPolicyBase], details: Any) -> tuple[Location, str]:
    reason = value_reason(details)
    if details["type"] == "extra_forbidden":
        key = str(details["loc"][-1])
        reason = unknown_argument(key, list(policy.model_fields), policy.__name__)
    return details["loc"], reason


def dotted(location: Location) -> str:
    """A path in the document, for people.

    >>> dotted(("common", "periodic-tasks", "Sweep", 0, "args"))
    'common.periodic-tasks.Sweep[0].args'
    """
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _raise_problems(problems: Sequence[tuple[Location, str]]) -> None:
    """Give pydantic several problems at once, each with its place below the present one."""
    if problems:
        raise ValidationError.from_exception_data(
            "configuration",
            [
                InitErrorDetails(
                    type=PydanticCustomError("configuration", "{reason}", {"reason": reason}),
                    loc=place,
                    input=None,
                )
                for place, reason in problems
            ],
        )


def _twice(names: Sequence[str]) -> str:
    return ", ".join(sorted({name for name in names if names.count(name) > 1}))


def _as_value_error(check: Callable[[], object]) -> None:
    """Run `check`; pydantic collects ValueErrors, which ours are not."""
    try:
        check()
    except Exception as error:  # the libraries behind rules and zones know many kinds
        raise ValueError(str(error) or type(error).__name__) from None
