#!lua flags=allow-oom
-- show_workers: read some registered workers, dead ones included, and their deliveries.
-- KEYS  prefix
-- ARGV  how many tasks to name for each worker, workers …
-- returns {now µs, n × (worker, end of its registration µs, its info JSON, its last beat µs or '', why
--       it takes nothing or '', who asked it to drain or '', number of its deliveries,
--       n × (id, class, since µs or ''))}
-- @include base streams
local tasks, answer, FIRST = tonumber(ARGV[1]), {digits(now)}, 2

-- The number of deliveries of each consumer of a stream.
local counts = {}
local function pending_of(key)
  if not counts[key] then
    counts[key] = {}
    local found = redis.pcall('XPENDING', key, 'workers')
    for _, row in ipairs(not found.err and found[4] or {}) do
      counts[key][row[1]] = tonumber(row[2])
    end
  end
  return counts[key]
end

local function task_of(key, entry)
  local found = redis.call('XRANGE', key, entry, entry)[1]
  local id = found and found[2][2] or ''
  local record = read_fields(P .. 't:' .. id, {'name', 'started'})
  return {id, record.name or '', record.started or ''}
end

local function deliveries_of(worker)
  local count, named, size = 0, {}, string.match(worker, '^%a+') or ''
  for _, stream in ipairs(streams_of(size)) do
    local has = pending_of(stream.key)[worker] or 0
    count = count + has
    if has > 0 and #named < tasks then
      local page = redis.call('XPENDING', stream.key, 'workers', '-', '+', tasks - #named, worker)
      for _, item in ipairs(page) do
        named[#named + 1] = task_of(stream.key, item[1])
      end
    end
  end
  return count, named
end

for i = FIRST, #ARGV do
  local worker = ARGV[i]
  local ends = redis.call('ZSCORE', P .. 'workers', worker)
  if ends then
    local said = read_fields(P .. 'w:' .. worker, {'info', 'beat', 'off', 'drain'})
    local count, named = deliveries_of(worker)
    answer[#answer + 1] = {worker, ends, said.info or '', said.beat or '', said.off or '', said.drain or '', count, named}
  end
end
return answer
