"""Fill a namespace with an older release, and write what is in Redis and SQL then to a file.

    python tests/upgrade/make.py REVISION

needs the packages of the development environment, redis-server and git. See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMESPACE = "upgrade"
P = f"{{{NAMESPACE}}}:"
ENTRIES = {
    "worker": "from nonet_worker import main",
    "scheduler": "from nonet.cli.entry import schedule as main",
    "run": "from nonet.cli.entry import main",
}


def main() -> None:
    """Run the older release from a clone of this repository, in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("revision", help="of this repository, e.g. a tag")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        asyncio.run(fill(options.revision, Path(options.inside)))
        return
    root = HERE.parent.parent
    revision = git(root, "rev-parse", "--short=7", f"{options.revision}^{{commit}}")
    # The path is in tracebacks, which a fixture keeps: one that tells nothing of this machine.
    with tempfile.TemporaryDirectory(prefix="nonet-") as home:
        old = Path(home, "old")
        for name in ("upgrade_tasks.py", "config.yaml"):
            shutil.copy(HERE / name, home)
        subprocess.run(["git", "clone", "-q", "--shared", root, old], check=True)
        git(old, "checkout", "-q", revision)
        sys.path.insert(0, str(HERE.parent))
        from servers import RedisServer

        with RedisServer() as server:
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(old / "src"), home]),
                "NONET_REDIS_URL": server.url,
                "NONET_NAMESPACE": NAMESPACE,
                "NONET_STATE_DIR": home,
                "NONET_TASKS": "upgrade_tasks",
                "UPGRADE_JOURNAL": str(Path(home, "journal")),
            }
            command = [sys.executable, str(HERE / "make.py"), revision, "--inside", home]
            subprocess.run(command, env=environment, cwd=home, check=True)


