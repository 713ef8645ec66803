#!lua flags=allow-oom
-- wait: the result of a task, or a promise to be told when it ends.
-- KEYS  prefix
-- ARGV  id, client (told through its wake list), tasks and holds in which it waits …
-- returns {'ended', value} | {'live'} | {'unknown'} | {'deadlock', lock}: the task cannot go on
--       before one of those has ended in which its end is awaited
-- @include base wake limits locks pauses queues deadlock
local id = ARGV[1]
local value = redis.call('GET', P .. 'r:' .. id)
if value then
  return {'ended', value}
end
if redis.call('EXISTS', P .. 't:' .. id) == 0 then
  return {'unknown'}
end
for i = 3, #ARGV do
  if redis.call('EXISTS', P .. 't:' .. ARGV[i]) == 1 then
    local lock = depends_on(id, ARGV[i])
    if lock then
      return {'deadlock', lock}
    end
    redis.call('ZADD', P .. 'awaits:' .. ARGV[i], digits(now), id)
    redis.call('PEXPIRE', P .. 'awaits:' .. ARGV[i], 10000)
    seen = {}
  end
end
-- Who still waits asks every 5 seconds; all others gave up.
redis.call('ZREMRANGEBYSCORE', P .. 'waiters:' .. id, '-inf', digits(now - 20000000))
redis.call('ZADD', P .. 'waiters:' .. id, digits(now), ARGV[2])
redis.call('PEXPIRE', P .. 'waiters:' .. id, 20000)
redis.pcall('HSET', P .. 't:' .. id, 'waited', 1)  -- of another type: a walk ends it, and tells all who wait
return {'live'}
