#!lua flags=allow-oom
-- resign: give the scheduler's lease back at a clean stop.
-- KEYS  prefix
-- ARGV  owner, term
-- returns 1 if it was ours
-- @include base
local leader = redis.call('HMGET', P .. 'leader', 'owner', 'term')
if leader[1] ~= ARGV[1] or leader[2] ~= ARGV[2] then
  return 0
end
redis.call('DEL', P .. 'leader')
-- Tell one of those who stand by, unless nobody listens.
redis.call('LPUSH', P .. 'wake:scheduler', '1')
redis.call('PEXPIRE', P .. 'wake:scheduler', 10000)
return 1
