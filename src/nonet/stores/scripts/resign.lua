#!lua flags=allow-oom
-- resign: give the scheduler's lease back at a clean stop.
-- KEYS  prefix
-- ARGV  owner, term
-- returns 1 if the caller led, else 0
-- @include base
local owner, term = ARGV[1], ARGV[2]
local leader = redis.call('HMGET', P .. 'leader', 'owner', 'term')
if leader[1] ~= owner or leader[2] ~= term then
  return 0
end
redis.call('DEL', P .. 'leader')
-- Wake one of the standby schedulers; the key expires if there is none.
redis.call('LPUSH', P .. 'wake:scheduler', '1')
redis.call('PEXPIRE', P .. 'wake:scheduler', 10000)
return 1
