"""The models of the central configuration: each class is one mapping of the YAML document."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
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

from nonet.base.amounts import AMOUNT, format_bytes, parse_bytes
from nonet.base.errors import ConfigurationError, suggestion, unknown_argument
from nonet.base.keys import NAMESPACE, NAMESPACE_TEXT
from nonet.base.streams import Priority, Size
from nonet.config.wording import SHARED, dotted, value_reason
from nonet.rules.fairness import BY_VO, by_problem
from nonet.rules.limits import LimitRule, Location, read_limits, written_limits
from nonet.rules.outcomes import summarize
from nonet.rules.routing import OTHERS
from nonet.tasks.locks import MOST_ITEMS
from nonet.tasks.retry import RetryPolicyBase, with_errors_of
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

MOST_SECONDS = 366 * 86_400
MOST_JITTER_SECONDS = 86_400
MOST_CAUGHT_UP = 1_000

# The origin of a document, as context of its validation.
WRITTEN = "written"
PUBLISHED = "published"


def _is(context: str, info: ValidationInfo) -> bool:
    return info.context == context


def _given(value: object, info: ValidationInfo) -> object:
    """Reject a key without a value in a file: the file is probably still being written."""
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
    found = parse_bytes(value)  # type: ignore[arg-type]  # it rejects other types
    if found < LEAST_MEMORY_LIMIT:
        least = format_bytes(LEAST_MEMORY_LIMIT)
        raise ValueError(f"must be at least {least}, which a process alone needs")
    return found


_Memory: TypeAlias = Annotated[
    Annotated[
        int,
        BeforeValidator(_memory),
        WithJsonSchema(
            {
                "type": ["integer", "string"],
                "minimum": LEAST_MEMORY_LIMIT,
                "pattern": rf"^ *{AMOUNT} *$",
            }
        ),
    ]
    | None,
    _Given,
]
_Count: TypeAlias = Annotated[Annotated[StrictInt, Field(ge=1, le=MOST_CAUGHT_UP)] | None, _Given]


def _key(field: str) -> str:
    return field.rstrip("_").replace("_", "-")


class Section(BaseModel):
    """Base of every mapping of the document. It rejects unknown keys.

    The JSON Schema takes the descriptions of attributes from the docstrings.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, ser_json_bytes="base64", alias_generator=_key
    )


class ScheduleConfig(Section):
    """``schedule: {class: CronSchedule, arg: "0 */6 * * *", timezone: Europe/Zurich}``.

    Attributes:
        class_: IntervalSecondsSchedule, CronSchedule or RRuleSchedule.
        timezone: IANA name, such as Europe/Zurich. Default: UTC.
        arg: Seconds of an interval, five fields of cron or an @alias, or an RRULE.
    """

    # The order matters: `arg` is checked with the two others.
    class_: StrictStr
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

    @field_validator("arg", mode="plain")  # the schedule class checks the type
    @classmethod
    def _fits_class(cls, value: str | int | float, info: ValidationInfo) -> str | int | float:
        if "class_" in info.data and "timezone" in info.data:
            _as_value_error(
                lambda: build_schedule(info.data["class_"], value, info.data["timezone"])
            )
        return value

    def build(self) -> TaskScheduleBase:
        """Return the schedule."""
        return build_schedule(self.class_, self.arg, self.timezone)


