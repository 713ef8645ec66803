"""`LuaMeter`: runs scripts outside of Redis, and counts what they cost in Lua."""

from __future__ import annotations

from collections import Counter
from typing import Any

import redis
from lupa.lua51 import LuaRuntime

# Redis sandboxes its scripts, so only a Lua of our own can count. It never frees memory, so that
# what is in use afterwards has been allocated. A script is compiled once, as by Redis.
_COUNTING = rb"""
local send, counted, compiled = ...
local function run(is_protected, ...)
  local reply = send(...)
  if type(reply) == 'table' and reply.err and not is_protected then error(reply) end
  return reply
end
redis = {
  call = function(...) return run(false, ...) end,
  pcall = function(...) return run(true, ...) end,
}
collectgarbage('stop')
return function(source, key, ...)
  compiled[source] = compiled[source] or assert(loadstring((source:gsub('^#![^\n]*', ''))))
  KEYS, ARGV = {key}, {...}
  local instructions, before = 0, collectgarbage('count')
  debug.sethook(function() instructions = instructions + 1 end, '', 1)
  local reply = compiled[source]()
  debug.sethook()
  counted(instructions, (collectgarbage('count') - before) * 1024)
  return reply
end
"""


class LuaMeter:
    """Its `call` takes the place of `Lane.call`; the commands of the scripts go to a server.

    Attributes:
        costs: Lua instructions and bytes allocated by the scripts so far.
    """

    def __init__(self, server: redis.Redis) -> None:
        self.costs = Counter[str]()
        self._connection = server.connection_pool.get_connection()
        self._lua = LuaRuntime(encoding=None)
        self._run = self._lua.execute(_COUNTING, self._send, self._count, self._lua.table())

    async def call(self, name: str, source: str, keys: int, *args: Any) -> Any:
        """Answer ``EVAL``; an ``EVALSHA`` is refused, so that the caller sends the script."""
        if name == "EVALSHA":
            raise redis.exceptions.NoScriptError
        packed = [str(arg).encode() if not isinstance(arg, bytes) else arg for arg in args]
        return self._to_python(self._run(source.encode(), *packed))

    def _count(self, instructions: int, size: float) -> None:
        self.costs.update(instructions=instructions, bytes=round(size))

    def _send(self, *args: Any) -> Any:
        packed = [b"%.17g" % arg if isinstance(arg, int | float) else arg for arg in args]
        self._connection.send_command(*packed)
        try:
            return self._to_lua(self._connection.read_response(disable_decoding=True))
        except redis.ResponseError as error:
            return self._lua.table_from({b"err": str(error).encode()})

    def _to_lua(self, reply: Any) -> Any:
        if isinstance(reply, list):
            return self._lua.table_from([self._to_lua(each) for each in reply])
        return False if reply is None else reply

    def _to_python(self, reply: Any) -> Any:
        if hasattr(reply, "values"):
            return [self._to_python(each) for each in reply.values()]
        return None if reply is False else reply
