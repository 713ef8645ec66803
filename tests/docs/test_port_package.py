"""A package in the shapes of DiracX runs once it is ported as the port guide says."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import preloaded
import pytest
from daemons import Daemon, wait_until
from docs.pages import Page, codes, write_file

PAGE = Page.read("how-to/port-from-diracx.md")
NAMES = Page.read("reference/diracx.md")
SHAPES = Path(__file__).parent / "shapes"
_FILE = "databases.py"
_ENTRY_POINTS = """
[nonet.tasks.stars]
SyncStar = mypackage.stars:SyncStar
CountStars = mypackage.stars:CountStars
ReportStars = mypackage.stars:ReportStars
Observe = mypackage.stars:Observe
PlanNight = mypackage.stars:PlanNight
[nonet.tasks.images]
CleanImages = mypackage.images:CleanImages
Expose = mypackage.images:Expose
Audit = mypackage.images:Audit
Combine = mypackage.images:Combine
Mosaic = mypackage.images:Mosaic
[nonet.lock_object_types]
star = mypackage.lock_types
[diracx.dbs.sql]
StarDB = mypackage.tables:StarDB
StarDB = mypackage.tables:MyStarDB
ImageDB = mypackage.tables:ImageDB
[diracx.dbs.os]
LogDB = mypackage.tables:LogDB
"""
# One of each class, and what it returns; the callback of the group is a class of its own.
_EXPECTED = {
    'SyncStar("vega")': "MyStarDB",
    "CountStars()": 1,
    'ReportStars(vo="lhcb")': "lhcb",
    'Observe(telescope="north")': 1,
    'PlanNight(vo="gridpp")': 1,
    "CleanImages()": "images",
    "Expose(7)": "eu",
    "Audit()": ["Admin", "Observer"],
    "Combine()": "vega",
}
_STARS = [
    *["asked for the brightest", "asked for the brightest"],
    *["combined images of vega", "combined images of vega"],
    "counted",
    *["observed by north", "observed by north of gridpp", "observed by south of gridpp"],
    *["planned for gridpp", "reported to lhcb", "vega"],
]
_PROGRAM = """
import asyncio, json
from nonet import Nonet, NotBoundError, TaskFailed
from mypackage.stars import *
from mypackage.images import *

async def main():
    try:
        await Audit().schedule()
    except RuntimeError:
        pass
    async with Nonet.from_settings() as app:
        handles = {{call: await eval(call).schedule() for call in {calls}}}
        found = {{call: await handle.result(timeout=60) for call, handle in handles.items()}}
        group = await (await Mosaic(2).schedule()).result(timeout=60)
        ends = []
        for dead in (Observe("broken"), Expose(0)):
            try:
                await (await dead.schedule()).result(timeout=60)
            except TaskFailed as error:
                ends.append(error.reason)
    print(json.dumps([found, ends, bool(group)]))

asyncio.run(main())
"""


def _renamed() -> Iterator[tuple[str, str]]:
    """From what the page calls a name of DiracX to what it says of it: a path below a module."""
    for theirs, ours, remark in NAMES.rows("Names"):
        old, new = codes(theirs), codes(ours)
        if _FILE in remark:
            yield from ((name, f"mypackage.databases.{name}") for name in old)
        elif len(new) == len(old):
            yield from zip(old, new, strict=True)
        elif len(new) == 1:
            yield from ((name, new[0]) for name in old)
        elif not new:
            yield from ((name, "") for name in old)


def ported(source: str) -> str:
    """A module of DiracX with the imports and decorators that the table of names says."""
    names = dict(_renamed())
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(
            "diracx.tasks"
        ):
            continue
        assert node.end_lineno
        found = [_import(alias.name, names[alias.name]) for alias in node.names]
        lines[node.lineno - 1 : node.end_lineno] = [
            "; ".join(filter(None, found)),
            *[""] * (node.end_lineno - node.lineno),
        ]
    gone = {f"@{name}" for name, path in names.items() if not path}
    return "\n".join(line for line in lines if line not in gone) + "\n"


def _import(name: str, path: str) -> str:
    """
    >>> _import("JOB", "nonet.LockedObjectType.JOB")
    'from nonet import LockedObjectType; JOB = LockedObjectType.JOB'
    """
    if not path:
        return ""
    module = "mypackage.databases" if path.startswith("mypackage") else "nonet"
    first, _, rest = path.removeprefix(f"{module}.").partition(".")
    if rest:
        return f"from {module} import {first}; {name} = {first}.{rest}"
    return f"from {module} import {first} as {name}"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ported package, installed in a directory of its own with what is below it."""
    home = tmp_path_factory.mktemp("ported")
    shutil.copytree(SHAPES, home, dirs_exist_ok=True)
    for module in (home / "mypackage").glob("*.py"):
        module.write_text(ported(module.read_text()))
    (file,) = PAGE.files()
    write_file(file, home)
    (toml,) = [block.text for block in PAGE.blocks if block.language == "toml"]
    header, entry = toml.splitlines()
    group, value = re.findall(r'"([^"]+)"', header + entry)
    info = home / "mypackage-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1.0\n")
    points = f"{_ENTRY_POINTS}[{group}]\n{entry.partition(' ')[0]} = {value}\n"
    (info / "entry_points.txt").write_text(points)
    _install_diracx_tasks(home)
    return home


