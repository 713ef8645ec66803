"""The HTTP server that answers probes, with real connections on the loopback."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import ports
import pytest
from waits import WAIT_SECONDS, until, wait_until

from nonet.base.errors import ConfigurationError, ServerUnreachableError
from nonet.daemon import health as module, probe_server
from nonet.daemon.answer import Answer, Page
from nonet.daemon.contact import Reached
from nonet.daemon.health import Health, Report, answering_probes, free_port
from nonet.telemetry.metrics import Sample, Samples

HOST = "127.0.0.1"


class Daemon:
    """Something whose state a test can change.

    Attributes:
        says: makes the report.
        counts: its metrics.
    """

    def __init__(self) -> None:
        self.says: Callable[[], Report] = lambda: Report(True, details={"name": "worker-1"})
        self.counts: list[Sample] = []

    def report(self) -> Report:
        return self.says()

    def stuck(self) -> Sequence[str]:
        return ()

    def samples(self) -> Samples:
        return self.counts

    def pages(self) -> Mapping[str, Page]:
        return {}


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
async def health(daemon: Daemon) -> AsyncIterator[Health]:
    async with Health(HOST, 0, daemon.report) as opened:
        yield opened


def ask(
    health: Health | int, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of an answer."""
    port = health if isinstance(health, int) else health.port
    connection = http.client.HTTPConnection(HOST, port, timeout=WAIT_SECONDS)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def say(health: Health, request: bytes) -> bytes:
    """The answer to raw bytes, until the server closes the connection."""
    with socket.create_connection((HOST, health.port), timeout=WAIT_SECONDS) as connection:
        connection.sendall(request)
        return connection.makefile("rb").read()


