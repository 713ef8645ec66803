"""Overrides of classes and the policies of entries: what is accepted, and what is said else."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import yaml
from config.config_documents import DOCUMENTS, PatientPolicy
from config.mistakes import mistakes, refusal, reports
from hypothesis import given, settings

from nonet.base.errors import ConfigurationError
from nonet.base.streams import Size
from nonet.config.models import Config, TaskConfig, TaskOverride
from nonet.config.reading import parse_config
from nonet.rules.limits import written_limits
from nonet.tasks.retry import ExponentialBackoff, NoRetry, RetryPolicyBase
from nonet.tasks.schedules import CatchUp, Overlap

OVERRIDE = "common: {tasks: {T: {%s}}}"
ENTRY = "common: {periodic-tasks: {T: [{%s}]}}"
RETRY = "retry-policy: {%s}"
POLICY_FIELDS = ("priority", "size", "retry-policy", "soft-timeout", "hard-timeout", "dlq-eligible")


class CalmBackoff(ExponentialBackoff):
    """A policy that builds on another one."""


class ExplodingPolicy(RetryPolicyBase):
    """A policy whose author did not expect its arguments."""

    def model_post_init(self, context: Any) -> None:
        raise KeyError("surprise")


class EndingPolicy(RetryPolicyBase):
    """A policy whose author ends the process."""

    code: int

    def model_post_init(self, context: Any) -> None:
        raise SystemExit(self.code)


def override(text: str) -> TaskOverride:
    return parse_config(OVERRIDE % text, "c.yaml").common.tasks["T"]


def entry(text: str) -> TaskConfig:
    config = parse_config(ENTRY % text, "c.yaml")
    return config.common.periodic_tasks["T"][0]


@pytest.mark.parametrize(
    ("written", "policy"),
    [
        ("class: NoRetry", NoRetry()),
        (
            "class: ExponentialBackoff, args: {base_delay_seconds: 1_0, cap: 60}",
            ExponentialBackoff(base_delay_seconds=10, cap=60),
        ),
        ("class: CalmBackoff, args: {max_retries: 1}", CalmBackoff(max_retries=1)),
        (
            "class: PatientPolicy, args: {pause: PT5M, kinds: [a]}",
            PatientPolicy(pause=timedelta(minutes=5), kinds=["a"]),
        ),
    ],
)
def test_a_retry_policy_may_come_from_any_module(written: str, policy: RetryPolicyBase) -> None:
    """Built-in policies and those of authors are found by their bare names."""
    found = override(RETRY % written).retry_policy
    assert found is not None and found.build() == policy


OVERRIDE_MISTAKES = """
priority: high      => priority: is 'high', but must be realtime, normal or background
priority: Realtime  => priority: is 'Realtime', but must be … Did you mean realtime?
size: smal          => size: is 'smal', but must be small, medium or large. Did you mean small?
retry_policy: {class: NoRetry} => retry_policy: unknown key … known are … mean retry-policy?
isolation: thread   => isolation: is 'thread', but must be loop, child or fresh
memory-limit: 512M  => memory-limit: '512M' is not an amount of memory
memory-limit: 1.5   => memory-limit: 1.5 is not an amount of memory: write bytes, or
memory-limit: 31MiB => memory-limit: must be at least 32 MiB
cpu-limit: 1m       => cpu-limit: must be a number of seconds, such as 60, without unit
isolation: loop, memory-limit: 1GiB => memory-limit: cannot hold with isolation loop … write child
soft-timeout: 0     => soft-timeout: must be
soft-timeout: yes   => soft-timeout: must be
soft-timeout: '60'  => soft-timeout: must be
soft-timeout: .nan  => soft-timeout: must be
soft-timeout: 31622401 => soft-timeout: must be
soft-timeout: 1m    => soft-timeout: must be
soft-timeout: 90, hard-timeout: 60.5 => hard-timeout: must not be shorter than … 60.5 s < 90 s
dlq-eligible: 'true' => dlq-eligible: must be true or false
retry-policy: NoRetry => retry-policy: must be a mapping, lines of 'key: value'
"""
RETRY_MISTAKES = """
                    => class: is missing
