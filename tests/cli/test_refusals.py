"""What commands and daemons say to a Redis that refuses them."""

from __future__ import annotations

import pytest
from cli.terminal import Ended, TaskRun

SECRET = "s3cret"
# All of their dependencies are provided, so that nothing else is logged.
TASKS = {"NONET_TASKS": "nonet.cli.demo.tasks"}
DAEMONS = pytest.mark.parametrize(
    ("script", "options"), [("task-worker", ["--size=small"]), ("task-scheduler", [])]
)


def one_line(ended: Ended, code: int) -> str:
    """The one line on stderr of a command that ended with this code."""
    assert (ended.code, ended.out) == (code, "")
    (line,) = ended.err.splitlines()
    assert SECRET not in line
    return line


@pytest.mark.parametrize(
    "rights", ["~* +@all -scan", "~other:* +@all"], ids=["may not scan", "may not read"]
)
async def test_a_command_without_rights_never_prints_an_empty_list(
    task_run: TaskRun, rights: str
) -> None:
    """`locks` is exit code 2 for a user of Redis who may not see them."""
    await task_run("submit", "Add", "--args", "[1]")
    task_run.redis.execute_command("ACL", "SETUSER", "eve", "on", f">{SECRET}", *rights.split())
    url = task_run.environment["NONET_REDIS_URL"].replace("://", f"://eve:{SECRET}@")
    line = one_line(await task_run("locks", NONET_REDIS_URL=url), 2)
    assert "eve:***@" in line and "forbids" in line
    task_run.redis.acl_deluser("eve")


@DAEMONS
async def test_a_daemon_with_a_wrong_password_ends_at_once(
    task_run: TaskRun, script: str, options: list[str]
) -> None:
    """It prints one line and does not try again."""
    url = task_run.environment["NONET_REDIS_URL"].replace("://", f"://user:{SECRET}@")
    line = one_line(await task_run(*options, script=script, NONET_REDIS_URL=url, **TASKS), 2)
    assert "user:***@" in line and "refuses the login" in line
