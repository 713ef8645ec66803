"""Signed envelopes: with keys a worker executes nothing that others have made."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

from acceptance.probe_tasks import Buried, Parent, Quick
from acceptance.site import Site, failure, run
from waits import WAIT_SECONDS, until

from nonet import Nonet
from nonet.base.messages.formats import FORMAT
from nonet.base.messages.message import Envelope, encode
from nonet.tasks.task import Options

KEYS = {id: f"{id}:" + base64.b64encode(id.encode() * 16).decode() for id in ("new", "old", "evil")}


def app(site: Site, *ids: str) -> Nonet:
    return site.app(signing_keys=",".join(KEYS[id] for id in ids))


async def refused(site: Site, made: Nonet, id: str, reason: str) -> None:
    """Check that it ends in quarantine, and was not executed."""
    failed = await failure(made, id)
    assert failed.reason == "quarantined"
    assert reason in str(failed)
    assert site.journal(id=id) == []


async def test_a_worker_with_keys_executes_only_what_they_sign(site: Site) -> None:
    """What any of its keys signed runs; unsigned, of another key or another task it does not."""
    worker = site.worker(NONET_SIGNING_KEYS=f"{KEYS['new']},{KEYS['old']}")
    for id in ("new", "old"):
        async with app(site, id) as made:
            assert await run(made, Quick(1)) == 1
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
        dying = encode(Envelope(FORMAT, "dying", "probe_tasks:Buried", {}, {}, 0.0))
        site.queue_raw("dying", dying, state="dying")
        await refused(site, made, "dying", "not signed")
        assert await (await made.dead_letters()).list() == []
    assert worker.alive
    assert len(site.quarantined()) == 6
    for key in KEYS.values():
        assert key.partition(":")[2] not in worker.log


async def test_every_kind_of_submission_is_signed(site: Site) -> None:
    """Retries, children, callbacks, delayed tasks and dead letters run where all must be signed."""
    site.worker(NONET_SIGNING_KEYS=KEYS["new"])
    async with app(site, "new") as made:
        soon = datetime.now(UTC) + timedelta(milliseconds=200)
        delayed = await made.submit(Quick(3), at_time=soon)
        buried = await made.submit(Buried())
        await (await made.submit(Parent(2, fail_first=True))).result(timeout=WAIT_SECONDS)
        await until(lambda: site.journal("start", task="Report"), "the callback has run")
        assert await delayed.result(timeout=WAIT_SECONDS) == 3
        await failure(made, buried)
        (letter,) = await (await made.dead_letters()).list()
        assert (await failure(made, await made.resubmit(letter.id))).reason == "retries"
        await site.all_ended()
    assert site.quarantined() == []
