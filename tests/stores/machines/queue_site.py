"""All scripts of the queue on a real server, and what Redis contains after each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from stores.machines.lock_site import PREFIX, Clocked, Fault

SCRIPTS = (
    *("submit", "fetch", "settle", "promote", "renew", "reclaim", "disown", "leave", "mend"),
    *("group_open", "group_seal", "lead", "plan", "fire", "presence", "checkpoint"),
    *("break_lock", "inspect", "cancel", "pause", "resume", "hasten", "accuse"),
    *("workflow_stage", "workflow_resume", "workflow_cancel", "publish_fairness"),
)

SNAPSHOT = r"""
local P = KEYS[1]
local out = {records = {}, streams = {}, results = {}, groups = {}, parts = {}, opens = {},
  grouped = {}, ranks = {}}
-- Documents that scripts make are bytes.
local function text_of(value)
  return (string.gsub(value, '[%z\1-\31\127-\255]', function(byte)
    return string.format('\\x%02x', string.byte(byte))
  end))
end
local function texts_of(flat)
  for i, value in ipairs(flat) do
    flat[i] = text_of(value)
  end
  return flat
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
    out.records[rest] = redis.call('HGETALL', key)
  elseif (head == 'tasks' and rest ~= 'delayed') or head == 'woken' or head == 'suspects'
    or head == 'burials' then
    out.streams[name] = entries_of(key, name)
  elseif head == 'share' then
    out.streams[name] = {}
    for i, pointer in ipairs(redis.call('LRANGE', key, 0, -1)) do
      local id, gen = string.match(pointer, '^(.*) (%d+)$')
      out.streams[name][i] = {tostring(i), id, gen, ''}
    end
  elseif head == 'shares' then
    out.ranks[rest] = redis.call('ZRANGE', key, 0, -1)
  elseif head == 'r' then
    out.results[rest] = text_of(redis.call('GET', key))
  elseif head == 'g' and not string.find(rest, ':') then
    out.groups[rest] = {redis.call('HGETALL', key), redis.call('SMEMBERS', key .. ':pending'),
      texts_of(redis.call('HGETALL', key .. ':results'))}
  elseif head == 'b' or head == 'l' or head == 'e' or head == 'c' then
    out.parts[name] = 1
  elseif head == 'h' then
    out.parts[name] = redis.call('LLEN', key)
  elseif head == 'open' then
    out.opens[rest] = redis.call('SMEMBERS', key)
  end
end
out.delayed = redis.call('ZRANGE', P .. 'tasks:delayed', 0, -1, 'WITHSCORES')
out.workers = redis.call('ZRANGE', P .. 'workers', 0, -1, 'WITHSCORES')
out.epoch = redis.call('HGETALL', P .. 'epoch')
out.periodic = redis.call('HGETALL', P .. 'periodic')
out.counters = redis.call('HGETALL', P .. 'counters')
out.active = redis.call('HGETALL', P .. 'active')
out.tenants = redis.call('HGETALL', P .. 'active:tenants')
out.quarantined = redis.call('XLEN', P .. 'quarantine')
return cjson.encode(out)
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

# An older data set is kept in another database of the same server.
SAVE = """
redis.call('SELECT', 1)
redis.call('FLUSHDB')
redis.call('SELECT', 0)
for _, key in ipairs(redis.call('KEYS', KEYS[1] .. '*')) do
  redis.call('COPY', key, key, 'DB', 1)
end
"""
RESTORE = """
redis.call('FLUSHDB')
redis.call('SELECT', 1)
for _, key in ipairs(redis.call('KEYS', KEYS[1] .. '*')) do
  redis.call('COPY', key, key, 'DB', 0)
end
"""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group as Redis has it."""

    fields: Mapping[str, str]
    pending: frozenset[str]
    results: Mapping[str, str]


@dataclass(slots=True)
class Facts:
    """What Redis contains of the queue."""

    records: dict[str, dict[str, str]]
    # Entry, id or '', gen, consumer or ''. The lists of tenants are among them.
    streams: dict[str, list[tuple[str, str, str, str]]]
    ranks: dict[str, frozenset[str]]  # by stream: the tenants that take part
    grouped: frozenset[str]  # streams that have their consumer group
    results: dict[str, str]
    groups: dict[str, GroupFacts]
    parts: dict[str, int]  # what belongs to records: name of the key → 1, or errors of a history
    opens: dict[str, frozenset[str]]
    delayed: dict[str, int]
    workers: dict[str, int]
    epoch: dict[str, str]
    periodic: dict[str, str]
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
            groups={
                id: GroupFacts(_pairs(fields), frozenset(pending), _pairs(results))
                for id, (fields, pending, results) in dict(raw["groups"]).items()
            },
            parts=dict(raw["parts"]),
            opens={id: frozenset(groups) for id, groups in dict(raw["opens"]).items()},
            delayed={id: int(at) for id, at in _pairs(raw["delayed"]).items()},
            workers={name: int(at) for name, at in _pairs(raw["workers"]).items()},
            epoch=_pairs(raw["epoch"]),
            periodic=_pairs(raw["periodic"]),
            counters=_pairs(raw["counters"]),
            active={field: int(number) for field, number in _pairs(raw["active"]).items()},
            tenants={name: int(number) for name, number in _pairs(raw["tenants"]).items()},
            quarantined=int(raw["quarantined"]),
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


class QueueSite(Clocked):
    """The scripts of the queue, with deliberate faults where a test wants them."""

    def __init__(self, client: redis.Redis, faults: Iterable[Fault] = ()) -> None:
        super().__init__(client, SCRIPTS, SNAPSHOT, faults)
        self._age, self._save, self._restore = map(client.register_script, (AGE, SAVE, RESTORE))

    def call(self, name: str, now: int, *args: Any) -> tuple[Any, Facts]:
        """Run a script at a time; its answer, and what Redis contains then."""
        answer, text = self.run_and_look(name, now, *args)
        return answer, Facts.read(text)

    def look(self) -> Facts:
        """What Redis contains."""
        return Facts.read(self.look_at_all())

    def age(self, milliseconds: int) -> None:
        """Let what has a TTL live so much shorter, or end."""
        self._age([PREFIX], [milliseconds])

    def save(self) -> None:
        """Keep a copy of all data, for `restore`."""
        self._save([PREFIX])

    def restore(self) -> None:
        """Redis comes back with the data of the last `save`."""
        self._restore([PREFIX])
