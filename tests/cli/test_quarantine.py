"""``task-run quarantine``: what is listed, what is shown, and what becomes a task after all."""

from __future__ import annotations

import base64

import msgspec
import pytest
from cli.errands import Add
from cli.terminal import NAMESPACE, TaskRun
from waits import WAIT_SECONDS, until

from nonet import Nonet
from nonet.messages.documents import encrypted_arguments
from nonet.messages.encryption import NO_KEY, Cipher
from nonet.messages.formats import FORMAT
from nonet.messages.message import Envelope, encode
from nonet.messages.repetition import repeat_of_entry
from nonet.stores.namespace.quarantine import Quarantine

STREAM = f"{{{NAMESPACE}}}:tasks:normal:small"
NEW = "new:" + base64.b64encode(b"n" * 32).decode()
OLD = "old:" + base64.b64encode(b"o" * 32).decode()


def envelope(id: str, name: str = "errands:Add", **args: object) -> bytes:
    return encode(Envelope(FORMAT, id, name, args, {"run": 7, "api_token": "s3cret-pw"}, 1.5))


def queue(task_run: TaskRun, id: str, data: bytes) -> None:
    """A record with an envelope that no client made, and its pointer."""
    key = f"{{{NAMESPACE}}}:"
    task_run.redis.set(f"{key}b:{id}", data)
    entry = task_run.redis.xadd(STREAM, {"id": id, "gen": "1"})
    fields = {"state": "queued", "gen": "1", "name": "?", "stream": "normal:small"}
    more = {"attempt": 0, "ticket": 1, "group": "", "pointer": f"tasks:normal:small {entry}"}
    task_run.redis.hset(f"{key}t:{id}", mapping={**fields, **more})


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


async def left(app: Nonet) -> list[str]:
    return await entries(app.stores.quarantine)


async def test_list_shows_no_bytes(task_run: TaskRun) -> None:
    """Entry, time, reason, task, stream and size, the newest first."""
    (first,) = await put_aside(task_run, ("odd", b"\xc1s3cret-pw"))
    _, second = await put_aside(task_run, pointers=1)
    ended = await task_run("quarantine", "list", "--json")
    newest, oldest = ended.json
    assert (newest["entry"], oldest["entry"]) == (second, first)
    assert newest.keys() == {"entry", "at", "reason", "task_id", "stream", "size"}
    assert (oldest["task_id"], oldest["size"], oldest["stream"]) == ("odd", 10, STREAM)
    assert newest["reason"] == "not a task pointer"
    assert oldest["at"].endswith("Z")
    table = await task_run("quarantine", "list")
    assert first in table.out
    assert "s3cret" not in ended.out + table.out
    assert len((await task_run("quarantine", "list", "--json", "--limit", 1)).json) == 1


async def test_an_encrypted_message_is_shown_and_retried_with_the_key_only(
    task_run: TaskRun,
) -> None:
    """An entry whose key is there is decrypted as a worker would do it."""
    cipher = Cipher({"new": b"n" * 32}, NAMESPACE)
    args = encrypted_arguments({"a": 2, "b": 40}, "locked", cipher)
    data = encode(Envelope(FORMAT, "locked", "errands:Add", args, {}, 1.5))
    task_run.environment["NONET_SIGNING_KEYS"] = NEW  # why it is quarantined
    (entry,) = await put_aside(task_run, ("locked", data))
    del task_run.environment["NONET_SIGNING_KEYS"]
    show = ("quarantine", "show", entry, "--show-args", "--json")
    assert (await task_run(*show)).json["arguments"] == {"(all)": NO_KEY}
    refused = await task_run("quarantine", "retry", entry)
    assert (refused.code, NO_KEY[12:] in refused.err) == (1, True)
    keys = {"NONET_ENCRYPTION_KEYS": NEW}
    shown = await task_run(*show, **keys)
    assert shown.json["arguments"] == {"a": 2, "b": 40}
    assert (await task_run("quarantine", "retry", entry, **keys)).code == 0
    task_run.environment |= keys
    async with task_run.worker() as app:
        assert await app.result(f"q-{entry}", timeout=WAIT_SECONDS) == 42


