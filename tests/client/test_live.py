"""The configuration that a process applies, followed on a real server."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
from clients import client_of

from nonet import BaseTask, Priority, RetryPolicyBase, Size
from nonet.client.envelopes import Envelopes
from nonet.client.live import LiveConfig
from nonet.config.reading import parse_config
from nonet.messages.signing import Signer
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.publication import Publication
from nonet.stores.queue.broker import Broker
from nonet.tasks.execution import TaskContext, current_subject, enter_subject
from nonet.tasks.registry import Registry
from nonet.tasks.task import Options


@dataclass
class Remove(BaseTask):
    vo: str = ""

    async def execute(self) -> None: ...


@pytest.fixture
def registry() -> Registry:
    found = Registry()
    found.add(Remove, "files")
    return found


@pytest.fixture
def publication(broker: Broker) -> Publication:
    return Publication(broker.client, "test")


@pytest.fixture
def live(publication: Publication, registry: Registry) -> LiveConfig:
    return LiveConfig(publication, registry)


@pytest.fixture
async def term(broker: Broker) -> str:
    return await Leadership(broker, "test").lead("a", 30, "{}") or ""


async def publish(publication: Publication, term: str, text: str, *, raw: str = "") -> str:
    """Publish a configuration (or other text as one); its version."""
    config = parse_config(text, "c.yaml")
    version = raw[:12] or config.fingerprint()[:12]
    document = raw or config.document()
    assert await publication.publish(term, version, document, source="s", revision="", who="w")
    return version


def priority(live: LiveConfig, registry: Registry, vo: str = "") -> Priority:
    return live.overrides.effective(registry.get("Remove"), vo).priority


URGENT = "common: {tasks: {Remove: {priority: realtime}}}"
LATER = "common: {tasks: {Remove: {priority: background}}}"


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("{}", "tenant|lhcb"),
        ("{fairness: {by: 'label:other'}}", ""),
        ("fairness: {by: class}", "tenant|files:Remove"),
        ("{fairness: {by: 'label:team'}, ceilings: {tenants: {a: 5}}}", "tenant|blue"),
    ],
)
async def test_a_submission_names_its_tenant(
    live: LiveConfig, publication: Publication, registry: Registry, term: str, text: str, terms: str
) -> None:
    """Fair shares say who is one; without them it is the VO."""
    await live.follow(await publish(publication, term, text))
    envelopes = Envelopes(registry, live, Signer(), message_limit=10_000)
    prepared = envelopes.prepare(Remove("lhcb"), Options(labels={"team": "blue"}))
    assert prepared.terms == terms


async def test_a_process_follows_what_is_published(
    live: LiveConfig, publication: Publication, registry: Registry, term: str
) -> None:
    """Each version is applied as soon as somebody tells of it; no publication changes nothing."""
    await live.follow("")
    assert (live.version, priority(live, registry)) == ("", Priority.NORMAL)
    for text, expected in ((URGENT, Priority.REALTIME), (LATER, Priority.BACKGROUND)):
        version = await publish(publication, term, text)
        await live.follow(version)
        assert (live.version, priority(live, registry)) == (version, expected)
    await live.follow(await publish(publication, term, "{}"))
    assert priority(live, registry) == Priority.NORMAL


async def test_its_lines_are_about_no_task(
    live: LiveConfig, publication: Publication, term: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if it is a task that looks, such as one that submits others."""
    version = await publish(publication, term, URGENT)
    seen = []

    def see(_record: logging.LogRecord) -> bool:
        seen.append(current_subject())
        return True

    caplog.handler.addFilter(see)
    enter_subject(TaskContext("a", "files:Remove", 1, 1, {}))
    with caplog.at_level(logging.INFO, "nonet.client.live"):
        await live.follow(version)
    caplog.handler.removeFilter(see)
    assert (live.version, seen) == (version, [None])


async def test_it_is_kept_through_a_wipe(
    broker: Broker, live: LiveConfig, publication: Publication, registry: Registry, term: str
) -> None:
    """Redis without data says nothing about the configuration."""
    version = await publish(publication, term, URGENT)
    await live.follow(version)
    await broker.client.flushall()
    await live.follow(await publication.version())
    assert (live.version, priority(live, registry)) == (version, Priority.REALTIME)


