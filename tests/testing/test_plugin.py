"""The pytest plugin and docs/how-to/test-your-tasks.md: a user's project, whose tests run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from daemons import wait_until

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "how-to" / "test-your-tasks.md"

INI = """
[pytest]
asyncio_mode = {}
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""
TASKS = """
from dataclasses import dataclass
from nonet import BaseTask

@dataclass
class Add(BaseTask):
    a: int
    b: int

    async def execute(self) -> int:
        return self.a + self.b
"""


class Project:
    def __init__(self, home: Path) -> None:
        self._home = home
        self.write("adding.py", TASKS)
        self.write("pytest.ini", INI.format("auto"))

    def write(self, name: str, text: str) -> None:
        (self._home / name).write_text(text)

    def read(self, name: str) -> str:
        return (self._home / name).read_text()

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run its tests without the settings of this run."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NONET_")}
        kept.pop("PYTEST_ADDOPTS", None)
        plugins = ("-p", "no:valkey", "-p", "pytest_nonet", "-p", "no:cacheprovider")
        return subprocess.run(
            [sys.executable, "-m", "pytest", *plugins, *options],
            cwd=self._home,
            env={**kept, "PYTHONPATH": str(self._home)},
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def passed(ran: subprocess.CompletedProcess[str]) -> int:
    """How many tests passed; fails if any did not."""
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = re.search(r"(\d+) passed", ran.stdout)
    assert found, ran.stdout
    return int(found[1])


def test_the_plugin_is_installed_and_every_example_of_its_guide_passes(project: Project) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared["pytest11"] == {"pytest_nonet": "pytest_nonet"}
    examples = re.findall(r"^```python\n# (\S+)\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.M)
    assert [name for name, _ in examples] == ["mytasks.py", "test_inline.py", "test_system.py"]
    for name, text in examples:
        project.write(name, text)
    tests = sum(len(re.findall(r"^(?:async )?def test_", text, re.M)) for _, text in examples)
    assert passed(project.run()) == tests == 6


def test_the_plugin_imports_nothing_for_tests_without_its_fixtures(project: Project) -> None:
    project.write(
        "test_else.py",
        "import sys\n\n"
        "def test_nothing_is_imported():\n"
        "    assert not {'nonet', 'redis', 'pydantic'} & set(sys.modules)\n",
    )
    assert passed(project.run()) == 1


def test_a_marker_overrides_that_of_its_module_in_strict_mode(
    project: Project, redis_url: str
) -> None:
    """Each test has its own namespace, also on a server that the user shares between tests."""
    project.write("pytest.ini", INI.format("strict"))
    project.write(
        "conftest.py",
        "import pytest\n\n"
        "@pytest.fixture(scope='session')\n"
        "def nonet_server():\n"
        f"    return {redis_url!r}\n",
    )
    project.write(
        "test_marks.py",
        "import pytest\nfrom adding import Add\n\n"
        "pytestmark = pytest.mark.nonet(tasks=[Add], slots=3, misfire_grace=5)\n"
        "seen = set()\n\n"
        "@pytest.mark.asyncio\n"
        "@pytest.mark.nonet(misfire_grace=7)\n"
        "@pytest.mark.parametrize('number', range(2))\n"
        "async def test_options(nonet_system, number):\n"
        "    settings = nonet_system.app.settings\n"
        "    assert settings.misfire_grace == 7\n"
        "    assert settings.namespace not in seen\n"
        "    seen.add(settings.namespace)\n"
        "    (worker,) = [x for x in await nonet_system.app.stores.results.workers()\n"
        "                 if x.size == 'small']\n"
        "    assert worker.concurrency == 3\n"
        "    handle = await Add(1, 2).schedule()\n"
        "    assert await handle.result(timeout=60) == 3\n",
    )
    assert passed(project.run("--strict-markers")) == 2


def test_failures_are_readable(project: Project) -> None:
    project.write(
        "test_failing.py",
        "import pytest\nfrom adding import Add\n\n"
        "pytestmark = pytest.mark.nonet(tasks=[Add], sizes=['small'])\n\n"
        "async def test_wrong(nonet_system):\n"
        "    await Add(1, 2).schedule()\n"
        "    nonet_system.assert_submitted(Add, a=7)\n\n"
        "async def test_stuck(nonet_system):\n"
        "    await Add(1, 2).schedule()\n"
        "    await nonet_system.run_until_idle()\n\n"
        "async def test_leaks(nonet_system):\n"
        "    broker = nonet_system.app.broker\n"
        "    await broker.client.set(broker.prefix + 'stray', 1)\n\n"
        "@pytest.mark.nonet('small')\n"
        "async def test_misused(nonet_system): ...\n\n"
        "@pytest.mark.nonet(slotz=1)\n"
        "async def test_misspelt(nonet_system): ...\n",
    )
    ran = project.run()
    assert ran.returncode == 1
    for line in (
        r"E +AssertionError: Add\(a=7\) was submitted never, not at least once",
        r"E +Add\(a=1, b=2\)",
        r"E +nonet.testing.idle.NotIdleError: 1 task can never run here:",
        r"E +adding:Add \w+: queued: no medium worker is live. Next: 'task-worker",
        r"E +AssertionError: these keys neither expire nor belong to an unfinished task:",
        r"E +\{test-[0-9]-[0-9a-f]{8}\}:stray",
        r"E +pytest.UsageError: pytest.mark.nonet takes keywords only",
        r"E +nonet.base.errors.ConfigurationError: System has no argument 'slotz', .* mean slots\?",
    ):
        assert re.search(f"^{line}", ran.stdout, re.M), f"{line}\n{ran.stdout}"


def test_an_interrupted_run_leaves_no_server(project: Project, tmp_path: Path) -> None:
    project.write(
        "test_killed.py",
        "import os, pytest, signal\nfrom adding import Add\n\n"
        "@pytest.mark.nonet(tasks=[Add])\n"
        "async def test_kill(nonet_system):\n"
        "    info = await nonet_system.app.broker.client.info('server')\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(info['process_id']))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    assert project.run().returncode == -9
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the server has ended")
