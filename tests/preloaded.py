"""`Preloaded`: a command of Nonet in a process of its own that need not import all of it again.

    process = Preloaded([script, "--size", "small"], environment=..., cwd=path, stdout=file)
    process.wait(30)

Most of the processor time of these tests would be the same imports, thousands of times. So one
process has imported Nonet and the libraries, and forks: each fork runs the console script from its
first line, reads its own environment, imports the tasks, and ends with the exit code, the texts and
the handlers of a real start. So do the commands and programs of a shell with `put_shims`, and the
daemons of `task-run dev`. What a fork cannot change (what the loader and the interpreter read at
their start) is left to a real start: see `may_be_preloaded`.

`PRELOADED=0 make test` starts everything for real.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import marshal
import os
import pkgutil
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

_TESTS = str(Path(__file__).parent)
_SCRIPTS = ("task-run", "task-scheduler", "task-worker")
# Read by Nonet when it runs, not when it is imported, by the tasks of the tests, which each fork
# imports, and by OpenTelemetry when it is set up; others may be read by a library's import.
_HARMLESS = (
    *("NONET_", "PROBE_", "EXAMPLE_", "UPGRADE_", "KUBERNETES_", "PRELOADED_"),
    *("AROUND_", "ISOLATED_", "REPORT", "ROWS_"),
    *("_TASK_RUN_COMPLETE", "_TYPER_COMPLETE"),
    "COLUMNS",
    *("OTEL_EXPORTER_", "OTEL_BSP_", "OTEL_TRACES_", "OTEL_SERVICE_"),
)
_LIBRARIES = """
asyncio concurrent.futures.thread ctypes email.message getpass http.server sqlite3 ssl zoneinfo
alembic.command aiosqlite croniter dateutil.rrule hiredis msgspec opentelemetry.trace
pydantic redis.asyncio redis.asyncio.sentinel sqlalchemy.ext.asyncio
sqlalchemy.dialects.mysql.aiomysql sqlalchemy.dialects.sqlite.aiosqlite structlog typer uvloop yaml
""".split()  # noqa: SIM905  # shorter than a list
# What a command imports later if at all: extras, help for tests, processes of tasks, and modules
# that register something, as tasks do.
_NOT_IN_COMMANDS = (
    *("nonet.contrib", "nonet.cli.demo", "nonet.testing", "nonet.worker.child_process"),
    "nonet.stores.sql.migrations",
)
# A variable of commands whose daemons and fork servers are forked, too, as those of `task-run dev`
# are: their parent is another process then.
CHILDREN = "PRELOADED_CHILDREN"
# Values of PYTHONPATH of which no library is hidden.
PLACES = {_TESTS}
_MESSAGE_BYTES = 1 << 20
_MOST_FILES, _FREE_NUMBERS = 64, 256
_POLL_SECONDS = 0.005


def may_be_preloaded(script: str, environment: Mapping[str, str]) -> bool:
    """Whether a fork does the same as a real start, with these variables beside our own."""
    return (
        os.environ.get("PRELOADED") != "0"
        and script in (*_SCRIPTS, "python")
        and all(
            name.startswith(_HARMLESS) or (name == "PYTHONPATH" and value in PLACES)
            for name, value in environment.items()
        )
    )


class Preloaded:
    """A running command; the methods are those of `subprocess.Popen`.

    Args:
        command: path of a console script, and its options.
        environment: all its variables.
        cwd: where it runs.
        stdin, stdout, stderr: open files; without them, nothing.

    Attributes:
        pid: its process id.
        returncode: exit code, negative for a signal; ``None`` until `poll` or `wait` has seen it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: Path,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
    ) -> None:
        self.returncode: int | None = None
        self._seen = threading.Lock()
        words = [str(word) for word in command]  # marshal takes no subclass, such as a `Size`
        order = {"command": words, "environment": dict(environment), "cwd": str(cwd)}
        status, told = os.pipe()
        self._status = open(status, "rb", buffering=0)  # noqa: SIM115  # until it has ended
        with open(os.devnull, "r+b", buffering=0) as nothing:
            files = [stdin or nothing, stdout or nothing, stderr or nothing]
            handed = [*(file.fileno() for file in files), told]
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
                line.connect(f"\0{_server().address}")
                socket.send_fds(line, [marshal.dumps(order)], handed)
        os.close(told)
        self.pid = int(self._status.readline())
        self._ended = select.poll()
        self._ended.register(self._status, select.POLLIN)

    def poll(self) -> int | None:
        """The exit code if it has ended."""
        with self._seen:
            if self.returncode is None and self._ended.poll(0):
                self.returncode = int(self._status.readline())
                self._status.close()
        return self.returncode

    def wait(self, timeout: float = 30) -> int:
        """Wait for its end, so many seconds at most.

        Raises:
            subprocess.TimeoutExpired: it goes on.
        """
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_POLL_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)


