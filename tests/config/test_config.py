"""The central configuration: what it accepts, and that it reports every mistake at once."""

from __future__ import annotations

import re
import time

import pytest

from nonet.base.errors import ConfigurationError
from nonet.config.reading import parse_config, parse_files, problems_error
from nonet.tasks.schedules import IntervalSeconds

ENTRY = "common: {periodic-tasks: {Sweep: [%s]}}"
SCHEDULE = ENTRY % "{schedule: {%s}}"
AT = "common.periodic-tasks.Sweep"


def refusal(text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as refused:
        parse_config(text, "c.yaml")
    return str(refused.value).splitlines()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "vo: []",
            "vo: unknown key 'vo', known are vos, common, vo-overrides, ceilings, fairness, "
            "pipelines, namespaces. Did",
        ),
        ("vos: lhcb", "vos: must be a list, not text"),
        ("vos: [1]", "vos[0]: must be text, not a number: write it in quotes"),
        ("vos: [no]", "vos[0]: must be text: YAML reads yes, no, on, off, true and false without"),
        ("vos: [2026-01-01]", "vos[0]: must be text, not a date: write it in quotes"),
        ("vos: [{}]", "vos[0]: must be text, not a mapping"),
        ("vos: ['']", "vos[0]: must not be empty"),
        ("vos: [a, b, a]", "vos: listed twice: a"),
        ("common: ", "common: must be a mapping; write {} for an empty one"),
        ("vo-overrides: ", "vo-overrides: must be a mapping; write {} for an empty one"),
        ("vo-overrides: {lhcb: }", "vo-overrides.lhcb: must be a mapping; write {} for an empty"),
        ("common: {periodic-tasks: }", "common.periodic-tasks: must be a mapping; write {}"),
        (
            ENTRY % "{schedule: 5}",
            f"{AT}[0].schedule: must be a mapping, lines of 'key: value', not a number",
        ),
        ("common: [1]", "common: must be a mapping, lines of 'key: value', not a list"),
        (ENTRY % "x", f"{AT}[0]: must be a mapping, lines of 'key: value', not text"),
        (
            "limits: {}",
            "limits: unknown key 'limits', known are vos, common, vo-overrides, ceilings, "
            "fairness, pipelines, namespaces. Write it under common, or under a VO of vo-overrides",
        ),
        ("ceilings: ", "ceilings: must be a mapping; write {} for an empty one"),
        (
            "ceilings: {streams: {background: 5}}",
            "ceilings.streams.background: as a key: unknown stream, known are realtime:small,",
        ),
        (
            "ceilings: {stream: {}}",
            "ceilings.stream: unknown key 'stream', known are namespace, streams, tasks, tenants, ",
        ),
        *(
            (f"ceilings: {{namespace: {value}}}", "ceilings.namespace: must be ")
            for value in ("0", "-1", "'5'", "5.0", "yes", "2147483648")
        ),
        ("ceilings: {namespace: }", "ceilings.namespace: has no value: write one, or remove"),
        (
            "ceilings: {streams: {'normal:small': 0}}",
            "ceilings.streams.normal:small: must be greater than or equal to 1",
        ),
        ("ceilings: {tasks: {Sweep: x}}", "ceilings.tasks.Sweep: must be a whole number"),
        ("ceilings: {tasks: {'': 5}}", "ceilings.tasks.: as a key: must not be empty"),
        ("fairness: {weights: {a: 2}}", "fairness.by: is missing"),
        ("fairness: {by: team}", "fairness.by: must be vo, class or label:NAME"),
        ("fairness: {by: 'label:'}", "fairness.by: must be vo, class or label:NAME"),
        (
            "fairness: {by: vo, weights: {a: 0}}",
            "fairness.weights.a: must be greater than or equal to 0.01",
        ),
        (
            "fairness: {by: vo, streams: [normal]}",
            "fairness.streams[0]: unknown stream, known are realtime:small,",
        ),
        (
            "tasks: {}",
            "tasks: unknown key 'tasks', known are vos, common, vo-overrides, ceilings, fairness, "
            "pipelines, namespaces. Write it under common, or under a VO of vo-overrides",
        ),
        (
            "vo-overrides: {lhcb: {ceilings: {}}}",
            "vo-overrides.lhcb.ceilings: unknown key 'ceilings', known are periodic-tasks,"
            " limits, tasks, sizes. Write it at the top, beside common",
        ),
        (
            "vo-overrides: {lhcb: {periodic_tasks: {}}}",
            "vo-overrides.lhcb.periodic_tasks: unknown key 'periodic_tasks', known are"
            " periodic-tasks, limits, tasks, sizes. Did you mean periodic-tasks?",
        ),
        ("common: {periodic-tasks: {Sweep: {}}}", f"{AT}: must be a list, not a mapping"),
        (
            "common: {periodic-tasks: {7: []}}",
            "common.periodic-tasks[7]: as a key: must be text, not a num",
        ),
        (ENTRY % "{ce_regex: x}", f"{AT}[0].ce_regex: unknown key 'ce_regex', known are name"),
        (ENTRY % "{enabled: 'no'}", f"{AT}[0].enabled: must be true or false, without quotes"),
        (ENTRY % "{enabled: 5}", f"{AT}[0].enabled: must be true or false"),
        (ENTRY % "{name: 5}", f"{AT}[0].name: must be text, not a number: write it in quotes"),
        (ENTRY % "{name: on}", f"{AT}[0].name: must be text: YAML reads yes, no, on, off, true"),
        (ENTRY % "{jitter: 1m}", f"{AT}[0].jitter: must be a number of seconds, such as 60, with"),
        (ENTRY % "{catch-up-limit: x}", f"{AT}[0].catch-up-limit: must be a whole number"),
        (ENTRY % "{args: [1]}", f"{AT}[0].args: must be a mapping"),
        (ENTRY % "{name: a}, {}", f"{AT}[1]: needs a name, because there are several"),
        (ENTRY % "{name: a}, {name: a}", f"{AT}[1]: has the same name as entry [0]: a"),
        (
            SCHEDULE % "class: CronShedule, arg: '@daily'",
            f"{AT}[0].schedule.class: unknown schedule class 'CronShedule', known are"
            " IntervalSecondsSchedule, IntervalSeconds, CronSchedule, RRuleSchedule."
            " Did you mean CronSchedule",
        ),
        (SCHEDULE % "class: CronSchedule", f"{AT}[0].schedule.arg: is missing"),
        (
            SCHEDULE % "class: CronSchedule, arg: '0 25 * * *'",
            f"{AT}[0].schedule.arg: cron expression '0 25 * * *': ",
        ),
        (
            SCHEDULE % "class: CronSchedule, arg: '@daily', timezone: Europe/Zurick",
            f"{AT}[0].schedule.timezone: unknown time zone 'Europe/Zurick'. Did you mean"
            " Europe/Zurich",
        ),
        *(
            (
                SCHEDULE % f"class: CronSchedule, arg: '@daily', timezone: '{short}'",
                f"{AT}[0].schedule.timezone: unknown time zone '{short}'. Write a place such as"
                " Europe/Zurich, which defines when the clocks change",
            )
            for short in ("CEST", "UTC+2", "+02:00", "GMT +1")
        ),
        (
            SCHEDULE % "class: RRuleSchedule, arg: 'FREQ=DAILY;COUNT=2'",
            f"{AT}[0].schedule.arg: recurrence rule 'FREQ=DAILY;COUNT=2': COUNT needs",
        ),
        (
            SCHEDULE % "class: IntervalSeconds, arg: [5]",
            f"{AT}[0].schedule.arg: an interval must be a number of seconds, not [5]",
        ),
        (
            SCHEDULE % "class: IntervalSeconds, arg: 5, tz: UTC",
            f"{AT}[0].schedule.tz: unknown key 'tz', known are class, timezone, arg.",
        ),
    ],
)
def test_a_mistake_is_reported_with_file_path_and_reason(text: str, line: str) -> None:
    """Each mistake gives one line that says where it is, what is wrong and what is near."""
    lines = refusal(text)
    assert lines[0].startswith(f"c.yaml:1: {line}")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("vos: [a]\nvos: [b]", ":2: the key 'vos' is written twice"),
        ("a: {b: [}", ":1: expected the node content"),
        ("# first\n- vos", ": must be a mapping with vos, common or vo-overrides"),
        ("vos: [a]\nx: &a [*a]", ": is not valid YAML: the value in line 2 contains itself by an"),
        ("vos: !!python/object:os.system x", ":1: could not determine a constructor"),
        ("vos: [!!bool x, !!int '']", ": is not valid YAML: "),
        ("{!!int [1]: 2}", ":1: expected a scalar node"),
        ("{!!int x: 2}", ": is not valid YAML: invalid literal"),
        ("{}\n---\n{}", ":2: but found another document"),
        ("vos: [a]\nx: @daily", ":2: found character '@' that cannot start any token"),
        ("x:\n    y: 1\n  z: 2", ":3: expected <block end>, but found '<block mapping start>'"),
        ("vos: [\x00]", ": is not valid YAML: "),
    ],
)
def test_what_is_no_yaml_is_reported_with_its_line(text: str, line: str) -> None:
    """What the parser stumbles over is one problem, with the line if the parser knows it."""
    (problem,) = refusal(text)
    assert problem.startswith(f"c.yaml{line}")


