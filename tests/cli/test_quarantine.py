"""``task-run quarantine``: what is listed, what is shown, and what becomes a task after all."""

from __future__ import annotations

import base64

import msgspec
import pytest
import records
import redis
from cli.errands import Add
from cli.terminal import NAMESPACE, TaskRun
from waits import WAIT_SECONDS, until

from nonet.base.messages.documents import encrypted_arguments
from nonet.base.messages.encryption import NO_KEY, Cipher
from nonet.base.messages.formats import FORMAT
from nonet.base.messages.message import Envelope, encode
from nonet.base.messages.repetition import repeat_of_entry
from nonet.stores.namespace.quarantine import Quarantine
from nonet.tasks.task import Options

STREAM = f"{{{NAMESPACE}}}:tasks:normal:small"
QUARANTINE = f"{{{NAMESPACE}}}:quarantine"
NEW = "new:" + base64.b64encode(b"n" * 32).decode()
OLD = "old:" + base64.b64encode(b"o" * 32).decode()


def envelope(id: str, name: str = "errands:Add", **args: object) -> bytes:
    return encode(Envelope(FORMAT, id, name, args, {"run": 7, "api_token": "s3cret-pw"}, 1.5))


def queue(task_run: TaskRun, id: str, data: bytes) -> None:
    """A record with an envelope that no client made, and its pointer."""
    key = f"{{{NAMESPACE}}}:"
    entry = task_run.redis.xadd(STREAM, {"id": id, "gen": "1"})
    fields = {"state": "queued", "gen": "1", "name": "?", "stream": "normal:small"}
    more = {"attempt": 0, "ticket": 1, "group": "", "pointer": f"tasks:normal:small {entry}"}
    records.hset(task_run.redis, f"{key}t:{id}", mapping={**fields, **more, "envelope": data})


def envelope_of(task_run: TaskRun, id: str) -> bytes:
    """The envelope of a task, as it is in Redis."""
    with redis.Redis.from_url(task_run.environment["NONET_REDIS_URL"]) as client:
        found: bytes = records.hget(client, f"{{{NAMESPACE}}}:t:{id}", "envelope")
    return found


async def put_aside(task_run: TaskRun, *others: tuple[str, bytes], pointers: int = 0) -> list[str]:
    """Let a worker meet garbage; the entries, the oldest first."""
    for id, data in others:
        queue(task_run, id, data)
    for number in range(pointers):
        task_run.redis.xadd(STREAM, {"no": f"pointer {number}"})
    async with task_run.worker() as app:
        await until(lambda: task_run.redis.xlen(STREAM) == 0, "all of it is gone")
        return await entries(app.stores.quarantine)


async def entries(quarantine: Quarantine) -> list[str]:
    return [item.entry async for item in quarantine.newest(1000)][::-1]


async def test_list_and_log_show_no_bytes(
    task_run: TaskRun, caplog: pytest.LogCaptureFixture
) -> None:
    """The list has the newest first, and counts what was ever quarantined."""
    (first,) = await put_aside(task_run, ("odd", b"\xc1s3cret-pw"))
    _, second = await put_aside(task_run, pointers=1)
    (line,) = [text for text in caplog.messages if "message odd" in text]
    assert line.startswith("message odd is not a valid task; quarantined it: message of")
    ended = await task_run("quarantine", "list", "--json")
    newest, oldest = ended.json["items"]
    assert (newest["entry"], oldest["entry"]) == (second, first)
    assert (oldest["task_id"], oldest["size"], oldest["stream"]) == ("odd", 10, STREAM)
    assert (newest["reason"], newest["size"]) == ("not a task pointer", len("nopointer 0"))
    table = await task_run("quarantine", "list")
    assert first in table.out
    assert "s3cret" not in ended.out + table.out + caplog.text
    await task_run("quarantine", "discard", "--all")
    empty = await task_run("quarantine", "list")
    assert "2 messages quarantined since Redis was last empty" in empty.err


async def test_an_encrypted_message_is_shown_and_retried_only_with_the_key(
    task_run: TaskRun,
) -> None:
    """A process that has the key decrypts the entry as a worker would."""
    cipher = Cipher({"new": b"n" * 32}, NAMESPACE)
    args = encrypted_arguments({"a": 2, "b": 40}, "locked", cipher)
    data = encode(Envelope(FORMAT, "locked", "errands:Add", args, {}, 1.5))
    task_run.environment["NONET_SIGNING_KEYS"] = NEW  # why it is quarantined
    (entry,) = await put_aside(task_run, ("locked", data))
    del task_run.environment["NONET_SIGNING_KEYS"]
    reveal = ("quarantine", "reveal", entry, "--json")
    assert (await task_run(*reveal)).json["arguments"] == {"(all)": NO_KEY}
    refused = await task_run("quarantine", "retry", entry)
    assert (refused.code, NO_KEY[12:] in refused.err) == (1, True)
    keys = {"NONET_ENCRYPTION_KEYS": NEW}
    shown = await task_run(*reveal, **keys)
    assert shown.json["arguments"] == {"a": 2, "b": 40}
    assert (await task_run("quarantine", "retry", entry, **keys)).code == 0
    task_run.environment |= keys
    async with task_run.worker() as app:
        assert await app.result(f"q-{entry}", timeout=WAIT_SECONDS) == 42


