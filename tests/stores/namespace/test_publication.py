"""The published configuration on a real server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nonet.stores.namespace.events import Events
from nonet.stores.namespace.publication import Publication
from nonet.stores.queue.broker import Broker

WHO = "nonet@host 1"
SOURCE = "/etc/nonet/config.yaml"


@pytest.fixture
def publication(broker: Broker) -> Publication:
    return Publication(broker.client, "test")


async def publish(
    publication: Publication, term: str, version: str, *, revision: str = "", document: str = "{}"
) -> bool:
    return await publication.publish(
        term, version, document, source=SOURCE, revision=revision, who=WHO
    )


async def events(broker: Broker) -> list[tuple[str, str, str]]:
    found = await Events(broker.client, "test").last(100)
    return [(event.kind, event.who, event.text) for event in found]


@pytest.mark.usefixtures("no_leaked_keys")
async def test_a_new_version_is_an_event(
    broker: Broker, publication: Publication, term: str
) -> None:
    """Readers get the document with its origin; the same version again only has a new revision."""
    assert (await publication.version(), await publication.read()) == ("", None)
    assert await publish(publication, term, "v1", revision="abc", document='{"vos": ["é"]}')
    first = await publication.read()
    assert first is not None and await publication.version() == "v1"
    assert (first.version, first.document) == ("v1", '{"vos": ["é"]}')
    assert (first.source, first.revision, first.who) == (SOURCE, "abc", WHO)
    assert first.at is not None and abs(datetime.now(UTC) - first.at) < timedelta(minutes=1)
    assert (first.problem, first.problem_at) == ("", None)
    assert await publish(publication, term, "v1", revision="def")
    second = await publication.read()
    assert second is not None and (second.at, second.revision) == (first.at, "def")
    assert await publish(publication, term, "v2")
    assert await events(broker) == [
        ("config-published", WHO, f"version v1 from {SOURCE} at abc"),
        ("config-published", WHO, f"version v2 from {SOURCE}"),
    ]


async def test_a_problem_is_one_event(broker: Broker, publication: Publication, term: str) -> None:
    """It stands beside the version that holds, or alone, until the source is good."""
    assert await publication.report(term, "is empty", WHO)
    found = await publication.read()
    assert found is not None
    assert (found.version, found.document, found.at, found.problem) == ("", "", None, "is empty")
    await publish(publication, term, "v1")
    for _ in range(3):
        assert await publication.report(term, "line 3: is wrong", WHO)
    found = await publication.read()
    assert found is not None and found.problem_at is not None
    assert (found.version, found.problem) == ("v1", "line 3: is wrong")
    # Redis lost it and gets the last good one again: the source is no better for that.
    await publish(publication, term, "v1")
    assert await publication.report(term, "line 4: is wrong", WHO)
    assert await publication.report(term, "", WHO)
    found = await publication.read()
    assert found is not None and (found.problem, found.problem_at) == ("", None)
    refused = [text for kind, _, text in await events(broker) if kind == "config-refused"]
    assert refused == ["is empty", "line 3: is wrong", "line 4: is wrong"]


async def test_a_version_wakes_the_idle(
    broker: Broker, publication: Publication, term: str
) -> None:
    """Once each; the same version again wakes none."""
    now = round((await broker.now()).timestamp() * 1e6)
    workers = {"small-a": now + 60_000_000, "small-busy": now + 60_000_000, "small-dead": 1}
    await broker.client.zadd("{test}:workers", workers)
    await broker.client.lpush("{test}:wake:small-busy", "1")

    async def wake_ups() -> list[int]:
        return [await broker.client.llen(f"{{test}}:wake:{worker}") for worker in workers]

    assert await publish(publication, term, "v1") and await wake_ups() == [1, 1, 0]
    await broker.client.delete("{test}:wake:small-a")
    assert await publish(publication, term, "v1") and await wake_ups() == [0, 1, 0]