@pytest.mark.parametrize("merged", [False, True])
def test_anchors_cannot_blow_up_the_document(merged: bool) -> None:
    """Nine lines that mean a billion values are refused at once, and do not fill the memory."""
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, 10):
        many = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} " + (f"{{<<: [{many}]}}" if merged else f"[{many}]"))
    (problem,) = refusal("\n".join(lines))
    assert problem == "c.yaml: is not valid YAML: it has more than 200000 values, aliases resolved"


LIMITS = "common: {limits: {%s}}"
NODE = LIMITS % "Job: {7: {%s}}"
KNOWN = "known are ConcurrencyLimiter, RateLimiter."


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("common: {limits: }", ": must be a mapping of object types, not None"),
        (LIMITS % "Job: 5", ".Job: must be a mapping of keys, or 'default', not 5"),
        (
            LIMITS % "Job: {default: 5}",
            ".Job.default: must be a mapping of limiters or actions, not 5",
        ),
        (LIMITS % "Job: {1.5: {}}", ".Job: the key 1.5 must be text: write it in quotes"),
        (LIMITS % "Job: {yes: {}}", ".Job: the key True must be text: write it in quotes"),
        (LIMITS % "Job: {'': {}}", ".Job: a key must not be empty"),
        (LIMITS % "Job: {7: {}, '7': {}}", ".Job.7: is written twice"),
        (NODE % "Remove: {}, Other: 5", ".Job[7].Other: must be a mapping of limiters, not 5"),
        (
            NODE % "ConcurencyLimiter: {limit: 5}",
            f".Job[7].ConcurencyLimiter: unknown limiter 'ConcurencyLimiter', {KNOWN}"
            " Did you mean ConcurrencyLimiter",
        ),
        (
            NODE % "Remove: {RateLimit: {limit: 5, window_seconds: 1}}",
            f".Job[7].Remove.RateLimit: unknown limiter 'RateLimit', {KNOWN} Did you mean Rate",
        ),
        (
            NODE % "ConcurrencyLimiter: {limit: 5}, Remove: {limit: 5}",
            f".Job[7].Remove: unknown limiter 'Remove', {KNOWN}",
        ),
        (
            NODE % "ConcurrencyLimiter: {limit: 5}, Remove: {RateLimiter: {}}",
            ".Job[7].Remove.RateLimiter.limit: is missing",
        ),
        (
            NODE % "ConcurrencyLimiter: 5",
            ".Job[7].ConcurrencyLimiter: must be a mapping of limit, not 5",
        ),
        (
            NODE % "RateLimiter: ",
            ".Job[7].RateLimiter: must be a mapping of limit and window_seconds, not None",
        ),
        (NODE % "ConcurrencyLimiter: {}", ".Job[7].ConcurrencyLimiter.limit: is missing"),
        (NODE % "RateLimiter: {limit: 5}", ".Job[7].RateLimiter.window_seconds: is missing"),
        (
            NODE % "ConcurrencyLimiter: {limit: 5, window_seconds: 60}",
            ".Job[7].ConcurrencyLimiter.window_seconds: unknown key 'window_seconds', known are"
            " limit.",
        ),
        (
            NODE % "ConcurrencyLimiter: {limt: 5}",
            ".Job[7].ConcurrencyLimiter.limt: unknown key 'limt', known are limit. Did you mean",
        ),
        *(
            (
                NODE % f"ConcurrencyLimiter: {{limit: {limit}}}",
                ".Job[7].ConcurrencyLimiter.limit: must be a whole number, 1 at least and",
            )
            for limit in (
                "0",
                "0o17",
                "08",
                "-1",
                "1.5",
                "2.0",
                "'5'",
                "yes",
                "",
                "2147483648",
                "[1]",
            )
        ),
        *(
            (
                NODE % f"RateLimiter: {{limit: 1, window_seconds: {window}}}",
                ".Job[7].RateLimiter.window_seconds: must be a number of seconds, 0.001 at least",
            )
            for window in ("0", "-5", "0.0005", "31622401", ".nan", ".inf", "'60'", "yes", "")
        ),
    ],
)
def test_a_mistake_in_limits_is_reported(text: str, line: str) -> None:
    """The same for limits, at any depth, under common and under a VO."""
    assert refusal(text)[0].startswith(f"c.yaml:1: common.limits{line}")
    of_vo = text.replace("common:", "vo-overrides: {lhcb:") + "}"
    assert refusal(of_vo)[0].startswith(f"c.yaml:1: vo-overrides.lhcb.limits{line}")


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("007", "7"),
        ("010", "8"),
        ("0x10", "16"),
        ("0b11", "3"),
        ("10:30", "630"),
        ("1_000", "1000"),
        ("+5", "5"),
        ("-0", "0"),
        ("!!int '07'", "7"),
    ],
)
def test_a_key_that_yaml_takes_for_another_is_refused(written: str, number: str) -> None:
    """`007` would limit object 7; in quotes it is what was written, as is a plain number."""
    text = "common:\n  limits:\n    Job:\n      %s: {ConcurrencyLimiter: {limit: 1}}"
    shown = written.removeprefix("!!int ").strip("'")
    assert refusal(text % written) == [
        f"c.yaml:4: the key {shown!r} is the number {number} in YAML: write it in quotes"
    ]
    for same in (f"'{shown}'", number, "-5"):
        (rule,) = parse_config(text % same, "c.yaml").common.limits
        assert rule.key == same.strip("'")


