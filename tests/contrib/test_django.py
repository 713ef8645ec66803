"""Nonet in a real project of Django: its settings, commands, checks, views and tasks."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import preloaded
import pytest
from daemons import Daemon
from servers import RedisServer
from waits import WAIT_SECONDS

from nonet import Nonet
from nonet.config.settings import plain_settings

_PROJECT = Path(__file__).parent / "django_project"


class Project:
    """A project in a folder of its own.

    Attributes:
        environment: of its processes.
    """

    def __init__(self, folder: Path, redis_url: str = "") -> None:
        self.folder = folder
        self.environment = {"PROBE_REDIS": redis_url}
        self._daemons: list[Daemon] = []

    def manage(self, *arguments: str, fails: bool = False, **environment: str) -> str:
        """The output of a command of ``manage.py``."""
        done = self._run("manage.py", *arguments, **environment)
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def python(self, code: str) -> Any:
        """What some code prints as JSON after Django is set up."""
        set_up = 'import os, json; os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"\n'
        set_up += "import django; django.setup()\nfrom django.test import Client; web = Client()\n"
        done = self._run("-c", set_up + dedent(code))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def _run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {**self.environment, **environment}
        return preloaded.run("python", *arguments, variables=variables, cwd=self.folder)

    def edit(self, file: str, old: str, new: str = "") -> None:
        """Replace some text of a file."""
        path = self.folder / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    def daemon(self, *arguments: str) -> Daemon:
        """A daemon that a command of ``manage.py`` runs."""
        log = self.folder / f"{len(self._daemons)}.log"
        command = ("python", "manage.py", *arguments)
        made = Daemon(*command, environment=self.environment, log=log)
        self._daemons.append(made)
        return made.wait_ready()

    async def result(self, id: str) -> Any:
        """The result of a task."""
        return (await self.results([id]))[0]

    async def results(self, ids: list[str]) -> list[Any]:
        """The results of tasks."""
        settings = plain_settings(redis_url=self.environment["PROBE_REDIS"], namespace="shop")
        async with Nonet(settings, load_tasks=False) as app:
            return [await app.result(id, timeout=WAIT_SECONDS) for id in ids]

    def close(self) -> None:
        """Kill every daemon."""
        for daemon in self._daemons:
            daemon.kill()


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the tables of its database, which each test copies."""
    folder = tmp_path_factory.mktemp("django")
    shutil.copytree(_PROJECT, folder, dirs_exist_ok=True)
    Project(folder).manage("migrate", "--run-syncdb", "-v0")
    return folder


@pytest.fixture
def project(
    redis_server: RedisServer, redis_url: str, migrated: Path, tmp_path: Path
) -> Iterator[Project]:
    """A project that is gone with the test."""
    shutil.copytree(migrated, tmp_path, dirs_exist_ok=True)
    made = Project(tmp_path, redis_url)
    yield made
    made.close()


async def test_a_task_runs_once_the_transaction_is_committed(project: Project) -> None:
    """It uses models, also in a process of its own, and has the context of the request."""
    project.daemon("task_worker", "--size", "small")
    for kind in ("Send/7", "SendIsolated/8"):
        said = project.python(f'print(web.post("/send/{kind}").content.decode())')
        assert await project.result(said["id"]) == [1, True, "ann"]


def test_a_rolled_back_transaction_submits_nothing(project: Project) -> None:
    """An error of the view and invalid arguments roll it back."""
    said = project.python(
        """
        paths = ("/send/Send/7?fail=1", "/send/SendIsolated/7?fail=1", "/refuse")
        print(json.dumps([web.post(path).json() for path in paths]))
        """
    )
    assert "number: Input should be a valid integer" in said[2]["error"]
    assert said[2]["left"] == 0
    for sent in said[:2]:
        assert "nothing is known" in project.manage("task_run", "status", sent["id"], fails=True)


async def test_coroutines_use_models_and_connections_are_closed(project: Project) -> None:
    """CONN_MAX_AGE is 0: no attempt finds the connection of an earlier one in its thread."""
    project.daemon("task_worker", "--size", "small", "--concurrency", "1")
    said = project.python('print(web.post("/count").content.decode())')
    assert await project.result(said["id"]) == 0
    assert [await project.result(id) for id in said["open"]] == [False] * 3


