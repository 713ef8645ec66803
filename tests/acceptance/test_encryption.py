"""Encryption at rest: only holders of a key read the data of tasks in Redis and in SQL."""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from acceptance import confiding_tasks, encrypted_tasks
from acceptance.encrypted_tasks import Echo, Fails
from acceptance.site import Site
from msgspec.structs import replace
from servers import RedisServer
from waits import WAIT_SECONDS, until

from nonet import ConflictError, Nonet, NotFoundError, ResultUnavailable, TaskExpired, TaskFailed
from nonet.base.errors import ConfigurationError
from nonet.messages.encryption import NO_KEY, Cipher, Encrypted
from nonet.messages.formats import FORMAT
from nonet.messages.message import Envelope, decode, decode_envelope, encode
from nonet.messages.signing import parse_keys
from nonet.stores.queue.groups import callback_id
from nonet.tasks.task import Options

ENCRYPTED, PLAIN = "acceptance.encrypted_tasks", "acceptance.confiding_tasks"
KEYS = {
    id: f"{id}:" + base64.b64encode(secrets.token_bytes(32)).decode()
    for id in ("new", "old", "other")
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
    return [file for file in place.iterdir() if file.suffix == ".log"]


def read(*files: Path) -> bytes:
    return b"\n".join(file.read_bytes() for file in files)


async def failure_of(app: Nonet, id: str) -> TaskFailed:
    with pytest.raises(TaskFailed) as failed:
        await app.result(id, timeout=WAIT_SECONDS)
    return failed.value


async def live(site: Site, app: Nonet, tasks: ModuleType) -> None:
    """Submit one task of each kind, and see that holders of the key read all of them."""

    def made(kind: str) -> Any:
        return getattr(tasks, kind)(SECRETS[kind])

    site.scheduler()
    with pytest.raises(TaskExpired):
        await (await app.submit(made("Late"))).result(timeout=WAIT_SECONDS)
    ids = {kind: await app.submit(made(kind), id=kind) for kind in SECRETS if kind != "Late"}
    for size in ("small", "medium", "large"):
        site.worker(size=size, NONET_CRASH_LIMIT="1", **WITH_KEY)
    for kind in ("Echo", "EchoInChild", "Kept"):
        assert await app.result(ids[kind], timeout=WAIT_SECONDS) == {"found": [SECRETS[kind]]}
    for kind in ("Fails", "FailsInChild", "FailsQuietly"):
        assert f"bad {SECRETS[kind]!r}" in str(await failure_of(app, ids[kind]))
    assert (await failure_of(app, ids["Dies"])).reason == "crash"
    assert await app.result(ids["Saves"], timeout=WAIT_SECONDS) == {"at": SECRETS["Saves"]}
    secret, group = SECRETS["Parent"], await app.result(ids["Parent"], timeout=WAIT_SECONDS)
    assert await app.result(callback_id(group), timeout=WAIT_SECONDS) == [{"found": [secret]}] * 2
    assert await app.result("Parent.next", timeout=WAIT_SECONDS) == {"found": [secret]}
    letters = await (await app.dead_letters()).list(task_class=f"{tasks.__name__[11:]}:Fails")
    assert SECRETS["Fails"] in letters[0].error_message
    assert all(SECRETS["Fails"] in attempt["error"] for attempt in letters[0].history)
    repeat = await app.resubmit(letters[0].id)
    assert f"bad {SECRETS['Fails']!r}" in str(await failure_of(app, repeat))
    await site.all_ended()


@pytest.mark.parametrize("everything", [False, True], ids=["classes", "everything"])
async def test_nothing_that_is_stored_shows_the_data_of_tasks(
    own_site: Site, own_server: RedisServer, tmp_path: Path, everything: bool
) -> None:
    """Of encrypted classes, or of all: in no byte ever written to Redis or SQL, nor in a log."""
    site, tasks = own_site, confiding_tasks if everything else encrypted_tasks
    site.settings["NONET_TASKS"] = PLAIN if everything else ENCRYPTED
    options: dict[str, Any] = {"encryption_keys": KEYS["new"]}
    if everything:
        site.settings |= {"NONET_ENCRYPT_ALL": "1", **WITH_KEY}
        options["encrypt_all"] = True
    async with site.app(**options) as app:
        await live(site, app, tasks)
    kept = stored(own_server.data, tmp_path / "state")
    logs = read(*logs_in(tmp_path))
    shown = {kind: needle for kind, one in SECRETS.items() for needle in needles(one)}
    assert [kind for kind, needle in shown.items() if needle in kept] == []
    assert [kind for kind, needle in shown.items() if needle in logs] == []


async def test_without_encryption_all_of_it_would_be_found(
    own_site: Site, own_server: RedisServer, tmp_path: Path
) -> None:
    """The search of the test above finds the data of each kind of task where they are plain."""
    own_site.settings["NONET_TASKS"] = PLAIN
    async with own_site.app() as app:
        await live(own_site, app, confiding_tasks)
    kept = stored(own_server.data, tmp_path / "state")
    found = {kind for kind, one in SECRETS.items() for needle in needles(one) if needle in kept}
    assert found == {*SECRETS}


async def explained(app: Nonet, id: str, text: str) -> None:
    """Wait until the reason why a task does not run has this text."""
    async with asyncio.timeout(WAIT_SECONDS):
        while text not in (await app.explain(id)).text:  # noqa: ASYNC110  # others change it
            await asyncio.sleep(0.05)


@pytest.fixture
def encrypted(site: Site) -> Site:
    site.settings["NONET_TASKS"] = ENCRYPTED
    return site


async def test_a_worker_without_the_key_hands_on(encrypted: Site) -> None:
    """It uses no attempt and quarantines nothing; a worker with the key takes the task."""
    encrypted.worker()
    encrypted.worker(NONET_ENCRYPTION_KEYS=KEYS["other"])
    forged = KEYS["other"].replace("other", "new", 1)
    encrypted.worker(NONET_ENCRYPTION_KEYS=forged)
    async with encrypted.app(encryption_keys=KEYS["new"]) as app:
        handle = await app.submit(Echo("hidden"))
        await explained(app, handle, "encrypted with key new, which no live small worker has (3")
        status = await handle.status()
        assert (status.state, status.attempt) == ("waiting", 0)
        assert "encryption key" in status.blocker
        encrypted.worker(**WITH_KEY)
        assert await handle.result(timeout=WAIT_SECONDS) == {"found": ["hidden"]}
        await encrypted.all_ended()
    assert encrypted.quarantined() == []


async def test_a_worker_without_a_key_hands_on_what_it_could_not_encrypt(encrypted: Site) -> None:
    """A task that was submitted before its class was encrypted has a result all the same."""
    encrypted.worker()
    async with encrypted.app(encryption_keys=KEYS["new"]) as app:
        data = encode(Envelope(FORMAT, "plain", "encrypted_tasks:Echo", {"data": 7}, {}, 0.0))
        encrypted.queue_raw("plain", data, name="encrypted_tasks:Echo")
        await explained(app, "plain", "no encryption key here")
        encrypted.worker(**WITH_KEY)
        assert await app.result("plain", timeout=WAIT_SECONDS) == {"found": [7]}
        await encrypted.all_ended()


async def test_keys_are_changed_while_tasks_run(encrypted: Site) -> None:
    """With the new key first all is encrypted with it, and what the old one encrypted is read."""
    async with encrypted.app(encryption_keys=KEYS["old"]) as app:
        first, fails = await app.submit(Echo("first")), await app.submit(Fails("fails"))
    worker = encrypted.worker(NONET_ENCRYPTION_KEYS=f"{KEYS['new']},{KEYS['old']}")
    async with encrypted.app(encryption_keys=KEYS["new"]) as app:
        assert await app.result(first, timeout=WAIT_SECONDS) == {"found": ["first"]}
        assert "bad 'fails'" in str(await failure_of(app, fails))
        (letter,) = await (await app.dead_letters()).list()
        with pytest.raises(ConflictError, match=re.escape(NO_KEY)):
            await app.resubmit(letter.id)
    async with encrypted.app(encryption_keys=f"{KEYS['new']},{KEYS['old']}") as app:
        assert "bad 'fails'" in str(await failure_of(app, await app.resubmit(letter.id)))
        _, repeat = sorted(await (await app.dead_letters()).list(), key=lambda item: item.id)
    worker.kill()
    async with encrypted.app(encryption_keys=KEYS["new"]) as app:
        whole = await (await app.dead_letters()).get(repeat.id)
        assert decode(whole.task_args) == {"data": "fails"}
        assert "bad 'fails'" in whole.traceback


async def test_changed_or_moved_data_are_quarantined(encrypted: Site) -> None:
    """No worker executes what was changed, or encrypted for another task, namespace or field."""
    encrypted.worker(**WITH_KEY)
    async with encrypted.app(encryption_keys=KEYS["new"]) as app:
        prepared = app.client.envelopes.prepare(Echo("hidden"), Options(id="first"))
        original = decode_envelope(prepared.envelope)
        cipher = app.stores.cipher
    item = original.args[""]
    changed = Encrypted(item.data[:-1] + bytes([item.data[-1] ^ 1]))
    elsewhere = Cipher({"new": parse_keys(KEYS["new"])["new"]}, "another")
    plain = encode({"data": "hidden"})
    forgeries = {
        "changed": changed,
        "moved": item,
        "namespace": elsewhere.encrypt(plain, "namespace", "args"),
        "field": cipher.encrypt(plain, "field", "value"),
        "cut": Encrypted(item.data[:10]),
    }
    async with encrypted.app(encryption_keys=KEYS["new"]) as app:
        for id, forged in forgeries.items():
            envelope = replace(original, id=id, args={"": forged})
            encrypted.queue_raw(id, encode(envelope), name="encrypted_tasks:Echo")
            failed = await failure_of(app, id)
            assert failed.reason == "quarantined"
            assert "encrypted" in str(failed)
    assert len(encrypted.quarantined()) == len(forgeries)


async def test_a_worker_without_the_key_writes_dead_letters(encrypted: Site) -> None:
    """Of a task that died elsewhere, as it is encrypted: the burial waits for no key."""
    dies = encrypted.worker(NONET_DB_URL="mysql://127.0.0.1:1/nowhere", **WITH_KEY)
    async with encrypted.app(encryption_keys=KEYS["new"]) as app:
        handle = await app.submit(Fails("hidden"))
        await explained(app, handle, "its dead letter cannot be written to SQL")
        dies.kill()
        encrypted.worker()
        assert "bad 'hidden'" in str(await failure_of(app, handle))
        (letter,) = await (await app.dead_letters()).list()
        assert letter.last_error == "ValueError: bad 'hidden'"
        assert [item["error"] for item in letter.history] == ["ValueError: bad 'hidden'"] * 2
        await encrypted.all_ended()


async def test_a_scheduler_submits_encrypted_entries_with_the_key_only(encrypted: Site) -> None:
    """Without it, it says so, and goes on; with it, workers with the key run them."""
    encrypted.settings["NONET_TASKS"] = "acceptance.encrypted_entries"
    keyless = encrypted.scheduler()
    await until(lambda: "error=ConfigurationError" in keyless.log, "it says so")
    assert "set NONET_ENCRYPTION_KEYS" in keyless.log and not encrypted.live()
    keyless.kill()
    encrypted.scheduler(**WITH_KEY)
    encrypted.worker(**WITH_KEY)
    async with encrypted.app() as app, asyncio.timeout(WAIT_SECONDS):
        while not await app.stores.history.ended(states=["done"]):  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.05)