def test_limits_are_read_as_they_are_written() -> None:
    """Limiters of a key and of its actions, whole numbers as keys, and no limiter at all."""
    config = parse_config(
        """
common:
  limits:
    Task: {}
    Job: {default: {}}
    Transformation:
      12345: {ConcurrencyLimiter: {limit: 10_000}}
      default: {Register: {RateLimiter: {limit: 3, window_seconds: 0.5}}, Remove: {}}
      7: {ConcurrencyLimiter: {limit: 2}, Remove: {ConcurrencyLimiter: {limit: 1}}}
""",
        "c.yaml",
    )
    found = [
        (rule.object_type, rule.key, rule.action, rule.limiter, rule.limit, rule.window_seconds)
        for rule in config.common.limits
    ]
    assert found == [
        ("Transformation", "12345", "", "concurrency", 10_000, None),
        ("Transformation", "7", "", "concurrency", 2, None),
        ("Transformation", "7", "Remove", "concurrency", 1, None),
        ("Transformation", "default", "Register", "rate", 3, 0.5),
    ]


def test_all_mistakes_are_reported_at_once() -> None:
    """One error lists every problem of the document."""
    text = """
vos: [a, a]
limit: {}
common:
  periodic-tasks:
    Sweep:
      - {schedule: {class: CronSchedule, arg: "x"}, nome: y}
  limits: {Job: {7: {RateLimiter: {limit: 0}}}}
vo-overrides:
  lhcb: {periodic-tasks: {Sweep: [{schedule: {class: Nope, arg: 1, timezone: Mars}}]}}
"""
    paths = [re.split(r": ", line)[1] for line in refusal(text)]
    assert sorted(paths) == [
        "common.limits.Job[7].RateLimiter.limit",
        "common.limits.Job[7].RateLimiter.window_seconds",
        "common.periodic-tasks.Sweep[0].nome",
        "common.periodic-tasks.Sweep[0].schedule.arg",
        "limit",
        "vo-overrides.lhcb.periodic-tasks.Sweep[0].schedule.class",
        "vo-overrides.lhcb.periodic-tasks.Sweep[0].schedule.timezone",
        "vos",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("vos: []\ncommon: " + "[" * 20_000 + "]" * 20_000, 2),
        ("vos: []\ncommon: " + "{a: " * 20_000 + "}" * 20_000, 2),
        ("vos: []\n\ncommon:\n  " + "- " * 20_000 + "a", 4),
        ("common: " + "[\n" * 101 + "]" * 101, 100),
        ("a: &a1 [x]\n" + "".join(f"b{n}: &a{n} [*a{n - 1}]\n" for n in range(2, 400)), 99),
    ],
    ids=["lists", "mappings", "items", "one-level-too-many", "aliases"],
)
def test_what_is_nested_too_deeply_is_refused_at_once(text: str, line: int) -> None:
    """With file and line, before the rest is read: 20,000 levels cost 5 s."""
    began = time.process_time()
    with pytest.raises(ConfigurationError) as refused:
        parse_config(text, "c.yaml")
    assert f"c.yaml:{line}: is nested more than 100 levels deep" in str(refused.value)
    assert time.process_time() - began < 2