class: 5            => class: must be text, not a number
class: NoRetry, arg: 5 => arg: unknown key 'arg', known are class, args. Did you mean args?
class: ExponentialBackof => class: unknown retry policy … known are NoRetry, ExponentialBackoff,
class: NoRetry, args: {max_retries: 3} => args.max_retries: unknown argument … NoRetry has none
class: PatientPolicy   => args.pause: is missing
class: PatientPolicy, args: {pause: PT5M, kinds: [a, 1]} => args.kinds[1]: must be text, not a
class: ExplodingPolicy => args: refused by ExplodingPolicy: 'surprise'
class: EndingPolicy, args: {code: 7} => args: refused by EndingPolicy: 7
"""
BACKOFF_MISTAKES = """
max_retrys: 3             => max_retrys: unknown argument … known are … Did you mean max_retries?
max_retries: '3'          => max_retries: must be
max_retries: yes          => max_retries: must be
max_retries: -1           => max_retries: must be
base_delay_seconds: -1    => base_delay_seconds: must be
base_delay_seconds: .nan  => base_delay_seconds: must be
cap: 0                    => cap: must be
jitter: 1.1               => jitter: must be
"""
SIZE_MISTAKES = """
tiny: {}          => tiny: unknown key 'tiny', known are small, medium, large
large:            => large: must be a mapping; write {} for an empty one
large: {priority: normal} => large.priority: unknown key … known are soft-timeout, hard-timeout,
large: {memory-limit: }   => large.memory-limit: has no value: write one, or remove the
large: {memory-limit: 1GB 5} => large.memory-limit: '1GB 5' is not an amount of memory
large: {soft-timeout: 9, hard-timeout: 5} => large.hard-timeout: must not … 5 s < 9 s
small: {memory-limit: 1GiB} => small.memory-limit: cannot hold for small tasks … under tasks
"""
TASKS, SIZES = "tasks: {T: {\n %s}}", "sizes: {\n %s}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *mistakes(TASKS, "tasks.T.", OVERRIDE_MISTAKES),
        *mistakes(TASKS % RETRY, "tasks.T.retry-policy.", RETRY_MISTAKES),
        *mistakes(
            TASKS % RETRY % "class: ExponentialBackoff, args: {%s}",
            "tasks.T.retry-policy.args.",
            BACKOFF_MISTAKES,
        ),
        *(
            (TASKS % f"{key}: ", f"tasks.T.{key}: has no value: write one, or remove the key")
            for key in (*POLICY_FIELDS, "isolation", "memory-limit", "cpu-limit")
        ),
        *mistakes(SIZES, "sizes.", SIZE_MISTAKES),
    ],
)
def test_a_mistake_in_an_override_is_reported(text: str, problem: str) -> None:
    """Classes and sizes are checked under common and under a VO."""
    for document, at in [
        ("common:\n {%s}", "common"),
        ("vo-overrides: {x:\n {%s}}", "vo-overrides.x"),
    ]:
        (line,) = refusal(document % text)
        assert reports(line, f"c.yaml:3: {at}.{problem}"), line


def test_mistakes_in_the_limits_of_small_tasks_are_reported_at_once() -> None:
    """No kind of mistake hides another one."""
    text = "memory-limit: 4Gb, cpu-limit: 3, soft_timeout: 5, hard-timeout: x"
    expected = [
        "cpu-limit: cannot hold for small tasks",
        "hard-timeout: must be a number of seconds",
        "memory-limit: cannot hold for small tasks",
        "soft_timeout: unknown key … known are soft-timeout, hard-timeout. Did you mean",
    ]
    found = sorted(refusal(f"common: {{sizes: {{small: {{{text}}}}}}}"))
    for line, problem in zip(found, expected, strict=True):
        assert reports(line, f"c.yaml:1: common.sizes.small.{problem}")


def test_an_override_is_a_mapping_of_a_named_class() -> None:
    """An empty or numeric name and a missing mapping are refused."""
    assert "common.tasks.T: must be a mapping" in refusal("common: {tasks: {T: }}")[0]
    assert "common.tasks: must be a mapping" in refusal("common: {tasks: []}")[0]
    assert "as a key" in refusal("common: {tasks: {5: {}}}")[0]
    assert "as a key" in refusal("common: {tasks: {'': {}}}")[0]


def defined(qualname: str) -> type[RetryPolicyBase]:
    """A policy class that is defined anew."""
    attributes = {"__module__": __name__, "__qualname__": qualname}
    return type(qualname.rpartition(".")[2], (RetryPolicyBase,), attributes)


def test_two_policies_of_one_name_are_refused() -> None:
    """The error names both modules."""
    kept = [defined("One.TwinPolicy"), defined("Other.TwinPolicy")]
    (problem,) = refusal(OVERRIDE % RETRY % "class: TwinPolicy")
    assert "'TwinPolicy' is ambiguous: " in problem
    assert all(f"{item.__module__}.{item.__qualname__}" in problem for item in kept)


def test_a_policy_of_a_reimported_module_is_the_newest() -> None:
    """It replaces the older class of the same name."""
    old, new = defined("AnewPolicy"), defined("AnewPolicy")
    found = override(RETRY % "class: AnewPolicy").retry_policy
    assert found is not None and type(found.build()) is new is not old


def test_policies_of_an_entry_are_read() -> None:
    """Each is None unless it is written."""
    full = entry("overlap: queue, catch-up: all, catch-up-limit: 7, jitter: 1.5")
    assert (full.overlap, full.catch_up) == (Overlap.QUEUE, CatchUp.ALL)
    assert (full.catch_up_limit, full.jitter) == (7, 1.5)
    bare = entry("")
    assert (bare.overlap, bare.catch_up, bare.catch_up_limit, bare.jitter) == (None,) * 4
    assert entry("jitter: 0").jitter == 0
    assert (entry("misfire-grace: 0").misfire_grace, bare.misfire_grace) == (0, None)


POLICY_MISTAKES = """
overlap: skp    => overlap: is 'skp', but must be skip, queue or allow. Did you mean skip?
schedule: {class: CronSchedule, arg: '@daily', timezone: } => schedule.timezone: has no value:
catch-up: al    => catch-up: is 'al', but must be one, skip or all. Did you mean all?
catch_up: one   => catch_up: unknown key 'catch_up', known are name, schedule, args,
catch-up: all, catch-up-limit:       => catch-up-limit: has no value:
catch-up: all, catch-up-limit: 0     => catch-up-limit: must be
catch-up: all, catch-up-limit: 1001  => catch-up-limit: must be
catch-up: all, catch-up-limit: yes   => catch-up-limit: must be
catch-up: one, catch-up-limit: 5     => catch-up-limit: needs catch-up all: write 'catch-up: all'
jitter: -0.1    => jitter: must be
jitter: 86401   => jitter: must be
jitter: .nan    => jitter: must be
jitter: '5'     => jitter: must be
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *mistakes(ENTRY, "", POLICY_MISTAKES),
        *(
            (ENTRY % f"{key}: ", f"{key}: has no value: write one, or remove the key")
            for key in ("name", "schedule", "enabled", "overlap", "catch-up", "jitter")
        ),
    ],
)
def test_a_mistake_in_the_policies_of_an_entry_is_reported(text: str, problem: str) -> None:
    """Wrong types and values out of range are one line each."""
    (line,) = refusal(text)
    assert reports(line, f"c.yaml:1: common.periodic-tasks.T[0].{problem}")


