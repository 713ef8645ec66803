"""What Sentry gets from real daemons, over the transport of the SDK."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
from acceptance.site import Site
from contrib.sentry_tasks import (
    AsksAgain,
    Charges,
    ChargesInChild,
    Daily,
    Declines,
    Dies,
    Inserts,
    Says,
    request_id,
)
from pydantic import SecretStr
from receiver import Receiver
from sentry_sdk.envelope import Envelope
from servers import RedisServer
from waits import WAIT_SECONDS, until

from nonet import BaseTask, CronSchedule, NonetError, RRuleSchedule, carry_context
from nonet.contrib import sentry
from nonet.tasks import carried, middleware
from nonet.tasks.schedules import IntervalSecondsSchedule, TaskScheduleBase
from nonet.tasks.schedules.description import describe
from nonet.testing import System

MODULE = "contrib.sentry_tasks"
Event = Mapping[str, Any]


class Ingest(Receiver):
    """Takes envelopes, as Sentry does.

    Attributes:
        dsn: where to send them.
    """

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self.port}/1"

    @property
    def events(self) -> list[Event]:
        """The reported errors and messages."""
        return self._items("event")

    @property
    def check_ins(self) -> list[Event]:
        """The states of occurrences."""
        return self._items("check_in")

    def _items(self, kind: str) -> list[Event]:
        packed = zip(self.bodies, self.headers, strict=False)
        bodies = [
            gzip.decompress(body) if headers["Content-Encoding"] == "gzip" else body
            for body, headers in packed
        ]
        items = [item for body in bodies for item in Envelope.deserialize(body).items]
        return [json.loads(item.get_bytes()) for item in items if item.type == kind]


@pytest.fixture
def ingest() -> Iterator[Ingest]:
    """Sentry, without what it does with events."""
    made = Ingest()
    yield made
    made.close()


@pytest.fixture
def site(
    redis_server: RedisServer, no_leaked_keys: list[str], tmp_path: Path, ingest: Ingest
) -> Iterator[Site]:
    """Daemons that report to it."""
    made = Site(redis_server, tmp_path)
    made.settings |= {"NONET_TASKS": MODULE, "REPORTED_TO": ingest.dsn}
    yield made
    made.close()


async def run(site: Site, task: BaseTask) -> str:
    """Submit a task and wait for its end."""
    async with site.app() as app:
        handle = await app.submit(task)
        with suppress(NonetError):
            await handle.result(timeout=WAIT_SECONDS)
        return str(handle)


@pytest.mark.parametrize("task", [Charges, ChargesInChild], ids=["loop", "child"])
async def test_each_failed_attempt_is_reported(
    site: Site, ingest: Ingest, task: type[Charges], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry is a warning, the end an error; a process sends them before it ends."""
    monkeypatch.setattr(carried, "_carried", {})
    carry_context(request_id, "request_id")
    request_id.set("4f1c")
    worker = site.worker()
    id = await run(site, task(SecretStr("hunter-2")))
    await until(lambda: len(ingest.events) == 2, "both attempts are reported")
    first, last = sorted(ingest.events, key=lambda event: event["tags"]["nonet.attempt"])
    name = f"sentry_tasks:{task.__name__}"
    assert first["tags"] == {
        "nonet.task": name,
        "nonet.task_id": id,
        "nonet.attempt": "1",
        "nonet.priority": "normal",
        "nonet.size": "small",
        "nonet.namespace": "acceptance",
        "nonet.worker": worker.name,
        "nonet.outcome": "retry",
        "request_id": "4f1c",
    }
    assert (first["level"], first["transaction"]) == ("warning", name)
    assert (last["level"], last["tags"]["nonet.outcome"]) == ("error", "dead")
    (raised,) = last["exception"]["values"]
    assert (raised["type"], raised["value"]) == ("ValueError", "it is ***")
    assert raised["stacktrace"]["frames"][-1]["function"] == "execute"
    assert "threads on import" not in worker.log


async def test_reports_show_no_arguments_values_or_secrets(site: Site, ingest: Ingest) -> None:
    """Variables, values of statements and secrets in breadcrumbs are hidden."""
    site.worker()
    await run(site, Charges(SecretStr("hunter-2")))
    await run(site, Inserts())
    await until(lambda: len(ingest.events) == 3, "all attempts are reported")
    text = json.dumps(ingest.events)
    assert "before it is ***" in text
    assert "INSERT INTO users" in text
    for hidden in ("hunter", "4711", "Ann Onym", '"vars"'):
        assert hidden not in text


