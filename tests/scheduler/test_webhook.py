"""What an overview finds is reported to a real server, once."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nonet import ConfigurationError, Nonet
from nonet.config.settings import plain_settings
from nonet.daemon.service import Stop
from nonet.rules.diagnosis import Finding
from nonet.scheduler.webhook import Webhook

SECRET = "key"
NO_WORKER = Finding("worker", "small", "no small worker lives", "task-worker --size small")
LOCKED = Finding("lock", "lock:mutex:job:1", "3 tasks wait", "task-run locks")


@dataclass
class Found:
    """The part of an overview that the webhook reads."""

    findings: list[Finding] = field(default_factory=list)


class Receiver:
    """A server that keeps what it gets, and answers as `status` says."""

    def __init__(self) -> None:
        self.status = 200
        self.bodies: list[bytes] = []
        self.headers: list[Any] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                outer.headers.append(self.headers)
                self.send_response(outer.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/TOKEN"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def told(self) -> list[tuple[str, str]]:
        """The status and subject of all findings that it got."""
        found = [item for body in self.bodies for item in json.loads(body)["findings"]]
        return [(item["status"], item["subject"]) for item in found]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
async def nonet(redis_url: str, tmp_path: Path) -> AsyncIterator[Nonet]:
    settings = plain_settings(redis_url=redis_url, namespace="test", state_dir=tmp_path)
    async with Nonet(settings, load_tasks=False) as opened:
        yield opened


def webhook(nonet: Nonet, url: str, found: Found) -> Webhook:
    """A webhook that looks at each call."""

    async def overview() -> Any:
        return found

    page = "https://nonet.example.org/jobs"
    return Webhook(overview, nonet.stores.alerts, "test", url, SECRET, page, look_seconds=0)


async def lead(nonet: Nonet, owner: str) -> str:
    """Lead as a scheduler, and return the term."""
    term = await nonet.stores.leadership.lead(owner, 60, "{}")
    assert term is not None
    return term


async def test_findings_that_last_are_reported_once(nonet: Nonet, receiver: Receiver) -> None:
    """Two looks must agree, on the beginning and on the end; the next leader repeats nothing."""
    found, term = Found([LOCKED]), await lead(nonet, "one")
    hook = webhook(nonet, receiver.url, found)
    await hook.tick(term)
    found.findings = [NO_WORKER]
    await hook.tick(term)
    assert receiver.told == []
    for _ in range(3):
        await hook.tick(term)
    assert receiver.told == [("new", "small")]
    document = json.loads(receiver.bodies[0])
    assert document["text"] == "[test] new: no small worker lives"
    assert document["findings"][0]["link"] == "https://nonet.example.org/jobs/workers"
    headers = receiver.headers[0]
    signed = headers["X-Nonet-Timestamp"].encode() + b"." + receiver.bodies[0]
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert headers["X-Nonet-Signature"] == f"sha256={digest}"

    await nonet.stores.leadership.resign("one", term)
    term = await lead(nonet, "two")
    successor = webhook(nonet, receiver.url, found)
    for _ in range(3):
        await successor.tick(term)
    assert receiver.told == [("new", "small")]
    found.findings = []
    for _ in range(3):
        await successor.tick(term)
    assert receiver.told == [("new", "small"), ("ended", "small")]


async def test_a_report_that_fails_is_repeated(
    nonet: Nonet, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """With a pause, until it succeeds; a redirect is a failure, and no log has the address."""
    term = await lead(nonet, "one")
    hook = webhook(nonet, receiver.url, Found([NO_WORKER]))
    receiver.status = 302
    await hook.tick(term)
    await hook.tick(term)
    receiver.status = 204
    await hook.tick(term)
    assert len(receiver.bodies) == 1  # it pauses
    async with asyncio.timeout(30):
        while len(receiver.bodies) < 2:
            await asyncio.sleep(0.05)
            await hook.tick(term)
    await hook.tick(term)
    assert receiver.told == [("new", "small")] * 2
    assert "webhook at 127.0.0.1" in caplog.text and "302 Found" in caplog.text
    assert "TOKEN" not in caplog.text


def test_a_wrong_address_is_refused_without_being_shown() -> None:
    """It may hold a token."""
    with pytest.raises(ConfigurationError, match="NONET_WEBHOOK_URL: must be an addr") as raised:
        plain_settings(webhook_url="ftp://hooks.example.org/SECRET")
    assert "SECRET" not in str(raised.value)


async def test_a_scheduler_has_this_duty(redis_url: str, receiver: Receiver) -> None:
    """If its settings name a webhook."""
    settings = plain_settings(redis_url=redis_url, namespace="test", webhook_url=receiver.url)
    async with Nonet(settings, load_tasks=False) as nonet, nonet.injector() as injector:
        stop = Stop()
        running = asyncio.create_task(nonet.scheduler(injector).run(stop))
        async with asyncio.timeout(30):
            while not any(task.get_name() == "webhook" for task in asyncio.all_tasks()):
                await asyncio.sleep(0.02)
                assert not running.done()
        stop.request()
        await running
