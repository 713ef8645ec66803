"""The reference is complete: what the code has is documented, and what is documented is there.

Elsewhere: alerts (`chart/test_monitoring.py`), causes of `explain` and
findings of the doctor (`test_operator_pages.py`), promises (`test_promises.py`), commands that
pages show (`test_shown.py`), public names (`test_site.py`).
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from docs.pages import DOCS, ROOT, Page, all_pages, codes
from metrics_names import series_names
from msgspec import structs
from sqlalchemy import Table

from nonet.base import errors, keys
from nonet.base.keys import EVENT_KINDS
from nonet.cli.commands.tasks import LiveState
from nonet.cli.process import exit_code
from nonet.config.environment import EnvironmentModel, bounded
from nonet.config.schema import json_schema
from nonet.config.settings import Settings
from nonet.config.web_settings import WebSettings
from nonet.daemon.service import ExitCode
from nonet.rules.outcomes import Reason
from nonet.stores.sql.dead_letters import dlq_tasks
from nonet.stores.sql.mirror import mirror
from nonet.stores.sql.outbox import outbox_tasks
from nonet.telemetry.metrics import METRICS

_SCRIPTS = ROOT / "src" / "nonet" / "stores" / "scripts"
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_KEY = re.compile(r"^    ([a-z]\S*) +(STREAM|ZSET|HASH|STRING|LIST|SET) ", re.MULTILINE)
_MODELS: tuple[type[EnvironmentModel], ...] = (Settings, WebSettings)
_VARIABLES = {
    model.variable(name): (model, name) for model in _MODELS for name in model.__struct_fields__
}
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


def told(page: str, title: str = "") -> dict[str, list[str]]:
    """Rows that begin with a name in backquotes, each once, by that name."""
    found = [row for row in rows(page, title) if row[0].startswith("`")]
    names = [codes(row[0])[0] for row in found]
    assert len(names) == len(set(names)), f"{page}: a row is there twice"
    return dict(zip(names, found, strict=True))


def settings() -> dict[str, list[str]]:
    """Rows of settings; in other tables of the page their names come again."""
    found = [row for row in rows("settings") if len(row) == 5 and row[0].startswith("`")]
    return {codes(row[0])[0]: row for row in found}


def test_extras_are_those_of_the_package() -> None:
    """Each is told, and no other one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(told("settings", "Extras")) == set(project["optional-dependencies"])


def test_settings_are_those_of_the_code() -> None:
    """Each is there, and no other one."""
    assert {f"NONET_{name}" for name in settings()} == {*_VARIABLES}


@pytest.mark.parametrize("variable", _VARIABLES)
def test_a_setting_is_told_as_it_is(variable: str) -> None:
    """Its default, its bounds, the words that fit, and whether it may come in a file."""
    model, name = _VARIABLES[variable]
    (field,) = [field for field in structs.fields(model) if field.name == name]
    kind, limits = bounded(field.type)
    shown = variable.removeprefix("NONET_")
    _, fits, default, readers, meaning = settings()[shown]
    bounds = [limits[bound] for bound in ("ge", "gt", "le") if bound in limits]
    if bounds:
        assert [float(number) for number in _NUMBER.findall(fits)] == bounds
    if get_origin(kind) is Literal:
        assert codes(fits) == list(get_args(kind))
    value = field.default
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, str | int | float) and value != "":
        assert codes(default)[:1] == [f"{value}"]
    elif hasattr(value, "get_secret_value") and value.get_secret_value():
        assert codes(default) == [value.get_secret_value()]
    elif name != "state_dir":
        assert not default.startswith("`")
    assert set(readers.split()) <= {"w", "s", "p", "d"} and readers
    assert (f"`{shown}_FILE`" in meaning) == (name in model.FROM_FILES)