async def test_arguments_and_variables_are_reported_if_asked_for(
    site: Site, ingest: Ingest
) -> None:
    """Secrets are masked."""
    site.worker(REPORT='{"arguments": true, "local_variables": true, "retries": false}')
    await run(site, Charges(SecretStr("hunter-2")))
    await until(lambda: ingest.events, "the last attempt is reported")
    (event,) = ingest.events
    assert event["contexts"]["nonet"]["arguments"] == {"password": "**********", "number": 4711}
    (raised,) = event["exception"]["values"]
    assert raised["stacktrace"]["frames"][-1]["vars"]["hidden"] == "'it is ***'"
    assert "hunter" not in json.dumps(event)


async def test_the_death_of_a_process_is_reported(site: Site, ingest: Ingest) -> None:
    """The worker reports it with the tags of the task."""
    site.worker()
    id = await run(site, Dies())
    await until(lambda: ingest.events, "it is reported")
    (event,) = ingest.events
    assert event["tags"]["nonet.task_id"] == id
    assert event["exception"]["values"][-1]["type"] == "TaskCrashed"


async def test_what_is_no_bug_is_not_reported(site: Site, ingest: Ingest) -> None:
    """Requested retries and expected errors are no events; a message of the author is masked."""
    site.worker()
    await run(site, AsksAgain())
    await run(site, Declines())
    await run(site, Says(SecretStr("hunter-2")))
    await until(lambda: ingest.events, "the message is there")
    (event,) = ingest.events
    assert (event["message"], event["tags"]["nonet.task"]) == ("look at ***", "sentry_tasks:Says")


@pytest.fixture
def reporting(ingest: Ingest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The SDK and the middleware, in this process and for this test."""
    monkeypatch.setattr(middleware, "_registered", [])
    monkeypatch.setattr(sentry, "_installed", [])
    sentry_sdk.init(dsn=ingest.dsn, environment="test", default_integrations=False)
    sentry.install(monitor_config={"max_runtime": 30})
    yield
    sentry_sdk.get_global_scope().set_client(None)


async def test_occurrences_are_check_ins_of_a_monitor(
    redis_url: str, ingest: Ingest, reporting: None
) -> None:
    """All attempts are one check-in with the schedule; an ordinary submission makes none."""
    now = datetime(2026, 7, 1, 21, 59, tzinfo=UTC)
    config = {"common": {"periodic-tasks": {"Daily": [{"name": "books"}]}}}
    async with System([Daily], redis_url=redis_url, now=now, config=config) as system:
        await Daily().schedule()
        await system.run_until_idle()
        sentry_sdk.flush(WAIT_SECONDS)
        assert ingest.check_ins == []
        await system.advance(120)
        await system.run_until_idle()
        sentry_sdk.flush(WAIT_SECONDS)
    assert [item["status"] for item in ingest.check_ins] == ["in_progress", "in_progress", "ok"]
    assert len({item["check_in_id"] for item in ingest.check_ins}) == 1
    done = ingest.check_ins[-1]
    assert done["monitor_slug"].endswith("tasks-daily-books")
    assert done["environment"] == "test"
    assert done["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "0 0 * * *"},
        "timezone": "Europe/Zurich",
        "max_runtime": 30,
    }


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (CronSchedule("@daily"), {"type": "crontab", "value": "0 0 * * *"}),
        (IntervalSecondsSchedule(7200), {"type": "interval", "value": 2, "unit": "hour"}),
        (IntervalSecondsSchedule(300), {"type": "interval", "value": 5, "unit": "minute"}),
        (IntervalSecondsSchedule(90), None),
        (IntervalSecondsSchedule(10), {}),
        (RRuleSchedule("FREQ=MONTHLY;BYDAY=-1FR"), None),
    ],
)
def test_a_schedule_is_written_in_the_words_of_sentry(
    schedule: TaskScheduleBase, expected: Any
) -> None:
    """None means that the monitor must exist already, and empty that it runs too often."""
    found = sentry._schedule_of(describe(schedule))
    assert (found["schedule"] if found else found) == expected


def test_slugs_are_short_and_unique() -> None:
    """Sentry allows 50 characters."""
    name = "a_category:AClassWithAVeryLongNameIndeed|vo|entry"
    slugs = {sentry.slug_of(f"{name}-{n}") for n in (1, 2)}
    assert [len(slug) for slug in slugs] == [50, 50]