async def test_an_empty_quarantine_says_so(task_run: TaskRun) -> None:
    """Nothing there is not an error."""
    assert (await task_run("quarantine", "list", "--json")).json == []
    assert "empty" in (await task_run("quarantine", "list")).err
    for command in ("discard", "retry"):
        assert (await task_run("quarantine", command, "--all", "--json")).json == []


async def test_show_has_a_preview_of_bytes(task_run: TaskRun) -> None:
    """Hexadecimal and printable, never a character that a terminal obeys."""
    (entry,) = await put_aside(task_run, ("odd", b"\xc1\x1b[2Jtext"))
    document = (await task_run("quarantine", "show", entry, "--json")).json
    assert document["preview"] == b"\xc1\x1b[2Jtext".hex()
    assert (document["size"], document["kept"], document["task_id"]) == (9, 9, "odd")
    shown = await task_run("quarantine", "show", entry)
    assert "c1 1b 5b 32 4a" in shown.out and "..[2Jtext" in shown.out
    assert "\x1b" not in shown.out


async def test_show_masks_what_is_secret(task_run: TaskRun) -> None:
    """An envelope shows what it claims to be; its arguments when asked, secret ones never."""
    data = envelope("other", a=1, b="s3cret-key")
    (entry,) = await put_aside(task_run, ("odd", data))
    document = (await task_run("quarantine", "show", entry, "--json")).json
    assert "another task" in document["reason"]
    assert (document["envelope"]["id"], document["envelope"]["name"]) == ("other", "errands:Add")
    assert not document.keys() & {"arguments", "labels"}
    shown = await task_run("quarantine", "show", entry)
    assert "s3cret" not in str(document) + shown.out and data.hex() not in str(document)
    full = (await task_run("quarantine", "show", entry, "--show-args", "--json")).json
    assert full["arguments"] == {"a": 1, "b": "s3cret-key"}
    assert full["labels"] == {"run": 7, "api_token": "**********"}
    unknown = await task_run("quarantine", "show", entry, "--show-args", "--json", NONET_TASKS="")
    assert set(unknown.json["arguments"].values()) == {"**********"}


async def test_discard_deletes_and_is_written_down(task_run: TaskRun) -> None:
    """Named entries or all; what is not there is told."""
    first, second, third = await put_aside(task_run, pointers=3)
    ended = await task_run("quarantine", "discard", first, "1-1", "--json")
    assert ended.code == 1
    assert [row.get("discarded") for row in ended.json] == [True, None]
    assert "entry 1-1: there is no such entry" in ended.err
    assert (await task_run("quarantine", "discard", first)).code == 4
    rest = await task_run("quarantine", "discard", "--all", "--json")
    assert {row["entry"] for row in rest.json} == {second, third}
    assert (await task_run("quarantine", "list", "--json")).json == []
    events = (await task_run("events", "--json")).json
    assert [event["kind"] for event in events] == ["quarantine-discard"] * 2


@pytest.mark.parametrize("command", ["discard", "retry"])
async def test_a_slip_acts_on_nothing(task_run: TaskRun, command: str) -> None:
    """Neither nothing, nor both entries and --all, nor a typing error; each says what is wrong."""
    (entry,) = await put_aside(task_run, pointers=1)
    for arguments, code, problem in [
        ([], 2, "which entries?"),
        ([entry, "--all"], 2, "named entries exclude --all"),
        (["nope"], 4, "the quarantine has no entry nope: an id looks like"),
    ]:
        ended = await task_run("quarantine", command, *arguments)
        assert (ended.code, ended.err.startswith(f"error: {problem}")) == (code, True), ended.err
    shown = await task_run("quarantine", "show", "nope")
    assert shown.code == 4 and "has no entry nope" in shown.err
    assert len((await task_run("quarantine", "list", "--json")).json) == 1


