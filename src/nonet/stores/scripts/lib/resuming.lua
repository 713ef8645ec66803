-- lib/resuming: needs base, wake. Restarts work after the end of a pause.

local MOST_WORKERS = 1000

-- Whether one of these pauses may apply to tasks of a stream and a full class name.
local function is_meant(pauses, stream, name)
  for _, what in ipairs(pauses) do
    local kind, of = string.match(what, '^(%a+):?(.*)$')
    if kind == 'all' or kind == 'stream' and of == stream
      or kind == 'task' and (of == name or of == string.match(name, '[^:]*$')) then
      return true
    end
  end
  return false
end

-- Check the queues of tasks that a fetch parked because of these pauses. A task that another pause covers is
-- refused again.
local function offer_parked(pauses)
  local is_found = false
  for _, name in ipairs(redis.call('ZRANGE', P .. 'watch', 0, -1)) do
    local stream, class = string.match(name, '^paused:(%a+:%a+):(.*)$')
    if stream and is_meant(pauses, stream, class) then
      redis.call('ZADD', P .. 'watch', digits(now), name)
      is_found = true
    end
  end
  if is_found then
    wake_promoter_for(now)
  end
end

-- Check the tasks that these pauses parked, and wake idle workers.
local function start_again(pauses)
  offer_parked(pauses)
  for _, size in ipairs(SIZES) do
    local is_wanted = false
    for _, priority in ipairs(PRIORITIES) do
      is_wanted = is_wanted or is_meant(pauses, priority .. ':' .. size, '')
    end
    if is_wanted then
      wake(size, MOST_WORKERS)
    end
  end
end