def run(
    script: str, *arguments: str, variables: Mapping[str, str], cwd: Path, seconds: float = 600
) -> subprocess.CompletedProcess[str]:
    """A console script of Nonet, or of Python's, to its end.

    Args:
        variables: beside those of this process, but for ``NONET_…``.
        seconds: how long it may take.
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith("NONET_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    environment = {**kept, "PYTHONPATH": _TESTS, **variables}
    command = [str(Path(sys.executable).parent / script), *arguments]
    with TemporaryFile() as out, TemporaryFile() as err:
        process: Preloaded | subprocess.Popen[bytes]
        if may_be_preloaded(script, variables):
            process = Preloaded(command, environment=environment, cwd=cwd, stdout=out, stderr=err)
        else:
            nothing = subprocess.DEVNULL
            process = subprocess.Popen(
                command, cwd=cwd, env=environment, stdin=nothing, stdout=out, stderr=err
            )
        try:
            code = process.wait(seconds)
        finally:
            process.kill()
            process.wait()
        texts = [file.seek(0) or file.read().decode() for file in (out, err)]
    return subprocess.CompletedProcess(command, code, *texts)


def shim(script: str) -> tuple[list[str], dict[str, str]]:
    """A command that has a console script of Nonet forked, and the variables that it needs.

    For what is started by others than `Preloaded`, e.g. by a shell or with pipes.
    """
    path = str(Path(sys.executable).with_name(script))
    command = [sys.executable, "-IS", str(Path(__file__).with_name("preloaded_shim.py")), path]
    return command, {"PRELOADED_AT": _server().address}


def put_shims(folder: Path) -> dict[str, str]:
    """Write console scripts of Nonet that let a shell fork them, and a `python` for programs.

    Returns:
        Variables for the shell. If everything starts for real, none, and there are no scripts.
    """
    variables: dict[str, str] = {}
    for name in _SCRIPTS:
        if may_be_preloaded(name, {}):
            command, variables = shim(name)
            _write_script(folder / name, f'exec {shlex.join(command)} "$@"')
    if variables:
        variables[CHILDREN] = "1"
        command, _ = shim("python")
        programs = f'case "$1" in -c | *.py) exec {shlex.join(command)} "$@" ;; esac'
        _write_script(folder / "python", f'{programs}\nexec {shlex.quote(sys.executable)} "$@"')
    return variables


def _write_script(file: Path, lines: str) -> None:
    file.write_text(f"#!/bin/sh\n{lines}\n")
    file.chmod(0o755)


class _Server:
    """The process that forks for all processes of a run: the first that asks starts it."""

    def __init__(self) -> None:
        owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
        self.address = f"nonet-preloaded-{owner}"  # in the abstract namespace of Linux
        # It listens from now on: others may ask before all is imported.
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listens:
            try:
                listens.bind(f"\0{self.address}")
            except OSError:  # another process of this run was first
                self._wait_until_it_listens()
                return
            listens.listen(128)
            environment = {**os.environ, "PYTHONPATH": _TESTS, "PYTHONUNBUFFERED": "1"}
            environment |= {"PRELOADED_AT": self.address}
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            # No stream can seek in its files, as in the pipe that a fork may have.
            ours, theirs = socket.socketpair()
            with ours, theirs:
                self.process = subprocess.Popen(
                    [sys.executable, __file__, str(listens.fileno()), str(owner)],
                    env=environment,
                    stdin=theirs,
                    stdout=theirs,
                    pass_fds=[listens.fileno()],
                    start_new_session=True,
                )
            self.process.returncode = 0  # it ends with the run: this process does not wait for it

    def _wait_until_it_listens(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
            while asking.connect_ex(f"\0{self.address}"):
                time.sleep(_POLL_SECONDS)


_server = cache(_Server)


def _serve() -> Sequence[str]:
    """Fork for each request; return in the forks, with the command to run. Ends with its owner."""
    import nonet

    for name in _LIBRARIES:
        with suppress(ModuleNotFoundError):  # of an extra
            importlib.import_module(name)
    for _, name, _ in pkgutil.walk_packages(nonet.__path__, "nonet."):
        if not name.startswith(_NOT_IN_COMMANDS):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    listens = socket.socket(fileno=int(sys.argv[1]))
    owner = os.pidfd_open(int(sys.argv[2]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listens, owner], [], [])
        if owner in ready:
            os._exit(0)
        with listens.accept()[0] as asking:
            message, files, _, _ = socket.recv_fds(asking, _MESSAGE_BYTES, _MOST_FILES)
        if message and os.fork() == 0:
            listens.close()
            os.close(owner)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _become(marshal.loads(message), files)
        for file in files:
            os.close(file)


def _become(order: Mapping[str, Any], files: Sequence[int]) -> Sequence[str]:
    """Fork the command; the parent only waits for it, to tell its id and how it ended."""
    *streams, status = files
    if (pid := os.fork()) != 0:
        for file in streams:
            os.close(file)
        _report(pid, status)
    os.close(status)
    # First to numbers that nothing has: what is received may have the number of another file.
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, _FREE_NUMBERS) for file in streams]
    for number, file in zip((0, 1, 2, *order.get("held", ())), moved, strict=True):
        os.dup2(file, number)
    for file in (*streams, *moved):
        if file > 2 and file not in order.get("held", ()):
            os.close(file)
    os.setsid()
    os.chdir(order["cwd"])
    address = os.environ["PRELOADED_AT"]
    os.environ.clear()
    os.environ.update(order["environment"])
    command = order["command"]
    sys.argv, first = _as_started(command)
    places = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    libraries = [item for item in sys.path[1:] if item != _TESTS]
    sys.path[:] = [*first, *places, *libraries]
    importlib.invalidate_caches()
    if command[1:2] == ["dev"] or CHILDREN in os.environ:
        os.environ |= {"PRELOADED_AT": address, "PRELOADED_PYTHON": sys.executable, CHILDREN: "1"}
        sys.executable = f"{_TESTS}/preloaded_python"
    return command


def _as_started(command: list[str]) -> tuple[list[str], list[str]]:
    """What the interpreter makes of its command line: `sys.argv`, and where it imports from first.

    A command is a script, or the interpreter with code, a module or a program.
    """
    match command:
        case [_, "-P", "-c", _, *options]:
            return ["-c", *options], []
        case [_, "-P", "-m", module, *options]:
            return [module, *options], []
        case [_, "-c", _, *options]:
            return ["-c", *options], [""]
        case [_, "-m", module, *options]:
            return [module, *options], [os.getcwd()]
        case [sys.executable, *program]:
            command = program
    return command, [str(Path(command[0]).absolute().parent)]


def _report(pid: int, status: int) -> None:
    """Tell the id of a command, and how it ended; kill it when the process that reads is gone."""
    with suppress(BrokenPipeError):
        os.write(status, b"%d\n" % pid)
    watched = select.poll()
    watched.register(status, 0)  # its only event: nobody reads
    watched.register(os.pidfd_open(pid), select.POLLIN)
    if dict(watched.poll()).get(status):
        os.kill(pid, signal.SIGKILL)
    _, ended = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
    os._exit(0)


def _run(command: Sequence[str]) -> None:
    """Run a script, a module or code to its end, as the interpreter does.

    A command that exits need not take its modules apart: that is 0.06 CPU seconds of about 0.15.
    Daemons do, because they may have threads at their end.
    """
    if sys.argv[0] == "-c":
        exec(command[command.index("-c") + 1], {"__name__": "__main__"})
        return
    if "-m" in command[1:3] and Path(command[0]).name == "python":
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    script = sys.argv[0]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as exited:
        code = exited.code or 0
        if not isinstance(code, int) or Path(script).name != "task-run":
            raise
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        raise  # nobody reads: the interpreter says so


if __name__ == "__main__":
    _run(_serve())