def _install_diracx_tasks(home: Path) -> None:
    """Beside the package, because routers import it; its classes are none of Nonet."""
    theirs = home / "diracx" / "tasks"
    theirs.mkdir()
    (theirs / "__init__.py").write_text("class CleanTask: ...\n")
    info = home / "diracx_tasks-0.7.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: diracx-tasks\nVersion: 0.7.0\n")
    (info / "entry_points.txt").write_text(
        "[diracx.tasks.jobs]\nCleanTask = diracx.tasks:CleanTask"
    )


@pytest.fixture
def environment(package: Path, tmp_path: Path, redis_url: str) -> dict[str, str]:
    """That of daemons and commands."""
    return {
        "PYTHONPATH": str(package),
        "NONET_REDIS_URL": redis_url,
        "NONET_STATE_DIR": str(tmp_path),
        "NONET_LOCK_TTL": "2",  # on a new Redis locks rest for a tenth of it
        "DIRACX_CONFIG_BACKEND_URL": "eu",
        "DIRACX_DB_URL_STARDB": str(tmp_path / "stars"),
        "DIRACX_DB_URL_IMAGEDB": str(tmp_path / "images"),
        "DIRACX_OS_DB_LOGDB": str(tmp_path / "logs"),
    }


def said(environment: dict[str, str], *command: str) -> str:
    """What a command says that ends well."""
    home = Path(environment["NONET_STATE_DIR"])
    ended = preloaded.run(*command, variables=environment, cwd=home)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _lines(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines())


def test_every_class_runs_in_real_workers(environment: dict[str, str], tmp_path: Path) -> None:
    """In the loop and in child processes: with its database, configuration, settings and children.

    What was written is there if the attempt succeeded, once for each transaction.
    """
    workers = [
        Daemon("task-worker", "--size", size, environment=environment, log=tmp_path / f"{size}.log")
        for size in ("small", "medium")
    ]
    with workers[0], workers[1]:
        for worker in workers:
            worker.wait_ready()
            assert "parameter" not in worker.log  # nothing that it cannot provide
        program = _PROGRAM.format(calls=list(_EXPECTED))
        results, ends, group = json.loads(said(environment, "python", "-c", program))
        wait_until(lambda: len(_lines(tmp_path / "stars")) == len(_STARS), "the group has ended")
    assert (results, ends, bool(group)) == (_EXPECTED, ["retries", "stopped"], True)
    assert _lines(tmp_path / "stars") == _STARS
    assert _lines(tmp_path / "images") == ["cleaned part 1", "cleaned part 2", "exposed 7"]
    assert _lines(tmp_path / "logs") == ["dev-audited"] * 3


def test_entry_points_of_diracx_tasks_are_refused(environment: dict[str, str]) -> None:
    """So the page leaves `NONET_ENTRY_POINTS` unset while that distribution is installed."""
    for points, code in (("nonet", 0), ("nonet,diracx", 2)):
        variables = environment | {"NONET_ENTRY_POINTS": points}
        home = Path(environment["NONET_STATE_DIR"])
        ended = preloaded.run("task-run", "classes", variables=variables, cwd=home)
        assert ended.returncode == code, ended.stderr
    assert "'diracx.tasks:CleanTask' of diracx.tasks.jobs is not a task class" in ended.stderr


def test_a_database_without_a_url_is_named(environment: dict[str, str]) -> None:
    """With its variable, before anything is opened; the arguments are those of the constructor."""
    call = ("task-run", "call", "Observe", "--kwargs", '{"telescope": "north"}')
    del environment["DIRACX_DB_URL_STARDB"]
    home = Path(environment["NONET_STATE_DIR"])
    ended = preloaded.run(*call, variables=environment, cwd=home)
    assert ended.returncode == 1
    assert "parameter star_db of Observe.execute: " in ended.stderr
    assert ended.stderr.endswith("set DIRACX_DB_URL_STARDB\n")