@pytest.mark.parametrize("page", all_pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_name_settings_that_exist(page: Any) -> None:
    """Wherever a variable of Nonet is mentioned, there is one."""
    known = {name for model in _MODELS for name in model.variables()}
    named = set(re.findall(r"\bNONET_[A-Z][A-Z_]*[A-Z]\b|\bNONET_X\b", page.read_text()))
    assert named - known - _NO_SETTINGS == set()


@pytest.mark.parametrize("page", all_pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_name_metrics_that_exist(page: Any) -> None:
    """Wherever a metric is mentioned, or its family, there is one."""
    known = series_names() | set(METRICS) | {name.removesuffix("_total") for name in METRICS}
    assert set(re.findall(r"\bnonet_[a-z_]+", page.read_text())) - known - _NO_METRICS == set()


def test_the_chart_has_places_for_the_settings_that_it_sets() -> None:
    """Settings that are no free value of the chart are in the table of the others."""
    text = (ROOT / "scripts" / "chart").read_text(encoding="utf-8")
    own = set(re.findall(r'"(\w+)"', text.partition("OWN = {")[2].partition("}")[0]))
    assert set(told("settings", "In the chart")) == own


def test_metrics_are_those_of_the_code() -> None:
    """Each name, type and label is in the code, and vice versa."""
    found = {
        name: (row[1], set(codes(row[2])))
        for name, row in told("metrics").items()
        if name.startswith("nonet_") and len(row) == 4
    }
    assert found == {name: (item.kind, set(item.labels)) for name, item in METRICS.items()}


def test_events_are_those_of_the_code() -> None:
    """Each kind with its words, and no other one."""
    assert {name: row[1] for name, row in told("events", "Kinds").items()} == EVENT_KINDS


def test_keys_are_those_of_the_code() -> None:
    """Each key of `nonet.base.keys`, with its type, and no other one."""
    found = {name: row[1] for name, row in told("redis-keys").items()}
    assert found == dict(_KEY.findall(keys.__doc__ or ""))


def parts_of(name: str) -> set[str]:
    """Parts that a script includes, now or when it needs them."""
    text = (_SCRIPTS / f"{name}.lua").read_text(encoding="utf-8")
    found = re.findall(r"(?m)^-- @(?:include (.+)|defer (.+) \w+)$", text)
    parts = {part for lines in found for line in lines for part in line.split()}
    return parts.union(*(parts_of(f"lib/{part}") for part in parts))


def with_part(part: str) -> set[str]:
    return {path.stem for path in _SCRIPTS.glob("*.lua") if part in parts_of(path.stem)}


def test_scripts_are_those_of_the_code() -> None:
    """Each is told of once, and no other one."""
    found = [name for row in rows("scripts") for name in codes(row[0])]
    assert sorted(found) == sorted(path.stem for path in _SCRIPTS.glob("*.lua"))


@pytest.mark.parametrize("table", [dlq_tasks, outbox_tasks, mirror], ids=lambda table: table.name)
def test_columns_are_those_of_the_code(table: Table) -> None:
    """Each is told of once, and no other one."""
    found = [name for row in rows("sql-tables", table.name) for name in codes(row[0])]
    assert sorted(found) == sorted(table.columns.keys())


def test_entry_points_are_those_of_the_code() -> None:
    """Each group that Nonet looks at is told of, and no other one."""
    asked = set(re.findall(r'(?:entries\(prefixes, "|f"\{prefix\}\.)([a-z_]+)', source()))
    assert {re.split("[.]", name)[1] for name in told("entry-points")} == asked


def source() -> str:
    """All of the package."""
    return "".join(path.read_text() for path in (ROOT / "src" / "nonet").rglob("*.py"))


def test_paths_of_a_daemon_are_those_of_the_code() -> None:
    """Whatever a daemon answers under its port has a row, and no other one."""
    found = set(re.findall(r'"(/[a-z]+)": ', source()))
    assert {name for name in told("how-to/monitor") if name.startswith("/")} == found


def test_fixtures_are_those_of_the_plugin() -> None:
    """What the pytest plugin offers is in the reference of the API, and no other one."""
    text = (ROOT / "src" / "pytest_nonet" / "__init__.py").read_text()
    offered = set(re.findall(r"^(?:def )?(nonet_\w+)(?: =|\()", text, re.MULTILINE))
    found = {
        name for name, row in told("reference/api/testing").items() if row[1].startswith("fixture")
    }
    assert found == offered


def transitions() -> Iterator[tuple[set[str], str, set[str], str]]:
    """Rows of the table: from, to, scripts, when."""
    for before, after, scripts, when in rows("states", "Transitions"):
        yield set(codes(before)), codes(after)[0], set(codes(scripts)), when


def test_states_are_those_of_the_code() -> None:
    """The states of live tasks and their ends; each is reached, and no end is left."""
    ends = {"done", "dead", "cancelled", "expired"}
    states = set(get_args(LiveState)) | ends
    assert set(told("states", "States")) == states
    assert {after for _, after, _, _ in transitions()} == states
    assert set.union(*(before for before, _, _, _ in transitions())) == set(get_args(LiveState))


def test_transitions_are_made_by_scripts_that_can() -> None:
    """Who wakes, expires, replaces or takes back is who includes the part that does it."""
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


def test_reasons_are_those_of_the_code() -> None:
    """Each reason why a task ended without a result, and no other one."""
    assert set(told("states", "Reasons of dead")) == {str(reason) for reason in Reason}


def test_exit_codes_are_those_of_the_code() -> None:
    """Each code with its name, and no other one."""
    found = {
        codes(row[1])[0]: int(row[0]) for row in rows("errors-and-exit-codes") if row[0].isdigit()
    }
    assert found == {code.name: int(code) for code in ExitCode}


def test_errors_are_those_of_the_code() -> None:
    """Each error with its bases and the code that a command ends with, and no other one."""
    defined = {
        name: item
        for name, item in vars(errors).items()
        if inspect.isclass(item) and issubclass(item, errors.NonetError)
    }
    found = {
        name: (codes(row[1]), int(row[2]))
        for name, row in told("errors-and-exit-codes", "Errors").items()
    }
    assert found == {
        name: ([base.__name__ for base in item.__bases__], int(code_of(item)))
        for name, item in defined.items()
    }


def code_of(error: type[errors.NonetError]) -> ExitCode:
    return exit_code(error.__new__(error))


def schema_keys() -> dict[str, dict[str, Any]]:
    """Keys of the configuration by their paths, in which ``*`` stands for a name."""
    schema = json_schema()
    found: dict[str, dict[str, Any]] = {}

    def resolved(node: dict[str, Any]) -> dict[str, Any]:
        (link,) = [item for item in node.get("allOf", []) if "$ref" in item] or [node]
        if "$ref" in link:
            return node | schema["definitions"][link["$ref"].rpartition("/")[2]]
        return node

    def walk(node: dict[str, Any], path: str) -> None:
        for key, below in resolved(node).get("properties", {}).items():
            found[f"{path}.{key}".lstrip(".")] = resolved(below)
            walk(below, f"{path}.{key}")
        others = resolved(node).get("additionalProperties")
        if isinstance(others, dict):
            walk(others, f"{path}.*")
        if isinstance(node.get("items"), dict):
            walk(node["items"], f"{path}[]")

    walk(schema, "")
    return found


def configuration() -> dict[str, list[str]]:
    """Rows of the table of all keys, with names as `schema_keys` has them."""
    found = told("configuration", "All keys")
    return {re.sub(r"\b(?!SECTION)[A-Z]+\b", "*", name): row for name, row in found.items()}


def section_keys() -> dict[str, dict[str, Any]]:
    """Those keys, in which ``SECTION`` stands for each place that may have a section."""
    found = {
        re.sub(r"^common\.|^vo-overrides\.\*\.", "SECTION.", name): item
        for name, item in schema_keys().items()
    }
    # An action may stand between a key and its limiters, as the page says.
    return {name: item for name, item in found.items() if ".limits.*.*.*." not in name}


def test_keys_of_the_configuration_are_those_of_the_schema() -> None:
    """Each key that the file may have, and no other one."""
    assert set(configuration()) == set(section_keys())


@pytest.mark.parametrize("name", sorted(section_keys()))
def test_a_key_of_the_configuration_is_told_as_it_is(name: str) -> None:
    """Its bounds, and the words that fit."""
    node, cell = section_keys()[name], configuration()[name][1]
    others = node.get("additionalProperties")
    bounds = ("minimum", "maximum", "exclusiveMinimum")
    wanted = {
        of[key] for of in (node, others) if isinstance(of, dict) for key in bounds if key in of
    }
    assert wanted <= {float(number) for number in _NUMBER.findall(cell)}
    assert set(node.get("enum", [])) <= set(codes(cell))


def test_each_word_of_the_glossary_is_there_once() -> None:
    """Words stand in their order, so that one finds them."""
    text = (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8")
    words = [word.strip("`").casefold() for word in re.findall(r"(?m)^- \*\*(.+?)\*\*: ", text)]
    assert words == sorted(words) and len(words) == len(set(words)) > 40
