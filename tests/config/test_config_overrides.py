"""Overrides of classes and the policies of entries: what is accepted, and what is said else."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import yaml
from config.config_documents import DOCUMENTS, PatientPolicy
from hypothesis import given

from nonet.base.errors import ConfigurationError
from nonet.base.streams import Priority, Size
from nonet.config.models import Config, TaskConfig, TaskOverride
from nonet.config.reading import parse_config
from nonet.tasks.retry import ExponentialBackoff, NoRetry, RetryPolicyBase
from nonet.tasks.schedules import CatchUp, Overlap

OVERRIDE = "common: {tasks: {T: {%s}}}"
ENTRY = "common: {periodic-tasks: {T: [{%s}]}}"
RETRY = "retry-policy: {%s}"


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


def refusal(text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as refused:
        parse_config(text, "c.yaml")
    return str(refused.value).splitlines()


def override(text: str) -> TaskOverride:
    return parse_config(OVERRIDE % text, "c.yaml").common.tasks["T"]


def entry(text: str) -> TaskConfig:
    config = parse_config(ENTRY % text, "c.yaml")
    return config.common.periodic_tasks["T"][0]


def test_an_override_says_what_it_says_and_nothing_else() -> None:
    """Every field arrives with its type; what is not written is left to the class."""
    full = override(
        "priority: realtime, size: large, soft-timeout: 0.5, hard-timeout: 60,"
        " dlq-eligible: false, retry-policy: {class: ExponentialBackoff, args: {max_retries: 3}}"
    )
    assert (full.priority, full.size, full.dlq_eligible) == (Priority.REALTIME, Size.LARGE, False)
    assert (full.soft_timeout, full.hard_timeout) == (0.5, 60)
    assert full.retry_policy is not None
    assert full.retry_policy.build() == ExponentialBackoff(max_retries=3)
    assert set(override("").model_dump().values()) == {None}


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
    """Built-in policies and subclasses of authors go by their bare names."""
    found = override(RETRY % written).retry_policy
    assert found is not None and found.build() == policy


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("priority: high", ".priority: is 'high', but must be realtime, normal or background"),
        (
            "priority: Realtime",
            ".priority: is 'Realtime', but must be realtime, normal or background. Did you mean"
            " realtime?",
        ),
        ("priority: 1", ".priority: is 1, but must be realtime, normal or background"),
        ("size: smal", ".size: is 'smal', but must be small, medium or large. Did you mean small?"),
        ("size: yes", ".size: is True, but must be small, medium or large"),
        (
            "retry_policy: {class: NoRetry}",
            ".retry_policy: unknown key 'retry_policy', known are priority, size, retry-policy,"
            " soft-timeout, hard-timeout, dlq-eligible, isolation, memory-limit, cpu-limit."
            " Did you mean retry-policy?",
        ),
        *(
            (f"{key}: ", f".{key}: has no value: write one, or remove the key")
            for key in (
                "priority",
                "size",
                "retry-policy",
                "soft-timeout",
                "hard-timeout",
                "dlq-eligible",
                "isolation",
                "memory-limit",
                "cpu-limit",
            )
        ),
        ("isolation: thread", ".isolation: is 'thread', but must be loop, child or fresh"),
        ("memory-limit: 512M", ".memory-limit: '512M' is not an amount of memory"),
        ("memory-limit: 1.5", ".memory-limit: 1.5 is not an amount of memory: write bytes, or"),
        ("memory-limit: yes", ".memory-limit: True is not an amount of memory"),
        ("memory-limit: 31MiB", ".memory-limit: must be at least 32 MiB"),
        ("cpu-limit: 1m", ".cpu-limit: must be a number of seconds, such as 60, without unit"),
        (
            "isolation: loop, memory-limit: 1GiB",
            ".memory-limit: cannot hold with isolation loop, where many tasks share a process: "
            "write child or fresh",
        ),
        ("isolation: loop, cpu-limit: 5", ".cpu-limit: cannot hold with isolation loop"),
        *(
            (f"soft-timeout: {value}", ".soft-timeout: must be ")
            for value in ("0", "-1", "yes", "'60'", ".nan", ".inf", "[1]", "31622401", "1m")
        ),
        (
            "soft-timeout: 90, hard-timeout: 60.5",
            ".hard-timeout: must not be shorter than soft-timeout: 60.5 s < 90 s",
        ),
        ("dlq-eligible: 'true'", ".dlq-eligible: must be true or false"),
        ("dlq-eligible: 1", ".dlq-eligible: must be true or false"),
        ("retry-policy: NoRetry", ".retry-policy: must be a mapping, lines of 'key: value'"),
        (RETRY % "", ".retry-policy.class: is missing"),
        (RETRY % "class: 5", ".retry-policy.class: must be text, not a number"),
        (
            RETRY % "class: NoRetry, arg: 5",
            ".retry-policy.arg: unknown key 'arg', known are class, args. Did you mean args?",
        ),
        (
            RETRY % "class: ExponentialBackof",
            ".retry-policy.class: unknown retry policy 'ExponentialBackof', known are NoRetry,"
            " ExponentialBackoff, ",
        ),
        (
            RETRY % "class: RetryPolicyBase",
            ".retry-policy.class: unknown retry policy 'RetryPolicyBase', known are NoRetry,",
        ),
        (
            RETRY % "class: NoRetry, args: {max_retries: 3}",
            ".retry-policy.args.max_retries: unknown argument 'max_retries', NoRetry has none",
        ),
        (
            RETRY % "class: ExponentialBackoff, args: {max_retrys: 3}",
            ".retry-policy.args.max_retrys: unknown argument 'max_retrys', known are"
            " base_delay_seconds, max_retries, cap, jitter. Did you mean max_retries?",
        ),
        *(
            (
                RETRY % f"class: ExponentialBackoff, args: {{{argument}}}",
                f".retry-policy.args.{argument.partition(':')[0]}: must be ",
            )
            for argument in (
                "max_retries: '3'",
                "max_retries: yes",
                "max_retries: -1",
                "max_retries: 1.5",
                "base_delay_seconds: .nan",
                "jitter: 2",
                "jitter: yes",
            )
        ),
        (RETRY % "class: PatientPolicy", ".retry-policy.args.pause: is missing"),
        (
            RETRY % "class: PatientPolicy, args: {pause: PT5M, kinds: [a, 1]}",
            ".retry-policy.args.kinds[1]: must be text, not a number",
        ),
        (
            RETRY % "class: ExplodingPolicy",
            ".retry-policy.args: refused by ExplodingPolicy: 'surprise'",
        ),
        (
            RETRY % "class: EndingPolicy, args: {code: 7}",
            ".retry-policy.args: refused by EndingPolicy: 7",
        ),
    ],
)
def test_a_mistake_in_an_override_is_reported(text: str, line: str) -> None:
    """Where, what, and what is near; under common and under a VO."""
    for start, end, at in [("common:", "", "common"), ("vo-overrides: {x:", "}", "vo-overrides.x")]:
        (problem,) = refusal(f"{start}\n {{tasks: {{T: {{\n {text}}}}}}}{end}")
        assert problem.startswith(f"c.yaml:3: {at}.tasks.T{line}"), problem


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tiny: {}", ".tiny: unknown key 'tiny', known are small, medium, large"),
        (
            "larg: {}",
            ".larg: unknown key 'larg', known are small, medium, large. Did you mean larg",
        ),
        ("large: ", ".large: must be a mapping; write {} for an empty one"),
        (
            "large: {priority: normal}",
            ".large.priority: unknown key 'priority', known are soft-timeout, hard-timeout,"
            " memory-limit, cpu-limit",
        ),
        ("large: {memory-limit: }", ".large.memory-limit: has no value: write one, or remove the"),
        ("large: {memory-limit: 1GB 5}", ".large.memory-limit: '1GB 5' is not an amount of memory"),
        (
            "large: {soft-timeout: 9, hard-timeout: 5}",
            ".large.hard-timeout: must not be shorter than soft-timeout: 5 s < 9 s",
        ),
        *(
            (
                f"small: {{{key}: {value}}}",
                f".small.{key}: cannot hold for small tasks, where many tasks share a process:"
                " write it for the class under tasks",
            )
            for key, value in {"memory-limit": "1GiB", "cpu-limit": 5}.items()
        ),
    ],
)
def test_a_mistake_in_the_limits_of_a_size_is_reported(text: str, line: str) -> None:
    """Where, what and why; under common and under a VO."""
    for start, end, at in [("common:", "", "common"), ("vo-overrides: {x:", "}", "vo-overrides.x")]:
        (problem,) = refusal(f"{start}\n {{sizes: {{\n {text}}}}}{end}")
        assert problem.startswith(f"c.yaml:3: {at}.sizes{line}"), problem


def test_mistakes_in_the_limits_of_small_tasks_are_reported_at_once() -> None:
    """What cannot hold for them is no known key, so that one kind of mistake hides no other."""
    text = """common:
  sizes:
    small: {memory-limit: 4Gb, cpu-limit: 3, soft_timeout: 5, hard-timeout: x}