async def test_what_cannot_be_read_changes_nothing(
    live: LiveConfig,
    publication: Publication,
    registry: Registry,
    term: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A document of a newer nonet is told of once, the last one stays until one can be read."""
    first = await publish(publication, term, URGENT)
    await live.follow(first)
    newer = await publish(publication, term, "{}", raw='{"nuances": {}}')
    with caplog.at_level(logging.ERROR, "nonet.client.live"):
        for _ in range(3):
            await live.follow(newer)
    assert (live.version, priority(live, registry)) == (first, Priority.REALTIME)
    assert "nuances" in live.problem and len(caplog.records) == 1
    await live.follow(await publish(publication, term, LATER))
    assert (live.problem, priority(live, registry)) == ("", Priority.BACKGROUND)
    # Also back to the one that was applied all the time.
    await live.follow(await publish(publication, term, "{}", raw='{"nuances": {}}'))
    assert live.problem
    await live.follow(await publish(publication, term, LATER))
    assert live.problem == ""


class EndingLive(RetryPolicyBase):
    def model_post_init(self, context: object) -> None:
        raise SystemExit(7)


POLICY = '{"common": {"tasks": {"Remove": {"retry-policy": {"class": "EndingLive"}}}}}'


@pytest.mark.parametrize("raw", ["[" * 100_000, "[" + "9" * 5000 + "]", "null", POLICY])
async def test_a_document_may_be_anything(
    live: LiveConfig,
    publication: Publication,
    registry: Registry,
    term: str,
    caplog: pytest.LogCaptureFixture,
    raw: str,
) -> None:
    """What nobody can read, or whose policy ends the process, is told once and changes nothing."""
    first = await publish(publication, term, URGENT)
    await live.follow(first)
    for _ in range(3):
        await live.follow(await publish(publication, term, "{}", raw=raw))
    assert (live.version, priority(live, registry)) == (first, Priority.REALTIME)
    assert live.problem and len(caplog.records) == 1


async def test_only_known_classes_count(
    live: LiveConfig, publication: Publication, registry: Registry, term: str
) -> None:
    """What is said of a class that only others have needs not be understood here."""

    class Elsewhere(RetryPolicyBase): ...

    foreign = "common: {tasks: {%s: {retry-policy: {class: Elsewhere}}}}"
    documents = [parse_config(foreign % name, "c.yaml").document() for name in ("Other", "Remove")]
    unknown = [text.replace("Elsewhere", "Nowhere") for text in documents]
    await live.follow(await publish(publication, term, "{}", raw=unknown[0]))
    assert live.problem == ""
    other = LiveConfig(publication, registry)
    text = unknown[1].replace('{"common"', '{ "common"')  # another version
    await other.follow(await publish(publication, term, "{}", raw=text))
    assert "common.tasks.Remove.retry-policy: unknown retry policy 'Nowhere'" in other.problem


async def test_submitting_looks_once_a_second(
    broker: Broker, publication: Publication, registry: Registry, term: str
) -> None:
    """Many submissions ask once, the first ones wait for the answer, later ones see the change."""
    client = client_of(broker, registry)
    await publish(publication, term, URGENT + "\nvo-overrides: {lhcb: {tasks: {Remove: {}}}}")
    before = await broker.client.info("commandstats")
    handles = await asyncio.gather(*(client.submit(Remove()) for _ in range(50)))
    more = await client.submit_many([Remove(), Remove("lhcb")])
    after = await broker.client.info("commandstats")
    looks = after["cmdstat_hget"]["calls"] - before.get("cmdstat_hget", {"calls": 0})["calls"]
    assert {(await item.status()).stream for item in handles} == {"realtime:medium"}
    assert [(await item.status()).stream for item in more] == ["realtime:medium", "normal:medium"]
    assert looks < 20
    await publish(publication, term, LATER)
    deadline, stream = time.monotonic() + 20, ""
    while stream != "background:medium" and time.monotonic() < deadline:
        stream = (await (await client.submit(Remove())).status()).stream
    assert stream == "background:medium"
    await client.aclose()


async def test_labels_of_a_submission_count_first(
    broker: Broker, publication: Publication, registry: Registry, term: str
) -> None:
    """Label before VO before common before class, for priority and size each."""
    client = client_of(broker, registry)
    await publish(
        publication, term, URGENT + "\nvo-overrides: {lhcb: {tasks: {Remove: {size: large}}}}"
    )
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


async def test_without_redis_a_submission_keeps_what_it_has(registry: Registry) -> None:
    """To look fails silently, and not again at once: whatever submits says what is wrong."""
    broker = Broker(
        "redis://127.0.0.1:1", "test", lock_ttl=30, lease=45, result_ttl=60, dedup_ttl=60
    )
    live = LiveConfig(Publication(broker.client, "test"), registry)
    await live.refresh()
    assert (live.version, live.problem) == ("", "")
    async with asyncio.timeout(1):
        for _ in range(1000):
            await live.refresh()
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
        await app.client.live_config.refresh()
        print("applied", app.client.live_config.version)

MAIN = threading.main_thread()
sys.meta_path.insert(0, Watcher())
asyncio.run(look())
"""


async def test_the_first_configuration_blocks_no_loop(
    publication: Publication, term: str, broker: Broker
) -> None:
    """What reads it is imported by then, which takes long, in a thread beside the loop."""
    version = await publish(publication, term, "common: {}")
    command = [sys.executable, "-c", _FIRST_LOOK, broker.url]
    made = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert made.stdout.splitlines() == [
        "imported in the thread of the loop: False",
        f"applied {version}",
    ], made.stderr


async def test_values_of_pipelines_are_applied_live(
    live: LiveConfig, publication: Publication, term: str
) -> None:
    """A pipeline that this process does not know is kept too; a broken document changes nothing."""
    await live.follow(await publish(publication, term, "pipelines: {volumes: {workers: 40}}"))
    assert live.pipelines["volumes"].workers == 40
    await live.follow(await publish(publication, term, "pipelines: {disks: {pause: true}}"))
    assert list(live.pipelines) == ["disks"]
    broken = '{"pipelines": {"disks": {"workers": 0}}}'
    await live.follow(await publish(publication, term, "{}", raw=broken))
    assert "pipelines.disks.workers" in live.problem
    assert live.pipelines["disks"].pause
