-- lib/deliveries: needs base, streams. How many tasks workers have, and which.

local deliveries = {}  -- by stream: how many each consumer has
local function deliveries_in(key)
  if not deliveries[key] then
    deliveries[key] = {}
    for _, row in ipairs(pending_in(key)[4] or {}) do
      deliveries[key][row[1]] = tonumber(row[2])
    end
  end
  return deliveries[key]
end

-- The ids of the first tasks that a worker has, and the number of all.
local function tasks_of(worker, most)
  local ids, count = {}, 0
  for _, stream in ipairs(streams_of(string.match(worker, '^%a+') or '')) do
    local number = deliveries_in(stream.key)[worker] or 0
    count = count + number
    for _, item in ipairs(number > 0 and #ids < most and pending_in(stream.key, '-', '+', most - #ids, worker) or {}) do
      local entry = redis.call('XRANGE', stream.key, item[1], item[1])[1]
      ids[#ids + 1] = entry and entry[2][2] or nil
    end
  end
  return ids, count
end