async def test_reveal_has_an_inert_preview_of_the_bytes(task_run: TaskRun) -> None:
    """Hexadecimal and printable text have no character that a terminal obeys."""
    (entry,) = await put_aside(task_run, ("odd", b"\xc1\x1b[2Jtext"))
    shown = await task_run("quarantine", "reveal", entry)
    assert "c1 1b 5b 32 4a" in shown.out and "..[2Jtext" in shown.out
    assert "\x1b" not in shown.out


async def test_show_masks_secrets(task_run: TaskRun) -> None:
    """An envelope shows what it claims to be, and its arguments only on request."""
    data = envelope("other", a=1, b="s3cret-key")
    (entry,) = await put_aside(task_run, ("odd", data))
    document = (await task_run("quarantine", "show", entry, "--json")).json
    assert "another task" in document["reason"]
    assert (document["claims"]["id"], document["claims"]["name"]) == ("other", "errands:Add")
    shown = await task_run("quarantine", "show", entry)
    assert "s3cret" not in str(document) + shown.out and data.hex() not in str(document)
    full = (await task_run("quarantine", "reveal", entry, "--json")).json
    assert full["arguments"] == {"a": 1, "b": "s3cret-key"}
    assert full["labels"] == {"run": 7, "api_token": "**********"}
    unknown = await task_run("quarantine", "reveal", entry, "--json", NONET_TASKS="")
    assert set(unknown.json["arguments"].values()) == {"**********"}


async def test_discard_deletes_entries_and_is_an_event(task_run: TaskRun) -> None:
    """It deletes the named entries or all, and reports a missing one."""
    first, second, third = await put_aside(task_run, pointers=3)
    ended = await task_run("quarantine", "discard", first, "1-1", "--json")
    assert ended.code == 1
    assert [row.get("discarded") for row in ended.json] == [True, None]
    assert "entry 1-1: there is no such entry" in ended.err
    assert (await task_run("quarantine", "discard", first)).code == 4
    rest = await task_run("quarantine", "discard", "--all", "--json")
    assert {row["entry"] for row in rest.json} == {second, third}
    assert (await task_run("quarantine", "list", "--json")).json["items"] == []
    events = (await task_run("events", "--json")).json["items"][::-1]
    assert [event["kind"] for event in events] == ["quarantine-discard"] * 2


async def test_an_unknown_entry_is_not_found(task_run: TaskRun) -> None:
    """A mistyped id changes nothing."""
    await put_aside(task_run, pointers=1)
    for command in ("discard", "retry", "show", "reveal"):
        ended = await task_run("quarantine", command, "nope")
        assert ended.code == 4 and "has no entry nope" in ended.err
    assert task_run.redis.xlen(QUARANTINE) == 1


async def test_an_entry_is_retried_once_the_key_is_there(task_run: TaskRun) -> None:
    """It runs once, with its labels, signed with the newest key."""
    task_run.environment["NONET_SIGNING_KEYS"] = OLD
    async with task_run.app() as app:
        await app.submit(Add(2, 3), id="late", labels={"run": 7})
    task_run.environment["NONET_SIGNING_KEYS"] = NEW
    (entry,) = await put_aside(task_run)
    refused = await task_run("quarantine", "retry", entry)
    assert refused.code == 1
    assert "signed with key 'old', which NONET_SIGNING_KEYS does not have" in refused.err
    task_run.environment["NONET_SIGNING_KEYS"] = f"{NEW},{OLD}"
    first = await task_run("quarantine", "retry", entry, "--json")
    assert first.json == [{"entry": entry, "id": f"q-{entry}", "created": True}]
    second = await task_run("quarantine", "retry", entry, "--json")
    assert second.json == [{"entry": entry, "id": f"q-{entry}", "created": False}]
    assert envelope_of(task_run, f"q-{entry}")[3:6] == b"new"
    async with task_run.worker() as app:
        assert await app.result(f"q-{entry}", timeout=WAIT_SECONDS) == 5
        assert await entries(app.stores.quarantine) == []
    events = (await task_run("events", "--json")).json["items"][::-1]
    assert [event["kind"] for event in events] == ["quarantine-retry"]
    assert entry in events[0]["text"]


