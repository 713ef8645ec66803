"""How the scheduler follows its configuration: what holds, what is published, what is reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from waits import until

from nonet import Nonet, RetryPolicyBase
from nonet.base.errors import ConfigurationError, ServerUnreachableError
from nonet.config.reading import parse_config
from nonet.daemon.service import Stop
from nonet.rules.limits import Limit, LimitAddress
from nonet.scheduler.configuration.configuration_loop import ConfigurationLoop, check
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.publication import Publication
from nonet.tasks.registry import Registry, TaskClass

ADDRESS = LimitAddress("job", "a")
HEAD = "common: {limits: {Job: {a: {ConcurrencyLimiter: {limit: "


class EndingLoop(RetryPolicyBase):
    def model_post_init(self, context: object) -> None:
        raise SystemExit(7)


# Bad in ways that no model of pydantic tells.
ODD = [
    "common: {periodic-tasks: {T: [{schedule: {class: IntervalSeconds, arg: 0x%s}}]}}"
    % ("f" * 6000),
    "common: {tasks: {T: {retry-policy: {class: NoRetry, args: {a: %s}}}}}"
    % ("[" * 280 + "]" * 280),
    "common: {tasks: {T: {retry-policy: {class: EndingLoop}}}}",
]


def text(limit: int) -> str:
    return f"{HEAD}{limit}}}}}}}}}}}\n"


class Rig:
    def __init__(self, app: Nonet, file: Path) -> None:
        self.app = app
        self.file = file
        self.term = ""

    async def lead(self, owner: str = "a") -> None:
        leadership = Leadership(self.app.broker, "test")
        self.term = await leadership.lead(owner, 3600, "{}") or self.term

    def loop(self) -> ConfigurationLoop:
        return self.app.scheduler(self.app.injector())._parts.configuration

    async def tick(self, loop: ConfigurationLoop) -> None:
        """As if the time had come to look at the file again."""
        loop._read_at = 0.0
        await loop.tick(self.term)

    @property
    def publication(self) -> Publication:
        return Publication(self.app.broker.client, "test")

    async def limit(self) -> Limit | None:
        """The one that holds in Redis."""
        found = {item.address: item.limit for item in await self.app.stores.limits.all()}
        return found.get(ADDRESS)

    async def events(self) -> list[str]:
        rows = await self.app.broker.client.xrange("{test}:events")
        return [fields[b"kind"].decode() for _, fields in rows]


@pytest.fixture
async def rig(redis_url: str, tmp_path: Path) -> AsyncIterator[Rig]:
    file = tmp_path / "config.yaml"
    file.write_text(text(1))
    async with Nonet.from_settings(
        redis_url=redis_url, namespace="test", config=str(file), state_dir=tmp_path
    ) as app:
        made = Rig(app, file)
        await made.lead()
        yield made


async def test_each_good_configuration_is_applied_and_published(rig: Rig) -> None:
    loop = rig.loop()
    await loop.start()
    versions = set()
    for number in (1, 2):
        rig.file.write_text(text(number))
        await rig.tick(loop)
        published = await rig.publication.read()
        assert published and published.source == str(rig.file) and str(number) in published.document
        assert loop.current and published.version == loop.current.version
        assert await rig.limit() == Limit(number)
        versions.add(published.version)
    assert len(versions) == 2


async def test_a_configuration_that_turns_bad_changes_nothing(rig: Rig) -> None:
    loop = rig.loop()
    await loop.start()
    await rig.tick(loop)
    for bad in ("", text(1).replace("Job", "Jobb"), text(0), "common: [", "\x00", *ODD):
        rig.file.write_text(bad)
        for _ in range(2):
            await rig.tick(loop)
        published = await rig.publication.read()
        assert published and str(rig.file) in published.problem and published.problem_at
        assert loop.current and published.version == loop.current.version
        assert await rig.limit() == Limit(1)
    rig.file.write_text(text(3))
    await rig.tick(loop)
    published = await rig.publication.read()
    assert published and (published.problem, loop.problem) == ("", "")
    assert await rig.limit() == Limit(3)
    assert (await rig.events()).count("config-refused") == 5 + len(ODD)


@pytest.mark.parametrize("bad", ["vos: 7", *ODD], ids=lambda text: text[:60])
async def test_a_scheduler_with_a_bad_file_starts_with_the_published_configuration(
    rig: Rig, bad: str
) -> None:
    first = rig.loop()
    await first.start()
    await rig.tick(first)
    rig.file.write_text(bad)
    second = rig.loop()
    await second.start()
    assert second.current and first.current and second.current.version == first.current.version
    await rig.tick(second)
    assert await rig.limit() == Limit(1)
    await rig.app.broker.client.flushall()
    with pytest.raises(ConfigurationError, match=r"config\.yaml"):
        await rig.loop().start()


async def test_an_outage_while_the_published_configuration_is_read_delays_a_scheduler(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis answers the first check and not this call: the scheduler waits instead of ending."""
    first = rig.loop()
    await first.start()
    await rig.tick(first)
    rig.file.write_text("vos: 7")
    read, is_first = Publication.read, iter([True])

    async def fails_once(publication: Publication) -> Any:
        if next(is_first, False):
            raise ServerUnreachableError("as the test wants")
        return await read(publication)

    monkeypatch.setattr(Publication, "read", fails_once)
    async with rig.app.injector() as injector:
        scheduler, stop = rig.app.scheduler(injector), Stop()
        running = asyncio.create_task(scheduler.run(stop))
        loop = scheduler._parts.configuration
        await until(lambda: loop.current is not None or running.done(), "it has a configuration")
        stop.request()
        await running


def test_any_exception_of_a_class_is_an_error_of_the_file() -> None:
    class Ending(Registry):
        def __iter__(self) -> Iterator[TaskClass]:
            raise SystemExit("odd")

    with pytest.raises(ConfigurationError, match=r"c\.yaml: cannot be used: SystemExit: odd"):
        check(parse_config("{}", "c.yaml"), Ending())


async def test_a_new_leader_with_a_bad_file_keeps_the_published_configuration(rig: Rig) -> None:
    standby = rig.loop()
    await standby.start()
    rig.file.write_text(text(2))
    leader = rig.loop()
    await leader.start()
    await rig.tick(leader)
    rig.file.write_text("vos: 7")
    assert not standby.is_known_in(rig.term)
    await rig.tick(standby)
    assert standby.is_known_in(rig.term)
    assert await rig.limit() == Limit(2)
    assert standby.current and leader.current and standby.current.version == leader.current.version


async def test_configuration_and_problem_are_published_again_after_a_loss_of_redis(
    rig: Rig,
) -> None:
    """Its limits, ceilings and weights, too."""
    rig.file.write_text(
        text(1) + "ceilings: {namespace: 9}\nfairness: {by: vo, weights: {acme: 3}}\n"
    )
    stores = rig.app.stores
    loop = rig.loop()
    await loop.start()
    rig.file.write_text("vos: 7")
    await rig.tick(loop)
    before = await rig.publication.read()
    bounds = await stores.ceilings.published(), await stores.fairness.published()
    await rig.app.broker.client.flushall()
    await rig.lead()
    await rig.tick(loop)
    after = await rig.publication.read()
    assert before and after
    assert (after.version, after.document) == (before.version, before.document)
    assert after.problem == before.problem != ""
    assert await rig.limit() == Limit(1)
    assert all(bounds)
    assert (await stores.ceilings.published(), await stores.fairness.published()) == bounds
