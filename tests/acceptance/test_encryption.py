"""Encryption at rest: only holders of a key read the data of tasks in Redis and in SQL."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from acceptance import confiding_tasks
from acceptance.encrypted_tasks import Echo, Fails
from acceptance.site import SHORT, Site, eventually, failure, run
from acceptance.test_dead_letters import BURIALS, OFTEN
from msgspec.structs import replace
from servers import RedisServer
from waits import WAIT_SECONDS

from nonet import ConflictError, Nonet, NotFoundError, ResultUnavailable, TaskExpired, TaskStatus
from nonet.base.errors import ConfigurationError
from nonet.base.messages.encryption import NO_KEY, Encrypted
from nonet.base.messages.formats import FORMAT
from nonet.base.messages.message import Envelope, decode_envelope, encode
from nonet.stores.queue.groups import callback_id
from nonet.tasks.task import Options

TASKS = "acceptance.encrypted_tasks"
KEYS = {
    id: f"{id}:" + base64.b64encode(secrets.token_bytes(32)).decode() for id in ("new", "other")
}
WITH_KEY = {"NONET_ENCRYPTION_KEYS": KEYS["new"]}
TOKEN = secrets.token_hex(8)
# One for each kind of task, of any shape that an argument can have.
SECRETS: Mapping[str, Any] = {
    "Echo": f"echo-{TOKEN}",
    "EchoInChild": f"öffentlich-nie-{TOKEN}",
    "Kept": {"deep": [{"er": f"kept-{TOKEN}"}]},
    "Fails": f"fails-{TOKEN}",
    "FailsInChild": f"failsinchild-{TOKEN}",
    "FailsQuietly": 7_000_000_000_000_000_000 + secrets.randbelow(10**18),
    "Dies": f"dies-{TOKEN}".encode(),
    "Late": f"late-{TOKEN}",
    "Saves": f"saves-{TOKEN}",
    "Parent": f"parent-{TOKEN}",
}


def needles(secret: Any) -> list[bytes]:
    """How a secret would look in Redis or SQL."""
    match secret:
        case dict():
            return [needle for value in secret.values() for needle in needles(value)]
        case list():
            return [needle for value in secret for needle in needles(value)]
        case bytes():
            return [secret]
        case int():
            return [str(secret).encode(), secret.to_bytes(8, "big")]
    return [str(secret).encode()]


def stored(*places: Path) -> bytes:
    """All that was ever written: the append-only file has each effect, SQLite its old pages."""
    files = [file for place in places for file in sorted(place.rglob("*")) if file.is_file()]
    assert any(file.suffix == ".aof" for file in files)
    return read(*files)


def logs_in(place: Path) -> list[Path]:
    return [*place.glob("*.log")]


def read(*files: Path) -> bytes:
    return b"\n".join(file.read_bytes() for file in files)


async def live(site: Site, app: Nonet, tasks: ModuleType) -> None:
    """Submit one task of each kind, and see that holders of the key read all of them."""

    def made(kind: str) -> Any:
        return getattr(tasks, kind)(SECRETS[kind])

    site.scheduler()
    with pytest.raises(TaskExpired):
        await run(app, made("Late"))
    ids = {kind: await app.submit(made(kind), id=kind) for kind in SECRETS if kind != "Late"}
    for size in ("small", "medium", "large"):
        site.worker(size=size, NONET_CRASH_LIMIT="1", **WITH_KEY)
    for kind in ("Echo", "EchoInChild", "Kept"):
        assert await app.result(ids[kind], timeout=WAIT_SECONDS) == {"found": [SECRETS[kind]]}
    for kind in ("Fails", "FailsInChild", "FailsQuietly"):
        assert f"bad {SECRETS[kind]!r}" in str(await failure(app, ids[kind]))
    assert (await failure(app, ids["Dies"])).reason == "crash"
    assert await app.result(ids["Saves"], timeout=WAIT_SECONDS) == {"at": SECRETS["Saves"]}
    secret, group = SECRETS["Parent"], await app.result(ids["Parent"], timeout=WAIT_SECONDS)
    assert await app.result(callback_id(group), timeout=WAIT_SECONDS) == [{"found": [secret]}] * 2
    assert await app.result("Parent.next", timeout=WAIT_SECONDS) == {"found": [secret]}
    letters = await (await app.dead_letters()).list(task_class=f"{tasks.__name__[11:]}:Fails")
    assert SECRETS["Fails"] in letters[0].error_message
    assert all(SECRETS["Fails"] in attempt["error"] for attempt in letters[0].history)
    repeat = await app.resubmit(letters[0].id)
    assert f"bad {SECRETS['Fails']!r}" in str(await failure(app, repeat))
    await site.all_ended()


@pytest.mark.parametrize("encrypted", ["nothing", "everything"])
async def test_no_byte_that_is_stored_shows_encrypted_data(
    own_site: Site, own_server: RedisServer, tmp_path: Path, encrypted: str
) -> None:
    """Neither Redis, SQL nor a log ever had it; the same search finds all that is not encrypted."""
    site, tasks = own_site, confiding_tasks
    site.settings["NONET_TASKS"] = tasks.__name__
    options: dict[str, Any] = {"encryption_keys": KEYS["new"]}
    if encrypted == "everything":
        site.settings |= {"NONET_ENCRYPT_ALL": "1", **WITH_KEY}
        options["encrypt_all"] = True
    async with site.app(**options) as app:
        await live(site, app, tasks)
    kept = stored(own_server.data, tmp_path / "state")
    logs = read(*logs_in(tmp_path))
    shown = {kind: needle for kind, one in SECRETS.items() for needle in needles(one)}
    found = {kind for kind, needle in shown.items() if needle in kept}
    assert found == ({*SECRETS} if encrypted == "nothing" else set())
    assert encrypted == "nothing" or not [kind for kind in shown if shown[kind] in logs]


async def explained(app: Nonet, id: str, text: str) -> None:
    """Wait until the reason why a task does not run has this text."""

    async def is_said() -> bool:
        return text in (await app.explain(id)).text

    await eventually(is_said)


async def test_a_worker_without_the_key_hands_on(site: Site) -> None:
    """It uses no attempt and quarantines nothing; a worker with the key takes the task."""
    site.worker()
    site.worker(NONET_ENCRYPTION_KEYS=KEYS["other"])
    forged = KEYS["other"].replace("other", "new", 1)
    site.worker(NONET_ENCRYPTION_KEYS=forged)
    async with site.app(encryption_keys=KEYS["new"]) as app:
        handle = await app.submit(Echo("hidden"))
        await explained(app, handle, "encrypted with key new, which no live small worker has (3")

        async def waits() -> TaskStatus | None:
            found = await handle.status()
            return found if found.state == "waiting" else None

        status = await eventually(waits)
        assert status.attempt == 0
        assert "encryption key" in status.blocker
        site.worker(**WITH_KEY)
        assert await handle.result(timeout=WAIT_SECONDS) == {"found": ["hidden"]}
        await site.all_ended()
    assert site.quarantined() == []


async def test_a_worker_without_a_key_hands_on_what_it_could_not_encrypt(site: Site) -> None:
    """A task that was submitted before its class was encrypted has a result all the same."""
    site.worker()
    async with site.app(encryption_keys=KEYS["new"]) as app:
        data = encode(Envelope(FORMAT, "plain", "encrypted_tasks:Echo", {"data": 7}, {}, 0.0))
        site.queue_raw("plain", data, name="encrypted_tasks:Echo")
        await explained(app, "plain", "no encryption key here")
        site.worker(**WITH_KEY)
        assert await app.result("plain", timeout=WAIT_SECONDS) == {"found": [7]}
        await site.all_ended()


async def test_changed_or_moved_data_are_quarantined(site: Site) -> None:
    """No worker executes what was changed, or encrypted for another task."""
    site.worker(**WITH_KEY)
    async with site.app(encryption_keys=KEYS["new"]) as app:
        prepared = app.client.envelopes.prepare(Echo("hidden"), Options(id="first"))
        original = decode_envelope(prepared.envelope)
        item = original.args[""]
        changed = Encrypted(item.data[:-1] + bytes([item.data[-1] ^ 1]))
        for id, forged in {"changed": changed, "moved": item}.items():
            envelope = replace(original, id=id, args={"": forged})
            site.queue_raw(id, encode(envelope), name="encrypted_tasks:Echo")
            failed = await failure(app, id)
            assert failed.reason == "quarantined" and "encrypted" in str(failed)
    assert len(site.quarantined()) == 2


async def test_a_worker_without_the_key_writes_the_dead_letter_of_another(site: Site) -> None:
    """Of a task that died elsewhere, as it is site: the burial waits for no key."""
    site.settings |= SHORT
    site.settings |= {"NONET_DB_URL": "mysql://127.0.0.1:1/nowhere", **WITH_KEY}
    dies = site.changed_worker(BURIALS, **OFTEN)
    async with site.app(encryption_keys=KEYS["new"]) as app:
        handle = await app.submit(Fails("hidden"))
        await explained(app, handle, "its dead letter cannot be written to SQL")
        dies.kill()
        site.worker(NONET_DB_URL="", NONET_ENCRYPTION_KEYS="")
        assert "bad 'hidden'" in str(await failure(app, handle))
        (letter,) = await (await app.dead_letters()).list()
        assert letter.last_error == "ValueError: bad 'hidden'"
        assert [item["error"] for item in letter.history] == ["ValueError: bad 'hidden'"] * 2
        await site.all_ended()


async def test_a_program_without_the_key_sees_that_there_is_something(site: Site) -> None:
    """Result, error, status and dead letter say what is missing; and it submits nothing."""
    site.worker(**WITH_KEY)
    async with site.app(encryption_keys=KEYS["new"]) as app:
        done, fails = await app.submit(Echo("hidden")), await app.submit(Fails("hidden"))
        assert await done.result(timeout=WAIT_SECONDS) == {"found": ["hidden"]}
        await failure(app, fails)
        await site.all_ended()
    async with site.app() as app:
        with pytest.raises(ResultUnavailable, match=re.escape(NO_KEY)):
            await app.result(done)
        failed = await failure(app, fails)
        assert f"ValueError: {NO_KEY}" in str(failed) and failed.traceback == NO_KEY
        assert (await app.status(fails)).error == f"ValueError: {NO_KEY}"
        (ended,) = await app.stores.history.ended(states=["dead"])
        assert (ended.error_type, ended.error, ended.traceback) == ("ValueError", NO_KEY, NO_KEY)
        (letter,) = await (await app.dead_letters()).list()
        assert letter.last_error == f"ValueError: {NO_KEY}"
        assert [item["error"] for item in letter.history] == [f"ValueError: {NO_KEY}"] * 2
        with pytest.raises(ConflictError, match=re.escape(NO_KEY)):
            await app.resubmit(letter.id)
        with pytest.raises(
            ConfigurationError, match=r"encrypted_tasks:Echo is encrypted.*ID:KEY.*openssl"
        ):
            await app.submit(Echo("hidden"), id="refused")
        with pytest.raises(NotFoundError):
            await app.status("refused")