class TaskConfig(Section):
    """One entry of a periodic class; `PeriodicBaseTask.validate_config` gets a list of these.

    Attributes:
        name: Distinguishes the entries of one class. Optional if there is only one.
        schedule: When it fires. Default: the schedule of the class.
        args: Arguments of the class. The VO is added by the scheduler.
        enabled: false: the entry does not fire. Default: the attribute of the class.
        overlap: What to do with an occurrence while the previous one still runs: skip, queue (wait
            for it) or allow.
        catch_up: What to submit of occurrences missed for longer than misfire-grace: the latest
            (one), none (skip) or all.
        catch_up_limit: With 'catch-up: all', the most occurrences to submit.
        jitter: Seconds: delays each occurrence by a random time of at most this.
        misfire_grace: Seconds: occurrences missed for less are submitted one by one. Default:
            NONET_MISFIRE_GRACE, or the interval if that is shorter.

    Example:
        entry = TaskConfig(name="everywhere", args={"ce_regex": ".*"}, jitter=5)
        SubmitPilots.validate_config([entry])
    """

    name: Annotated[Name | None, _Given] = None
    schedule: Annotated[ScheduleConfig | None, _Given] = None
    args: dict[StrictStr, Any] = Field(default_factory=dict)
    enabled: Annotated[StrictBool | None, _Given] = None
    overlap: Annotated[Overlap | None, _Given] = None
    catch_up: Annotated[CatchUp | None, _Given] = None
    # The order matters: `catch_up_limit` is checked with `catch_up`.
    catch_up_limit: _Count = None
    jitter: _Jitter = None
    misfire_grace: _Grace = None

    @field_validator("catch_up_limit")
    @classmethod
    def _has_what_it_limits(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("catch_up", CatchUp.ALL) != CatchUp.ALL:
            raise ValueError("needs catch-up all: write 'catch-up: all' beside it")
        return value


class RetryPolicyConfig(Section):
    """``retry-policy: {class: ExponentialBackoff, args: {max_retries: 3}}``.

    Attributes:
        class_: A built-in policy, or one that a package of tasks defines.
        args: Its arguments.
    """

    # The order matters: `args` is checked with `class_`.
    class_: StrictStr
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
        """Return the policy.

        Raises:
            ConfigurationError: its class is not loaded in this process, or rejects the arguments.
        """
        made, problems = _made(policy_class(self.class_), self.args)
        if made is None:
            place, reason = problems[0]
            raise ConfigurationError(f"retry policy {self.class_}: {dotted(place)}: {reason}")
        return made

    def adapted(self, policy: RetryPolicyBase, of_class: RetryPolicyBase) -> RetryPolicyBase:
        """Return the built policy for a class, with the errors that its own policy names."""
        return with_errors_of(policy, of_class)


class TaskOverride(Section):
    """Values for a class under ``tasks``; None keeps the value of the class.

    Attributes:
        priority: The priority of its stream.
        size: Which pool of workers runs it.
        retry_policy: What happens after a failed attempt.
        soft_timeout: Seconds after which an attempt is cancelled.
        hard_timeout: Seconds after which an attempt is given up; not below soft-timeout.
        dlq_eligible: true: keep a task in SQL when it has failed for good.
        isolation: Where an attempt runs: loop (in the worker's process), child (in a child process,
            which runs others after it) or fresh (in one of its own).
        memory_limit: Memory that the process of an attempt may have: bytes, or with a unit, such as
            512MiB.
        cpu_limit: Seconds of CPU time that an attempt may use.
    """

    priority: Annotated[Priority | None, _Given] = None
    size: Annotated[Size | None, _Given] = None
    retry_policy: Annotated[RetryPolicyConfig | None, _Given] = None
    # The order matters: `hard_timeout` is checked with `soft_timeout`.
    soft_timeout: _Seconds = None
    hard_timeout: _Seconds = None
    dlq_eligible: Annotated[StrictBool | None, _Given] = None
    # The order matters: limits are checked with `isolation`.
    isolation: Annotated[Isolation | None, _Given] = None
    memory_limit: _Memory = None
    cpu_limit: _Seconds = None

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
    """Limits under ``sizes`` for tasks of size small whose class has no limits of its own.

    Attributes:
        soft_timeout: Seconds after which an attempt is cancelled.
        hard_timeout: Seconds after which an attempt is given up; not below soft-timeout.
    """

    # The order matters: `hard_timeout` is checked with `soft_timeout`.
    soft_timeout: _Seconds = None
    hard_timeout: _Seconds = None

    @field_validator("hard_timeout")
    @classmethod
    def _not_before_soft(cls, value: float | None, info: ValidationInfo) -> float | None:
        return _not_shorter(value, info.data.get("soft_timeout"))


class SizeConfig(SmallConfig):
    """Limits under ``sizes`` for tasks with a process each: also memory and CPU time.

    Attributes:
        soft_timeout: Seconds after which an attempt is cancelled.
        hard_timeout: Seconds after which an attempt is given up; not below soft-timeout.
        memory_limit: Memory that the process of an attempt may have: bytes, or with a unit, such as
            512MiB.
        cpu_limit: Seconds of CPU time that an attempt may use.
    """

    memory_limit: _Memory = None
    cpu_limit: _Seconds = None


class SizesConfig(Section):
    """``sizes: {medium: {memory-limit: 512MiB}}``; a missing size has no limits.

    Attributes:
        small: Limits of small classes. Of time only: they share a process.
        medium: Limits of medium classes.
        large: Limits of large classes.
    """

    small: SmallConfig = SmallConfig()
    medium: SizeConfig = SizeConfig()
    large: SizeConfig = SizeConfig()

    def get(self, size: Size) -> SmallConfig:
        """Return the limits of a size."""
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
_Bytes: TypeAlias = Annotated[
    int,
    BeforeValidator(parse_bytes),
    Field(ge=1),
    WithJsonSchema({"type": ["integer", "string"], "minimum": 1, "pattern": rf"^ *{AMOUNT} *$"}),
]
_Stream: TypeAlias = Annotated[
    StrictStr, AfterValidator(_stream), WithJsonSchema({"type": "string", "enum": list(STREAMS)})
]


class CeilingsConfig(Section):
    """``ceilings: {namespace: 100000, tasks: {RemoveFile: 5000}}``: the most tasks at a time.

    Attributes:
        namespace: For all tasks together.
        streams: Per stream, such as background:small.
        tenants: Per tenant, see fairness.by (default: vo); 'default' for all others.
        tenant_bytes: Per tenant: most bytes of the messages of its tasks, such as 512MiB.
        tenant_rates: Per tenant: most new tasks a second.
        tasks: Per class (Class, or category:Class).
    """

    namespace: Annotated[_Ceiling | None, _Given] = None
    streams: dict[_Stream, _Ceiling] = Field(default_factory=dict)
    tasks: dict[Name, _Ceiling] = Field(default_factory=dict)
    tenants: dict[Name, _Ceiling] = Field(default_factory=dict)
    tenant_bytes: dict[Name, _Bytes] = Field(default_factory=dict)
    tenant_rates: dict[Name, _Ceiling] = Field(default_factory=dict)


def _by(name: str) -> str:
    if problem := by_problem(name):
        raise ValueError(problem)
    return name


_Weight: TypeAlias = Annotated[StrictFloat, Field(ge=0.01, le=1000, allow_inf_nan=False)]


class FairnessConfig(Section):
    """``fairness: {by: vo, weights: {lhcb: 3}}``: tenants share the slots of a priority.

    Attributes:
        by: What identifies a tenant: vo, class or label:NAME.
        weights: Shares of tenants, relative to each other; 'default' for all others, else 1.
        streams: The streams that are shared, such as normal:small. Default: all.
    """

    by: Annotated[StrictStr, AfterValidator(_by)]
    weights: dict[Name, _Weight] = Field(default_factory=dict)
    streams: list[_Stream] = Field(default_factory=list)

    @property
    def shared(self) -> Sequence[str]:
        """The streams that are shared."""
        return self.streams or STREAMS


def _namespace(name: str) -> str:
    if not re.fullmatch(NAMESPACE, name):
        raise ValueError(f"must be {NAMESPACE_TEXT}")
    return name


_Namespace: TypeAlias = Annotated[
    StrictStr, AfterValidator(_namespace), WithJsonSchema({"type": "string", "pattern": NAMESPACE})
]


class PipelineConfig(Section):
    """``pipelines: {volumes: {workers: 40}}``: values that replace attributes of a pipeline.

    Attributes:
        workers: How many rows one process processes at once.
        interval: Seconds until a processed row is due again.
        queue: How many rows one process leases in advance at most.
        pause: true: no row is fetched.
    """

    workers: Annotated[Annotated[StrictInt, Field(ge=1, le=10_000)] | None, _Given] = None
    interval: _Seconds = None
    queue: Annotated[Annotated[StrictInt, Field(ge=1, le=100_000)] | None, _Given] = None
    pause: bool = False


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
    """The content of ``common`` and of each VO under ``vo-overrides``.

    Attributes:
        periodic_tasks: Per class (Class, or category:Class): a list of entries.
        limits: Object type, then key or 'default', then limiters, or actions with limiters.
        tasks: Per class (Class, or category:Class): values that override its attributes.
        sizes: Per size: limits for classes that have none of their own.
    """

    periodic_tasks: dict[
        StrictStr, Annotated[list[TaskConfig], AfterValidator(_distinct_names)]
    ] = Field(default_factory=dict)
    limits: Annotated[
        tuple[LimitRule, ...], BeforeValidator(_limit_rules), PlainSerializer(written_limits)
    ] = ()
    tasks: dict[Name, TaskOverride] = Field(default_factory=dict)
    sizes: SizesConfig = SizesConfig()


class Config(Section):
    """The whole document.

    Attributes:
        vos: Virtual organisations, in addition to those under vo-overrides.
        common: Values for the installation and for every VO.
        vo_overrides: Per VO; the entries of a class replace its common entries for this VO.
        ceilings: The most tasks at a time; further submissions are rejected.
        fairness: How tenants share the slots of a priority. Default: tasks run in order.
        pipelines: Per pipeline: values that override its attributes.
        namespaces: Per tenant, see fairness.by (default: vo): the namespace that has its tasks; '*'
            for all others. Default: the namespace to which a task is submitted.
    """

    vos: list[Name] = Field(default_factory=list)
    common: SectionConfig = SectionConfig()
    vo_overrides: dict[Name, SectionConfig] = Field(default_factory=dict)
    ceilings: CeilingsConfig = CeilingsConfig()
    fairness: Annotated[FairnessConfig | None, _Given] = None
    pipelines: dict[Name, PipelineConfig] = Field(default_factory=dict)
    namespaces: dict[Name, _Namespace] = Field(default_factory=dict)

    @property
    def tenants_by(self) -> str:
        """What identifies a tenant, see `nonet.rules.fairness`."""
        return self.fairness.by if self.fairness else BY_VO

    @property
    def named_tenants(self) -> Sequence[str]:
        """The tenants that this document names, whether they have tasks or not."""
        weights = self.fairness.weights if self.fairness else {}
        vos = {*self.vos, *self.vo_overrides} if self.tenants_by == "vo" else set()
        of_ceilings = self.ceilings
        capped = {*of_ceilings.tenants, *of_ceilings.tenant_bytes, *of_ceilings.tenant_rates}
        return sorted({*weights, *capped, *self.namespaces, *vos} - {"default", OTHERS})

    _source: str = PrivateAttr("configuration")
    _where: Callable[[Location], str] | None = PrivateAttr(None)

    @field_validator("vos")
    @classmethod
    def _distinct_vos(cls, value: list[str]) -> list[str]:
        if twice := sorted({name for name in value if value.count(name) > 1}):
            raise ValueError(f"listed twice: {', '.join(twice)}")
        return value

    @field_validator("namespaces")
    @classmethod
    def _complete_namespaces(cls, value: dict[str, str]) -> dict[str, str]:
        if value and OTHERS not in value:
            raise ValueError(f"must have '{OTHERS}': the namespace of all tenants not listed")
        return value

    @property
    def source(self) -> str:
        """The file or directory that was read, for messages."""
        return self._source

    def where(self, location: Location) -> str:
        """Return ``FILE:LINE`` of `location`, or of its nearest known parent.

        Without a known line, return only the file.
        """
        return self._where(location) if self._where else self._source

    def read_from(self, source: str, where: Callable[[Location], str] | None = None) -> Config:
        """Record where this document was read from, and return it."""
        self._source, self._where = source, where
        return self

    @property
    def sections(self) -> list[tuple[Location, str, SectionConfig]]:
        """Place, VO (empty for common) and section of ``common`` and of each VO."""
        of_vos = [(("vo-overrides", vo), vo, item) for vo, item in self.vo_overrides.items()]
        return [(("common",), "", self.common), *of_vos]

    def document(self) -> str:
        """Return the document as one line of JSON, which `from_document` reads.

        It does not depend on comments, on the order of keys or on explicit defaults.
        """
        found = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return json.dumps(found, sort_keys=True)

    @classmethod
    def from_document(cls, text: str) -> Config:
        """Read the JSON of `document`, possibly from a process that has loaded other classes.

        Retry policies are looked up only when they are built, so a process may read a document
        with policies that it has not loaded.

        Raises:
            ConfigurationError: a newer version wrote it, with values that this one does not know.
        """
        try:
            return cls.model_validate(json.loads(text), context=PUBLISHED)
        except ValidationError as error:
            wrong = error.errors()[0]
            reason = f"{dotted(wrong['loc'])}: {wrong['msg']}; update this process"
        except Exception as error:  # truncated, too deep or too long
            reason = str(error) or type(error).__name__
        raise ConfigurationError(
            f"the published configuration cannot be read by this version of nonet: {reason}"
        )

    def fingerprint(self) -> str:
        """Return a hash of `document`."""
        return hashlib.sha256(self.document().encode()).hexdigest()


def policy_class(name: str) -> type[RetryPolicyBase]:
    """Return the retry policy class of this name, built in or from a loaded module.

    Raises:
        ConfigurationError: no policy has this name, or several have.
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
    """Return a policy with these arguments, or the problems."""
    try:
        try:
            # As JSON, strict validation tells numbers from text and still reads a timedelta.
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


def _raise_problems(problems: Sequence[tuple[Location, str]]) -> None:
    """Raise several problems in one ValidationError; places are relative to the current one."""
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


def _as_value_error(check: Callable[[], object]) -> None:
    """Run `check`, and turn its errors into ValueErrors, which pydantic collects."""
    try:
        check()
    except (
        Exception
    ) as error:  # the libraries for schedules and time zones raise many types of exceptions
        raise ValueError(str(error) or type(error).__name__) from None
