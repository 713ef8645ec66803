"""``task-run dev`` as a developer runs it: with a server and daemons of its own, in a project."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from cli.dev.test_trial_load import PIPELINE
from daemons import Daemon
from ports import free_port
from preloaded import run
from waits import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.server
# The interpreter reads it at its start: where a test is about ends, all processes are real ones.
REAL = {"PYTHONHASHSEED": "0"}

TASKS = '''
import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from nonet import BaseTask, LockedObjectType, MutexLock, Size


@dataclass
class Ask(BaseTask):
    """Says which code runs it."""

    number: int = 0
    size = Size.SMALL

    @property
    def execution_locks(self):
        return [MutexLock(LockedObjectType.JOB, self.number)]

    async def execute(self) -> str:
        print("asked", self.number)
        return "ANSWER"


class Medium(BaseTask):
    async def execute(self) -> str:
        return "ANSWER"


@dataclass
class Gated(BaseTask):
    """Runs until there is a file."""

    size = Size.SMALL

    async def execute(self) -> str:
        with open("runs", "a") as file:
            file.write("ANSWER\\n")
        while not Path("gate").exists():
            await asyncio.sleep(0.02)
        return "ANSWER"


class Dies(BaseTask):
    size = Size.SMALL

    async def execute(self) -> None:
        os._exit(7)
'''


class Dev:
    """A project, and the command that runs it.

    Attributes:
        home: the directory of the project.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.state = home / "state"
        self._running: Daemon | None = None

    def save(self, answer: str = "one", *, more: str = "") -> None:
        """Write the tasks, whose answers say which version runs.

        Python compares its bytecode by whole seconds and the length, so that both stay the same.
        """
        file, saved = self.home / "mytasks.py", self.home / "saved"
        saved.write_text(TASKS.replace("ANSWER", answer) + more)
        if file.exists():
            status = file.stat()
            os.utime(saved, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        saved.replace(file)

    def start(self, *options: str, **environment: str) -> Daemon:
        """Run the command; `options` replace the file of tasks and ``--no-web``."""
        command = ("task-run", "dev", *(options or ("mytasks.py", "--no-web")))
        # Not the first that is free: another test may find the same one.
        port = {"NONET_WEB_PORT": str(free_port())}
        variables = {"NONET_STATE_DIR": str(self.state), **port, **environment}
        self._running = Daemon(*command, environment=variables, log=self.home / "log")
        return self._running

    def ready(self, times: int = 1) -> None:
        """Wait until everything was ready so often."""
        told = re.compile(r"^dev    \| ready( again)?: ", re.M)
        running = self._running
        assert running is not None
        wait_until(lambda: len(told.findall(self.log)) >= times or not running.alive, "it is ready")
        assert running.alive, self.log

    @property
    def log(self) -> str:
        assert self._running is not None
        return self._running.log

    def says(self, text: str) -> None:
        """Wait for a text in the log."""
        wait_until(lambda: text in self.log, f"it says {text!r}")

    def runs(self) -> list[str]:
        """The code that has begun gated tasks."""
        file = self.home / "runs"
        return file.read_text().split() if file.exists() else []

    def command(self, *arguments: str) -> str:
        """What a command in another terminal prints, with the variables that were told for it."""
        told = re.compile(r"in another terminal: export (.*)")
        found = wait_until(lambda: told.search(self.log), "it says how to reach it")
        variables = dict(part.split("=", 1) for part in shlex.split(found[1]))
        done = run("task-run", *arguments, variables=variables, cwd=self.home.parent)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def ask(self, name: str = "Ask", *options: str) -> str:
        """Submit a task and wait for its result."""
        return self.command("submit", name, *options, "--wait", "60").splitlines()[-1]

    def processes(self) -> list[psutil.Process]:
        """All processes of the system, whatever their parent is."""
        found = []
        for process in psutil.process_iter():
            try:
                is_ours = process.environ().get("NONET_STATE_DIR") == str(self.state)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def close(self) -> None:
        """End whatever runs."""
        if self._running is not None:
            self._running.kill()
        for process in self.processes():
            process.kill()


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    """A project with a file of tasks."""
    made = Dev(tmp_path)
    made.save()
    yield made
    made.close()


def test_it_runs_all_that_tasks_need(dev: Dev) -> None:
    """Workers, scheduler and dashboard run, a first lock is granted; Ctrl-C ends all."""
    daemon = dev.start("mytasks.py", **REAL)
    dev.ready()
    assert " ended, exit code " not in dev.log
    assert "dev    | ready: mytasks:Ask, mytasks:Dies, mytasks:Gated, mytasks:Medium" in dev.log
    for name in ("small ", "medium", "large ", "sched ", "web   "):
        assert re.search(rf"(?m)^{name} \| .* ready: ", dev.log), name
    assert dev.ask("Ask", "--args", "[7]") == "one"
    dev.says("small  | asked 7")
    assert dev.ask("Medium") == "one"
    assert dev.ask("Medium", "--label", "size=large") == "one"
    soon = datetime.now(UTC) + timedelta(seconds=1)
    assert dev.ask("Medium", "--at", soon.isoformat()) == "one"
    dev.says("dashboard, by a link for one login: http://127.0.0.1:")
    (link,) = re.findall(r"http://\S+/login\?code=\S+", dev.log)
    with urllib.request.urlopen(link) as page:
        assert page.status == 200
    assert len(dev.processes()) > 6
    os.kill(daemon.pid, signal.SIGINT)
    assert daemon.wait() == 0, dev.log
    wait_until(lambda: not dev.processes(), "no process is left")


def test_a_change_runs_waiting_tasks_with_the_new_code(dev: Dev) -> None:
    """Tasks that outlast the grace period are handed back, and no attempt is used.

    A dashboard whose port is taken stops no other daemon, and starts at the next save.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        dev.start("mytasks.py", "--port", port, "--grace", "0.2")
        dev.ready()
        assert "web ended, exit code 2: it starts again at the next save" in dev.log
    ids = [dev.command("submit", "Gated", "--id", f"gated-{n}") for n in range(2)]
    wait_until(lambda: len(dev.runs()) == 2, "both run")
    dev.save("two")
    dev.says("dev    | mytasks.py changed")
    wait_until(lambda: len(dev.runs()) == 4, "both run again")
    (dev.home / "gate").touch()
    dev.ready(2)
    assert dev.runs() == ["one", "one", "two", "two"]
    for id in ids:
        assert dev.command("result", id) == "two"
        assert json.loads(dev.command("status", id, "--json"))["attempt"] == 1
    assert dev.ask() == "two"
    dev.says("dashboard, by a link for one login: ")


def test_code_that_cannot_be_loaded_changes_nothing(dev: Dev) -> None:
    """The daemons keep the code that they have until the next save; one that dies is restarted."""
    dev.start()
    dev.ready()
    dev.command("submit", "Dies")
    dev.says("dev    | small ended, exit code 7: it is started again")
    dev.command("submit", "Gated", "--id", "gated")
    wait_until(lambda: dev.runs() == ["one"], "it runs with the code before")
    dev.save("two", more="def broken(:\n")
    dev.says("the tasks cannot be loaded: the code before this change goes on until the next save")
    assert "dev    | SyntaxError: invalid syntax" in dev.log
    assert f'dev    |   File "{dev.home / "mytasks.py"}", line' in dev.log
    (dev.home / "gate").touch()
    dev.save("three")
    dev.ready(2)
    assert dev.command("result", "gated") == "one"
    assert dev.ask() == "three"


def test_a_module_that_hangs_or_is_broken_runs_after_the_next_save(dev: Dev) -> None:
    """The save ends an import that hangs; the command runs until the tasks can be loaded."""
    dev.save(more="import time\nprint('it hangs')\ntime.sleep(100_000)\n")
    dev.start("-m", "mytasks", "--no-web", PYTHONPATH="")
    dev.says("dev    | it hangs")
    dev.save(more="raise ValueError('not yet')\n")
    dev.says("dev    | ValueError: not yet")
    dev.says("the tasks cannot be loaded: nothing runs until the next save")
    dev.save("two")
    dev.ready()
    assert dev.ask() == "two"


def test_a_second_signal_ends_all_at_once(dev: Dev) -> None:
    """Running tasks get no grace period after it."""
    daemon = dev.start("mytasks.py", "--no-web", "--grace", "600", **REAL)
    dev.ready()
    dev.command("submit", "Gated")
    wait_until(lambda: dev.runs(), "it runs")
    os.kill(daemon.pid, signal.SIGINT)
    dev.says("draining 1 tasks")
    assert daemon.alive
    os.kill(daemon.pid, signal.SIGINT)
    assert daemon.wait() == 143, dev.log
    wait_until(lambda: not dev.processes(), "no process is left")


def test_nothing_outlives_it(dev: Dev) -> None:
    """Its death ends the daemons and the server."""
    daemon = dev.start(**REAL)
    dev.ready()
    os.kill(daemon.pid, signal.SIGKILL)
    wait_until(lambda: not dev.processes(), "no process is left")


def test_a_closed_pipe_ends_it(dev: Dev) -> None:
    """As in ``task-run dev | head``."""
    read, write = os.pipe()
    kept = {name: text for name, text in os.environ.items() if not name.startswith("NONET_")}
    done = subprocess.Popen(
        [str(Path(sys.executable).parent / "task-run"), "dev", "mytasks.py", "--no-web"],
        cwd=dev.home,
        env={**kept, "NONET_STATE_DIR": str(dev.state)},
        stdout=write,
    )
    os.close(write)
    os.read(read, 1)
    os.close(read)
    dev.save("two")
    assert done.wait(WAIT_SECONDS) == 0
    wait_until(lambda: not dev.processes(), "no process is left")


def test_it_runs_on_other_kernels_than_linux(dev: Dev) -> None:
    """The processes lack what only Linux has, as on macOS."""
    daemon = dev.start(PYTHONPATH=str(Path(__file__).parents[2] / "without_linux"))
    dev.ready()
    assert dev.ask() == "one"
    assert dev.ask("Medium") == "one"
    daemon.terminate()
    assert daemon.wait() == 0, dev.log
    wait_until(lambda: not dev.processes(), "no process is left")


def test_pipelines_run_without_reload(dev: Dev) -> None:
    """They run in a process of their own; with `--no-reload` no change is noticed."""
    (dev.home / "rows.py").write_text(PIPELINE)
    dev.start("rows.py", "mytasks.py", "--no-web", "--no-reload")
    dev.ready()
    assert re.search(r"(?m)^rows   \| .* ready: Provision$", dev.log), dev.log
    dev.save("two")
    assert dev.ask() == "one"  # takes longer than the poll for changes
    assert "changed" not in dev.log
