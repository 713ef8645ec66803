"""Signed envelopes: with keys a worker executes nothing that others have made."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from acceptance.probe_tasks import Buried, Parent, Quick
from acceptance.site import Site
from waits import WAIT_SECONDS, until

from nonet import Nonet, TaskFailed
from nonet.messages.formats import FORMAT
from nonet.messages.message import Envelope, encode
from nonet.tasks.task import Options

KEYS = {id: f"{id}:" + base64.b64encode(id.encode() * 16).decode() for id in ("new", "old", "evil")}


def app(site: Site, *ids: str) -> Nonet:
    return site.app(signing_keys=",".join(KEYS[id] for id in ids))


async def refused(site: Site, made: Nonet, id: str, reason: str) -> None:
    """It ends in quarantine, and was not executed."""
    with pytest.raises(TaskFailed) as raised:
        await made.result(id, timeout=WAIT_SECONDS)
    assert raised.value.reason == "quarantined"
    assert reason in str(raised.value)
    assert site.journal(id=id) == []


async def test_a_worker_with_keys_executes_only_what_they_sign(site: Site) -> None:
    """What any of its keys signed runs; unsigned, of another key or another task it does not."""
    worker = site.worker(NONET_SIGNING_KEYS=f"{KEYS['new']},{KEYS['old']}")
    for id in ("new", "old"):
        async with app(site, id) as made:
            assert await (await made.submit(Quick(1))).result(timeout=WAIT_SECONDS) == 1
    async with app(site, "evil") as made:
        await refused(site, made, await made.submit(Quick(1)), "key 'evil', which")
    forged = KEYS["evil"].replace("evil", "new", 1)
    async with site.app(signing_keys=forged) as made:
        await refused(site, made, await made.submit(Quick(1)), "does not fit")
    async with site.app() as made:
        await refused(site, made, await made.submit(Quick(1)), "not signed")
        site.queue_raw("raw", encode(Envelope(FORMAT, "raw", "probe_tasks:Quick", {}, {}, 0.0)))
        await refused(site, made, "raw", "not signed")
    async with app(site, "new") as made:
        site.queue_raw(
            "replayed", made.client.envelopes.prepare(Quick(1), Options(id="first")).envelope
        )
        await refused(site, made, "replayed", "another task, first")
    assert worker.alive
    assert len(site.quarantined()) == 5
    for key in KEYS.values():
        assert key.partition(":")[2] not in worker.log


async def test_whatever_is_submitted_is_signed(site: Site) -> None:
    """Retries, children, callbacks, delayed tasks and dead letters run where all must be signed."""
    site.worker(NONET_SIGNING_KEYS=KEYS["new"])
    async with app(site, "new") as made:
        soon = datetime.now(UTC) + timedelta(milliseconds=200)
        delayed = await made.submit(Quick(3), at_time=soon)
        buried = await made.submit(Buried())
        await (await made.submit(Parent(2, fail_first=True))).result(timeout=WAIT_SECONDS)
        await until(lambda: site.journal("start", task="Report"), "the callback has run")
        assert await delayed.result(timeout=WAIT_SECONDS) == 3
        with pytest.raises(TaskFailed):
            await buried.result(timeout=WAIT_SECONDS)
        (letter,) = await (await made.dead_letters()).list()
        with pytest.raises(TaskFailed) as raised:
            await (await made.resubmit(letter.id)).result(timeout=WAIT_SECONDS)
        assert raised.value.reason == "retries"
        await site.all_ended()
    assert site.quarantined() == []


async def test_an_unsigned_dying_task_is_not_written_to_sql(site: Site) -> None:
    """What a stranger wrote ends in the quarantine also where only its burial is left."""
    site.worker(NONET_SIGNING_KEYS=KEYS["new"])
    async with app(site, "new") as made:
        data = encode(Envelope(FORMAT, "raw", "probe_tasks:Buried", {}, {}, 0.0))
        site.queue_raw("raw", data)
        await refused(site, made, "raw", "not signed")
        dying = encode(Envelope(FORMAT, "dying", "probe_tasks:Buried", {}, {}, 0.0))
        site.queue_raw("dying", dying, state="dying")
        await refused(site, made, "dying", "not signed")
        assert await (await made.dead_letters()).list() == []


async def test_a_worker_without_keys_executes_signed_tasks(site: Site) -> None:
    """So that producers may sign first."""
    site.worker()
    async with app(site, "new") as made:
        assert await (await made.submit(Quick(2))).result(timeout=WAIT_SECONDS) == 2
