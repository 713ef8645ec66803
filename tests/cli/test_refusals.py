"""What commands and daemons say to a Redis that refuses them, and to URLs that they refuse."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from cli.terminal import Ended, TaskRun
from daemons import Daemon
from servers import RedisServer
from waits import until

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
    ("arguments", "redis_url", "kind", "said", "code"),
    [
        (["list"], "redis://127.0.0.1:1", "ServerUnreachableError", "does not answer", 3),
        (["status", "nobody"], "", "NotFoundError", "nobody is unknown", 4),
        (["explain", "nobody"], "", "NotFoundError", "nobody is unknown", 4),
        (["cancel"], "", "ConfigurationError", "which tasks?", 2),
        (["cancel", "nobody"], "", None, "nobody is unknown", 4),
        (["status"], "", "MissingParameter", "Missing argument 'ID'", 2),
        (["list", "--state", "odd"], "", "BadParameter", "'odd' is not one of", 2),
        (["locks", "release", "lock:mutex:job:7"], "", "NotFoundError", "nobody holds", 4),
        (["nothing"], "", "UsageError", "No such command", 2),
    ],
)
async def test_a_failure_is_json_for_programs(
    task_run: TaskRun, arguments: list[str], redis_url: str, kind: str | None, said: str, code: int
) -> None:
    """With `--json` stdout has one line in any case; people read stderr as before."""
    variables = {"NONET_REDIS_URL": redis_url} if redis_url else {}
    ended = await task_run(*arguments, "--json", **variables)
    assert ended.code == code and said in ended.err
    if kind is None:  # the command has an answer of its own for what it does not find
        assert ended.json == [{"id": "nobody", "state": None}]
        return
    error = ended.json["error"]
    assert error.keys() == {"type", "message", "exit_code"}
    assert (error["type"], error["exit_code"]) == (kind, code) and said in error["message"]


async def test_a_command_without_rights_shows_nothing_as_found(task_run: TaskRun) -> None:
    """Where a user may not scan, or not read, `locks` is exit code 2 and never an empty list."""
    await task_run("submit", "Add", "--args", "[1]")
    for name, rights in (("all", ["+@all", "-scan"]), ("keys", ["+@all"])):
        task_run.redis.execute_command(
            *("ACL", "SETUSER", name, "on", f">{SECRET}", "~other:*" if name == "keys" else "~*"),
            *rights,
        )
        url = task_run.environment["NONET_REDIS_URL"].replace("://", f"://{name}:{SECRET}@")
        line = one_line(await task_run("locks", NONET_REDIS_URL=url), 2)
        assert f"{name}:***@" in line and "forbids" in line
        task_run.redis.acl_deluser(name)


@DAEMONS
async def test_a_daemon_that_may_not_in_ends_at_once(
    task_run: TaskRun, script: str, options: list[str]
) -> None:
    """A wrong password at the start is one line and exit code 2, not a loop of retries."""
    url = task_run.environment["NONET_REDIS_URL"].replace("://", f"://user:{SECRET}@")
    line = one_line(await task_run(*options, script=script, NONET_REDIS_URL=url, **TASKS), 2)
    assert "user:***@" in line and "refuses the login" in line


@DAEMONS
async def test_a_daemon_at_a_replica_waits_for_a_master(
    task_run: TaskRun, tmp_path: Path, script: str, options: list[str]
) -> None:
    """A server that only reads is named while it does; what it follows may be away for a moment."""
    with RedisServer() as replica, replica.client() as client:
        client.replicaof("127.0.0.1", "1")
        environment = {**task_run.environment, "NONET_REDIS_URL": replica.url}
        with Daemon(script, *options, environment=environment, log=tmp_path / "log") as daemon:
            await until(lambda: "cannot be used now: READONLY" in daemon.log, "it says why")
            client.replicaof("NO", "ONE")
            daemon.wait_ready()


async def test_daemons_outlast_a_password(task_run: TaskRun, tmp_path: Path) -> None:
    """Refused while they run they log it, try again, and work on when they are let in."""
    with RedisServer() as server, server.client() as admin, ExitStack() as started:
        environment = {**task_run.environment, "NONET_REDIS_URL": server.url}
        environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
        daemons = [
            started.enter_context(
                Daemon(*command, environment=environment, log=tmp_path / command[0])
            ).wait_ready()
            for command in (("task-worker", "--size=small"), ("task-scheduler",))
        ]
        admin.config_set("requirepass", SECRET)
        admin.client_kill_filter(_type="normal", skipme=True)
        for daemon in daemons:
            await until(lambda log=daemon: "refuses the login" in log.log, "refused")
        admin.config_set("requirepass", "")
        options = ("submit", "Add", "--args", "[1]", "--wait", 20)
        assert (await task_run(*options, NONET_REDIS_URL=server.url)).code == 0
        for daemon in daemons:
            assert daemon.alive and "Traceback" not in daemon.log
            lines = [line for line in daemon.log.splitlines() if "refuses the login" in line]
            assert all(" failed" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("REDIS", f"redis://:{SECRET}/x@127.0.0.1:6379/0"),
        ("REDIS", f"redis://:a@{SECRET}/@127.0.0.1/0"),
        ("DB", f"mysql+aiomysql://nonet:x@{SECRET}@127.0.0.1:1/nonet"),
        ("DB", f"mysql+aiomysql:nonet:{SECRET}@db/nonet"),
        ("DB", f"host=db password={SECRET}"),
    ],
)
async def test_a_url_that_can_be_read_in_two_ways_is_refused(
    task_run: TaskRun, name: str, url: str
) -> None:
    """Nothing of it is shown, and the line says to percent-encode the password."""
    line = one_line(await task_run("dlq", "list", **{f"NONET_{name}_URL": url}), 2)
    assert f"NONET_{name}_URL" in line and "percent-encode" in line
