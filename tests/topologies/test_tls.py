"""TLS: who is let in, by which URL, and what is said to others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemons import Daemon
from topologies.tls import TlsServer

from nonet.base.errors import NonetError
from nonet.stores.queue.broker import Broker


@pytest.fixture(scope="module")
def server() -> Iterator[TlsServer]:
    """A server that asks for certificates."""
    with TlsServer() as server:
        yield server


async def answer(url: str) -> str:
    """What a client of this URL is told; empty: it is let in."""
    broker = Broker(url, "test", lock_ttl=30, lease=45, result_ttl=60, dedup_ttl=60)
    try:
        await broker.ping()
    except NonetError as error:
        return str(error)
    finally:
        await broker.aclose()
    return ""


async def test_files_of_the_url_open_the_door(server: TlsServer) -> None:
    """Authority, certificate and key, all three as parameters of the URL."""
    assert await answer(server.url) == ""


async def test_an_unknown_authority_is_named(server: TlsServer) -> None:
    """Without the file of its authority the server is not trusted, and that is what is said."""
    said = await answer(server.url.replace("ssl_ca_certs", "ssl_ca_path"))
    assert "\n" not in said and str(server.port) in said
    assert "certificate verify failed" in said and "check ssl_ca_certs" in said


async def test_a_daemon_ends_at_once_where_it_trusts_nobody(
    server: TlsServer, tmp_path: Path
) -> None:
    """Waiting does not mend a certificate: exit code 2, and the parameter to look at."""
    url = server.url.replace("ssl_ca_certs", "ssl_ca_path")
    environment = {"NONET_REDIS_URL": url, "NONET_STATE_DIR": str(tmp_path / "state")}
    with Daemon("task-scheduler", environment=environment, log=tmp_path / "log") as daemon:
        assert daemon.wait() == 2
    assert "check ssl_ca_certs" in daemon.log and "Traceback" not in daemon.log


async def test_who_has_no_certificate_is_not_let_in(server: TlsServer) -> None:
    """The server drops the connection; that is one readable line."""
    said = await answer(server.url.partition("&")[0])
    assert "\n" not in said and str(server.port) in said


async def test_plain_url_to_a_tls_port_is_no_success(server: TlsServer) -> None:
    """One readable line."""
    said = await answer(f"redis://127.0.0.1:{server.port}/0")
    assert str(server.port) in said and "\n" not in said