async def test_a_shell_without_keys_removes_no_signature(task_run: TaskRun) -> None:
    """A signed entry that cannot be verified stays, and the error names its key."""
    task_run.environment["NONET_SIGNING_KEYS"] = OLD
    async with task_run.app() as app:
        await app.submit(Add(2, 3), id="late")
    task_run.environment["NONET_SIGNING_KEYS"] = NEW
    (entry,) = await put_aside(task_run)
    for unsigned in ("", "1"):
        variables = {"NONET_SIGNING_KEYS": "", "NONET_ACCEPT_UNSIGNED": unsigned}
        ended = await task_run("quarantine", "retry", entry, **variables)
        assert ended.code == 1
        assert "key 'old', which NONET_SIGNING_KEYS does not have here" in ended.err
    assert task_run.redis.xlen(QUARANTINE) == 1
    assert task_run.keys("t:*") == set()


@pytest.mark.parametrize(
    ("state", "code", "problem"),
    [
        ("done", 0, ""),
        ("dead", 1, "entry {0} was submitted before, and its task q-{0} is dead"),
        ("queued", 1, "its id q-{0} belongs to another task, which is queued"),
    ],
)
async def test_a_retry_reports_the_task_that_has_its_id(
    task_run: TaskRun, state: str, code: int, problem: str
) -> None:
    """The entry stays unless its own task has succeeded."""
    entry = task_run.redis.xadd(QUARANTINE, kept("good", envelope("good", a=1)))
    if state == "queued":
        async with task_run.app() as app:
            prepare = app.client.envelopes.prepare
            other = prepare(Add(5), Options(id=f"q-{entry}"), is_step=True)
            await app.broker.submit([other])
    else:
        mark = repeat_of_entry(NAMESPACE, entry).mark
        task_run.redis.set(f"{{{NAMESPACE}}}:r:q-{entry}", f"{state}|1 {mark}|")
    ended = await task_run("quarantine", "retry", entry, "--json")
    assert ended.code == code and problem.format(entry) in ended.err
    assert [row.get("created") for row in ended.json] == [None if code else False]
    assert task_run.redis.xlen(QUARANTINE) == code


def kept(id: str, data: bytes) -> dict[str, str | int | bytes]:
    """The fields of an entry of the quarantine."""
    about = {"at": 1, "reason": "", "stream": "", "entry": ""}
    return {**about, "task": id, "size": len(data), "bytes": data}


async def test_a_retry_gives_the_reason_of_each_refused_entry(task_run: TaskRun) -> None:
    """It refuses an entry without stopping the others, and leaves it in the quarantine."""
    cases = {
        "bytes": (b"\xc1", "begins like a signed message"),
        "swapped": (envelope("other", a=1), "another task, other"),
        "long": (b"\xc1" * 300_000, "65536 of 300000 bytes were kept"),
        "": (b"", "a stream entry without a pointer to a task"),
    }
    made = [(id, data) for id, (data, _) in cases.items() if id]
    await put_aside(task_run, *made, pointers=1)
    rows = (await task_run("quarantine", "list", "--json")).json["items"]
    ended = await task_run("quarantine", "retry", "--all", "--json")
    assert ended.code == 1
    assert [row["entry"] for row in rows] == [row["entry"] for row in ended.json][::-1]
    for row, refused in zip(rows, ended.json[::-1], strict=True):
        assert cases[row["task_id"]][1] in refused["error"]
    assert "pointer 0" not in ended.out + ended.err
    assert task_run.redis.xlen(QUARANTINE) == len(cases)


async def test_an_entry_that_is_mended_by_newer_code_is_retried(task_run: TaskRun) -> None:
    """The exit code says whether the class, the arguments or the release do not fit."""
    newer = [FORMAT + 1, "newer", "errands:Add", {"a": msgspec.msgpack.Ext(99, b"x")}, None]
    for name, data, code, reason in [
        ("unknown", envelope("unknown", "errands:Nobody"), 2, "errands:Nobody"),
        ("args", envelope("args", a="x"), 2, "Add: a: "),
        ("newer", msgspec.msgpack.encode(newer), 1, f"(task format {FORMAT + 1}"),
        ("good", envelope("good", a=1), 0, ""),
    ]:
        entry = task_run.redis.xadd(QUARANTINE, kept(name, data))
        every = await task_run("quarantine", "retry", "--all")
        assert every.code == min(code, 1)
        if code:
            one = await task_run("quarantine", "retry", entry)
            assert (one.code, reason in one.err) == (code, True), one.err
        task_run.redis.delete(QUARANTINE)