def test_what_is_written_is_what_is_read() -> None:
    """Names, schedules, arguments and enabled arrive; what is missing stays open."""
    config = parse_config(
        """
common:
  periodic-tasks:
    Sweep:
      - &first {name: a, schedule: {class: IntervalSeconds, arg: 0.5}, args: {n: 1, deep: [{}]}}
      - {<<: *first, name: b, enabled: false}
    files:Other: []
""",
        "c.yaml",
    )
    first, second = config.common.periodic_tasks["Sweep"]
    assert first.schedule is not None and first.schedule.build() == IntervalSeconds(0.5)
    assert (first.name, first.args, first.enabled) == ("a", {"n": 1, "deep": [{}]}, None)
    assert (second.name, second.args, second.enabled) == ("b", first.args, False)
    assert config.common.periodic_tasks["files:Other"] == []
    assert config.source == "c.yaml"


def test_an_empty_mapping_is_the_default() -> None:
    """Who wants to configure nothing says so."""
    assert parse_config("# nothing yet\n{}", "c.yaml").vos == []


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n", "---\n", "null"])
def test_an_empty_file_is_refused(text: str) -> None:
    """A file that was cut off would drop every limit; so would one of a directory, its own."""
    for files in ([("b.yaml", text)], [("a.yaml", "vos: [x]\n"), ("b.yaml", text)]):
        with pytest.raises(ConfigurationError) as refused:
            parse_files(files, "d")
        reason = "is empty: write {} if nothing is to be configured"
        assert str(refused.value) == f"b.yaml: {reason}"