def git(where: Path, *words: str) -> str:
    """What git says."""
    done = subprocess.run(["git", "-C", where, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


async def fill(revision: str, home: Path) -> None:
    """Submit tasks of every kind, let daemons of the older release come as far as they are to."""
    import redis
    import upgrade_tasks as tasks

    from nonet import Nonet

    database = home / "nonet.db"
    client = redis.Redis.from_url(os.environ["NONET_REDIS_URL"])
    os.environ["NONET_DB_URL"] = f"sqlite+aiosqlite:///{database}"

    def command(kind: str, *words: str) -> list[str]:
        code = f"import sys; sys.argv[0] = 'task-{kind}'; {ENTRIES[kind]}; main()"
        return [sys.executable, "-c", code, *words]

    async def run(*words: str) -> None:
        await asyncio.to_thread(subprocess.run, command("run", *words), check=True)

    await run("db", "upgrade")
    with ExitStack() as stack:

        def start(kind: str, *words: str) -> subprocess.Popen[bytes]:
            log = stack.enter_context(Path(home, f"log-{kind}").open("wb"))
            daemon = subprocess.Popen(command(kind, *words), stdout=log, stderr=log)
            stack.callback(daemon.wait)
            stack.callback(daemon.send_signal, signal.SIGKILL)
            return daemon

        async with Nonet.from_settings() as app:
            expected: dict[str, Any] = {}

            async def submit(id: str, task: Any, result: Any, **options: Any) -> None:
                await task.schedule(id=id, **options)
                expected[id] = result

            plain = [0, 0, "1.10", 2026]
            await submit("finished", tasks.Plain(), plain)
            await submit("retried", tasks.Retried(), 2)
            await submit("saver", tasks.Saver(), {"page": 3})
            for n in range(3):
                await submit(f"locked-{n}", tasks.Locked(), "locked")
            for n in range(2):
                await submit(f"limited-{n}", tasks.Limited(), "limited")
            await submit("parent", tasks.Parent(), ...)
            await submit("buried", tasks.Buried(), ...)
            await run("pause", "--task", "Paused")
            await submit("paused", tasks.Paused(5), [5, *plain[1:]])
            worker = start("worker", "--size", "small")
            scheduler = start("scheduler", "--config", str(home / "config.yaml"))

            async def is_settled() -> bool:
                seen = {id: await app.status(id) for id in expected}
                states = {id: status.state for id, status in seen.items()}
                return (
                    states["finished"] == states["parent"] == "done"
                    and states["buried"] == "dead"
                    and states["retried"] == "delayed"
                    and states["saver"] == states["limited-0"] == "running"
                    and sorted(states[f"locked-{n}"] for n in range(3))
                    == ["running", "waiting", "waiting"]
                    and states["limited-1"] == states["paused"] == "waiting"
                    and bool(client.exists(f"{P}c:saver", f"{P}config", f"{P}periodic:next"))
                )

            await until(is_settled, "what the worker is to leave")
            for daemon in (worker, scheduler):
                daemon.send_signal(signal.SIGKILL)
                daemon.wait()
            later = datetime.now(UTC) + timedelta(seconds=20)
            await submit("queued", tasks.Plain(1), [1, *plain[1:]])
            await submit("large", tasks.Plain(2, "x" * 500), [2, 500, *plain[2:]])
            await submit("labelled", tasks.Plain(3), [3, *plain[1:]], labels={"vo": "lhcb"})
            await submit("delayed", tasks.Plain(4), [4, *plain[1:]], at_time=later)
            await submit("kept", tasks.Kept(6), [6, *plain[1:]])
            await submit("only", tasks.Only(7), [7, *plain[1:]])
            await submit("other-size", tasks.Sized(8), 8)
            before = set(client.scan_iter(f"{P}*"))
            await submit("kept-in-sql", tasks.Kept(9), [9, *plain[1:]])
            made = {
                "revision": revision,
                "made": datetime.now(UTC).isoformat(timespec="seconds"),
                "expected": {id: value for id, value in expected.items() if value is not ...},
                "redis": list(commands(client, lost=set(client.scan_iter(f"{P}*")) - before)),
            }
    with sqlite3.connect(database) as connection:
        made["sql"] = list(connection.iterdump())
    name = f"{made['made'][:10]}-{revision}.json"
    written = rows(made)
    for host in sorted({socket.getfqdn(), socket.gethostname()}, key=len, reverse=True):
        written = written.replace(f"@{host}", "@host")
    (HERE / "fixtures" / name).write_text(written)
    print(f"wrote tests/upgrade/fixtures/{name}")


def rows(made: dict[str, Any]) -> str:
    """JSON with one command, one statement and one result a line."""
    parts = []
    for name, value in made.items():
        if isinstance(value, list):
            value = "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]"
        elif isinstance(value, dict):
            lines = (f"{json.dumps(id)}: {json.dumps(item)}" for id, item in value.items())
            value = "{\n" + ",\n".join(lines) + "\n}"
        else:
            value = json.dumps(value)
        parts.append(f"{json.dumps(name)}: {value}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for something that daemons do."""
    for _ in range(600):
        if await condition():
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(what)


def commands(client: Any, lost: set[bytes]) -> Any:
    """What makes all keys anew, as text of which each character is a byte; without those lost."""
    for key in sorted(client.scan_iter(f"{P}*")):
        if key in lost:
            continue
        kind = client.type(key).decode()
        yield from ([text(part) for part in command] for command in KINDS[kind](client, key))
        if (ttl := client.pttl(key)) > 0:
            yield ["PEXPIRE", text(key), str(max(ttl, 3_600_000))]


def text(part: Any) -> str:
    return part.decode("latin-1") if isinstance(part, bytes) else str(part)


def of_string(client: Any, key: bytes) -> Any:
    yield "SET", key, client.get(key)


def of_hash(client: Any, key: bytes) -> Any:
    flat = [part for field in sorted(client.hgetall(key).items()) for part in field]
    yield "HSET", key, *flat


def of_list(client: Any, key: bytes) -> Any:
    yield "RPUSH", key, *client.lrange(key, 0, -1)


def of_set(client: Any, key: bytes) -> Any:
    yield "SADD", key, *sorted(client.smembers(key))


def of_zset(client: Any, key: bytes) -> Any:
    flat = [
        p
        for name, score in client.zrange(key, 0, -1, withscores=True)
        for p in (f"{score:.0f}", name)
    ]
    yield "ZADD", key, *flat


def of_stream(client: Any, key: bytes) -> Any:
    for entry, fields in client.xrange(key):
        yield "XADD", key, entry, *[part for field in fields.items() for part in field]
    for group in client.xinfo_groups(key):
        name = group["name"]
        yield "XGROUP", "CREATE", key, name, group["last-delivered-id"], "MKSTREAM"
        for each in client.xpending_range(key, name, "-", "+", 1000):
            words = "IDLE", "0", "FORCE", "JUSTID"
            yield "XCLAIM", key, name, each["consumer"], "0", each["message_id"], *words
    if client.xlen(key) == 0:
        yield "XSETID", key, client.xinfo_stream(key)["last-generated-id"]


KINDS = {
    "string": of_string,
    "hash": of_hash,
    "list": of_list,
    "set": of_set,
    "zset": of_zset,
    "stream": of_stream,
}


if __name__ == "__main__":
    main()