@pytest.mark.parametrize(
    ("written", "number"),
    [("010", "8"), ("0_7", "7"), ("1:30", "90"), ("1:30.5", "90.5"), ("!!int '010'", "8")],
)
def test_a_number_that_yaml_reads_as_another_is_refused(written: str, number: str) -> None:
    """`limit: 010` would be 8."""
    shown = written.removeprefix("!!int ").strip("'")
    reason = f"{shown} is the number {number} in YAML: write that, or the text in quotes"
    for text in (
        "common:\n limits: {Job: {a: {ConcurrencyLimiter: {limit: %s}}}}",
        "common:\n periodic-tasks: {T: [args: {x: [%s]}]}",
        "common:\n tasks: {T: {soft-timeout: %s}}",
    ):
        assert f"c.yaml:2: {reason}" in refusal(text % written)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("10_000", 10_000),
        ("0.5", 0.5),
        ("0.10", 0.1),
        ("0x1F", 31),
        ("'010'", "010"),
        ("12:30Z", "12:30Z"),
    ],
)
def test_an_unambiguous_number_is_accepted(written: str, value: object) -> None:
    """Underscores, signs and the prefixes of other bases can be read in one way only."""
    assert entry(f"args: {{x: {written}}}").args == {"x": value}


def test_a_problem_names_the_line_of_the_file() -> None:
    """It does so inside lists, below an anchor that is merged elsewhere, and for a missing key."""
    text = """\
vos:
  - a
  - ''
common:
  periodic-tasks:
    Sweep:
      - &first
        name: x
        overlap: sometimes
      - <<: *first
        name: y
        schedule:
          class: CronSchedule
  limits:
    Job:
      default:
        ConcurrencyLimiter:
          limit: none
"""
    assert [line.split(": ")[:2] for line in refusal(text)] == [
        ["c.yaml:3", "vos[1]"],
        ["c.yaml:9", "common.periodic-tasks.Sweep[0].overlap"],
        ["c.yaml:12", "common.periodic-tasks.Sweep[1].schedule.arg"],
        ["c.yaml:9", "common.periodic-tasks.Sweep[1].overlap"],
        ["c.yaml:18", "common.limits.Job.default.ConcurrencyLimiter.limit"],
    ]


