"""The central configuration: what it accepts, and that it reports every mistake at once."""

from __future__ import annotations

import re

import pytest
from config.mistakes import mistakes, refusal, reports

from nonet.base.errors import ConfigurationError
from nonet.config.models import PipelineConfig
from nonet.config.reading import parse_config, parse_files, problems_error
from nonet.tasks.schedules import IntervalSeconds

ENTRY = "common: {periodic-tasks: {Sweep: [%s]}}"
AT = "common.periodic-tasks.Sweep"


DOCUMENT_MISTAKES = """
vo: []                        => vo: unknown key 'vo', known are vos, common, … Did you mean
vos: lhcb                     => vos: must be a list, not text
vos: [1]                      => vos[0]: must be text, not a number: write it in quotes
vos: ['']                     => vos[0]: must not be empty
vos: [a, b, a]                => vos: listed twice: a
common:                       => common: must be a mapping; write {} for an empty one
common: {periodic-tasks: {7: []}} => common.periodic-tasks[7]: as a key: must be text, not a number
common: {periodic-tasks: {T: {}}} => common.periodic-tasks.T: must be a list, not a mapping
vo-overrides: {a: {periodic_tasks: {}}} => vo-overrides.a.periodic_tasks: … mean periodic-tasks?
vo-overrides: {a: {ceilings: {}}} => vo-overrides.a.ceilings: … Write it at the top, beside common
limits: {}                    => limits: … Write it under common, or under a VO of vo-overrides
tasks: {}                     => tasks: … Write it under common, or under a VO of vo-overrides
tasks: {common: {}}           => tasks: … Move its keys to the top level
common: {T: {rate_limit: 1}}  => common.T: … a class as in DiracX. Write periodic under
ceilings: {stream: {}}        => ceilings.stream: unknown key 'stream', known are namespace, streams
ceilings: {streams: {b: 5}}   => ceilings.streams.b: as a key: unknown stream, known are realtime:s
ceilings: {streams: {'normal:small': 0}} => ceilings.streams.normal:small: must be greater than or
ceilings: {namespace: }       => ceilings.namespace: has no value: write one, or remove
ceilings: {namespace: yes}    => ceilings.namespace: must be
ceilings: {namespace: 2147483648} => ceilings.namespace: must be
ceilings: {tasks: {'': 5}}    => ceilings.tasks.: as a key: must not be empty
fairness: {weights: {a: 2}}   => fairness.by: is missing
fairness: {by: team}          => fairness.by: must be vo, class or label:NAME
fairness: {by: vo, weights: {a: 0}} => fairness.weights.a: must be greater than or equal to 0.01
fairness: {by: vo, streams: [normal]} => fairness.streams[0]: unknown stream, known are realtime:s
"""
ENTRY_MISTAKES = """
x                        => [0]: must be a mapping, lines of 'key: value', not text
{ce_regex: x}            => [0].ce_regex: unknown key 'ce_regex', known are name
{enabled: 'no'}          => [0].enabled: must be true or false, without quotes
{jitter: 1m}             => [0].jitter: must be a number of seconds, such as 60, with
{catch-up-limit: x}      => [0].catch-up-limit: must be a whole number
{name: a}, {}            => [1]: needs a name, because there are several
{name: a}, {name: a}     => [1]: has the same name as entry [0]: a
{schedule: 5}            => [0].schedule: must be a mapping, lines of 'key: value', not a number
"""
SCHEDULE_MISTAKES = """
class: CronShedule, arg: '@daily'        => class: … known are … Did you mean CronSchedule
class: CronSchedule                      => arg: is missing
class: CronSchedule, arg: '0 25 * * *'   => arg: cron expression '0 25 * * *':
class: CronSchedule, arg: '@daily', timezone: Europe/Zurick => timezone: … mean Europe/Zurich
class: CronSchedule, arg: '@daily', timezone: '+02:00'  => timezone: … such as Europe/Zurich
class: RRuleSchedule, arg: 'FREQ=DAILY;COUNT=2' => arg: recurrence rule 'FREQ=DAILY;COUNT=2': COUNT
class: IntervalSeconds, arg: 5, tz: UTC  => tz: unknown key 'tz', known are class, timezone, arg.
"""
PIPELINE_MISTAKES = """
workers: 0        => workers:
workers: 10001    => workers:
workers: many     => workers:
interval: 0       => interval:
queue: 0          => queue:
queue: 2.5        => queue:
pause: sometimes  => pause:
wrokers: 4        => wrokers: unknown key 'wrokers', known are workers, interval, queue, pause.
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *mistakes("%s", "", DOCUMENT_MISTAKES),
        *mistakes("pipelines: {a: {%s}}", "pipelines.a.", PIPELINE_MISTAKES),
        *mistakes(ENTRY, AT, ENTRY_MISTAKES),
        *mistakes(ENTRY % "{schedule: {%s}}", f"{AT}[0].schedule.", SCHEDULE_MISTAKES),
    ],
)
def test_a_mistake_is_reported_with_file_path_and_reason(text: str, problem: str) -> None:
    """Each mistake gives one line that says where it is, what is wrong and what is near."""
    assert reports(refusal(text)[0], f"c.yaml:1: {problem}")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("vos: [a]\nvos: [b]", ":2: the key 'vos' is written twice"),
        ("a: {b: [}", ":1: expected the node content"),
        ("# first\n- vos", ": must be a mapping with vos, common or vo-overrides"),
        ("vos: [a]\nx: &a [*a]", ": is not valid YAML: the value in line 2 contains itself by an"),
        ("vos: !!python/object:os.system x", ":1: could not determine a constructor"),
        ("{!!int x: 2}", ": is not valid YAML: invalid literal"),
        ("{}\n---\n{}", ":2: but found another document"),
        ("vos: [a]\nx: @daily", ":2: found character '@' that cannot start any token"),
        ("x:\n    y: 1\n  z: 2", ":3: expected <block end>, but found '<block mapping start>'"),
    ],
)
def test_invalid_yaml_is_one_problem(text: str, line: str) -> None:
    """It has the line if the parser knows it."""
    (problem,) = refusal(text)
    assert problem.startswith(f"c.yaml{line}")


@pytest.mark.parametrize("merged", [False, True])
def test_anchors_cannot_blow_up_the_document(merged: bool) -> None:
    """Nine lines that mean a billion values are refused before they fill the memory."""
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, 10):
        many = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} " + (f"{{<<: [{many}]}}" if merged else f"[{many}]"))
    (problem,) = refusal("\n".join(lines))
    assert problem == "c.yaml: is not valid YAML: it has more than 200000 values, aliases resolved"


LIMIT_MISTAKES = """
Job: 5              => .Job: must be a mapping of keys, or 'default', not 5
Job: {default: 5}   => .Job.default: must be a mapping of limiters or actions, not 5
Job: {1.5: {}}      => .Job: the key 1.5 must be text: write it in quotes
Job: {'': {}}       => .Job: a key must not be empty
Job: {7: {}, '7': {}} => .Job.7: is written twice
"""
LIMITER_MISTAKES = """
Remove: {}, Other: 5              => Other: must be a mapping of limiters, not 5
ConcurencyLimiter: {limit: 5}     => ConcurencyLimiter: … known are … Did you mean Concurrency
ConcurrencyLimiter: {limit: 5}, Remove: {limit: 5} => Remove: unknown limiter 'Remove', known are
ConcurrencyLimiter: {limit: 5}, Remove: {RateLimiter: {}} => Remove.RateLimiter.limit: is missing
RateLimiter:                      => RateLimiter: must be a mapping of limit and window_seconds, not
RateLimiter: {limit: 5}           => RateLimiter.window_seconds: is missing
ConcurrencyLimiter: {limit: 5, window_seconds: 60} => ConcurrencyLimiter.window_seconds: unknown key
ConcurrencyLimiter: {limt: 5}     => ConcurrencyLimiter.limt: unknown key 'limt' … Did you mean
"""
NODE = "Job: {7: {%s}}"
NUMBERS = ("0", "0o17", "1.5", "'5'", "yes", "", "2147483648")
SECONDS = ("0.0005", "31622401", ".nan", "'60'", "yes", "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ": must be a mapping of object types, not None"),
        *mistakes("{%s}", "", LIMIT_MISTAKES),
        *mistakes(f"{{{NODE}}}", ".Job[7].", LIMITER_MISTAKES),
        *(
            (f"{{{NODE % f'ConcurrencyLimiter: {{limit: {limit}}}'}}}", ".Job[7].Conc … whole")
            for limit in NUMBERS
        ),
        *(
            (
                f"{{{NODE % f'RateLimiter: {{limit: 1, window_seconds: {window}}}'}}}",
                ".Job[7].RateLimiter.window_seconds: must be a number of seconds, 0.001 at least",
            )
            for window in SECONDS
        ),
    ],
)
def test_a_mistake_in_limits_is_reported(text: str, problem: str) -> None:
    """Limits are checked at any depth, under common and under a VO."""
    of_common, of_vo = f"common: {{limits: {text}}}", f"vo-overrides: {{a: {{limits: {text}}}}}"
    assert reports(refusal(of_common)[0], f"c.yaml:1: common.limits{problem}")
    assert reports(refusal(of_vo)[0], f"c.yaml:1: vo-overrides.a.limits{problem}")


@pytest.mark.parametrize(
    ("written", "number"),
    [
        *(("010", "8"), ("0x10", "16"), ("10:30", "630"), ("1_000", "1000"), ("+5", "5")),
        *(("-0", "0"), ("!!int '07'", "7")),
    ],
)
def test_a_key_that_yaml_reads_as_another_is_refused(written: str, number: str) -> None:
    """`007` would limit object 7; in quotes it is a key as it is written."""
    text = "common:\n  limits:\n    Job:\n      %s: {ConcurrencyLimiter: {limit: 1}}"
    shown = written.removeprefix("!!int ").strip("'")
    assert refusal(text % written) == [
        f"c.yaml:4: the key {shown!r} is the number {number} in YAML: write it in quotes"
    ]
    for same in (f"'{shown}'", number, "-5"):
        (rule,) = parse_config(text % same, "c.yaml").common.limits
        assert rule.key == same.strip("'")


def test_values_of_a_pipeline_are_read_as_they_are_written() -> None:
    """A missing value stays as the pipeline has it."""
    written = "volumes: {workers: 40, interval: 0.5, queue: 100, pause: true}, disks: {}"
    assert parse_config(f"pipelines: {{{written}}}", "c.yaml").pipelines == {
        "volumes": PipelineConfig(workers=40, interval=0.5, queue=100, pause=True),
        "disks": PipelineConfig(),
    }


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
def test_a_document_that_is_nested_too_deeply_is_refused(text: str, line: int) -> None:
    """The problem has its line; the parser does not read the rest, which would take seconds."""
    (problem,) = refusal(text)
    assert problem.startswith(f"c.yaml:{line}: is nested more than 100 levels deep")


def test_entries_are_read_as_they_are_written() -> None:
    """Anchors are merged, and a missing field stays open."""
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


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n", "---\n", "null"])
def test_an_empty_file_is_refused(text: str) -> None:
    """An empty file may have been cut off; only `{}` means that nothing is configured."""
    assert parse_config("# nothing yet\n{}", "c.yaml").vos == []
    for files in ([("b.yaml", text)], [("a.yaml", "vos: [x]\n"), ("b.yaml", text)]):
        with pytest.raises(ConfigurationError) as refused:
            parse_files(files, "d")
        reason = "is empty: write {} if nothing is to be configured"
        assert str(refused.value) == f"b.yaml: {reason}"


def test_the_fingerprint_follows_the_meaning() -> None:
    """Only a changed value, of any YAML type, changes it; comments and order do not."""
    one = parse_config("vos: [a]\ncommon: {periodic-tasks: {T: [{args: {x: 1, y: 2}}]}}", "one")
    same = parse_config("common: {periodic-tasks: {T: [{args: {y: 2, x: 1}}]}}\nvos: [a] #", "two")
    assert one.fingerprint() == same.fingerprint()
    others = {
        parse_config(ENTRY % f"{{args: {{x: {value}}}}}", "c").fingerprint()
        for value in ("1", "'1'", "2025-01-01", "!!binary /w==", "[1]", "{1: 2}", ".nan")
    }
    assert len(others) == 7
    text = "common: {limits: {Job: {7: {ConcurrencyLimiter: {limit: %d}}}}}"
    assert len({parse_config(text % limit, "c").fingerprint() for limit in (1, 2)}) == 2


def test_files_are_merged_in_their_order() -> None:
    """Mappings of several files are merged; every other value is in one file."""
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
    """A key that is defined twice names both files."""
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
    """The check of an author may report several lines; a problem has one."""
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
    """Weights, ceilings and, if VOs are the tenants, VOs name them; `default` is no tenant."""
    assert parse_config(text, "c.yaml").named_tenants == named


@pytest.mark.parametrize(
    "text",
    [
        "root:$6$hunter2:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n",  # /etc/shadow
        "!hunter2 x\n",
        "- hunter2: 1\n  hunter2: 2\n",
        "hunter2\n",
        "&hunter2 &x y\n",
        "db:5432:nonet:hunter2\n",  # .pgpass
        "-----BEGIN PRIVATE KEY-----\nhunter2: x\n",
    ],
)
def test_errors_quote_no_file_that_is_something_else(text: str) -> None:
    """If NONET_CONFIG names a file of passwords, no log and no page shows a line of it."""
    with pytest.raises(ConfigurationError) as caught:
        parse_config(text, "c.yaml")
    assert "hunter2" not in str(caught.value) and "0777" not in str(caught.value)
    assert "c.yaml" in str(caught.value)
