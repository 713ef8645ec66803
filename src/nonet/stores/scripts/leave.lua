#!lua flags=allow-oom
-- leave: unregister a worker that stops. A wake-up that it has not read yet goes to another worker.
-- KEYS  prefix
-- ARGV  worker, size
-- returns OK
-- @include base wake streams forget
local worker, size = ARGV[1], ARGV[2]
local has_unread_wake = redis.call('EXISTS', P .. 'wake:' .. worker) == 1
if forget(worker) then
  redis.call('DEL', P .. 'accused:' .. worker)
else
  -- The worker still has deliveries: end its registration now, so that reclaim takes them.
  forget_waking(worker, size)
  redis.call('ZADD', P .. 'workers', 'XX', digits(now), worker)
end
if has_unread_wake then
  wake(size, 1)
end
return 'OK'