"""
    why = "cannot hold for small tasks, where many tasks share a process: write it for the class"
    assert sorted(refusal(text)) == [
        f"c.yaml:3: common.sizes.small.cpu-limit: {why} under tasks",
        "c.yaml:3: common.sizes.small.hard-timeout: must be a number of seconds, such as 60,"
        " without unit or quotes",
        f"c.yaml:3: common.sizes.small.memory-limit: {why} under tasks",
        "c.yaml:3: common.sizes.small.soft_timeout: unknown key 'soft_timeout', known are"
        " soft-timeout, hard-timeout. Did you mean soft-timeout?",
    ]


def test_an_override_is_a_mapping_of_a_named_class() -> None:
    """An empty or numeric name and a missing mapping are refused."""
    assert refusal("common: {tasks: {T: }}") == [
        "c.yaml:1: common.tasks.T: must be a mapping; write {} for an empty one"
    ]
    assert refusal("common: {tasks: []}")[0].startswith("c.yaml:1: common.tasks: must be a mapping")
    assert "as a key" in refusal("common: {tasks: {5: {}}}")[0]
    assert "as a key" in refusal("common: {tasks: {'': {}}}")[0]


def test_two_policies_of_one_name_are_refused() -> None:
    """A bare name that two modules define means neither; the error names both."""

    def defined(qualname: str) -> type[RetryPolicyBase]:
        return type(
            "TwinPolicy", (RetryPolicyBase,), {"__module__": __name__, "__qualname__": qualname}
        )

    kept = [defined("One.TwinPolicy"), defined("Other.TwinPolicy")]
    (problem,) = refusal("common: {tasks: {T: {retry-policy: {class: TwinPolicy}}}}")
    assert "'TwinPolicy' is ambiguous: " in problem
    assert all(f"{item.__module__}.{item.__qualname__}" in problem for item in kept)


def test_a_reimported_policy_is_the_newest() -> None:
    """A module that is imported anew defines its policies anew; they replace the old ones."""

    def defined() -> type[RetryPolicyBase]:
        return type(
            "AnewPolicy", (RetryPolicyBase,), {"__module__": __name__, "__qualname__": "AnewPolicy"}
        )

    old, new = defined(), defined()
    found = override("retry-policy: {class: AnewPolicy}").retry_policy
    assert found is not None and type(found.build()) is new is not old


def test_an_entry_says_what_becomes_of_late_occurrences() -> None:
    """Overlap, catch-up with its bound, and jitter; each None unless written."""
    full = entry("overlap: queue, catch-up: all, catch-up-limit: 7, jitter: 1.5")
    assert (full.overlap, full.catch_up, full.catch_up_limit, full.jitter) == (
        Overlap.QUEUE,
        CatchUp.ALL,
        7,
        1.5,
    )
    bare = entry("")
    assert (bare.overlap, bare.catch_up, bare.catch_up_limit, bare.jitter) == (None,) * 4
    assert entry("jitter: 0").jitter == 0
    assert (entry("misfire-grace: 0").misfire_grace, bare.misfire_grace) == (0, None)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "overlap: skp",
            ".overlap: is 'skp', but must be skip, queue or allow. Did you mean skip?",
        ),
        ("overlap: no", ".overlap: is False, but must be skip, queue or allow"),
        *(
            (f"{key}: ", f".{key}: has no value: write one, or remove the key")
            for key in ("name", "schedule", "enabled", "overlap", "catch-up", "jitter")
        ),
        (
            "schedule: {class: CronSchedule, arg: '@daily', timezone: }",
            ".schedule.timezone: has no value: ",
        ),
        ("catch-up: al", ".catch-up: is 'al', but must be one, skip or all. Did you mean all?"),
        ("catch_up: one", ".catch_up: unknown key 'catch_up', known are name, schedule, args,"),
        *(
            (f"catch-up: all, catch-up-limit: {value}", ".catch-up-limit: must be ")
            for value in ("0", "-1", "1001", "1.0", "yes", "'5'")
        ),
        ("catch-up: all, catch-up-limit: ", ".catch-up-limit: has no value: "),
        *(
            (text, ".catch-up-limit: needs catch-up all: write 'catch-up: all' beside it")
            for text in ("catch-up-limit: 5", "catch-up: one, catch-up-limit: 5")
        ),
        *(
            (f"jitter: {value}", ".jitter: must be ")
            for value in ("-0.1", "86401", ".nan", ".inf", "'5'", "yes", "{}")
        ),
    ],
)
def test_a_mistake_in_the_policies_of_an_entry_is_reported(text: str, line: str) -> None:
    """Wrong types, values out of range and a bound of nothing are one line each."""
    (problem,) = refusal(ENTRY % text)
    assert problem.startswith(f"c.yaml:1: common.periodic-tasks.T[0]{line}")


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("010", "8"),
        ("-010", "-8"),
        ("0_7", "7"),
        ("00", "0"),
        ("1:30", "90"),
        ("1:30:00", "5400"),
        ("1:30.5", "90.5"),
        ("!!int '010'", "8"),
    ],
)
def test_a_number_that_yaml_takes_for_another_is_refused(written: str, number: str) -> None:
    """`limit: 010` would be 8: refused wherever a value stands, with its line."""
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
        ("0", 0),
        ("-5", -5),
        ("+5", 5),
        ("0.5", 0.5),
        ("0.10", 0.1),
        ("0x1F", 31),
        ("0b11", 3),
        ("'010'", "010"),
        ("12:30Z", "12:30Z"),
    ],
)
def test_a_number_that_says_what_it_is_is_accepted(written: str, value: object) -> None:
    """Underscores, signs and the prefixes of other bases can be read in one way only."""
    assert entry(f"args: {{x: {written}}}").args == {"x": value}


def test_a_problem_names_the_line_of_the_file() -> None:
    """Also inside lists, below an anchor that is merged elsewhere, and of what is missing."""
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


def test_a_good_configuration_knows_its_lines() -> None:
    """Who finds a problem later, with the classes at hand, can say where it is."""
    config = parse_config("# c\ncommon:\n  tasks:\n    T: {size: small}\n", "c.yaml")
    assert config.where(("common", "tasks", "T")) == "c.yaml:4"
    assert config.where(("common", "tasks", "T", "size", "deeper")) == "c.yaml:4"
    assert config.where(("vo-overrides", "x")) == config.where(()) == "c.yaml"
    assert Config().where(("common",)) == "configuration"


@given(DOCUMENTS)
def test_a_configuration_survives_its_journey(document: dict[str, Any]) -> None:
    """What is published is read back as the same, with the same fingerprint."""
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
    assert limits_of(back) == limits_of(config)


def limits_of(config: Config) -> set[tuple[object, ...]]:
    """All limits, without how their keys were written."""
    return {
        (vo, rule.object_type, rule.key, rule.action, rule.limiter, rule.limit, rule.window_seconds)
        for _, vo, section in config.sections
        for rule in section.limits
    }


def test_a_document_holds_what_was_written_and_no_more() -> None:
    """No defaults: a version of Nonet that knows more keys can be read by one that does not."""
    text = "vos: []\ncommon: {periodic-tasks: {T: [{args: {}}]}, tasks: {T: {size: small}}}"
    found = parse_config(text, "c.yaml").document()
    assert json.loads(found) == {
        "common": {"periodic-tasks": {"T": [{}]}, "tasks": {"T": {"size": "small"}}}
    }


def test_a_published_policy_is_looked_up_when_it_is_needed() -> None:
    """A process without the class of a retry policy reads the rest, and says what it lacks."""
    document = json.dumps(
        {
            "common": {
                "tasks": {
                    "A": {"retry-policy": {"class": "OfAnotherPackage", "args": {"x": 1}}},
                    "B": {"retry-policy": {"class": "ExponentialBackoff", "args": {"x": 1}}},
                    "C": {"size": "small"},
                }
            }
        }
    )
    tasks = Config.from_document(document).common.tasks
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
    """The error says that the process is too old, and where it noticed."""
    with pytest.raises(ConfigurationError, match="cannot be read by this version of nonet") as no:
        Config.from_document(document)
    assert reason in str(no.value)
