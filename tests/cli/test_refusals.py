"""What commands and daemons say to a Redis that refuses them, and to URLs that they refuse."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from cli.terminal import Ended, TaskRun
from daemons import Daemon
from servers import RedisServer
from waits import WAIT_SECONDS, until

SECRET = "s3cret"
# All of their dependencies are provided, so that nothing else is logged.
TASKS = {"NONET_TASKS": "nonet.demo.tasks"}
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


@DAEMONS
async def test_a_daemon_at_a_replica_waits_for_a_master(
    task_run: TaskRun, script: str, options: list[str]
) -> None:
    """The log names the read-only server; its master may only be away for a moment."""
    with RedisServer() as replica, replica.client() as client:
        client.replicaof("127.0.0.1", "1")
        environment = {**task_run.environment, "NONET_REDIS_URL": replica.url}
        with Daemon(script, *options, environment=environment, log=task_run.home / "log") as daemon:
            await until(lambda: "cannot be used now: READONLY" in daemon.log, "it says why")
            client.replicaof("NO", "ONE")
            daemon.wait_ready()


async def test_daemons_outlast_a_password(task_run: TaskRun) -> None:
    """Daemons that are refused while they run log it and continue when they are let in."""
    with RedisServer() as server, server.client() as admin, ExitStack() as started:
        environment = {**task_run.environment, "NONET_REDIS_URL": server.url}
        environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
        daemons = [
            started.enter_context(
                Daemon(*command, environment=environment, log=task_run.home / command[0])
            ).wait_ready()
            for command in (("task-worker", "--size=small"), ("task-scheduler",))
        ]
        admin.config_set("requirepass", SECRET)
        admin.client_kill_filter(_type="normal", skipme=True)
        for daemon in daemons:
            await until(lambda log=daemon: "refuses the login" in log.log, "refused")
        admin.config_set("requirepass", "")
        options = ("submit", "Add", "--args", "[1]", "--wait", WAIT_SECONDS)
        assert (await task_run(*options, NONET_REDIS_URL=server.url)).code == 0
        for daemon in daemons:
            assert daemon.alive and "Traceback" not in daemon.log
            lines = [line for line in daemon.log.splitlines() if "refuses the login" in line]
            assert all(" failed" in line for line in lines)


async def test_a_url_that_can_be_read_in_two_ways_is_refused(task_run: TaskRun) -> None:
    """The line shows nothing of it and says to percent-encode the password."""
    for name, url in [
        ("REDIS", f"redis://:{SECRET}/x@127.0.0.1:6379/0"),
        ("DB", f"mysql+aiomysql:nonet:{SECRET}@db/nonet"),
        ("DB", f"host=db password={SECRET}"),
    ]:
        line = one_line(await task_run("dlq", "list", **{f"NONET_{name}_URL": url}), 2)
        assert f"NONET_{name}_URL" in line and "percent-encode" in line
