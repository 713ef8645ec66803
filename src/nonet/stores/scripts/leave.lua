#!lua flags=allow-oom
-- leave: a worker that stops takes its name off every list. What woke it meanwhile wakes another one.
-- KEYS  prefix
-- ARGV  worker, size
-- returns OK
-- @include base wake streams
local worker, size = ARGV[1], ARGV[2]
local clean = true
for _, stream in ipairs(streams_of(size)) do
  local pending = redis.pcall('XPENDING', stream.key, 'workers', '-', '+', 1, worker)
  if type(pending) == 'table' and not pending.err then
    if #pending == 0 then
      redis.call('XGROUP', 'DELCONSUMER', stream.key, 'workers', worker)
    else
      -- Deleting the consumer would delete its pending entries; reclaim comes for those.
      clean = false
    end
  end
end
redis.call('ZREM', P .. 'idle:' .. size, worker)
local unheard = redis.pcall('EXISTS', P .. 'wake:' .. worker) == 1
redis.call('DEL', P .. 'w:' .. worker, P .. 'wake:' .. worker, P .. 'orders:' .. worker)
if clean then
  redis.call('ZREM', P .. 'workers', worker)
  redis.call('DEL', P .. 'accused:' .. worker)
else
  redis.call('ZADD', P .. 'workers', 'XX', digits(now), worker)
end
if unheard then
  wake(size, 1)
end
return 'OK'
