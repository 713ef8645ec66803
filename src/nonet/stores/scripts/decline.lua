#!lua flags=allow-oom
-- decline: take a worker that pauses its fetches off the stack of idle workers. Its unread wake-up goes to another
-- worker.
-- KEYS  prefix
-- ARGV  worker, size
-- returns OK
-- @include base wake
local worker, size = ARGV[1], ARGV[2]
redis.call('ZREM', P .. 'idle:' .. size, worker)
redis.call('DEL', P .. 'wake:' .. worker)
wake(size, 1)
return 'OK'
