-- lib/deaths: needs base, deliveries, events, naming. Reports workers that ended without signing off.

local NAMED = 10

-- Append the event that a worker was lost. tasks: ids of its first tasks; count: of all of them.
local function log_death(who, worker, tasks, count)
  local named, more = table.concat(tasks, ', ', 1, math.min(#tasks, NAMED)), count - math.min(#tasks, NAMED)
  local text = shown(worker) .. (count == 0 and ' died without tasks'
    or string.format(' died with %d task%s: %s', count, count == 1 and '' or 's', named))
  log_event('worker-lost', who, text .. (more > 0 and ' and ' .. more .. ' more' or ''))
end

-- Report each worker whose registration ended before a time (µs), once. Its tasks must not have been taken yet.
local function report_deaths(who, before)
  local MOST = 50
  local first = math.max(0, redis.call('ZCOUNT', P .. 'workers', '-inf', before) - MOST)  -- of the newest
  local found = redis.call('ZRANGEBYSCORE', P .. 'workers', '-inf', before, 'WITHSCORES', 'LIMIT', first, MOST)
  for i = 1, #found, 2 do
    local worker, ends = found[i], found[i + 1]
    local key = P .. 'w:' .. worker
    -- A worker without a report never had a beat since Redis lost its data.
    if redis.call('EXISTS', key) == 1 and redis.call('HGET', key, 'lost') ~= ends then
      redis.call('HSET', key, 'lost', ends)
      log_death(who, worker, tasks_of(worker, NAMED))
    end
  end
end
