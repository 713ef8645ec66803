#!lua flags=allow-oom
-- reclaim: queue again what a dead worker held, and forget workers that are gone. A delivery
-- is taken when its lease ran out, that is when nobody renewed its pending entry.
-- KEYS  prefix
-- ARGV  worker, size, lease ms, entries to look at per stream, worker-death limit,
--       six cursors (woken and tasks, by priority)
-- returns {number reclaimed, cursor × 6}; carry the cursors on, one scan sees only a part
-- @include base wake record rescue
local worker, size, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local count, limit = ARGV[4], tonumber(ARGV[5])
local answer, reclaimed = {0}, 0

local function take_back(id, gen)
  local record = redis.call('HMGET', P .. 't:' .. id, 'gen', 'state', 'stream', 'deaths')
  if record[1] ~= gen then
    return
  end
  local key, state = P .. 't:' .. id, record[2]
  if state == 'queued' then
    -- A fetch was cut short after it had read the entry: nobody has executed it.
    requeue(id, state, record[3], tonumber(gen), now)
    reclaimed = reclaimed + 1
    return
  elseif state ~= 'running' and state ~= 'dying' then
    return
  end
  local deaths = tonumber(record[4] or '0') + 1
  if state == 'running' and deaths >= limit then
    state = 'dying'
    redis.call('HSET', key, 'deaths', deaths, 'reason', 'worker-lost', 'died', gen)
  elseif state == 'running' then
    redis.call('HSET', key, 'deaths', deaths)
  end
  -- Its locks stay until they expire: their old owner may still be alive.
  requeue(id, state == 'dying' and state or 'queued', record[3], tonumber(gen), now)
  reclaimed = reclaimed + 1
end

local function sweep(key, cursor)
  local reply = redis.pcall('XAUTOCLAIM', key, 'workers', worker, lease, cursor, 'COUNT', count,
    'JUSTID')
  if type(reply) ~= 'table' or reply.err then
    return '0-0'
  end
  for _, entry in ipairs(reply[2]) do
    local found = redis.call('XRANGE', key, entry, entry)[1]
    local fine, problem = true, nil
    if found and found[2][1] == 'id' and found[2][3] == 'gen' then
      fine, problem = pcall(take_back, found[2][2], found[2][4])
    end
    if fine then
      drop(key, entry)
    else
      rescue(key, entry, found[2], problem)
    end
  end
  return reply[1]
end

local function forget(gone)
  local its_size = string.match(gone, '^%a+')
  for _, priority in ipairs({'realtime', 'normal', 'background'}) do
    for _, kind in ipairs({'woken', 'tasks'}) do
      local key = P .. kind .. ':' .. priority .. ':' .. its_size
      local pending = redis.pcall('XPENDING', key, 'workers', '-', '+', 1, gone)
      if type(pending) == 'table' and not pending.err then
        if #pending > 0 then
          return false
        end
        redis.call('XGROUP', 'DELCONSUMER', key, 'workers', gone)
      end
    end
  end
  redis.call('DEL', P .. 'w:' .. gone, P .. 'wake:' .. gone)
  redis.call('ZREM', P .. 'idle:' .. its_size, gone)
  redis.call('ZREM', P .. 'workers', gone)
  return true
end

local cursor = 6
for _, priority in ipairs({'realtime', 'normal', 'background'}) do
  for _, kind in ipairs({'woken', 'tasks'}) do
    answer[#answer + 1] = sweep(P .. kind .. ':' .. priority .. ':' .. size, ARGV[cursor])
    cursor = cursor + 1
  end
end
-- Those that still have deliveries wait for a worker of their size, and must not block the others.
local forgotten = 0
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', P .. 'workers', '-inf',
  digits(now - lease * 1000), 'LIMIT', 0, 200)) do
  if forgotten < 10 and forget(gone) then
    forgotten = forgotten + 1
  end
end
answer[1] = reclaimed
return answer
