#!lua
-- keep_log: keep the last log lines of an attempt, for as long as the caller says. While memory is full they are lost.
-- KEYS  prefix
-- ARGV  id, gen, fence, number of the attempt, lines, ttl ms
-- returns OK | STALE (not the owner: nothing was kept)
-- @include base
local id, gen, fence, attempt, lines, ttl = unpack(ARGV, 1, 6)
local MOST = 20  -- attempts, as of error documents
local record = read_record(id)
if record.gen ~= gen or record.fence ~= fence then
  return 'STALE'
end
local key = P .. 'l:' .. id
if attempt == '1' then  -- an earlier task may have had this id
  redis.call('DEL', key)
end
redis.call('HSET', key, attempt, lines)
redis.call('HDEL', key, digits(attempt - MOST))
redis.call('PEXPIRE', key, ttl)
return 'OK'
