"""The real scripts on a real server, under a clock that tests turn.

Only the call that reads the clock is replaced, so that leases end without waiting; and where a test
wants it, deliberate faults are put in, at lines that the scripts mark with ``-- fault: NAME``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from nonet.stores.connection.redis import script

PREFIX = "{m}:"
SCRIPTS = (
    *("submit", "fetch", "settle", "promote", "renew", "admit", "hold", "unhold"),
    *("reclaim", "take_over", "disown", "leave"),
)

MARKED_LINE = re.compile(r"^.*-- fault: ([a-z-]+)$", re.MULTILINE)

SNAPSHOT = """
local P = KEYS[1]
local out = {records = {}, queues = {}, writers = {}, streams = {}}
for _, key in ipairs(redis.call('KEYS', P .. '*')) do
  local name = string.sub(key, #P + 1)
  local head, rest = string.match(name, '^(%a+):(.*)$')
  if head == 't' then
    out.records[rest] = redis.call('HGETALL', key)
  elseif head == 'queue' or head == 'writers' then
    out[head == 'queue' and 'queues' or head][rest] = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif (head == 'tasks' and rest ~= 'delayed') or head == 'woken' or head == 'suspects'
    or head == 'burials' then
    local pending = {}
    for _, item in ipairs(redis.pcall('XPENDING', key, 'workers', '-', '+', 10000)) do
      pending[item[1]] = item[2]
    end
    local entries = {}
    for i, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
      entries[i] = {entry[1], entry[2][2], entry[2][4], pending[entry[1]] or ''}
    end
    out.streams[name] = entries
  end
end
out.delayed = redis.call('ZRANGE', P .. 'tasks:delayed', 0, -1, 'WITHSCORES')
out.watch = redis.call('ZRANGE', P .. 'watch', 0, -1, 'WITHSCORES')
return cjson.encode(out)
"""

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
class State:
    """What Redis contains, as far as locks go."""

    records: dict[str, dict[str, str]]
    queues: dict[str, dict[str, int]]
    writers: dict[str, dict[str, int]]
    streams: dict[str, list[tuple[str, str, str, str]]]  # entry, id, gen, consumer
    delayed: dict[str, int]
    watch: dict[str, int]

    @classmethod
    def read(cls, text: str) -> State:
        """From the reply of the snapshot."""
        raw: dict[str, Any] = json.loads(text)
        return cls(
            {
                id: dict(zip(flat[::2], flat[1::2], strict=True))
                for id, flat in dict(raw["records"]).items()
            },
            {name: _scores(flat) for name, flat in dict(raw["queues"]).items()},
            {name: _scores(flat) for name, flat in dict(raw["writers"]).items()},
            {
                name: [(row[0], row[1], row[2], row[3]) for row in rows]
                for name, rows in dict(raw["streams"]).items()
            },
            _scores(raw["delayed"]),
            _scores(raw["watch"]),
        )


def _scores(flat: Sequence[str]) -> dict[str, int]:
    return {flat[i]: int(flat[i + 1]) for i in range(0, len(flat), 2)}


class Clocked:
    """Scripts on a server, each with its clock as a second key.

    Args:
        client: decodes replies; the database is emptied again and again.
        names: of the scripts.
        snapshot: a script that tells what Redis contains, as JSON.
        faults: put into every script that has their marker.
    """

    def __init__(
        self, client: redis.Redis, names: Iterable[str], snapshot: str, faults: Iterable[Fault] = ()
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
        client.script_load(snapshot)
        self._snapshot = hashlib.sha1(snapshot.encode(), usedforsecurity=False).hexdigest()

    def run(self, name: str, now: int, *args: Any) -> Any:
        """Run a script at a time; its answer."""
        return self.client.evalsha(self._digests[name], 2, PREFIX, now, *args)

    def run_and_look(self, name: str, now: int, *args: Any) -> tuple[Any, str]:
        """Run a script at a time; its answer, and what Redis contains then, as JSON."""
        with self.client.pipeline(transaction=False) as pipe:
            pipe.evalsha(self._digests[name], 2, PREFIX, now, *args)
            pipe.evalsha(self._snapshot, 1, PREFIX)
            answer, text = pipe.execute()
        return answer, str(text)

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

    def look_at_all(self) -> str:
        """What Redis contains, as JSON."""
        return str(self.client.evalsha(self._snapshot, 1, PREFIX))

    def let_idle(self, key: str, consumer: str, entry: str) -> None:
        """Let a pending entry look as if nobody had renewed it for an hour."""
        self.client.xclaim(key, "workers", consumer, 0, [entry], idle=3_600_000, justid=True)


class Site(Clocked):
    """The lock scripts.

    Args:
        client: decodes replies; the database is emptied again and again.
        faults: put into every script that has their marker.
    """

    def __init__(self, client: redis.Redis, faults: Iterable[Fault] = ()) -> None:
        super().__init__(client, SCRIPTS, SNAPSHOT, faults)

    def call(self, name: str, now: int, *args: Any) -> tuple[Any, State]:
        """Run a script at a time; its answer, and what Redis contains then."""
        answer, text = self.run_and_look(name, now, *args)
        return answer, State.read(text)

    def look(self) -> State:
        """What Redis contains."""
        return State.read(self.look_at_all())
