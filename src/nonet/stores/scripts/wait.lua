#!lua flags=allow-oom
-- wait: the result of a task, or a promise to be told when it ends.
-- KEYS  prefix
-- ARGV  id, client (told through its wake list)
-- returns {'ended', value} | {'live'} | {'unknown'}
-- @include base
local value = redis.call('GET', P .. 'r:' .. ARGV[1])
if value then
  return {'ended', value}
end
if redis.call('EXISTS', P .. 't:' .. ARGV[1]) == 0 then
  return {'unknown'}
end
-- Who still waits asks every 5 seconds; all others gave up.
redis.call('ZREMRANGEBYSCORE', P .. 'waiters:' .. ARGV[1], '-inf', digits(now - 20000000))
redis.call('ZADD', P .. 'waiters:' .. ARGV[1], digits(now), ARGV[2])
redis.call('HSET', P .. 't:' .. ARGV[1], 'waited', 1)
return {'live'}
