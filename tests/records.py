"""Records of tasks, read and changed by hand: like the commands of a hash, for any client.

Scripts alone know how a record is stored, so these are scripts, too. A key is that of the record.
"""

from __future__ import annotations

from typing import Any

from nonet.stores.connection.redis import with_parts

_READ = with_parts(
    """-- @include base flat
local record, answer = read_record(ARGV[1]), {}
if #ARGV == 1 then
  return flat(ARGV[1], 0)
end
for i = 2, #ARGV do
  answer[i - 1] = record[ARGV[i]] or false
end
if #ARGV == 2 then
  return answer[1]
end
return answer
"""
)
_CHANGE = with_parts(
    """-- @include base
local record, changes = read_record(ARGV[1]), {}
for i = 2, #ARGV, 2 do
  changes[ARGV[i]] = ARGV[i + 1]
end
if record.state and not changes.envelope then
  change(ARGV[1], changes)
else
  record.state = record.state or 'queued'
  for field, value in pairs(changes) do
    record[field] = given(value)
  end
  records.put(ARGV[1], record, record.envelope or '')
  records.write_all()
end
return 1
"""
)


def _at(key: str) -> tuple[int, str, str]:
    prefix, _, id = key.partition("t:")
    return 1, prefix, id


def hget(client: Any, key: str, field: str) -> Any:
    """One field, or None."""
    return client.eval(_READ, *_at(key), field)


def hmget(client: Any, key: str, *fields: str) -> Any:
    """At least two fields, each or None."""
    return client.eval(_READ, *_at(key), *fields)


def hgetall(client: Any, key: str) -> Any:
    """All fields: a flat list of names and values."""
    return client.eval(_READ, *_at(key))


def hset(client: Any, key: str, *pair: Any, mapping: Any = None) -> Any:
    """Set fields; without a record make one."""
    parts = [part for found in (mapping or {}).items() for part in found]
    return client.eval(_CHANGE, *_at(key), *pair, *parts)


def hdel(client: Any, key: str, field: str) -> Any:
    """Remove a field."""
    return client.eval(_CHANGE, *_at(key), field, "")


def paired(flat: Any) -> dict[Any, Any]:
    """The answer of `hgetall` by names."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def hincrby(client: Any, key: str, field: str, by: int) -> Any:
    """Add to a field that is there."""
    by_field = "digits(tonumber(record[ARGV[i]]) + ARGV[i + 1])"
    code = _CHANGE.replace("= ARGV[i + 1]", f"= {by_field}")
    return client.eval(code, *_at(key), field, by)