def test_a_valid_configuration_knows_its_lines() -> None:
    """A problem that is found later, with the classes at hand, has its line."""
    config = parse_config("# c\ncommon:\n  tasks:\n    T: {size: small}\n", "c.yaml")
    assert config.where(("common", "tasks", "T")) == "c.yaml:4"
    assert config.where(("common", "tasks", "T", "size", "deeper")) == "c.yaml:4"
    assert config.where(("vo-overrides", "x")) == config.where(()) == "c.yaml"
    assert Config().where(("common",)) == "configuration"


@settings(max_examples=30)
@given(DOCUMENTS)
def test_a_published_configuration_is_read_back_as_the_same(document: dict[str, Any]) -> None:
    """It has the same values and the same fingerprint."""
    text = yaml.safe_dump(document, allow_unicode=True) if document else "{}"
    try:
        config = parse_config(text, "c.yaml")
    except ConfigurationError as error:
        assert "is written twice" in str(error)  # the keys 5 and '5'
        return
    back = Config.from_document(config.document())
    assert back.document() == config.document()
    assert back.fingerprint() == config.fingerprint()
    assert back.common.tasks == config.common.tasks
    limits = [
        {vo: written_limits(section.limits) for _, vo, section in one.sections}
        for one in (config, back)
    ]
    assert limits[0] == limits[1]


def test_a_document_has_no_defaults() -> None:
    """So an older version of Nonet, which knows fewer keys, can read it."""
    text = "vos: []\ncommon: {periodic-tasks: {T: [{args: {}}]}, tasks: {T: {size: small}}}"
    found = parse_config(text, "c.yaml").document()
    assert json.loads(found) == {
        "common": {"periodic-tasks": {"T": [{}]}, "tasks": {"T": {"size": "small"}}}
    }


def test_an_unknown_policy_in_a_document_is_an_error_only_when_it_is_built() -> None:
    """A process without the class of a retry policy reads the rest."""
    written = {
        "A": {"retry-policy": {"class": "OfAnotherPackage", "args": {"x": 1}}},
        "B": {"retry-policy": {"class": "ExponentialBackoff", "args": {"x": 1}}},
        "C": {"size": "small"},
    }
    tasks = Config.from_document(json.dumps({"common": {"tasks": written}})).common.tasks
    assert tasks["C"].size == Size.SMALL
    for name, reason in [
        ("A", "unknown retry policy 'OfAnotherPackage'"),
        ("B", "retry policy ExponentialBackoff: x: unknown argument 'x'"),
    ]:
        policy = tasks[name].retry_policy
        assert policy is not None
        with pytest.raises(ConfigurationError, match=reason):
            policy.build()


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ('{"common": {"ceilings": {}}}', "common.ceilings: Extra inputs are not permitted"),
        ('{"common": {"tasks": {"A": {"size": "huge"}}}}', "common.tasks.A.size: "),
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[]", "Input should be a valid dictionary"),
    ],
)
def test_a_published_document_of_another_version_is_refused(document: str, reason: str) -> None:
    """The error says that the process is too old."""
    with pytest.raises(ConfigurationError, match="cannot be read by this version of nonet") as no:
        Config.from_document(document)
    assert reason in str(no.value)