def test_the_fingerprint_follows_the_meaning() -> None:
    """Comments and order do not change it; a changed argument, of any YAML type, does."""
    one = parse_config("vos: [a]\ncommon: {periodic-tasks: {T: [{args: {x: 1, y: 2}}]}}", "one")
    same = parse_config("common: {periodic-tasks: {T: [{args: {y: 2, x: 1}}]}}\nvos: [a] #", "two")
    assert one.fingerprint() == same.fingerprint()
    others = {
        parse_config(ENTRY % f"{{args: {{x: {value}}}}}", "c").fingerprint()
        for value in ("1", "'1'", "2025-01-01", "!!binary /w==", "[1]", "{1: 2}", ".nan")
    }
    assert len(others) == 7
    limits = {
        parse_config(NODE % f"ConcurrencyLimiter: {{limit: {limit}}}", "c").fingerprint()
        for limit in (1, 2)
    }
    assert len(limits) == 2


def test_files_are_merged_in_their_order() -> None:
    """Several files form one document: mappings are merged, all else stands in one of them."""
    config = parse_files(
        [
            ("a.yaml", "vos: [x]\ncommon: {periodic-tasks: {A: []}}\n"),
            ("b.yml", "vo-overrides: {lhcb: {}}\n"),
            ("c.yaml", "common: {periodic-tasks: {C: []}, tasks: {T: {}}}\n"),
        ],
        "d",
    )
    assert config.vos == ["x"] and list(config.vo_overrides) == ["lhcb"]
    assert list(config.common.periodic_tasks) == ["A", "C"]
    assert config.source == config.where(()) == "d"
    assert config.where(("common", "tasks", "T")) == "c.yaml:1"