def test_tasks_wait_for_each_other_to_write_to_sqlite(project: Project) -> None:
    """For a minute, or as long as the project says."""
    code = """
        from django.db import connection
        from nonet.contrib.django.discovery import nonet_task_modules
        nonet_task_modules()
        print(json.dumps(connection.get_connection_params()["timeout"]))
        """
    assert project.python(code) == 60
    project.edit("shop/settings.py", '"ENGINE"', '"OPTIONS": {"timeout": 30}, "ENGINE"')
    assert project.python(code) == 30


def test_a_server_may_fork_after_it_has_submitted(project: Project) -> None:
    """Each process has its own application, as under gunicorn."""
    said = project.python(
        """
        import os
        first = web.post("/send/Send/1").json()["id"]
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, web.post("/send/Send/2").json()["id"].encode())
            os._exit(0)
        second = os.read(read, 100).decode()
        os.wait()
        print(json.dumps([first, second, web.post("/send/Send/3").json()["id"]]))
        """
    )
    listed = json.loads(project.manage("task_run", "list", "--json"))["items"]
    assert {item["id"] for item in listed} == set(said)


def test_tasks_are_found_and_the_environment_takes_precedence(project: Project) -> None:
    """A module `tasks` of an application needs no setting, and names its tasks."""
    listed = json.loads(project.manage("task_run", "classes", "--json"))["items"]
    names = {item["name"] for item in listed}
    assert names == {f"invoices:{name}" for name in ("Counts", "IsOpen", "Send", "SendIsolated")}
    text = project.manage("task_run", "overview", NONET_REDIS_URL="redis://127.0.0.1:1", fails=True)
    assert "127.0.0.1:1" in text


async def test_a_fleet_and_a_scheduler_know_the_project(project: Project) -> None:
    """A scheduler and the workers of a fleet load its tasks."""
    project.daemon("task_scheduler")
    fleet = project.daemon("task_worker", "--size", "small", "--min", "1", "--max", "1")
    id = project.manage("task_run", "submit", "invoices:Counts").strip()
    assert await project.result(id) == 0
    fleet.terminate()
    assert fleet.wait() == 0


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        (
            "shop/settings.py",
            '"NAMESPACE"',
            '"NAMESPACES"',
            "(nonet.E001) setting NONET_NAMESPACES",
        ),
        ("shop/settings.py", '"RESULT_TTL": 60', '"RESULT_TTL": -1', "(nonet.E001)"),
        ("invoices/tasks.py", "from typing", "import no_such\nfrom typing", "(nonet.E002) tasks"),
        (
            "invoices/tasks.py",
            "(self) -> bool",
            "(self, by: dict[str, str]) -> bool",
            "(nonet.E003)",
        ),
        ("shop/settings.py", '"invoices", ', "", "(nonet.W003) No application has tasks"),
    ],
    ids=["setting", "value", "import", "dependency", "no tasks"],
)
def test_the_check_finds_mistakes(
    project: Project, file: str, old: str, new: str, told: str
) -> None:
    """Each has an id that a project can silence."""
    project.edit(file, old, new)
    if file == "shop/settings.py":  # its URLs import the application
        project.edit(file, 'ROOT_URLCONF = "invoices.urls"\n')
    found = project.manage("check", "--tag", "nonet", fails="(nonet.E" in told)
    assert told in found


def test_the_check_of_a_deployment_warns_without_a_server(project: Project) -> None:
    """A good project has no warning; SQLite, and the default and the embedded server do."""
    assert "no issues" in project.manage("check", "--tag", "nonet")
    deploy = ("check", "--tag", "nonet", "--deploy")
    found = project.manage(*deploy)
    assert "(nonet.W004) Database 'default' is SQLite" in found
    assert found.count("nonet.") == 1
    project.edit("shop/settings.py", "backends.sqlite3", "backends.postgresql")
    found = project.manage(*deploy, NONET_THREADS="20")
    assert "(nonet.I001) Database 'default': each small worker opens up to 21 connections" in found
    assert found.count("nonet.") == 1
    assert "nonet.W002" in project.manage(*deploy, PROBE_REDIS="embedded://")
    project.edit("shop/settings.py", '    "REDIS_URL": os.environ["PROBE_REDIS"],\n')
    assert "nonet.W002" in project.manage(*deploy)


def test_settings_must_be_a_dictionary(project: Project) -> None:
    """The error names the setting."""
    project.edit("shop/settings.py", "NONET = {", 'NONET = "redis://"\nOTHER = {')
    assert "write a dictionary" in project.manage("check", fails=True)
