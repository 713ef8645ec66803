"""The demo as its users run it: with its own server, a scheduler and workers."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from preloaded import shim
from waits import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.server


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with everything that may be in one."""
    root = tmp_path / "tree"
    (root / "sub" / "deeper").mkdir(parents=True)
    for name, content in {
        b"a": b"same",
        b"sub/b": b"same",
        b"sub/caf\xe9": b"same",  # not UTF-8
        b"sub/deeper/new\nline": b"same",
        b"empty": b"",
        b"sub/empty too": b"",
        b"alone": b"nothing like it",
        b"long 1": bytes(3 << 20),
        b"long 2": bytes(3 << 20),
        b"long 3": bytes(3 << 20) + b"not quite",
    }.items():
        (root / os.fsdecode(name)).write_bytes(content)
    for number in range(250):  # more than two batches
        (root / "sub" / f"numbered {number}").write_text(str(number % 200))
    os.link(root / "alone", root / "sub" / "hard link")
    (root / "link").symlink_to("a")
    (root / "up").symlink_to("..")
    os.mkfifo(root / "fifo")
    return root


@pytest.fixture(autouse=True)
def nothing_left_running(tmp_path: Path) -> Iterator[None]:
    """A test that fails leaves no server to the next one."""
    yield
    for pid in _processes(tmp_path / "state"):
        os.kill(pid, signal.SIGKILL)


def test_it_agrees_with_sha256sum(tree: Path, tmp_path: Path) -> None:
    """Files, bytes and groups are those of find and sha256sum; no process is left."""
    done = _run(tree, tmp_path / "state")
    assert done.returncode == 0, done.stderr
    document = _document(done)
    sizes, groups = _by_sha256sum(tree)
    keys = "files bytes duplicate_groups wasted_bytes dead_letters tasks seconds"
    assert list(document) == keys.split()
    assert document["files"] == len(sizes)
    assert document["bytes"] == sum(sizes.values())
    assert document["duplicate_groups"] == groups
    assert document["wasted_bytes"] == sum(sizes[group[0]] * (len(group) - 1) for group in groups)
    assert document["dead_letters"] == 0
    assert document["tasks"] == 3 + 3  # batches; and listing, gathering, reporting
    assert _processes(tmp_path / "state") == set()
    assert list((tmp_path / "state" / "demo").iterdir()) == []


def test_an_unreadable_file_is_a_dead_letter(tree: Path, tmp_path: Path) -> None:
    """It is retried alone; the summary names the command that lists it, and its batch is hashed."""
    unread = [tree / "sub" / "b", tree / "sub" / "secret"]
    unread[1].write_bytes(b"x")
    for path in unread:
        path.chmod(0)
    closed = tree / "closed"
    closed.mkdir()
    (closed / "unseen").write_bytes(b"same")
    closed.chmod(0)
    document = _document(done := _run(tree, tmp_path / "state", before=_give_up_rights))
    closed.chmod(0o700)
    assert document["dead_letters"] == 2
    assert document["files"] == 262  # the two count; what is in `closed` does not
    same = [str(tree / "a"), str(tree / "sub" / "caf\udce9"), str(tree / "sub/deeper/new\nline")]
    assert same in document["duplicate_groups"]
    assert f"could not be listed: 1 ({closed})" in done.stderr
    command, show = done.stderr.splitlines()[-2:]
    assert show == command.replace(" list", " show ROW --show-args --tasks nonet.cli.demo.tasks")
    printed = subprocess.check_output(f"{command} --json", shell=True, text=True)
    letters = json.loads(printed)["items"]
    assert [(letter["task_class"], letter["retry_count"]) for letter in letters] == 2 * [
        ("tasks:HashFile", 2)
    ]
    assert sorted(letter["last_error"] for letter in letters) == [
        f"PermissionError: [Errno 13] Permission denied: {os.fsencode(path)!r}" for path in unread
    ]


