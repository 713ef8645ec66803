#!lua flags=allow-oom
-- restore_pauses: pause again what was paused before Redis lost it, for the leader. What somebody
-- has paused since stays as it is.
-- KEYS  prefix
-- ARGV  term, n × (what, or entry:ENTRY of a periodic one; 'at (µs)|who|reason')
-- returns 1, or 0 if another term leads
-- @include base
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= ARGV[1] or tonumber(leader[2]) <= now then
  return 0
end
for i = 2, #ARGV, 2 do
  local entry = string.match(ARGV[i], '^entry:(.*)$')
  redis.call('HSETNX', P .. (entry and 'periodic:paused' or 'paused'), entry or ARGV[i], ARGV[i + 1])
end
return 1
