"""The pages are complete: what the code has is documented, and what is documented is there.

What `docs/conf.py` builds from the code needs no test. Elsewhere: alerts
(`chart/test_monitoring.py`), promises (`test_promises.py`), commands that pages show
(`test_shown.py`), public names (`test_site.py`).
"""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, get_args

import pytest
from docs.pages import DOCS, ROOT, Page, all_pages, codes
from metrics_names import series_names

from nonet.config.environment import EnvironmentModel
from nonet.config.settings import Settings
from nonet.config.web_settings import WebSettings
from nonet.daemon.service import ExitCode
from nonet.operate import doctor
from nonet.operate.tasks import LiveState
from nonet.rules.findings import diagnosis, servers
from nonet.rules.findings.explanation import Cause
from nonet.rules.letters import Status
from nonet.rules.permissions import ACTIONS, Action, Role
from nonet.rules.reasons import Reason
from nonet.stores.queue import workers
from nonet.stores.sql.dead_letters import dlq_tasks
from nonet.stores.sql.mirror import mirror
from nonet.stores.sql.outbox import outbox_tasks
from nonet.telemetry.metrics import METRICS

_SCRIPTS = ROOT / "src" / "nonet" / "stores" / "scripts"
_MODELS: tuple[type[EnvironmentModel], ...] = (Settings, WebSettings)
# Variables of Nonet that are no settings, as people write about them.
_NO_SETTINGS = {"NONET_X"}
# The same of metrics: fixtures, packages, a label, a table.
_NO_METRICS = {
    *("nonet_system", "nonet_server", "nonet_tasks", "nonet_example", "nonet_release"),
    *("nonet_alembic_version", "nonet_adapter", "nonet_namespace"),
}


def rows(page: str, title: str = "") -> list[list[str]]:
    """Those of the tables on a page of the reference, or below one of its headings."""
    return Page.read(f"{page if '/' in page else f'reference/{page}'}.md").rows(title)


def shown(page: str, title: str = "") -> dict[str, list[str]]:
    """Rows that begin with a name in backquotes, each once, by that name."""
    found = [row for row in rows(page, title) if row[0].startswith("`")]
    names = [codes(row[0])[0] for row in found]
    assert len(names) == len(set(names)), f"{page}: two rows have the same name"
    return dict(zip(names, found, strict=True))


@cache
def parts_of(name: str) -> set[str]:
    """Parts that a script includes, now or when it needs them."""
    text = (_SCRIPTS / f"{name}.lua").read_text(encoding="utf-8")
    found = re.findall(r"(?m)^-- @(?:include (.+)|defer (.+) \w+)$", text)
    parts = {part for lines in found for line in lines for part in line.split()}
    return parts.union(*(parts_of(f"lib/{part}") for part in parts))


def with_part(part: str) -> set[str]:
    return {path.stem for path in _SCRIPTS.glob("*.lua") if part in parts_of(path.stem)}


def transitions() -> Iterator[tuple[set[str], str, set[str], str]]:
    """Rows of the table: from, to, scripts, when."""
    for before, after, scripts, when in rows("states", "Transitions"):
        yield set(codes(before)), codes(after)[0], set(codes(scripts)), when


def test_states_are_those_of_the_code() -> None:
    """The page has the states of live tasks and their ends; each is reached, and ends are final."""
    ends = {"done", "dead", "cancelled", "expired"}
    states = set(get_args(LiveState)) | ends
    assert set(shown("states", "States")) == states
    assert {after for _, after, _, _ in transitions()} == states
    assert set.union(*(before for before, _, _, _ in transitions())) == set(get_args(LiveState))


def test_transitions_are_made_by_scripts_that_can() -> None:
    """A script that wakes, expires, replaces or requeues tasks includes the part that does it."""
    for _, _, scripts, _ in transitions():
        assert scripts and all((_SCRIPTS / f"{name}.lua").exists() for name in scripts)

    def scripts_of(before: str, after: str, when: str) -> set[str]:
        found = [
            scripts
            for states, to, scripts, text in transitions()
            if before in states and to == after and when in text
        ]
        return set.union(*found)

    assert scripts_of("waiting", "queued", "woke it") == with_part("waiting")
    assert scripts_of("waiting", "queued", "steps before it") == with_part("workflow")
    assert scripts_of("waiting", "cancelled", "step that cannot") == with_part("workflow")
    assert scripts_of("queued", "expired", "") == with_part("expiry")
    assert scripts_of("queued", "cancelled", "replaces") == with_part("replacing")
    assert scripts_of("running", "queued", "worker died") == with_part("lost")
    assert scripts_of("running", "dying", "it has crashed") == with_part("lost")