def test_people_get_progress_and_a_table(tree: Path, tmp_path: Path) -> None:
    """Inherited variables and a .env do not reach the servers of the demo."""
    (tmp_path / ".env").write_text("NONET_REDIS_URL=redis://127.0.0.1:1/0\nNONET_CONCURRENCY=1\n")
    inherited = {
        "NONET_REDIS_URL": "redis://127.0.0.1:1/0",
        "NONET_DB_URL": "mysql+aiomysql://root@127.0.0.1:1/production",
        "NONET_TASKS": "no.such.module",
        "NONET_LEASE": "2",
        "NONET_LOCK_TTL": "1",
    }
    done = _run(tree, tmp_path / "state", options=(), environment=inherited)
    assert done.returncode == 0, done.stderr
    figures = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines()[:9])
    names = "files|bytes|duplicate groups|wasted bytes|retries|dead letters|tasks|seconds|"
    assert list(figures) == [*(names + "tasks per second").split("|")]
    assert figures["files"] == "261"
    assert "hashing 261 files" in done.stderr


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    """One line names it; the exit code is 2."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing", tmp_path / "file"):
        done = _run(path, tmp_path / "state")
        assert done.returncode == 2
        assert str(path) in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_stops_everything(tree: Path, tmp_path: Path, number: signal.Signals) -> None:
    """No process is left; after Ctrl-C the exit code says that there is no result."""
    with _start(tree, tmp_path / "state") as demo:
        wait_until(lambda: _processes(tmp_path / "state"), "it runs")
        demo.send_signal(number)
        out, error = demo.communicate(timeout=WAIT_SECONDS)
    wait_until(lambda: not _processes(tmp_path / "state"), "no process is left")
    if number != signal.SIGKILL:
        assert (demo.returncode, json.loads(out)["error"]["exit_code"]) == (1, 1)
        assert "stopped by a signal" in error


def test_two_demos_at_once_report_their_own_trees(tree: Path, tmp_path: Path) -> None:
    """They share a state directory; one of the trees is empty."""
    (tmp_path / "empty").mkdir()
    state = tmp_path / "state"
    with _start(tree, state) as first, _start(tmp_path / "empty", state) as second:
        documents = [
            json.loads(demo.communicate(timeout=WAIT_SECONDS)[0]) for demo in (first, second)
        ]
    assert [document["files"] for document in documents] == [261, 0]
    assert documents[1]["duplicate_groups"] == []


def _run(tree: Path, state: Path, **given: Any) -> subprocess.CompletedProcess[str]:
    with _start(tree, state, **given) as demo:
        out, error = demo.communicate(timeout=WAIT_SECONDS)
    return subprocess.CompletedProcess(demo.args, demo.returncode, out, error)


def _start(
    tree: Path,
    state: Path,
    options: tuple[str, ...] = ("--json",),
    environment: dict[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NONET_")}
    command, forks = shim("task-run")
    if before is not None:  # what is done before a real start
        command = [str(Path(sys.executable).with_name("task-run"))]
    return subprocess.Popen(
        [*command, "demo", *options, str(tree)],
        env={**kept, **forks, **(environment or {}), "NONET_STATE_DIR": str(state)},
        cwd=state.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
    )


def _document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _by_sha256sum(tree: Path) -> tuple[dict[str, int], list[list[str]]]:
    """Sizes by path and the groups of duplicates, from find and sha256sum."""
    found = subprocess.run(["find", tree, "-type", "f", "-print0"], capture_output=True, check=True)
    paths = found.stdout.split(b"\0")[:-1]
    command = ["xargs", "-0", "sha256sum", "-z"]
    sums = subprocess.run(command, input=found.stdout, capture_output=True, check=True)
    by_digest = defaultdict(list)
    for line in sums.stdout.split(b"\0")[:-1]:
        by_digest[line[:64]].append(os.fsdecode(line[66:]))
    groups = sorted(sorted(group) for group in by_digest.values() if len(group) > 1)
    return {os.fsdecode(path): os.lstat(path).st_size for path in paths}, groups


def _give_up_rights() -> None:
    """Make file modes count for root, too, in the programs that this process becomes."""
    if os.geteuid() == 0:
        for right in (1, 2):  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
            if ctypes.CDLL(None).prctl(24, right, 0, 0, 0):  # PR_CAPBSET_DROP
                os._exit(99)


def _processes(state: Path) -> set[int]:
    """Processes that work in a state directory, as the server does."""
    found = set()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.readlink(process / "cwd").startswith(str(state)):
                found.add(int(process.name))
        except OSError:  # it has just ended
            continue
    return found
