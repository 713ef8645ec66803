"""The demo as its users run it: with its own server, a scheduler and workers."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waits import WAIT_SECONDS

_DEMO = [str(Path(sys.executable).parent / "task-run"), "demo"]
_KEYS = ["files", "bytes", "duplicate_groups", "wasted_bytes", "dead_letters", "tasks", "seconds"]
_PR_CAPBSET_DROP = 24
_RIGHTS_OF_ROOT = (1, 2)  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


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
    """Files, bytes and groups are those of find and sha256sum, and no process remains."""
    done = _run(tree, tmp_path / "state")
    assert done.returncode == 0, done.stderr
    document = _document(done)
    sizes, groups = _by_sha256sum(tree)
    assert list(document) == _KEYS
    assert document["files"] == len(sizes)
    assert document["bytes"] == sum(sizes.values())
    assert document["duplicate_groups"] == groups
    assert document["wasted_bytes"] == sum(sizes[group[0]] * (len(group) - 1) for group in groups)
    assert document["dead_letters"] == 0
    assert document["tasks"] == 3 + 3  # batches; and who lists, gathers, reports
    assert _processes(tmp_path / "state") == set()
    assert list((tmp_path / "state" / "demo").iterdir()) == []


@pytest.mark.soak
def test_usr_share_agrees_with_sha256sum(tmp_path: Path) -> None:
    """The same on tens of thousands of real files: /usr/share, file for file."""
    tree = Path("/usr/share")
    document = _document(_run(tree, tmp_path / "state"))
    sizes, groups = _by_sha256sum(tree)
    assert (document["files"], document["bytes"]) == (len(sizes), sum(sizes.values()))
    assert document["duplicate_groups"] == groups
    assert document["dead_letters"] == 0
    groups_found = len(document.pop("duplicate_groups"))
    print(f"\n/usr/share: {document}, {groups_found} duplicate groups, equal to sha256sum")


def test_an_empty_tree_has_an_empty_report(tmp_path: Path) -> None:
    """No file is no error."""
    (tmp_path / "tree").mkdir()
    document = _document(_run(tmp_path / "tree", tmp_path / "state"))
    assert (document["files"], document["duplicate_groups"]) == (0, [])


def test_an_unreadable_file_is_a_dead_letter(tree: Path, tmp_path: Path) -> None:
    """It is retried alone, ends in the table that the summary names, and its batch is hashed."""
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
    assert show == command.replace(" list", " show ROW --show-args --tasks nonet.demo.tasks")
    letters = json.loads(subprocess.check_output(f"{command} --json", shell=True, text=True))
    assert [(letter["task_class"], letter["retry_count"]) for letter in letters] == 2 * [
        ("tasks:HashFile", 2)
    ]
    assert sorted(letter["error_message"] for letter in letters) == [
        f"[Errno 13] Permission denied: {os.fsencode(path)!r}" for path in unread
    ]


def test_a_person_sees_progress_and_a_table(tree: Path, tmp_path: Path) -> None:
    """Without --json the figures are on stdout and the progress is on stderr."""
    done = _run(tree, tmp_path / "state", options=())
    figures = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines()[:9])
    names = "files|bytes|duplicate groups|wasted bytes|retries|dead letters|tasks|seconds|"
    assert list(figures) == [*(names + "tasks per second").split("|")]
    assert figures["files"] == "261"
    assert "hashing 261 files" in done.stderr


def test_settings_of_the_user_are_left_alone(tree: Path, tmp_path: Path) -> None:
    """Neither inherited variables nor a .env reach the demo: its servers are its own."""
    (tmp_path / ".env").write_text("NONET_REDIS_URL=redis://127.0.0.1:1/0\nNONET_CONCURRENCY=1\n")
    inherited = {
        "NONET_REDIS_URL": "redis://127.0.0.1:1/0",
        "NONET_DB_URL": "mysql+aiomysql://root@127.0.0.1:1/production",
        "NONET_TASKS": "no.such.module",
        "NONET_LEASE": "2",
        "NONET_LOCK_TTL": "1",
    }
    done = _run(tree, tmp_path / "state", environment=inherited)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["missing", "a file"])
def test_a_path_that_is_no_directory_is_refused(tmp_path: Path, kind: str) -> None:
    """Exit code 2, and a sentence that names it."""
    path = tmp_path / "it"
    if kind == "a file":
        path.touch()
    done = _run(path, tmp_path / "state")
    assert done.returncode == 2
    assert str(path) in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_everything(tree: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Within seconds nothing is left, and the exit code says that there is no result."""
    with _start(tree, tmp_path / "state") as demo:
        _wait(lambda: bool(_processes(tmp_path / "state")))
        demo.send_signal(number)
        out, error = demo.communicate(timeout=WAIT_SECONDS)
    assert (demo.returncode, json.loads(out)["error"]["exit_code"]) == (1, 1)
    assert "stopped by a signal" in error
    assert _processes(tmp_path / "state") == set()


def test_a_killed_demo_leaves_no_process(tree: Path, tmp_path: Path) -> None:
    """kill -9 of the command takes everything along."""
    with _start(tree, tmp_path / "state") as demo:
        _wait(lambda: bool(_processes(tmp_path / "state")))
        demo.kill()
    _wait(lambda: _processes(tmp_path / "state") == set())


def test_two_demos_do_not_mix(tree: Path, tmp_path: Path) -> None:
    """Two at once with one state directory report each its own tree."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "only").touch()
    with _start(tree, tmp_path / "state") as first, _start(other, tmp_path / "state") as second:
        documents = [
            json.loads(demo.communicate(timeout=WAIT_SECONDS)[0]) for demo in (first, second)
        ]
    assert [document["files"] for document in documents] == [261, 1]


def _run(
    tree: Path,
    state: Path,
    *,
    options: tuple[str, ...] = ("--json",),
    environment: dict[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    with _start(tree, state, options, environment, before) as demo:
        out, error = demo.communicate(timeout=WAIT_SECONDS)
    return subprocess.CompletedProcess(demo.args, demo.returncode, out, error)


def _start(
    tree: Path | str,
    state: Path,
    options: tuple[str, ...] = ("--json",),
    environment: dict[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NONET_")}
    return subprocess.Popen(
        [*_DEMO, *options, str(tree)],
        env={**kept, **(environment or {}), "NONET_STATE_DIR": str(state)},
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
    """Make file modes count for root too, in the programs that this process becomes."""
    if os.geteuid() == 0:
        for right in _RIGHTS_OF_ROOT:
            if ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, right, 0, 0, 0):
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


def _wait(condition: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)
