#!lua flags=allow-oom
-- decline: a worker that takes nothing for a while leaves the stack of idle ones. What woke it wakes
-- another one instead.
-- KEYS  prefix
-- ARGV  worker, size
-- returns OK
-- @include base wake
local worker, size = ARGV[1], ARGV[2]
redis.call('ZREM', P .. 'idle:' .. size, worker)
redis.call('DEL', P .. 'wake:' .. worker)
wake(size, 1)
return 'OK'
