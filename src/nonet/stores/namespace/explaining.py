"""Collects what Redis knows of one task, for the reasons of `nonet.rules.findings.explanation`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from nonet.base.errors import MalformedMessageError, NotFoundError, ServerUnreachableError, nearest
from nonet.base.messages.documents import key_of
from nonet.base.messages.encryption import NO_KEYS, Cipher
from nonet.base.messages.message import HARD_LIMIT_BYTES, decode_envelope
from nonet.rules.crash_limit import CRASH_LIMIT
from nonet.rules.findings import remedies
from nonet.rules.findings.explanation import Facts, Turn
from nonet.rules.findings.peers import Needs, Peer
from nonet.rules.findings.refusal import Refusal
from nonet.rules.pauses import Pause
from nonet.rules.workflows import Blocked, Predecessor, not_a_task
from nonet.stores.connection.redis import AsyncRedis, RedisStore
from nonet.stores.namespace.lock_board import LOCK_TTL_MS, holders_of, seconds_since, seconds_until
from nonet.stores.namespace.obstacles import known
from nonet.stores.queue.records import read_records
from nonet.stores.queue.results import error_line, parse_ended, read_error
from nonet.stores.queue.workers import reported, worker_name

# Entries of a stream that are read to find the position of a task.
_LOOKS = 1000


class TaskFacts(RedisStore):
    """Reads the facts that explain why a task does not run.

    Args:
        crash_limit: the crashes after which a task is dead, for the words of an explanation.
        lock_ttl_ms: lease of a lock that declares none.
        cipher: decrypts errors.
    """

    def __init__(
        self,
        client: AsyncRedis,
        namespace: str,
        crash_limit: int = CRASH_LIMIT,
        lock_ttl_ms: int = LOCK_TTL_MS,
        cipher: Cipher = NO_KEYS,
    ) -> None:
        self._lock_ttl_ms = lock_ttl_ms
        self._namespace = namespace
        super().__init__(client, namespace)
        self._crash_limit = crash_limit
        self._cipher = cipher

    async def read(self, id: str, *, show: int = 5) -> Facts:
        """Return the facts for `nonet.rules.findings.explanation.explain`.

        Raises:
            NotFoundError: there is no such task.
        """
        answer = await self._scripts.run("explain", id, show, _LOOKS)
        if not answer:
            raise NotFoundError(
                f"task {id} is unknown: never submitted here, its result has expired "
                "(NONET_RESULT_TTL), or Redis has lost it"
            )
        found = dict(zip((name.decode() for name in answer[::2]), answer[1::2], strict=True))
        if found["state"] == b"group":
            command = remedies.of("task-run groups", id)
            raise NotFoundError(f"{id} is a group, not a task: '{command}' shows it")
        if found["state"] == b"workflow":
            raise NotFoundError(not_a_task(id))
        if found["state"] == b"hold":
            raise NotFoundError(
                f"{id} is code that holds locks, not a task: 'task-run locks' shows them"
            )
        needs = await self._needs(id, found["state"])
        facts = _facts(id, found, needs, self._lock_ttl_ms, self._cipher)
        if facts.refusal is not None:
            (refusal,) = await known(self._client, self._namespace, [facts.refusal])
            facts = replace(facts, refusal=refusal)
        similar = await self._similar(facts.name, found.get("peers", []))
        return replace(facts, crash_limit=self._crash_limit, similar=similar)

    async def _similar(self, name: str, peers: Sequence[Sequence[Any]]) -> tuple[str, ...]:
        """The most similar classes that these workers take, if none of them takes this one."""
        if any(is_known for _, _, _, _, is_known, *_ in peers):
            return ()
        known = set[str]()
        for knows in {row[3] for row in peers if row[3]}:
            taken = await self._client.hkeys(f"{self._scripts.prefix}names:{knows.decode()}")
            known |= {one.decode(errors="replace") for one in taken}
        return tuple(nearest(name, known))

    async def _needs(self, id: str, state: bytes) -> Needs:
        """What a task needs of its worker; nothing if its envelope is gone or never arrives."""
        if state not in (b"queued", b"delayed", b"waiting"):
            return Needs()
        (record,) = await read_records(self._scripts, [id])
        format = record.get("v", b"1")
        written = int(format) if format.isdigit() else 1
        with suppress(MalformedMessageError, ServerUnreachableError):
            (record,) = await read_records(self._scripts, [id], envelope_bytes=HARD_LIMIT_BYTES)
            envelope = decode_envelope(record.get("envelope", b""))
            layout, key = max(envelope.version, written), key_of(envelope.args)
            return Needs(layout, envelope.min_version, key)
        return Needs(written)


def _facts(id: str, found: dict[str, Any], needs: Needs, lock_ttl_ms: int, cipher: Cipher) -> Facts:
    now = int(found["now"])
    text = {
        name: value.decode(errors="replace")
        for name, value in found.items()
        if isinstance(value, bytes) and name not in ("ended", "failed")
    }
    if "ended" in found:
        return _ended_facts(id, found["ended"], now, cipher)
    due, offset = text.get("due"), int(found.get("offset", 0))
    failed = read_error(id, found.get("failed"), cipher)
    return Facts(
        id=id,
        state=text["state"],
        name=text.get("name", ""),
        needs=needs,
        now=(now - offset) / 1e6,
        stream=text.get("stream", ""),
        used=int(text.get("attempt", 0)),
        error=error_line(failed.error_type, failed.error) if failed else text.get("error", ""),
        crashes=int(text.get("crashes", 0)),
        blocker=text.get("blocker", ""),
        due=(int(due) - offset) / 1e6 if due else None,
        worker=worker_name(found.get("worker", b""), found.get("info", b"")),
        is_worker_alive=int(text.get("alive_until", 0)) > now,
        running_seconds=seconds_since(found.get("started", found["now"]), now),
        is_parked="parked" in found,
        refusal=_refusal(found, text, now, lock_ttl_ms) if "lock" in found else None,
        place=text.get("place", ""),
        ahead=int(text.get("ahead", 0)),
        turn=_turn(text) if "turns" in text else None,
        workers=int(text.get("workers", 0)),
        idle=int(text.get("idle", 0)),
        promoters=int(text.get("promoters", 0)),
        handed_on=int(text.get("handed", 0)),
        peers=tuple(_peer(row) for row in found.get("peers", [])),
        cancel=text.get("cancel", ""),
        start_by=(int(text["start_by"]) - offset) / 1e6 if "start_by" in text else None,
        paused=Pause.decode(text["paused"], text.get("pause", "")) if "paused" in text else None,
        workflow=text.get("step_of", ""),
        blocked=_blocked(found, text) if "workflow" in text else None,
    )


def _turn(text: dict[str, str]) -> Turn:
    turns = int(text["turns"])
    each = int(text["each"]) / 1e6 if "each" in text else None
    seconds = (turns + int(text.get("ahead", 0))) * each if each is not None else None
    return Turn(text.get("tenant", ""), int(text.get("others", 0)), turns, seconds)


def _blocked(found: dict[str, Any], text: dict[str, str]) -> Blocked:
    def step(name: str) -> Predecessor | None:
        row = [part.decode(errors="replace") for part in found.get(name, ())]
        return Predecessor(*row) if row else None

    return Blocked(
        workflow=text["workflow"],
        state=text.get("workflow_state", ""),
        cancel=text.get("workflow_cancel", ""),
        missing=int(text.get("missing", 0)),
        before=step("before"),
        root=step("root"),
        event=text.get("event", ""),
    )


def _ended_facts(id: str, value: bytes, now: int, cipher: Cipher) -> Facts:
    ended = parse_ended(id, value, cipher)
    document = ended.document
    error = ""
    if ended.state in ("cancelled", "expired"):
        error = document.error.removeprefix("cancelled ") if document else ""
    elif ended.state != "done":
        reason = document.reason if document else ""
        kind = f"{document.error_type}: {document.error}" if document else "no error is kept"
        error = f"{kind} ({reason})" if reason else kind
    return Facts(id=id, state=ended.state, now=now / 1e6, is_ended=True, error=error)


def _refusal(found: dict[str, Any], text: dict[str, str], now: int, lock_ttl_ms: int) -> Refusal:
    return Refusal(
        lock=text["lock"],
        kind=text["kind"],
        is_held=text.get("held") == "1",
        is_impossible=text.get("impossible") == "1",
        ahead=int(text.get("ahead", 0)),
        first=text.get("first", ""),
        holding=int(text.get("holding", 0)),
        holders=holders_of(found.get("holders", []), now, lock_ttl_ms),
        used=int(text.get("used", 0)),
        limit=int(text.get("limit", 0)),
        window_seconds=int(text.get("window", 0)) / 1000,
        items=int(text.get("items", 1)),
        back_in=seconds_until(found["back"], now) if "back" in found else None,
    )


def _peer(row: Sequence[Any]) -> Peer:
    worker, info, off, knows, is_known, version, running = row
    layout = knows.decode().partition("-")[0].partition(".")[0]
    report = reported(worker, info)
    return Peer(
        name=worker_name(worker, info),
        off=off.decode(errors="replace"),
        layout=int(layout) if layout.isdigit() else None,
        version=version.decode(errors="replace") if is_known else None,
        build=report.version,
        sql=report.sql,
        slots=report.concurrency,
        running=running,
        threads=report.threads,
        keys=report.keys,
    )