def test_each_word_of_the_glossary_is_there_once() -> None:
    """Words stand in their order, so that one finds them."""
    text = (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8")
    words = [word.strip("`").casefold() for word in re.findall(r"(?m)^- \*\*(.+?)\*\*: ", text)]
    assert words == sorted(words) and len(words) == len(set(words)) > 40


def source() -> str:
    """All of the package."""
    return "".join(path.read_text() for path in (ROOT / "src" / "nonet").rglob("*.py"))


def of_fixtures() -> set[str]:
    text = (ROOT / "src" / "pytest_nonet" / "__init__.py").read_text()
    return set(re.findall(r"^(?:def )?(nonet_\w+)(?: =|\()", text, re.MULTILINE))


def of_entry_points() -> set[str]:
    return set(re.findall(r'(?:entries\(prefixes, "|f"\{prefix\}\.)([a-z_]+)', source()))


def of_findings() -> list[str]:
    """The kinds of what the doctor finds: the first argument of each `Finding`."""
    trees = [ast.parse(inspect.getsource(module)) for module in (diagnosis, servers, doctor)]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    first = [call.args[0] for call in calls if ast.unparse(call.func) == "Finding" and call.args]
    return sorted({str(kind.value) for kind in first if isinstance(kind, ast.Constant)})


def of_workers() -> list[str]:
    """The states of a worker: rest, a due beat, a veto, a drain: all that the rule knows."""
    offs = ("", workers.DRAINS, "memory is short")
    times = [(now, off, running) for now in (1, 21, 31) for off in offs for running in (0, 1)]
    return sorted({workers._state(now, 0, 30, off, running) for now, off, running in times})


def under(page: str, head: str) -> list[str]:
    """The names in the first column of the table whose head begins so, sorted."""
    table = Page.read(f"how-to/{page}.md").rows(head=head)
    return sorted(name for row in table for name in codes(row[0]))


def in_cells(page: str, title: str = "") -> list[str]:
    """All names in the first column, sorted: one that is there twice is a difference."""
    return sorted(name for row in rows(page, title) for name in codes(row[0]))


def the_exit_codes() -> dict[str, int]:
    table = [row for row in rows("errors-and-exit-codes") if row[0].isdigit()]
    return {codes(row[1])[0]: int(row[0]) for row in table}


def the_fixtures() -> set[str]:
    table = shown("reference/api/testing").items()
    return {name for name, row in table if row[1].startswith("fixture")}


_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_TABLES = (dlq_tasks, outbox_tasks, mirror)
# What a page has, and what the code has.
_COMPLETE: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "extras": (
        lambda: set(shown("settings", "Extras")),
        lambda: set(_PROJECT["optional-dependencies"]),
    ),
    "columns": (
        lambda: [in_cells("sql-tables", table.name) for table in _TABLES],
        lambda: [sorted(table.columns.keys()) for table in _TABLES],
    ),
    "entry points": (
        lambda: {name.split(".")[1] for name in shown("entry-points")},
        of_entry_points,
    ),
    "paths of a daemon": (
        lambda: {name for name in shown("how-to/monitor") if name.startswith("/")},
        lambda: set(re.findall(r'"(/[a-z]+)": ', source())),
    ),
    "fixtures": (the_fixtures, of_fixtures),
    "exit codes": (the_exit_codes, lambda: {code.name: int(code) for code in ExitCode}),
    "causes of explain": (
        lambda: {*under("find-out-why-it-waits", "| `cause` |")},
        lambda: {*get_args(Cause)},
    ),
    "findings of the doctor": (lambda: under("operate", "| `kind` |"), of_findings),
    "states of a worker": (lambda: under("operate", "| `state` | it means |"), of_workers),
    "statuses of a dead letter": (
        lambda: under("dead-letters", "| `status` |"),
        lambda: sorted(Status),
    ),
    # Cancelled tasks are no dead letters.
    "reasons of a dead letter": (
        lambda: under("dead-letters", "| `reason` |"),
        lambda: sorted({*Reason} - {Reason.CANCELLED}),
    ),
}


@pytest.mark.parametrize("what", _COMPLETE)
def test_the_reference_has_all_and_no_other(what: str) -> None:
    """What the code has is on its page, with what belongs to it, and nothing else is."""
    page, code = _COMPLETE[what]
    assert page() == code()


def test_pages_name_settings_and_metrics_that_exist() -> None:
    """Wherever a variable, a metric or its family is mentioned, there is one."""
    variables = {name for model in _MODELS for name in model.variables()} | _NO_SETTINGS
    metrics = series_names() | set(METRICS) | {name.removesuffix("_total") for name in METRICS}
    for page in all_pages():
        text = page.read_text()
        named = set(re.findall(r"\bNONET_[A-Z][A-Z_]*[A-Z]\b|\bNONET_X\b", text))
        assert named - variables == set(), page
        assert set(re.findall(r"\bnonet_[a-z_]+", text)) - metrics - _NO_METRICS == set(), page


def test_each_role_has_its_actions() -> None:
    """The page about the dashboard has each role with its actions, and each action once."""
    page = Page.read("how-to/dashboard.md").source
    for role in Role:
        (row,) = re.findall(rf"(?m)^\| `{role}` \| (.+) \|$", page)
        assert set(re.findall(r"`(\w+)`", row)) == set(ACTIONS[role])
    verbs = "see|submit|pause|run|let|delete|change|mark|make"
    named = re.findall(rf"(?m)^\| ((?:`\w+`(?:, )?)+) \| (?:{verbs})", page)
    assert sorted(name for row in named for name in re.findall(r"\w+", row)) == sorted(Action)
