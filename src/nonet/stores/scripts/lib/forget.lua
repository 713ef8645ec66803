-- lib/forget: needs base, streams. Forgets workers whose registration ended long ago.

local function forget_waking(worker, size)
  redis.call('DEL', P .. 'w:' .. worker, P .. 'wake:' .. worker, P .. 'orders:' .. worker)
  redis.call('ZREM', P .. 'idle:' .. size, worker)
end

-- Forget a worker. Returns false if it still has deliveries: deleting a consumer would delete its pending
-- entries.
local function forget(worker)
  local size = string.match(worker, '^%a+') or ''
  for _, stream in ipairs(streams_of(size)) do
    local pending = redis.pcall('XPENDING', stream.key, 'workers', '-', '+', 1, worker)
    if pending[1] then
      return false
    elseif not pending.err then
      redis.call('XGROUP', 'DELCONSUMER', stream.key, 'workers', worker)
    end
  end
  -- Keep accused:WORKER, which expires. If the consumer group was deleted, tasks of this worker are taken
  -- back later, and that set decides which of them are blamed.
  forget_waking(worker, size)
  redis.call('ZREM', P .. 'workers', worker)
  return true
end

-- Forget some of the workers whose registration ended a lease (ms) ago; returns how many. A worker that still has
-- deliveries must wait for a live worker of its size. Many such workers would block the others, so each call checks
-- a random part of a long list.
local function forget_gone(lease)
  local forgotten, MOST, LOOKS = 0, 10, 200
  local key, since = P .. 'workers', digits(now - lease * 1000)
  math.randomseed(tonumber(clock[2]))
  local count = redis.call('ZCOUNT', key, '-inf', since)
  local first = count > LOOKS and math.random(0, count - 1) or 0
  local found = redis.call('ZRANGEBYSCORE', key, '-inf', since, 'LIMIT', first, LOOKS)
  if #found < LOOKS and first > 0 then
    local rest = math.min(LOOKS - #found, first)
    for _, worker in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', since, 'LIMIT', 0, rest)) do
      found[#found + 1] = worker
    end
  end
  for _, worker in ipairs(found) do
    if forgotten < MOST and forget(worker) then  -- fault: dead-workers-kept
      forgotten = forgotten + 1
    end
  end
  return forgotten
end
