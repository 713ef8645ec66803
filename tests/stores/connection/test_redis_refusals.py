"""Refusals of Redis become errors of Nonet: a real server refuses in every way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis
from clients import broker_at
from redis import exceptions
from redis._parsers import BaseParser
from servers import RedisServer

from nonet.base.errors import (
    BrokerFullError,
    ConfigurationError,
    NonetError,
    ServerUnreachableError,
)
from nonet.stores.connection.replies import translated
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.leases import Leases
from nonet.stores.queue.submissions import Submission

NAMESPACE = "refused"
SECRET = "s3cret"


@pytest.fixture
def admin(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """Logged in before the server refuses logins, which it no longer does afterwards."""
    with redis_server.client() as client:
        client.ping()
        yield client
        client.config_set("requirepass", "")
        client.acl_deluser("limited")
        client.flushall()


@asynccontextmanager
async def open_broker(url: str) -> AsyncIterator[Broker]:
    broker = broker_at(url, namespace=NAMESPACE)
    try:
        yield broker
    finally:
        await broker.aclose()


async def refusal(url: str, error: type[NonetError]) -> str:
    """What the check at the start of a daemon says, in one line."""
    async with open_broker(url) as broker:
        with pytest.raises(error) as caught:
            await broker.ping()
    assert type(caught.value) is error
    message = str(caught.value)
    assert "\n" not in message and SECRET not in message
    return message


async def test_a_wrong_login_is_a_wrong_setting(
    redis_server: RedisServer, admin: redis.Redis
) -> None:
    """No password, a wrong one and a wrong user; the URL is masked."""
    where = f"127.0.0.1:{redis_server.port}/0"
    admin.config_set("requirepass", "right")
    for login, shown in ((f":{SECRET}@", ":***@"), (f"u:{SECRET}@", "u:***@"), ("", "")):
        message = await refusal(f"redis://{login}{where}", ConfigurationError)
        assert f"redis://{shown}{where} refuses the login" in message
        assert "NONET_REDIS_URL" in message and "does not answer" not in message
    async with open_broker(f"redis://{where}") as broker:
        with pytest.raises(ConfigurationError, match=r"refuses the login .*required"):
            # Not what Redis says of so many arguments: that they come before a login.
            await broker.submit([Submission("x", "n", "normal:small", b"e")] * 100)
    admin.config_set("requirepass", "")
    message = await refusal(f"redis://:{SECRET}@{where}", ConfigurationError)
    assert "without any password" in message


async def test_a_missing_database_is_refused(redis_server: RedisServer) -> None:
    """The number at the end of the URL is named."""
    message = await refusal(f"redis://127.0.0.1:{redis_server.port}/99", ConfigurationError)
    assert "/99 does not have this database" in message


@pytest.mark.parametrize(
    ("rights", "named"),
    [
        ({"commands": ["+ping"], "keys": ["*"]}, "'evalsha' command"),
        ({"categories": ["+@all"], "keys": ["{other}:*"]}, "one of the keys"),
        ({"commands": ["+ping", "+evalsha", "+eval"], "keys": ["*"]}, "script 'leave'"),
    ],
)
async def test_a_missing_permission_is_named(
    redis_server: RedisServer, admin: redis.Redis, rights: dict[str, list[str]], named: str
) -> None:
    """The error has what Redis says, and what to change."""
    admin.acl_setuser("limited", enabled=True, passwords=[f"+{SECRET}"], reset=True, **rights)
    url = f"redis://limited:{SECRET}@127.0.0.1:{redis_server.port}/0"
    message = await refusal(url, ConfigurationError)
    assert named in message and "limited:***@" in message and "ACL SETUSER" in message


async def test_a_failing_script_is_named(redis_server: RedisServer, admin: redis.Redis) -> None:
    """With the first line of Redis, also in synchronous calls of the watchdog."""
    for key in ("workers", "tasks:delayed"):
        admin.set(f"{{{NAMESPACE}}}:{key}", "not a sorted set")
    async with open_broker(redis_server.url) as broker:
        with pytest.raises(NonetError, match="failed in the script 'promote': WRONGTYPE") as caught:
            await broker.promote()
    assert type(caught.value) is NonetError
    times = {"worker_ttl": 1, "lock_ttl": 1, "timeout_seconds": 5}
    for url, error, words in (
        (redis_server.url, NonetError, "failed in the script 'renew': WRONGTYPE"),
        ("redis://127.0.0.1:1", ServerUnreachableError, "does not answer"),
    ):
        leases = Leases(url, NAMESPACE, "w", **times)
        with pytest.raises(error, match=words):
            leases.renew([])
        leases.close()


async def test_another_kind_of_server_is_named() -> None:
    """In one readable line."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with open_broker(f"redis://127.0.0.1:{port}") as broker:
            with pytest.raises((ConfigurationError, ServerUnreachableError)) as caught:
                await broker.ping()
    assert str(port) in str(caught.value) and "\n" not in str(caught.value)


PASSING = (
    *("READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN"),
    *("BUSY", "MISCONF", "NOREPLICAS", "UNBLOCKED"),
)


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        *((f"{code} wait", ServerUnreachableError, f"now: {code} wait") for code in PASSING),
        ("TRYAGAIN wait", ServerUnreachableError, "being moved to another node: TRYAGAIN wait"),
        ("ASK 7 a:1", ServerUnreachableError, "being moved to another node: ASK 7 a:1"),
        ("ERR max number of clients reached", ServerUnreachableError, "cannot be used now: max"),
        ("MOVED 7 127.0.0.1:7001", ConfigurationError, "write redis+cluster://"),
        (
            "ERR user_script:7: ERR The user executing the script can't run this command",
            ConfigurationError,
            "forbids what Nonet needs in the script 's'",
        ),
        ("NOAUTH Authentication required.", ConfigurationError, "refuses the login"),
        ("OOM command not allowed", BrokerFullError, "is out of memory"),
        ("ERR unknown command 'EVALSHA'", ConfigurationError, "lacks what Nonet needs in the sc"),
        ("NOVEL words", ServerUnreachableError, "now in the script 's': NOVEL words"),
        ("ERR too many requests", ServerUnreachableError, "now in the script 's': too many req"),
        ("ERR Script killed: @user_script:7", ServerUnreachableError, "Script killed"),
        ("ERR user_script:7: boom", NonetError, "failed in the script 's': user_script:7: boom"),
        ("NONET another task has the id", NonetError, "failed in the script 's': NONET another"),
        ("WRONGTYPE Operation", NonetError, "failed in the script 's': WRONGTYPE"),
    ],
)
def test_every_error_reply_is_translated(reply: str, error: type[NonetError], said: str) -> None:
    """A script fails for good only if Redis says so; unknown words mean "not now"."""
    made = translated(BaseParser.parse_error(reply), "redis://db.example:6379/0", "s")
    assert type(made) is error
    assert said in str(made) and "redis://db.example:6379/0" in str(made)


@pytest.mark.parametrize(
    ("url", "setting", "is_told"),
    [
        ("redis://127.0.0.1:6379/0", "", True),
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0", False),
        ("redis://db.example:6379/0", "", False),
    ],
)
def test_an_error_says_that_no_server_is_configured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, setting: str, is_told: bool
) -> None:
    """Else the address would come as a surprise."""
    monkeypatch.chdir(tmp_path)  # no .env
    monkeypatch.setenv("NONET_REDIS_URL", setting)
    monkeypatch.delenv("NONET_REDIS_URL_FILE", raising=False)
    said = str(translated(exceptions.ConnectionError("refused"), url))
    assert ("(NONET_REDIS_URL is not set: this is its default;" in said) is is_told
