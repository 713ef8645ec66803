#!lua flags=allow-oom
-- store_next: keep what a schedule that is asked only once answered.
-- KEYS  prefix
-- ARGV  term, entry, occurrence µs
-- returns 1, or 0 if another term leads
-- @include base
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= ARGV[1] or tonumber(leader[2]) <= now then
  return 0
end
redis.call('HSET', P .. 'periodic:next', ARGV[2], ARGV[3])
return 1
