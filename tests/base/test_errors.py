"""The tree of errors, and the names that an error suggests."""

import inspect
import pickle
import re
from typing import Any

import pytest

import nonet
from nonet import BaseTask
from nonet.base import errors
from nonet.base.errors import (
    CpuLimitExceeded,
    InvalidArgumentsError,
    MemoryLimitExceeded,
    NonetError,
    NotBoundError,
    RegistrationError,
    TaskCrashed,
    TaskFailed,
    UnknownTaskError,
    masked,
    nearest,
    suggestion,
    url_problem,
)

TREE = errors.__doc__ or ""
DEFINED = {
    name: item
    for name, item in vars(errors).items()
    if inspect.isclass(item) and issubclass(item, NonetError)
}


def parents() -> dict[str, str]:
    """Each error of the docstring's tree and its parent there."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in TREE.splitlines():
        if row := re.match(r"^    ([│├└─ ]*)([A-Z]\w+)", line):
            depth = len(row[1]) // 4
            del above[depth:]
            found[row[2]] = above[-1] if above else ""
            above.append(row[2])
    return found


def test_every_error_is_public_documented_and_in_the_tree_below_its_base() -> None:
    tree = parents()
    assert set(tree) == set(DEFINED) <= set(nonet.__all__)
    assert [name for name, cls in DEFINED.items() if not cls.__doc__] == []
    for name, parent in tree.items():
        if parent:
            assert DEFINED[parent] in DEFINED[name].__bases__, name


NAMES = ["files:RemoveFile", "files:Audit", "jobs:Audit", "jobs:SubmitPilots"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("RemoveFle", ["files:RemoveFile"]),
        ("files:RemoveFle", ["files:RemoveFile"]),
        ("removefile", ["files:RemoveFile"]),
        ("Xyz", []),
        ("", []),
    ],
)
def test_nearest_names(name: str, expected: list[str]) -> None:
    """The best match comes first, by the full name or by its last part; nothing from nothing."""
    assert nearest(name, NAMES)[:1] == expected
    assert nearest(name, []) == []


def test_at_most_three_names_are_suggested() -> None:
    assert len(nearest("task", [f"task{i}" for i in range(10)])) == 3
    assert suggestion("Audt", ["files:Audit"]) == " Did you mean files:Audit?"
    assert suggestion("Xyz", ["files:Audit"]) == ""


def test_the_error_of_an_unknown_task_names_the_nearest_or_the_next_step() -> None:
    assert str(UnknownTaskError("Audt", ["files:Audit"])) == (
        "unknown task 'Audt'. Did you mean files:Audit?"
    )
    assert "pass --tasks MODULE" in str(UnknownTaskError("Audit"))


def test_errors_carry_their_parts() -> None:
    invalid = InvalidArgumentsError("Audit", ["path: missing", "depth: too small"])
    assert str(invalid) == "Audit: path: missing; depth: too small"
    assert (invalid.task, len(invalid.problems)) == ("Audit", 2)
    failed = TaskFailed("dead", error_type="ValueError", reason="retries")
    assert (failed.error_type, failed.reason) == ("ValueError", "retries")
    assert issubclass(RegistrationError, ValueError)


class Early(BaseTask):
    async def execute(self) -> None: ...


async def test_a_task_scheduled_without_application_is_a_runtime_error() -> None:
    """Code that was written for DiracX catches one."""
    with pytest.raises(RuntimeError, match="no application is open") as caught:
        await Early().schedule()
    assert type(caught.value) is NotBoundError


@pytest.mark.parametrize(
    ("ending", "kind", "text"),
    [
        ({"signal": 11}, TaskCrashed, "its process was killed by signal 11 (SIGSEGV)"),
        ({"signal": 9}, TaskCrashed, "by signal 9 (SIGKILL): by the kernel if memory was short"),
        ({"signal": 99}, TaskCrashed, "its process was killed by signal 99"),
        ({"exit_code": 0}, TaskCrashed, "its process exited with code 0"),
        ({}, TaskCrashed, "its process ended for an unknown reason"),
        ({"signal": 9, "allowed": 512 * 2**20}, MemoryLimitExceeded, "its memory limit of 512 MiB"),
        ({"signal": 24, "allowed": 1.5}, CpuLimitExceeded, "exceeded its CPU limit of 1.5 s"),
        ({}, CpuLimitExceeded, "its process exceeded its CPU limit"),
    ],
)
def test_a_crash_says_how_the_process_ended(
    ending: dict[str, Any], kind: type[TaskCrashed], text: str
) -> None:
    error = kind(**ending)
    assert text in str(error)
    limit = {MemoryLimitExceeded: "memory", CpuLimitExceeded: "cpu"}.get(kind, "")
    parts = {"signal": None, "exit_code": None, "limit": limit, "allowed": None} | ending
    assert {name: getattr(error, name) for name in parts} == parts
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.__dict__) == (kind, str(error), error.__dict__)


def test_a_crash_may_have_its_own_text() -> None:
    error = MemoryLimitExceeded("too much", allowed=5)
    assert (str(error), error.limit, error.allowed) == ("too much", "memory", 5)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h", "redis://h"),
        (
            "redis://user:secret@h:1/0?password=secret&db=1",
            "redis://user:***@h:1/0?password=***&db=1",
        ),
        ("redis://:sec:ret@[::1]:6379/0", "redis://:***@[::1]:6379/0"),
        ("mysql+aiomysql://u:%40secret@/db", "mysql+aiomysql://u:***@/db"),
        ("unix://u:secret@/run/redis", "unix://u:***@/run/redis"),
        ("unix:///run/me@home?password=se@cret", "unix:///run/me@home?password=***"),
        ("sqlite+aiosqlite:////home/a:b@c/nonet.db", "sqlite+aiosqlite:////home/a:b@c/nonet.db"),
        ("embedded://", "embedded://"),
    ],
)
def test_a_plain_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert (url_problem(url), masked(url)) == ("", shown)


@pytest.mark.parametrize(
    "url",
    [
        *("redis://:secret/x@h:6379/0", "redis://:a@secret/@h/0", "mysql://u:s3@secret@h/x"),
        *(
            "redis://:se?secret@h/0",
            "redis://:#secret@h/0",
            "redis://:secret",
            "redis://u:secret/0",
        ),
        *("mysql:u:secret@h/x", "host=h password=secret", "secret", "redis:///:secret@h"),
    ],
)
def test_an_ambiguous_url_is_not_shown(url: str) -> None:
    assert "percent-encode" in url_problem(url)
    assert "secret" not in masked(url) + url_problem(url)
