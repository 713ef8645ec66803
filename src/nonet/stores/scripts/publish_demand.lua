#!lua flags=allow-oom
-- publish_demand: say how many workers each size wants, for autoscalers.
-- KEYS  prefix
-- ARGV  term, ttl ms, how many calls of overflow hooks have failed since the last time, n × (size, workers)
-- returns 1, or 0 if another term leads
-- @include base
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= ARGV[1] or tonumber(leader[2]) <= now then
  return 0
end
redis.call('HSET', P .. 'desired', unpack(ARGV, 4))
redis.call('PEXPIRE', P .. 'desired', ARGV[2])
if ARGV[3] ~= '0' then
  redis.call('HINCRBY', P .. 'counters', 'overflow:failed', ARGV[3])
end
return 1