def test_problems_of_several_files_name_the_right_one() -> None:
    """Each problem names the file it is in, and a key defined twice names both."""
    files = [
        ("a.yaml", "vos: [x]\ncommon: {periodic-tasks: {A: [{nome: x}]}}\n"),
        ("b.yaml", "vos: [y]\ncommon: {periodic-tasks: {B: [{enabled: 3}]}}\n"),
        ("c.yaml", "{"),
    ]
    with pytest.raises(ConfigurationError) as refused:
        parse_files(files, "d")
    lines = str(refused.value).splitlines()
    assert len(lines) == 4
    assert "b.yaml:1: vos: is also defined in a.yaml:1" in lines
    for start in ("a.yaml:2: common.periodic-tasks.A[0].nome", "b.yaml:2: common.", "c.yaml:1: "):
        assert any(line.startswith(start) for line in lines)


def test_a_reason_of_several_lines_is_one_problem() -> None:
    """What an author's check says may have lines; each problem has one."""
    error = problems_error([("a.yaml:1", ("vos",), "no:\n  two\tlines"), ("b.yaml", (), "bad")])
    assert str(error) == "a.yaml:1: vos: no: two lines\nb.yaml: bad"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("fairness: {by: vo, weights: {lhcb: 3, default: 1}}\nvos: [cms]", ["cms", "lhcb"]),
        ("fairness: {by: class, weights: {Report: 3}}\nvos: [cms]", ["Report"]),
        ("ceilings: {tenants: {a: 3, default: 9}}\nvo-overrides: {b: {}}", ["a", "b"]),
        ("ceilings: {tenant-bytes: {c: 3}, tenant-rates: {d: 9}}", ["c", "d"]),
        ("{vos: [cms], namespaces: {lhcb: a, '*': main}}", ["cms", "lhcb"]),
        ("{}", []),
    ],
)
def test_tenants_with_a_name_in_the_configuration(text: str, named: list[str]) -> None:
    """Weights and ceilings name them, and VOs do if these are the tenants; `default` is none."""
    assert parse_config(text, "c.yaml").named_tenants == named
