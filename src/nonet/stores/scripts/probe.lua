#!lua flags=allow-oom
-- probe: find the commands that the scripts need and that this Redis user may not run. It leaves nothing behind.
-- KEYS  prefix
-- ARGV  none
-- returns the names of the denied commands; 'KEYS' if keys with the prefix are
-- @include base
local denied = {}

local function try_without_key(name, ...)
  local answer = redis.pcall(name, ...)
  local problem = type(answer) == 'table' and answer.err or ''
  if string.find(problem, 'can.t access', 1) or string.find(problem, 'permissions to access', 1, true) then
    denied[1] = 'KEYS'
  elseif string.find(problem, 'can.t run', 1) or string.find(problem, 'NOPERM', 1, true) then
    denied[#denied + 1] = string.lower(name)
  end
end

local function try(name, ...)
  try_without_key(name, P .. 'probe:' .. name, ...)
  return name
end

-- Arguments that change nothing if the key is missing, or create a key that is deleted below.
local names = {
  try('GET'), try('STRLEN'), try('GETRANGE', 0, 0), try('MGET'), try('EXISTS'), try('TYPE'),
  try('PTTL'), try('PEXPIRE', 1), try('PERSIST'), try('SET', ''), try('MSET', ''),
  try('INCRBY', 1), try('HGET', 'f'), try('HMGET', 'f'), try('HGETALL'), try('HEXISTS', 'f'),
  try('HKEYS'), try('HLEN'), try('HDEL', 'f'), try('HSET', 'f', ''), try('HSETNX', 'f', ''),
  try('HINCRBY', 'f', 1), try('LRANGE', 0, 0), try('LINDEX', 0), try('LSET', 0, ''), try('LTRIM', 0, 0),
  try('LPUSH', ''), try('LLEN'), try('LPOS', ''), try('RPUSH', ''), try('SMEMBERS'), try('SCARD'), try('SISMEMBER', 'm'), try('SRANDMEMBER'), try('SSCAN', 0), try('SREM', 'm'), try('SADD', 'm'),
  try('ZSCORE', 'm'), try('ZCARD'), try('ZCOUNT', 0, 0), try('ZRANK', 'm'), try('ZRANGE', 0, 0), try('ZSCAN', 0),
  try('ZRANGEBYSCORE', 0, 0), try('ZREM', 'm'), try('ZREMRANGEBYSCORE', 0, 0), try('ZPOPMAX'),
  try('ZADD', 0, 'm'), try('XLEN'), try('XRANGE', '-', '+'), try('XREVRANGE', '+', '-'),
  try('XDEL', '0-1'), try('XACK', 'g', '0-1'), try('XPENDING', 'g'), try('XADD', '*', 'f', ''),
  try('XCLAIM', 'g', 'c', 0, '0-1', 'JUSTID'), try('XAUTOCLAIM', 'g', 'c', 0, '0-0', 'JUSTID'),
}

local stream = P .. 'probe:stream'
try_without_key('XGROUP', 'CREATE', stream, 'g', '0', 'MKSTREAM')
try_without_key('XINFO', 'GROUPS', stream)
try_without_key('XREADGROUP', 'GROUP', 'g', 'c', 'COUNT', 1, 'STREAMS', stream, '>')
try_without_key('SCAN', 0, 'MATCH', stream, 'COUNT', 1)
try_without_key('DEL', stream)
for _, name in ipairs(names) do
  redis.pcall('DEL', P .. 'probe:' .. name)
end
return denied
