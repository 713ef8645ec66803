-- lib/forget: needs base, streams. Forgets workers whose registration ended long ago.

-- False if it still has deliveries: deleting a consumer would delete its pending entries.
local function forget(gone)
  local its_size = string.match(gone, '^%a+') or ''
  for _, stream in ipairs(streams_of(its_size)) do
    local pending = redis.pcall('XPENDING', stream.key, 'workers', '-', '+', 1, gone)
    if type(pending) == 'table' and not pending.err then
      if #pending > 0 then
        return false
      end
      redis.call('XGROUP', 'DELCONSUMER', stream.key, 'workers', gone)
    end
  end
  -- Not accused:WORKER, which expires: if somebody deleted a consumer group, tasks of this worker are taken
  -- back later, and blamed by that set.
  redis.call('DEL', P .. 'w:' .. gone, P .. 'wake:' .. gone, P .. 'orders:' .. gone)
  redis.call('ZREM', P .. 'idle:' .. its_size, gone)
  redis.call('ZREM', P .. 'workers', gone)
  return true
end

-- Some of those whose registration ended a lease ago (ms). Those that have deliveries wait for a worker
-- of their size, and must not block the others: where there are many, each call looks at a part of
-- them, chosen by chance. Returns how many were forgotten.
local function forget_gone(lease)
  local forgotten, MOST, LOOKS = 0, 10, 200
  local key, since = P .. 'workers', digits(now - lease * 1000)
  math.randomseed(tonumber(clock[2]))
  local count = redis.call('ZCOUNT', key, '-inf', since)
  local first = count > LOOKS and math.random(0, count - 1) or 0
  local found = redis.call('ZRANGEBYSCORE', key, '-inf', since, 'LIMIT', first, LOOKS)
  if #found < LOOKS and first > 0 then
    local rest = math.min(LOOKS - #found, first)
    for _, gone in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', since, 'LIMIT', 0, rest)) do
      found[#found + 1] = gone
    end
  end
  for _, gone in ipairs(found) do
    if forgotten < MOST and forget(gone) then
      forgotten = forgotten + 1
    end
  end
  return forgotten
end
