#!lua
-- fire: submit one occurrence of a periodic entry, once, and remember it.
-- KEYS  prefix
-- ARGV  term, entry, occurrence µs, id, name, stream, envelope, locks
-- returns FIRED | KNOWN (fired before) | WAITING (the previous one has not started) | DEPOSED
-- @include base wake record
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= ARGV[1] or tonumber(leader[2]) <= now then
  return 'DEPOSED'
end
local last = redis.call('HGET', P .. 'periodic', ARGV[2])
if last then
  local instant, id = string.match(last, '^(%d+)|(.*)$')
  if tonumber(ARGV[3]) <= tonumber(instant) then
    return 'KNOWN'
  end
  local state = redis.call('HGET', P .. 't:' .. id, 'state')
  if state == 'queued' or state == 'waiting' or state == 'delayed' then
    return 'WAITING'
  end
end
local made = submit_one(ARGV[4], ARGV[5], ARGV[6], 0, '', ARGV[7], ARGV[8])
redis.call('HSET', P .. 'periodic', ARGV[2], ARGV[3] .. '|' .. ARGV[4])
if made == 1 then
  wake(size_of(ARGV[6]), 1)
end
return 'FIRED'
