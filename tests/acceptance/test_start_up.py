"""Start-up hooks: once for each epoch, to success, in order."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from acceptance.site import PROBES, Site, stop
from waits import until

from nonet import NonetError
from nonet.scheduler.startup import StartUp
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.queue.broker import Broker
from nonet.tasks.injection import Injector

TASKS = f"{PROBES},acceptance.saving_tasks"


def lines(site: Site) -> list[str]:
    return [line.split()[0] for line in said(site).splitlines()]


def said(site: Site) -> str:
    path = Path(site.settings["PROBE_JOURNAL"]).with_name("hooks")
    return path.read_text() if path.exists() else ""


def told_of_hooks(site: Site) -> list[str]:
    """What the event stream says of start-up hooks."""
    events = [fields for _, fields in site.redis.xrange(site.key("events"))]
    return [fields["text"] for fields in events if fields["kind"] == "startup-hook"]


async def test_hooks_run_once_for_each_epoch(site: Site) -> None:
    """A fresh Redis runs them once, even if the leader changes; an emptied one runs them again."""
    first = site.scheduler()
    site.worker()
    await until(lambda: lines(site) == ["reset", "second"], "both hooks have run")
    await until(lambda: len(site.journal("end", task="Quick")) == 1, "what the hook submits runs")
    first.terminate()
    second = site.scheduler()
    await until(lambda: site.redis.hget(site.key("leader"), "owner"), "somebody leads")
    await until(lambda: "leading: term=" in second.log, "the second one leads")
    for times in (2, 3):  # the second time by a scheduler that has run them itself
        site.redis.flushall()
        ran = ["reset", "second"] * times
        await until(lambda: lines(site) == ran, "they have run again, once")  # noqa: B023
        await until(
            lambda: len(site.journal("end", task="Quick")) == times,  # noqa: B023
            "and what they submit runs",
        )
    await site.all_ended()


async def test_a_failing_hook_is_tried_again_before_anything_else(site: Site) -> None:
    """Neither the next hook runs nor a periodic task, and the leader says why; then all do."""
    site.settings["NONET_TASKS"] += ",acceptance.periodic_tasks"
    fail = site.write("fail", "")
    site.worker()
    scheduler = site.scheduler()
    await until(lambda: lines(site).count("reset") >= 2, "it is tried again")
    await until(
        lambda: "the database is away" in str(site.redis.hget(site.key("leader"), "info")),
        "the leader says why nothing fires",
    )
    assert "second" not in lines(site) and site.journal() == []
    os.unlink(fail)
    await until(lambda: lines(site)[-1:] == ["second"], "the next one runs then")
    await site.until_event("start", task="Tick")
    assert [text.partition("reset: ")[2] for text in told_of_hooks(site)[:2]] == [
        "failed: RuntimeError: the database is away",
        "done",
    ]
    assert stop(scheduler) == [0]
    await site.all_ended()


class Own(BaseException):
    """An unknown kind of error."""


KINDS = (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Own)


@pytest.mark.parametrize("place", ["awaited", "of a future", "in a thread"])
async def test_a_hook_may_raise_anything(broker: Broker, place: str) -> None:
    """SystemExit, CancelledError and others are failures, and it is tried again."""
    leadership, left = Leadership(broker, "test"), list(KINDS)
    term = await leadership.lead("a", 30, "{}") or ""

    def in_thread() -> None:
        if left:
            raise left.pop(0)

    async def awaited() -> None:
        if left and place == "of a future":
            future = asyncio.get_running_loop().create_future()
            future.set_exception(left.pop(0)())
            await future
        in_thread()

    hook = in_thread if place == "in a thread" else awaited
    start_up = StartUp({"hook": hook}, leadership, Injector())
    for kind in KINDS:
        with pytest.raises(NonetError, match=kind.__name__):
            await start_up.tick(term)
    await start_up.tick(term)
    assert await leadership.hooks_done(term, leadership.epoch.since) == {"hook"}
