#!lua flags=allow-oom
-- reclaim: queue again what a dead worker held, and forget workers that are gone. A delivery
-- is taken when its lease ran out, that is when nobody renewed its pending entry.
-- KEYS  prefix
-- ARGV  worker, size, lease ms, entries to look at per stream, worker-death limit,
--       six cursors (woken and tasks, by priority)
-- returns {number reclaimed, cursor × 6}; carry the cursors on, one scan sees only a part
-- @include base wake record lost rescue
local worker, size, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local count, limit = ARGV[4], tonumber(ARGV[5])
local answer, reclaimed = {0}, 0

local function sweep(key, cursor)
  local reply = redis.pcall('XAUTOCLAIM', key, 'workers', worker, lease, cursor, 'COUNT', count,
    'JUSTID')
  if type(reply) ~= 'table' or reply.err then
    return '0-0'
  end
  for _, entry in ipairs(reply[2]) do
    local found = redis.call('XRANGE', key, entry, entry)[1]
    local fine, result = true, false
    if found and found[2][1] == 'id' and found[2][3] == 'gen' then
      fine, result = pcall(take_back, found[2][2], found[2][4], limit)
    end
    if fine then
      reclaimed = reclaimed + (result and 1 or 0)
      drop(key, entry)
    else
      rescue(key, entry, found[2], result)
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
