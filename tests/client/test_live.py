"""The configuration that a process applies, followed on a real server."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
from clients import broker_at, client_of
from waits import WAIT_SECONDS

from nonet import BaseTask, Priority, RetryPolicyBase, Size
from nonet.base.messages.signing import Signer
from nonet.client.envelopes import Envelopes
from nonet.client.live import LiveConfig
from nonet.config.reading import parse_config
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.publication import Publication
from nonet.stores.queue.broker import Broker
from nonet.tasks.execution import TaskContext, current_subject, enter_subject
from nonet.tasks.registry import Registry
from nonet.tasks.task import Options


class Remove(BaseTask):
    vo: str = ""

    async def execute(self) -> None: ...


URGENT = "common: {tasks: {Remove: {priority: realtime}}}"
LATER = "common: {tasks: {Remove: {priority: background}}}"


@dataclass
class Followed:
    """A process that follows what a leader publishes."""

    publication: Publication
    term: str
    registry: Registry = field(default_factory=Registry)

    def __post_init__(self) -> None:
        self.registry.add(Remove, "files")
        self.live = LiveConfig(self.publication, self.registry)

    async def publish(self, text: str, *, raw: str = "") -> str:
        """Publish a configuration (or other text as one); its version."""
        config = parse_config(text, "c.yaml")
        version = raw[:12] or config.fingerprint()[:12]
        about = {"source": "s", "revision": "", "who": "w"}
        document = raw or config.document()
        assert await self.publication.publish(self.term, version, document, **about)
        return version

    async def follow(self, text: str = "{}", *, raw: str = "") -> str:
        """Publish, and apply it; its version."""
        version = await self.publish(text, raw=raw)
        await self.live.follow(version)
        return version

    @property
    def applied(self) -> tuple[str, Priority]:
        """The version, and the priority of a class in it."""
        effective = self.live.overrides.effective(self.registry.get("Remove"), "")
        return self.live.version, effective.priority


@pytest.fixture
async def followed(broker: Broker) -> Followed:
    term = await Leadership(broker, "test").lead("a", 3600, "{}")
    return Followed(Publication(broker.client, "test"), term or "")


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("{}", "tenant|lhcb"),
        ("{fairness: {by: 'label:other'}}", ""),
        ("fairness: {by: class}", "tenant|files:Remove"),
        ("{fairness: {by: 'label:team'}, ceilings: {tenants: {a: 5}}}", "tenant|blue"),
    ],
)
async def test_a_submission_names_its_tenant(followed: Followed, text: str, terms: str) -> None:
    """The configuration of fair shares says who the tenant is; without it, it is the VO."""
    await followed.follow(text)
    envelopes = Envelopes(followed.registry, followed.live, Signer(), message_limit=10_000)
    prepared = envelopes.prepare(Remove("lhcb"), Options(labels={"team": "blue"}))
    assert prepared.terms == terms


async def test_a_process_follows_what_is_published(followed: Followed) -> None:
    """Each version is applied when its number is known; without a version nothing changes."""
    await followed.live.follow("")
    assert followed.applied == ("", Priority.NORMAL)
    for text, expected in (
        (URGENT, Priority.REALTIME),
        (LATER, Priority.BACKGROUND),
        ("{}", Priority.NORMAL),
    ):
        version = await followed.follow(text)
        assert followed.applied == (version, expected)


async def test_log_lines_about_the_configuration_name_no_task(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    """A task that submits others reads the configuration, too."""
    seen = []

    def see(_record: logging.LogRecord) -> bool:
        seen.append(current_subject())
        return True

    caplog.handler.addFilter(see)
    enter_subject(TaskContext("a", "files:Remove", 1, 1, {}))
    with caplog.at_level(logging.INFO, "nonet.client.live"):
        await followed.follow(URGENT)
    caplog.handler.removeFilter(see)
    assert seen == [None]


async def test_a_wipe_of_redis_keeps_the_configuration(broker: Broker, followed: Followed) -> None:
    """Redis without data says nothing about the configuration."""
    version = await followed.follow(URGENT)
    await broker.client.flushall()
    await followed.live.follow(await followed.publication.version())
    assert followed.applied == (version, Priority.REALTIME)


class EndingLive(RetryPolicyBase):
    def model_post_init(self, context: object) -> None:
        raise SystemExit(7)


NEWER = '{"nuances": {}}'
POLICY = '{"common": {"tasks": {"Remove": {"retry-policy": {"class": "EndingLive"}}}}}'


@pytest.mark.parametrize("raw", [NEWER, "[" * 100_000, "[" + "9" * 5000 + "]", "null", POLICY])
async def test_what_cannot_be_read_changes_nothing(
    followed: Followed, caplog: pytest.LogCaptureFixture, raw: str
) -> None:
    """It is logged once, whatever it is; the last configuration stays until one can be read."""
    first = await followed.follow(URGENT)
    for _ in range(3):
        await followed.follow(raw=raw)
    assert followed.applied == (first, Priority.REALTIME)
    assert followed.live.problem and len(caplog.records) == 1
    for _ in range(2):  # the second time back to the one that was applied all the time
        second = await followed.follow(LATER)
        assert (followed.live.problem, followed.applied) == ("", (second, Priority.BACKGROUND))
        await followed.follow(raw=raw)
        assert followed.live.problem


async def test_only_registered_classes_count(followed: Followed) -> None:
    """A process need not understand what is configured for a class that only others have."""
    policy = '{"common":{"tasks":{"%s":{"retry-policy":{"class":"Nowhere"}}}}}'
    await followed.follow(raw=policy % "Other")
    assert followed.live.problem == ""
    await followed.follow(raw=" " + policy % "Remove")
    expected = "common.tasks.Remove.retry-policy: unknown retry policy 'Nowhere'"
    assert expected in followed.live.problem


async def test_submissions_share_one_query(broker: Broker, followed: Followed) -> None:
    """The first submissions wait for its answer; later ones notice a change."""
    client = client_of(broker, followed.registry)
    await followed.publish(URGENT + "\nvo-overrides: {lhcb: {tasks: {Remove: {}}}}")
    queries = []
    follow = client.live_config._follow

    async def counted(version: str) -> None:
        queries.append(version)
        await follow(version)

    client.live_config._follow = counted  # type: ignore[method-assign]
    handles = await asyncio.gather(*(client.submit(Remove()) for _ in range(50)))
    assert len(queries) < 50
    more = await client.submit_many([Remove(), Remove("lhcb")])
    assert {(await item.status()).stream for item in handles} == {"realtime:medium"}
    assert [(await item.status()).stream for item in more] == ["realtime:medium", "normal:medium"]
    await followed.publish(LATER)
    stream = ""
    async with asyncio.timeout(WAIT_SECONDS):
        while stream != "background:medium":
            stream = (await (await client.submit(Remove())).status()).stream
    await client.aclose()


async def test_labels_of_a_submission_count_first(broker: Broker, followed: Followed) -> None:
    """Label before VO before common before class, for priority and size each."""
    client = client_of(broker, followed.registry)
    await followed.publish(URGENT + "\nvo-overrides: {lhcb: {tasks: {Remove: {size: large}}}}")
    for task, labels, stream in (
        (Remove(), {}, "realtime:medium"),
        (Remove(), {"priority": "background"}, "background:medium"),
        (Remove(), {"size": Size.SMALL}, "realtime:small"),
        (Remove(), {"vo": "lhcb"}, "normal:large"),
        (Remove("lhcb"), {"size": "small"}, "normal:small"),
        (Remove("gridpp"), {"vo": "lhcb"}, "realtime:medium"),
    ):
        handle = await client.submit(task, labels=labels)
        assert (await handle.status()).stream == stream
    await client.aclose()


async def test_a_submission_without_redis_keeps_the_configuration() -> None:
    """The query fails silently and is not repeated at once: the submission reports the error."""
    broker = broker_at("redis://127.0.0.1:1")
    live = LiveConfig(Publication(broker.client, "test"), Registry())
    await live.refresh()
    assert (live.version, live.problem, live.is_due) == ("", "", False)
    await broker.aclose()


_FIRST_LOOK = """
import asyncio, sys, threading
from nonet import Nonet

class Watcher:
    def find_spec(self, name, path=None, target=None):
        if name == "nonet.config.models":
            print("imported in the thread of the loop:", threading.current_thread() is MAIN)

async def look():
    async with Nonet.from_settings(redis_url=sys.argv[1], namespace="test") as app:
        await app.client.live_config.follow(sys.argv[2])
        print("applied", app.client.live_config.version)

MAIN = threading.main_thread()
sys.meta_path.insert(0, Watcher())
asyncio.run(look())
"""


async def test_the_first_configuration_does_not_block_the_loop(
    followed: Followed, broker: Broker
) -> None:
    """The models of the configuration, whose import takes long, are imported in another thread."""
    version = await followed.publish("common: {}")
    command = [sys.executable, "-c", _FIRST_LOOK, broker.url, version]
    made = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    expected = ["imported in the thread of the loop: False", f"applied {version}"]
    assert made.stdout.splitlines() == expected, made.stderr