async def test_a_retry_after_the_key_came_runs_once(task_run: TaskRun) -> None:
    """What workers could not verify runs when they can, once, with its labels, newly signed."""
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
    stored = task_run.redis.getrange(f"{{{NAMESPACE}}}:b:q-{entry}", 3, 5)
    assert stored == "new"
    async with task_run.worker() as app:
        assert await app.result(f"q-{entry}", timeout=WAIT_SECONDS) == 5
        assert await left(app) == []
    events = (await task_run("events", "--json")).json
    assert [event["kind"] for event in events] == ["quarantine-retry"]
    assert entry in events[0]["text"]


async def test_a_shell_without_keys_takes_no_signature_away(task_run: TaskRun) -> None:
    """A signed entry that cannot be verified here stays as it is: its key is named."""
    task_run.environment["NONET_SIGNING_KEYS"] = OLD
    async with task_run.app() as app:
        await app.submit(Add(2, 3), id="late")
    task_run.environment["NONET_SIGNING_KEYS"] = NEW
    (entry,) = await put_aside(task_run)
    before = task_run.redis.xlen(f"{{{NAMESPACE}}}:quarantine")
    for unsigned in ("", "1"):
        ended = await task_run(
            *("quarantine", "retry", entry, "--json"),
            NONET_SIGNING_KEYS="",
            NONET_ACCEPT_UNSIGNED=unsigned,
        )
        assert ended.code == 1
        assert "key 'old', which NONET_SIGNING_KEYS does not have here" in ended.err
        assert ended.err.count("entry") == 1
    assert task_run.redis.xlen(f"{{{NAMESPACE}}}:quarantine") == before == 1
    assert task_run.keys("t:*") == set()


async def test_a_retry_whose_task_has_failed_says_so(task_run: TaskRun) -> None:
    """What was submitted before and is dead is no success: code 1, and the entry stays."""
    key = f"{{{NAMESPACE}}}:quarantine"
    data = envelope("good", a=1)
    entry = task_run.redis.xadd(key, {"task": "good", "size": len(data), "bytes": data})
    mark = repeat_of_entry(NAMESPACE, entry).mark
    task_run.redis.set(f"{{{NAMESPACE}}}:r:q-{entry}", f"dead|1 {mark}|")
    for left in (1, 1, 0):
        if not left:
            task_run.redis.xdel(key, entry)
        ended = await task_run("quarantine", "retry", entry, "--json")
        assert ended.code == 1
        assert f"entry {entry} was submitted before, and its task q-{entry} is dead" in ended.err
        assert ended.err.count(f"entry {entry}") == 1
        assert task_run.redis.xlen(key) == left
    task_run.redis.set(f"{{{NAMESPACE}}}:r:q-{entry}", f"done|1 {mark}|")
    assert (await task_run("quarantine", "retry", entry, "--json")).json[0]["created"] is False


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "ended"])
async def test_an_id_of_another_task_is_refused(task_run: TaskRun, is_live: bool) -> None:
    """Whoever took the id q-ENTRY before is another task: code 1, and the entry stays."""
    key = f"{{{NAMESPACE}}}:quarantine"
    data = envelope("good", a=1)
    entry = task_run.redis.xadd(key, {"task": "good", "size": len(data), "bytes": data})
    if is_live:
        async with task_run.app() as app:
            await app.submit(Add(5), id=f"q-{entry}")
    else:
        async with task_run.worker() as app:
            assert (
                await (await app.submit(Add(5), id=f"q-{entry}")).result(timeout=WAIT_SECONDS) == 5
            )
    ended = await task_run("quarantine", "retry", entry)
    state = "queued" if is_live else "done"
    assert ended.code == 1
    assert f"its id q-{entry} belongs to another task, which is {state}" in ended.err
    assert task_run.redis.xlen(key) == 1


