"""TLS: who is let in, by which URL, and what is said to others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import broker_at
from connections import again, every_kind
from daemons import Daemon
from topologies.tls import TlsServer

from nonet.base.errors import NonetError


@pytest.fixture(scope="module")
def server() -> Iterator[TlsServer]:
    with TlsServer() as server:
        yield server


async def answer(url: str) -> str:
    """The error for a client of this URL; empty: it is let in."""
    broker = broker_at(url)
    try:
        await broker.ping()
    except NonetError as error:
        return str(error)
    finally:
        await broker.aclose()
    return ""


async def test_a_client_without_the_right_files_is_refused_in_one_line(server: TlsServer) -> None:
    assert await answer(server.url) == ""
    untrusted = await answer(server.url.replace("ssl_ca_certs", "ssl_ca_path"))
    assert "certificate verify failed" in untrusted and "check ssl_ca_certs" in untrusted
    without_certificate = await answer(server.url.partition("&")[0])
    plain = await answer(f"redis://127.0.0.1:{server.port}/0")
    for problem in (untrusted, without_certificate, plain):
        assert "\n" not in problem and str(server.port) in problem


async def test_a_daemon_that_does_not_trust_the_server_ends_with_the_parameter_to_check(
    server: TlsServer, tmp_path: Path
) -> None:
    url = server.url.replace("ssl_ca_certs", "ssl_ca_path")
    environment = {"NONET_REDIS_URL": url, "NONET_STATE_DIR": str(tmp_path / "state")}
    with Daemon("task-scheduler", environment=environment, log=tmp_path / "log") as daemon:
        assert daemon.wait() == 2
    assert "check ssl_ca_certs" in daemon.log and "Traceback" not in daemon.log


async def test_new_connections_read_certificates_that_were_replaced() -> None:
    """Of an authority, a server and its clients, under the same names; nothing is restarted."""
    with TlsServer() as server:
        async with every_kind(server.url) as calls:
            for call in calls.values():
                await call()
            server.change_authority()
            for kind, call in calls.items():
                assert await again(call) is None, kind
