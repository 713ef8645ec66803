"""The users of ``docs/how-to/prepare-redis.md``: what each needs, and no more."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import preloaded
import pytest
import redis
from topologies.acl import AclServer, users

import nonet.stores
from nonet.stores.connection.redis import script

NAMESPACE = "nonet"
SCRIPTS = Path(nonet.stores.__path__[0]) / "scripts"
FOR_TESTS = {"advance", "survey"}
OF_CLIENTS = (
    *("submit", "room", "wait", "cancel", "hold", "unhold", "explain", "presence", "log_event"),
    *("group_open", "group_seal", "list"),
    *("workflow_stage", "workflow_cancel", "workflow_resume", "workflow_list", "workflow_steps"),
)
OUTSIDE = {
    *("ping", "eval", "evalsha", "blpop", "llen", "lrange", "hscan", "scan", "sscan", "zmscore"),
    *("multi", "exec", "wait", "cluster|slots", "info"),
}
LOOKS = (
    *("overview", "queues", "workers", "list", "status {}", "explain {}", "locks", "limits list"),
    *("schedules", "history", "figures", "tenants", "groups", "workflows", "workflows show w"),
    *("quarantine list", "events", "config show --task probe_tasks:Quick"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[AclServer]:
    with AclServer(NAMESPACE) as server:
        yield server


def called_by(names: set[str], known: set[str]) -> set[str]:
    """The commands that these scripts name."""
    text = "\n".join(script(name)[0] for name in names)
    code = re.sub(r"--.*", "", text)
    # The script probe says KEYS of keys, which is a command, too.
    return {name.lower() for name in re.findall(r"'([A-Z]{2,})'", code)} & known - {"keys"}


def test_each_role_may_call_the_commands_of_its_scripts_and_no_more(server: AclServer) -> None:
    with server.client() as client:
        known = set(client.execute_command("COMMAND LIST"))
    every = {path.stem for path in SCRIPTS.glob("*.lua")} - FOR_TESTS
    of_daemons = called_by(every, known) | OUTSIDE
    of_clients = called_by(set(OF_CLIENTS), known) | OUTSIDE
    keys = f"~{{{NAMESPACE}}}:*"
    for role in ("worker", "scheduler", "operator"):
        assert allowed(role) == (of_daemons, [keys])
    assert allowed("client") == (of_clients, [keys])
    commands, patterns = allowed("monitor")
    assert patterns == [keys.removesuffix("*"), f"%R{keys}"]  # a script names the prefix as its key
    assert commands <= of_daemons - {"set", "del", "hset", "zadd", "xadd", "xreadgroup"}


def allowed(role: str) -> tuple[set[str], list[str]]:
    """Commands and key patterns of a role, as the documentation says."""
    rules = users(NAMESPACE)[f"nonet-{role}"]
    commands = {rule[1:] for rule in rules if rule.startswith("+")}
    return commands, [rule for rule in rules if rule[0] in "~%"]


def test_no_user_may_touch_other_keys_and_no_client_may_take_tasks(server: AclServer) -> None:
    for user in users(NAMESPACE):
        with redis.Redis.from_url(server.url_of(user)) as client:
            for command in (
                ("GET", "{other}:x"),
                ("EVAL", "return 1", "1", "{other}:"),
                ("KEYS", "*"),
            ):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*command)
    refused = pytest.raises(redis.exceptions.NoPermissionError)
    with redis.Redis.from_url(server.url_of("nonet-client")) as client, refused:
        client.xreadgroup("workers", "me", {"{nonet}:tasks:normal:small": ">"})
    refused = pytest.raises(redis.exceptions.ResponseError, match=r"can't (run|access)")
    with redis.Redis.from_url(server.url_of("nonet-monitor")) as client, refused:
        client.eval("return redis.call('SET', KEYS[1] .. 'x', 1)", 1, "{nonet}:")


# Runs commands of ``task-run`` in one process, as each start costs half a second.
_IN_TURN = """
import sys
from nonet.cli.run import app
for line in sys.argv[1:]:
    try:
        code = app(line.split(), standalone_mode=False)
    except SystemExit as end:
        code = end.code
    if code:
        print(f"FAILED {line}: {code}", file=sys.stderr)
"""


# Submits two workflows, reads one and cancels the other.
_A_WORKFLOW = """
import asyncio
from nonet import Nonet, chain
async def main():
    async with Nonet.from_settings() as app:
        Quick = app.registry.find("probe_tasks:Quick").cls
        run = await chain(Quick(), Quick(), Quick()).submit(id="w")
        await run.status()
        await run.steps()
        await (await chain(Quick(), Quick()).submit()).cancel("no")
asyncio.run(main())
"""


def test_a_monitor_sees_all_and_changes_nothing(server: AclServer, tmp_path: Path) -> None:
    submitted = run(server, tmp_path, "nonet-client", "submit", "probe_tasks:Quick")
    assert submitted.returncode == 0, submitted.stderr
    with server.client() as client:
        client.acl_log_reset()
    made = run(server, tmp_path, "nonet-client", "-c", _A_WORKFLOW, program="python")
    assert (made.returncode, server.denials()) == (0, set()), made.stderr
    with server.client() as client:
        before = {key: client.dump(key) for key in client.scan_iter()}
    commands = [look.format(submitted.stdout.strip()) for look in LOOKS]
    answer = run(server, tmp_path, "nonet-monitor", "-c", _IN_TURN, *commands, program="python")
    assert (answer.returncode, server.denials()) == (0, set())
    assert "FAILED" not in answer.stderr and "Traceback" not in answer.stderr, answer.stderr
    with server.client() as client:
        assert {key: client.dump(key) for key in client.scan_iter()} == before


def test_a_daemon_that_lacks_a_permission_names_it(server: AclServer, tmp_path: Path) -> None:
    rules = [*users(NAMESPACE)["nonet-worker"], "-zadd"]
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "nonet-worker", *rules)
        try:
            answer = run(server, tmp_path, "nonet-worker", "--size", "small", program="task-worker")
        finally:
            client.execute_command("ACL", "SETUSER", "nonet-worker", *rules[:-1])
    assert answer.returncode == 2
    assert "zadd" in answer.stderr and "ACL SETUSER" in answer.stderr
    assert "Traceback" not in answer.stderr


def run(
    server: AclServer, home: Path, user: str, *args: str, program: str = "task-run"
) -> subprocess.CompletedProcess[str]:
    variables = {
        "NONET_REDIS_URL": server.url_of(user),
        "NONET_NAMESPACE": NAMESPACE,
        "NONET_TASKS": "acceptance.probe_tasks",
        "NONET_STATE_DIR": str(home / "state"),
    }
    return preloaded.run(program, *args, variables=variables, cwd=home)