def kept(id: str, data: bytes) -> dict[str, str | int | bytes]:
    """The fields of an entry of the quarantine."""
    about = {"at": 1, "reason": "", "stream": "", "entry": ""}
    return {**about, "task": id, "size": len(data), "bytes": data}


async def test_one_of_all_is_not_told_from_one_of_many(task_run: TaskRun) -> None:
    """The code of `--all` does not depend on how many others were left: 1, not all."""
    data = encode(Envelope(FORMAT, "odd", "errands:Nobody", {}, {}, 1.5))
    key = f"{{{NAMESPACE}}}:quarantine"
    entry = task_run.redis.xadd(key, kept("odd", data))
    named, every = [await task_run("quarantine", "retry", which) for which in (entry, "--all")]
    assert (named.code, every.code) == (2, 1)
    assert f"entry {entry}: unknown task" in named.err and named.err == every.err


async def test_the_log_and_the_list_tell_of_garbage(
    task_run: TaskRun, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker names the task that is none, without an attempt that never was; the list counts."""
    await put_aside(task_run, ("odd", b"\xc1s3cret-pw"), pointers=2)
    (line,) = [text for text in caplog.messages if "message odd" in text]
    assert line.startswith("message odd is not a valid task; quarantined it: message of")
    assert "()" not in caplog.text and "s3cret" not in caplog.text
    await task_run("quarantine", "discard", "--all")
    ended = await task_run("quarantine", "list")
    assert "3 messages quarantined since Redis was last empty" in ended.err


async def test_sizes_are_those_that_are_listed(task_run: TaskRun) -> None:
    """What is kept of a stream's entry counts as the entry did, however it is packed."""
    (entry,) = await put_aside(task_run, pointers=1)
    shown = (await task_run("quarantine", "show", entry, "--json")).json
    assert shown["kept"] == shown["size"] == len("nopointer 0")


async def test_a_retry_refuses_what_can_never_be_a_task(task_run: TaskRun) -> None:
    """Each with its reason; it stays where it is, and the others are submitted."""
    unknown = encode(Envelope(FORMAT, "unknown", "errands:Nobody", {}, {}, 1.5))
    cases = {
        "bytes": (b"\xc1", "begins like a signed message"),
        "swapped": (envelope("other", a=1), "another task, other"),
        "long": (b"\xc1" * 300_000, "65536 of 300000 bytes were kept"),
        "": (b"", "a stream entry without a pointer to a task"),
    }
    made = [(id, data) for id, (data, _) in cases.items() if id]
    await put_aside(task_run, *made, pointers=1)
    ids = {row["entry"]: row["task_id"] for row in (await listed(task_run))}
    ended = await task_run("quarantine", "retry", "--all", "--json")
    assert ended.code == 1
    problems = {ids[row["entry"]]: row["error"] for row in ended.json}
    assert list(ids) == [row["entry"] for row in ended.json][::-1]
    for id, (_, reason) in cases.items():
        assert reason in problems[id], id
    assert "pointer 0" not in ended.out + ended.err
    assert len(await listed(task_run)) == len(cases)
    await task_run("quarantine", "discard", "--all")
    # As if newer code had written them: what is in quarantine is mended by hand.
    key = f"{{{NAMESPACE}}}:quarantine"
    for name, data, code, reason in [
        ("unknown", unknown, 2, "errands:Nobody"),
        ("args", envelope("args", a="x"), 2, "Add: a: "),
        ("newer", newer("newer"), 1, f"by another release (task format {FORMAT + 1}"),
        ("good", envelope("good", a=1), 0, ""),
    ]:
        entry = task_run.redis.xadd(key, kept(name, data))
        one = await task_run("quarantine", "retry", entry)
        assert (one.code, reason in one.err) == (code, True), one.err


async def listed(task_run: TaskRun) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = (await task_run("quarantine", "list", "--json")).json
    return rows


def newer(id: str) -> bytes:
    return msgspec.msgpack.encode(
        [FORMAT + 1, id, "errands:Add", {"a": msgspec.msgpack.Ext(99, b"x")}, None]
    )