async def asked(health: Health, path: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON of an answer, while this loop runs."""
    status, body, _ = await asyncio.to_thread(ask, health, path)
    return status, json.loads(body)


async def test_a_ready_daemon_is_ready(health: Health) -> None:
    """The answer is 200 with details as JSON; a query string does not matter."""
    details = {"ready": True, "reasons": [], "name": "worker-1"}
    for path in ("/readyz", "/readyz?verbose=1"):
        assert await asked(health, path) == (200, details)
    status, body = await asked(health, "/livez")
    assert (status, body["live"]) == (200, True)


async def test_a_daemon_that_is_not_ready_gives_reasons(health: Health, daemon: Daemon) -> None:
    """The answer is 503; the daemon stays live."""
    daemon.says = lambda: Report(False, ["Redis is away", "it drains"])
    status, body = await asked(health, "/readyz")
    assert (status, body) == (503, {"ready": False, "reasons": ["Redis is away", "it drains"]})
    assert (await asked(health, "/livez"))[0] == 200


async def test_a_report_that_fails_is_not_ready(
    health: Health, daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer has the kind of the error, and the log a traceback."""

    def fail() -> Report:
        raise KeyError("s3cret")

    daemon.says = fail
    with caplog.at_level(logging.ERROR):
        status, body = await asked(health, "/readyz")
    assert (status, body["reasons"]) == (503, ["no report: KeyError"])
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(("live_seconds", "live"), [(600, 200), (2, 503)])
async def test_a_blocked_loop_is_not_ready_and_later_not_live(
    daemon: Daemon, live_seconds: float, live: int
) -> None:
    """The probes answer while the loop is blocked, and it is ready again afterwards."""
    found = {}

    def look(health: Health) -> None:
        path = "/readyz" if live == 200 else "/livez"
        wait_until(lambda: ask(health, path)[0] == 503, "the block is noticed")
        found.update({path: ask(health, path) for path in ("/livez", "/readyz")})

    assert module.READY_SECONDS < module.LIVE_SECONDS
    async with Health(HOST, 0, daemon.report, live_seconds=live_seconds, ready_seconds=2) as health:
        assert (await asked(health, "/livez"))[0] == 200
        looking = threading.Thread(target=look, args=[health])
        looking.start()
        looking.join()  # blocks the loop
        assert [found[path][0] for path in ("/livez", "/readyz")] == [live, 503]
        assert json.loads(found["/livez"][1])["live"] is (live == 200)
        (reason,) = json.loads(found["/readyz"][1])["reasons"]
        assert reason.startswith("the event loop has been blocked for ")
        await until(lambda: ask(health, "/readyz")[0] == 200, "it is ready again")


async def test_a_loop_between_two_beats_is_not_blocked(health: Health) -> None:
    """The time since a beat is reported only if two beats are missing."""
    told = set()
    ends = time.monotonic() + 1.2
    while time.monotonic() < ends:
        told.add((await asked(health, "/livez"))[1]["blocked_seconds"])
        await asyncio.sleep(0.05)
    assert not [seconds for seconds in told if 0 < seconds <= 2]


async def test_other_paths_and_methods(health: Health) -> None:
    """404 names the paths; HEAD has the headers of GET; another method is 501."""
    status, body = await asked(health, "/")
    assert (status, body) == (404, {"error": "there are /livez and /readyz"})
    assert (await asked(health, "/readyz/"))[0] == 404
    whole = await asyncio.to_thread(ask, health, "/readyz")
    head = await asyncio.to_thread(ask, health, "/readyz", "HEAD")
    assert head[0] == 200
    raw = await asyncio.to_thread(say, health, b"HEAD /readyz HTTP/1.0\r\n\r\n")
    assert raw.endswith(b"\r\n\r\n")
    assert head[2]["Content-Length"] == whole[2]["Content-Length"] == str(len(whole[1]))
    assert whole[1].count(b"\n") == 1
    assert head[2]["Content-Type"] == "application/json"
    assert head[2]["Cache-Control"] == "no-store"
    assert "Python" not in head[2]["Server"]
    assert (await asyncio.to_thread(ask, health, "/readyz", "POST"))[0] == 501


def threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


async def test_silent_clients_are_cut_off(health: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends nothing does not keep a thread."""
    monkeypatch.setattr(probe_server._Handler, "timeout", 0.2)
    with socket.create_connection((HOST, health.port), timeout=WAIT_SECONDS) as connection:
        assert await asyncio.to_thread(connection.recv, 1) == b""
    await until(lambda: threads() == 0, "no thread is left")


async def test_slow_clients_do_not_keep_probes_out(
    health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each probe is answered however many clients are silent; the oldest of these are cut off."""
    monkeypatch.setattr(probe_server._Handler, "timeout", 600)
    monkeypatch.setattr(probe_server, "MOST_CONNECTIONS", 8)
    with ExitStack() as opened:

        def connect() -> socket.socket:
            return opened.enter_context(
                socket.create_connection((HOST, health.port), timeout=WAIT_SECONDS)
            )

        held = [connect() for _ in range(30)]
        for _ in range(15):
            assert (await asked(health, "/livez"))[0] == 200
            held.append(connect())
        assert await asyncio.to_thread(held[0].recv, 1) == b""
        held[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            held[-1].recv(1)
        # The threads of those that were cut off need a moment to end.
        await until(lambda: threads() <= 8, "45 clients hold few threads")
    await until(lambda: threads() == 0, "their threads have ended")


async def test_a_port_in_use_is_a_configuration_error(health: Health, daemon: Daemon) -> None:
    """The error names the port and the setting."""
    with pytest.raises(ConfigurationError) as raised:
        async with Health(HOST, health.port, daemon.report):
            pass
    assert f"port {health.port}" in str(raised.value) and "NONET_METRICS_PORT" in str(raised.value)
    with pytest.raises(ConfigurationError, match=r"cannot listen on 192\.0\.2\.1"):
        async with Health("192.0.2.1", 0, daemon.report):
            pass


async def test_nothing_is_left_at_the_end(daemon: Daemon) -> None:
    """Port, thread and task are gone, even if a client still holds a connection."""
    async with Health(HOST, 0, daemon.report) as health:
        idle = socket.create_connection((HOST, health.port), timeout=WAIT_SECONDS)
        await until(lambda: threads() == 1, "the client is served")
    assert "nonet-health" not in [thread.name for thread in threading.enumerate()]
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "heartbeat"]
    with pytest.raises(OSError):
        socket.create_connection((HOST, health.port), timeout=WAIT_SECONDS)
    async with Health(HOST, health.port, daemon.report):
        pass
    await until(lambda: threads() == 0, "the client's thread has ended")
    idle.close()
    async with answering_probes(HOST, 0, daemon):  # port 0 of the settings: no server
        assert "nonet-health" not in [thread.name for thread in threading.enumerate()]


async def test_ipv6(daemon: Daemon) -> None:
    """An address with colons is one of IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    async with Health("::1", 0, daemon.report) as health:
        socket.create_connection(("::1", health.port), timeout=WAIT_SECONDS).close()


async def test_a_stuck_daemon_is_not_live(daemon: Daemon) -> None:
    """The answer has the reasons."""
    stuck = ["its watchdog has ended"]
    async with Health(HOST, 0, daemon.report, stuck=lambda: stuck) as health:
        status, body = await asked(health, "/livez")
    assert (status, body["live"], body["reasons"]) == (503, False, stuck)


async def test_a_daemon_may_have_other_pages(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    """They get the header Accept; one that fails is a 500 without its error, logged once."""

    def broken(accept: str) -> Answer:
        raise KeyError("s3cret")

    def page(accept: str) -> Answer:
        return Answer(accept.encode(), content_type="text/x-test")

    pages: dict[str, Page] = {"/page": page, "/a": broken, "/b": broken}
    async with Health(HOST, 0, daemon.report, pages=pages) as health:
        status, body, headers = await asyncio.to_thread(ask, health, "/page")
        assert (status, headers["Content-Type"], body) == (200, "text/x-test", b"")
        for path in ("/a", "/b") * 3:
            status, body, _ = await asyncio.to_thread(ask, health, path)
            assert status == 500 and b"s3cret" not in body
        assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["/a", "/b"]
        status, wrong = await asked(health, "/")
        assert (status, wrong["error"]) == (404, "there are /livez, /readyz, /page, /a and /b")


async def test_metrics_of_a_daemon_are_its_own(daemon: Daemon) -> None:
    """Two daemons in one process share nothing; an unknown metric does not make a daemon dead."""
    daemon.counts = [("nonet_leases_lost_total", (), 3)]

    async def scrape(port: int, **headers: str) -> str:
        status, body, _ = await asyncio.to_thread(ask, port, "/metrics", **headers)
        return body.decode() if status == 200 else str(status)

    first, second = ports.free_port(), ports.free_port()
    async with answering_probes(HOST, first, daemon), answering_probes(HOST, second, daemon):
        for port in (first, second):
            text = await scrape(port)
            assert text.count("nonet_leases_lost_total 3.0") == 1
            assert "nonet_ready 1.0" in text and "nonet_build_info{version=" in text
            assert "process_open_fds" in text and "python_info" in text
        open_text = await scrape(first, Accept="application/openmetrics-text")
        assert open_text.endswith("# EOF\n")
        daemon.says = lambda: Report(False, ["it drains"])
        assert "nonet_ready 0.0" in await scrape(first)
        daemon.counts = [("nonet_unheard_of", (), 1)]
        assert await scrape(first) == "500"
        assert (await asyncio.to_thread(ask, first, "/livez"))[0] == 200


async def test_a_server_is_a_problem_until_it_answers() -> None:
    """The problem names the server, or says that it has not answered in time."""
    answers: list[Exception | None] = [ServerUnreachableError("db:3306 does not answer"), None]

    async def ask_it() -> None:
        if (problem := answers.pop(0)) is not None:
            raise problem

    reached = Reached("SQL", ask_it)
    assert reached.problem == "SQL has not been asked yet"
    soon = await reached.look()
    assert reached.problem.startswith("SQL: ") and "db:3306" in reached.problem
    later = await reached.look()
    assert reached.problem == "" and soon < later
    silent = Reached("SQL", asyncio.Event().wait, seconds=0.01)  # type: ignore[arg-type]
    await silent.look()
    assert silent.problem == "SQL: no answer within 0.01 s"


def test_a_port_is_free_if_one_can_listen_there() -> None:
    """Ports that are taken, or reserved by the caller, are skipped; after the last it is 0."""
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
        found = free_port(HOST, port - 1)
        assert found > port
        assert free_port(HOST, port - 1, {found}) > found
    assert free_port(HOST, 65_535) == 0
