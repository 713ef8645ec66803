"""The real scripts on a real server, under a clock that tests turn, and what Redis contains.

Only the call that reads the clock is replaced, so that leases end without waiting; and where a test
wants it, deliberate faults are put in, at lines that the scripts mark with ``-- fault: NAME``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from nonet.stores.connection.redis import script, with_parts

PREFIX = "{m}:"
SCRIPTS = (
    *("submit", "fetch", "settle", "promote", "renew", "reclaim", "disown", "leave", "mend"),
    *("group_open", "group_seal", "lead", "presence", "checkpoint"),
    *("break_lock", "inspect", "cancel", "pause", "resume", "hasten", "accuse", "take_over"),
    *("workflow_stage", "workflow_resume", "workflow_signal", "workflow_cancel"),
    *("admit", "hold", "unhold"),
)
MARKED_LINE = re.compile(r"^.*-- fault: ([a-z-]+)$", re.MULTILINE)

SNAPSHOT = with_parts(
    r"""
-- @include base flat
local out = {records = {}, streams = {}, results = {}, parts = {},
  grouped = {}, ranks = {}, queues = {}, writers = {}}
-- Documents that scripts make are bytes.
local function text_of(value)
  return (string.gsub(value, '[%z\1-\31\127-\255]', function(byte)
    return string.format('\\x%02x', string.byte(byte))
  end))
end
local function entries_of(key, name)
  local pending, found = {}, redis.pcall('XPENDING', key, 'workers', '-', '+', 10000)
  if not found.err then
    out.grouped[name] = 1
    for _, item in ipairs(found) do
      pending[item[1]] = item[2]
    end
  end
  local rows = {}
  for i, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
    local fields = entry[2]
    local is_pointer = fields[1] == 'id' and fields[3] == 'gen'
    rows[i] = {entry[1], is_pointer and fields[2] or '', is_pointer and fields[4] or '',
      pending[entry[1]] or ''}
  end
  return rows
end
for _, key in ipairs(redis.call('KEYS', P .. '*')) do
  local name = string.sub(key, #P + 1)
  local head, rest = string.match(name, '^(%a+):(.*)$')
  if head == 't' then
    out.records[rest] = flat(rest, 0)
  elseif (head == 'tasks' and rest ~= 'delayed') or head == 'woken' or head == 'suspects'
    or head == 'burials' then
    out.streams[name] = entries_of(key, name)
  elseif head == 'share' then
    out.streams[name] = {}
    for i, pointer in ipairs(redis.call('LRANGE', key, 0, -1)) do
      local id, gen = string.match(pointer, '^(.*) (%d+)$')
      out.streams[name][i] = {tostring(i), id, gen, ''}
    end
  elseif head == 'queue' or head == 'writers' then
    out[head == 'queue' and 'queues' or head][rest] = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif head == 'shares' then
    out.ranks[rest] = redis.call('ZRANGE', key, 0, -1)
  elseif head == 'r' then
    out.results[rest] = text_of(redis.call('GET', key))
  elseif head == 'b' or head == 'e' or head == 'c' then
    out.parts[name] = 1
  elseif head == 'h' then
    out.parts[name] = redis.call('LLEN', key)
  end
end
out.delayed = redis.call('ZRANGE', P .. 'tasks:delayed', 0, -1, 'WITHSCORES')
out.watch = redis.call('ZRANGE', P .. 'watch', 0, -1, 'WITHSCORES')
out.workers = redis.call('ZRANGE', P .. 'workers', 0, -1, 'WITHSCORES')
out.epoch = redis.call('HGETALL', P .. 'epoch')
out.counters = redis.call('HGETALL', P .. 'counters')
out.active = redis.call('HGETALL', P .. 'active')
out.tenants = redis.call('HGETALL', P .. 'active:tenants')
out.quarantined = redis.call('XLEN', P .. 'quarantine')
return cjson.encode(out)
"""
)

# Put before a script: after KEYS[3] calls nothing has an effect, as if the server had been killed.
CUT = """
local redis = (function(whole, calls_left)
  local function counted(call)
    return function(...)
      calls_left = calls_left - 1
      if calls_left < 0 then
        error('the script was cut')
      end
      return call(...)
    end
  end
  return {call = counted(whole.call), pcall = counted(whole.pcall)}
end)(redis, tonumber(KEYS[3]))
"""


# What expires does so when the virtual clock says, not the server's.
AGE = """
local ms = tonumber(ARGV[1])
for _, key in ipairs(redis.call('KEYS', KEYS[1] .. '*')) do
  local left = redis.call('PTTL', key)
  if left >= 0 and left <= ms then
    redis.call('DEL', key)
  elseif left >= 0 then
    redis.call('PEXPIRE', key, left - ms)
  end
end
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """A deliberate error in the scripts.

    A script marks the line with a trailing comment, ``-- fault: NAME``, so that the line can change
    without its fault. A marker without a fault, or a fault without a marker, fails a test.

    Attributes:
        marker: the name in the comment.
        instead: stands in the place of the marked line; empty: the line is left out.
        variant: tells apart faults with the same marker.
    """

    marker: str
    instead: str = ""
    variant: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.marker, self.variant)))


