"""Run files: who is signalled, and above all who is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nonet.base.errors import ConfigurationError
from nonet.daemon.runfiles import RunningWorker, Watched, announced, place, running

# Arguments: directory, exit code to note or nothing, fields of RunningWorker (pid 0: its own).
_HOLDER = """
import os, sys
from pathlib import Path
from nonet.daemon.runfiles import RunningWorker, announced

directory, code, namespace, size, pid, incarnation, place = sys.argv[1:]
about = RunningWorker(namespace, size, int(pid) or os.getpid(), incarnation, place)
with announced(Path(directory), about) as file:
    print("held", flush=True)
    sys.stdin.read()
    if code:
        file.ended(int(code))
"""


class Holders:
    """Processes that hold a run file until they are told to end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self, *, code: int | None = 0, size: str = "small", pid: int = 0, at: str = ""
    ) -> subprocess.Popen[bytes]:
        fields = ["test", size, str(pid), "small-1", at or place()]
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", _HOLDER, str(self.directory)),
                *("" if code is None else str(code), *fields),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._started.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        return process

    @staticmethod
    def end(process: subprocess.Popen[bytes]) -> None:
        process.communicate()

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[Holders]:
    made = Holders(tmp_path / "run")
    yield made
    made.close()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with workers, and would die of the signal."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def pids(found: list[Watched]) -> list[int]:
    for item in found:
        item.close()
    return sorted(item.worker.pid for item in found)


def test_who_runs_is_found_until_it_ends(holders: Holders) -> None:
    """By namespace and size; the exit code can be read when the process is gone, not before."""
    small, large = holders.start(code=1), holders.start(size="large")
    assert pids(running(holders.directory, "test")) == sorted([small.pid, large.pid])
    assert pids(running(holders.directory, "test", "large")) == [large.pid]
    assert running(holders.directory, "other") == []
    (item,) = running(holders.directory, "test", "small")
    (other,) = running(holders.directory, "test", "small")
    assert not item.ended()
    holders.end(small)
    assert (item.ended(), item.exit_code()) == (True, 1)
    assert (other.ended(), other.exit_code()) == (True, 1)  # whoever else waited
    item.signal(signal.SIGUSR1)  # nobody is there: nothing happens
    item.close()
    other.close()
    assert pids(running(holders.directory, "test")) == [large.pid]


def test_a_killed_holder_has_no_code_and_its_file_goes(holders: Holders) -> None:
    """The kernel gives the lock back; who finds the file removes it."""
    holder = holders.start()
    (item,) = running(holders.directory, "test")
    holder.kill()
    holder.wait()
    assert (item.ended(), item.exit_code()) == (True, None)
    item.close()
    assert list(holders.directory.iterdir()) == []


def test_a_reused_process_id_is_never_signalled(
    holders: Holders, bystander: subprocess.Popen[bytes]
) -> None:
    """A stale file names a process that lives again: it is not taken for a worker."""
    holder = holders.start(pid=bystander.pid)
    (item,) = running(holders.directory, "test")
    holder.kill()
    holder.wait()
    item.signal(signal.SIGUSR1)
    assert running(holders.directory, "test") == []
    item.close()
    assert list(holders.directory.iterdir()) == []
    bystander.communicate(b"\n")
    assert bystander.returncode == 0


def test_workers_of_other_containers_are_not_ours(holders: Holders) -> None:
    """Several may share a directory: their process ids mean nothing here."""
    holders.start(at="elsewhere")
    assert running(holders.directory, "test") == []
    assert len(list(holders.directory.iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\n", b'["a"]\n', b"garbage\n1\n"])
def test_garbage_is_swept(tmp_path: Path, content: bytes) -> None:
    """What no worker wrote is no worker; it goes when a worker starts."""
    (tmp_path / "worker-1.run").write_bytes(content)
    (tmp_path / "notes").write_bytes(content)
    about = RunningWorker("test", "small", os.getpid(), "small-1", place())
    with announced(tmp_path, about):
        assert pids(running(tmp_path, "test")) == [os.getpid()]
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_no_file_names_many_processes(tmp_path: Path) -> None:
    """0 and negative numbers would be process groups, or everybody."""
    for pid in (0, -1):
        about = RunningWorker("test", "small", pid, "small-1", place())
        with announced(tmp_path, about):
            assert running(tmp_path, "test") == []


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    """A run file that cannot be read may be a worker: that is no 'there is none'."""
    (tmp_path / "worker-1.run").mkdir()
    with pytest.raises(ConfigurationError, match="cannot read run files"):
        running(tmp_path, "test")


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """Which the caller may ignore: it is one of the operating system."""
    (tmp_path / "file").touch()
    about = RunningWorker("test", "small", 1, "small-1", place())
    with pytest.raises(OSError), announced(tmp_path / "file" / "run", about):
        pytest.fail("announced")
