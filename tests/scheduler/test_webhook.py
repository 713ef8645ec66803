"""What an overview finds is reported to a real server, once."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from receiver import Receiver
from waits import WAIT_SECONDS

from nonet import ConfigurationError, Nonet
from nonet.config.settings import plain_settings
from nonet.daemon.service import Stop
from nonet.rules.findings.diagnosis import Finding
from nonet.scheduler.webhook import Webhook

SECRET = "key"
NO_WORKER = Finding("worker", "small", "no small worker lives", command="task-worker --size small")
LOCKED = Finding("lock", "lock:mutex:job:1", "3 tasks wait", command="task-run locks")


@dataclass
class Found:
    findings: list[Finding] = field(default_factory=list)


def told(receiver: Receiver) -> list[tuple[str, str]]:
    found = [item for body in receiver.bodies for item in json.loads(body)["findings"]]
    return [(item["status"], item["subject"]) for item in found]


def url_of(receiver: Receiver) -> str:
    return f"http://127.0.0.1:{receiver.port}/TOKEN"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def webhook(url: str, found: Found) -> Webhook:
    """A webhook that checks at each call."""

    async def overview() -> Any:
        return found

    return Webhook(overview, "test", url, SECRET, "https://nonet.example.org/jobs")


async def test_a_finding_of_two_checks_is_reported_once_at_its_begin_and_end(
    receiver: Receiver,
) -> None:
    found = Found([LOCKED])
    hook = webhook(url_of(receiver), found)
    await hook.tick("1")
    found.findings = [NO_WORKER]
    await hook.tick("1")
    assert told(receiver) == []
    for _ in range(3):
        await hook.tick("1")
    assert told(receiver) == [("new", "small")]
    document = json.loads(receiver.bodies[0])
    assert document["text"] == "[test] new: no small worker lives"
    assert document["findings"][0]["link"] == "https://nonet.example.org/jobs/workers?size=small"
    headers = receiver.headers[0]
    signed = headers["X-Nonet-Timestamp"].encode() + b"." + receiver.bodies[0]
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert headers["X-Nonet-Signature"] == f"sha256={digest}"
    found.findings = []
    for _ in range(3):
        await hook.tick("1")
    assert told(receiver) == [("new", "small"), ("ended", "small")]
    ended = json.loads(receiver.bodies[1])["findings"][0]
    assert ended["since"] == document["findings"][0]["since"]


async def test_a_failed_report_is_repeated_without_logging_the_address(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    hook = webhook(url_of(receiver), Found([NO_WORKER]))
    receiver.status = 302
    await hook.tick("1")
    await hook.tick("1")
    receiver.status = 204
    for _ in range(3):
        await hook.tick("1")
    assert told(receiver) == [("new", "small")] * 2
    assert "webhook at 127.0.0.1" in caplog.text and "302" in caplog.text
    assert "TOKEN" not in caplog.text


def test_a_wrong_address_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigurationError, match="NONET_WEBHOOK_URL: must be an addr") as raised:
        plain_settings(webhook_url="ftp://hooks.example.org/SECRET")
    assert "SECRET" not in str(raised.value)


async def test_a_scheduler_with_a_webhook_runs_it(redis_url: str, receiver: Receiver) -> None:
    settings = plain_settings(redis_url=redis_url, namespace="test", webhook_url=url_of(receiver))
    async with Nonet(settings, load_tasks=False) as nonet, nonet.injector() as injector:
        stop = Stop()
        running = asyncio.create_task(nonet.scheduler(injector).run(stop))
        async with asyncio.timeout(WAIT_SECONDS):
            while not any(task.get_name() == "webhook" for task in asyncio.all_tasks()):
                await asyncio.sleep(0.02)
                assert not running.done()
        stop.request()
        await running
