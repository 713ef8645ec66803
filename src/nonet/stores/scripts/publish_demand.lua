#!lua flags=allow-oom
-- publish_demand: publish how many workers each size needs, for autoscalers, and remember the slots of one worker.
-- KEYS  prefix
-- ARGV  term, ttl ms, how many calls of overflow hooks have failed since the last time, n, n × (size,
--       workers), m × (size, slots of one)
-- returns 1, or 0 if another term leads
-- @include base leading
if not leads(ARGV[1]) then
  return 0
end
local slots = 5 + 2 * ARGV[4]
redis.call('HSET', P .. 'desired', unpack(ARGV, 5, slots - 1))
if slots < #ARGV then
  redis.call('HSET', P .. 'slots', unpack(ARGV, slots))
end
redis.call('PEXPIRE', P .. 'desired', ARGV[2])
if ARGV[3] ~= '0' then
  redis.call('HINCRBY', P .. 'counters', 'overflow:failed', ARGV[3])
end
return 1