async def test_signatures_cover_what_is_encrypted(encrypted: Site) -> None:
    """Both together: a worker without the signing key of a message does not even decrypt it."""
    signing = {id: f"{id}:" + base64.b64encode(id.encode() * 16).decode() for id in ("ab", "cd")}
    worker = encrypted.worker(NONET_SIGNING_KEYS=signing["ab"], **WITH_KEY)
    with_key = {"encryption_keys": KEYS["new"]}
    async with encrypted.app(signing_keys=signing["ab"], **with_key) as app:
        handle = await app.submit(Echo("hidden"))
        assert await handle.result(timeout=WAIT_SECONDS) == {"found": ["hidden"]}
    async with encrypted.app(signing_keys=signing["cd"], **with_key) as app:
        failed = await failure_of(app, await app.submit(Echo("hidden")))
    assert failed.reason == "quarantined" and "signed with key 'cd'" in str(failed)
    assert worker.alive


async def test_a_program_without_the_key_sees_that_there_is_something(encrypted: Site) -> None:
    """Result, error, status and dead letter say what is missing; and it submits nothing."""
    encrypted.worker(**WITH_KEY)
    async with encrypted.app(encryption_keys=KEYS["new"]) as app:
        done, fails = await app.submit(Echo("hidden")), await app.submit(Fails("hidden"))
        assert await done.result(timeout=WAIT_SECONDS) == {"found": ["hidden"]}
        await failure_of(app, fails)
        await encrypted.all_ended()
    async with encrypted.app() as app:
        with pytest.raises(ResultUnavailable, match=re.escape(NO_KEY)):
            await app.result(done)
        failed = await failure_of(app, fails)
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
