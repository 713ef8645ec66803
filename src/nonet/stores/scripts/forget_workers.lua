#!lua flags=allow-oom
-- forget_workers: the leader forgets workers that are gone, for the case that no other worker lives.
-- KEYS  prefix
-- ARGV  leader's term, lease ms, µs that it cannot be later than or ''
-- returns how many were forgotten, -1 if somebody else leads
-- @include base streams forget
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= ARGV[1] or tonumber(leader[2]) <= now then
  return -1
end
-- Somebody set the clock, and it has not been put right yet.
if now > (tonumber(ARGV[3]) or now) then
  return 0
end
return forget_gone(tonumber(ARGV[2]))