@dataclass(slots=True)
class Facts:
    """What Redis contains of tasks and locks."""

    records: dict[str, dict[str, str]]
    # Entry, id or '', gen, consumer or ''. The lists of tenants are among them.
    streams: dict[str, list[tuple[str, str, str, str]]]
    ranks: dict[str, frozenset[str]]  # by stream: the tenants that take part
    grouped: frozenset[str]  # streams that have their consumer group
    results: dict[str, str]
    parts: dict[str, int]  # what belongs to records: name of the key → 1, or errors of a history
    queues: dict[str, dict[str, int]]  # of locks
    writers: dict[str, dict[str, int]]
    watch: dict[str, int]
    delayed: dict[str, int]
    workers: dict[str, int]
    epoch: dict[str, str]
    counters: dict[str, str]
    active: dict[str, int]
    tenants: dict[str, int]
    quarantined: int

    @classmethod
    def read(cls, text: str) -> Facts:
        """From the reply of the snapshot."""
        raw: dict[str, Any] = json.loads(text)
        return cls(
            records={id: _pairs(flat) for id, flat in dict(raw["records"]).items()},
            streams={
                name: [(row[0], row[1], row[2], row[3]) for row in rows]
                for name, rows in dict(raw["streams"]).items()
            },
            ranks={stream: frozenset(names) for stream, names in dict(raw["ranks"]).items()},
            grouped=frozenset(dict(raw["grouped"])),
            results=dict(raw["results"]),
            parts=dict(raw["parts"]),
            queues={name: _numbers(flat) for name, flat in dict(raw["queues"]).items()},
            writers={name: _numbers(flat) for name, flat in dict(raw["writers"]).items()},
            quarantined=int(raw["quarantined"]),
            **{name: _pairs(raw[name]) for name in ("epoch", "counters")},
            **{
                name: _numbers(raw[name])
                for name in ("watch", "delayed", "workers", "active", "tenants")
            },
        )

    def entries(self) -> dict[str, list[tuple[str, str, str]]]:
        """By id: the stream, generation and reader of each pointer to it."""
        found: dict[str, list[tuple[str, str, str]]] = {}
        for key, rows in self.streams.items():
            for _, id, gen, consumer in rows:
                found.setdefault(id, []).append((key, gen, consumer))
        return found


def _pairs(flat: Sequence[str]) -> dict[str, str]:
    return {flat[i]: flat[i + 1] for i in range(0, len(flat), 2)}


def _numbers(flat: Sequence[str]) -> dict[str, int]:
    return {name: int(value) for name, value in _pairs(flat).items()}


class Site:
    """Scripts on a server, each with its clock as a second key.

    Args:
        client: decodes replies; the database is emptied again and again.
        faults: put into every script that has their marker.
        names: of the scripts.
    """

    def __init__(
        self, client: redis.Redis, faults: Iterable[Fault] = (), names: Iterable[str] = SCRIPTS
    ) -> None:
        self.client = client
        self._digests: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        turned = "{string.sub(KEYS[2], 1, -7), string.sub(KEYS[2], -6)}"
        faulty, met = {fault.marker: fault.instead for fault in faults}, set[str]()
        for name in names:
            source = script(name)[0].replace("redis.call('TIME')", turned)
            met.update(MARKED_LINE.findall(source))
            source = MARKED_LINE.sub(lambda line: faulty.get(line[1], line[0]), source)
            self._sources[name] = source
            self._digests[name] = str(client.script_load(source))
        assert faulty.keys() <= met, f"not in these scripts: {faulty.keys() - met}"
        self._snapshot = str(client.script_load(SNAPSHOT))
        self._age = client.register_script(AGE)

    def run(self, name: str, now: int, *args: Any) -> Any:
        """Run a script at a time; its answer."""
        return self.client.evalsha(self._digests[name], 2, PREFIX, now, *args)

    def call(self, name: str, now: int, *args: Any) -> tuple[Any, Facts]:
        """Run a script at a time; its answer, and what Redis contains then."""
        with self.client.pipeline(transaction=False) as pipe:
            pipe.evalsha(self._digests[name], 2, PREFIX, now, *args)
            pipe.evalsha(self._snapshot, 1, PREFIX)
            answer, text = pipe.execute()
        return answer, Facts.read(text)

    def run_cut(self, name: str, now: int, calls: int, *args: Any) -> bool:
        """Run a script of which Redis executes only so many calls; whether that was all of it."""
        head, _, body = self._sources[name].partition("\n")
        source = f"{head}\n{CUT}\n{body}"
        try:
            self.client.eval(source, 3, PREFIX, str(now), str(calls), *args)
        except redis.ResponseError as error:
            if "was cut" not in str(error):
                raise
            return False
        return True

    def look(self) -> Facts:
        """What Redis contains."""
        return Facts.read(self.client.evalsha(self._snapshot, 1, PREFIX))

    def let_idle(self, key: str, consumer: str, entry: str) -> None:
        """Let a pending entry look as if no worker had renewed it for an hour."""
        self.client.xclaim(key, "workers", consumer, 0, [entry], idle=3_600_000, justid=True)

    def age(self, milliseconds: int) -> None:
        """Let what has a TTL live so much shorter, or end."""
        self._age([PREFIX], [milliseconds])
