#!lua flags=no-writes
-- demand: count the runnable and running tasks of one size, and list its live workers. It changes nothing.
-- KEYS  prefix
-- ARGV  size, lock ttl ms, how many queued tasks to read
-- returns {runnable, running, slots of one worker as remembered or '', n × (worker, deliveries that it holds, what it
--       reports of itself, why it takes no tasks or '')}
-- @include base reading wake streams deliveries unread listed record limits mutexes locks pauses queues refusal
local size, lock_ttl, looks = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local busy, running, runnable = {}, 0, 0
epoch = read_fields(P .. 'epoch', {'withheld', 'lost'})

-- The locks that the tasks counted so far would take: of several tasks that need one mutex, only the first is
-- runnable.
local claimed, claims = {}, {}

local function is_free_beside(lock)
  if lock.exclusive or lock.shared then
    local by = claimed[lock.name]
    return not by or by.shared and lock.shared
  end
  return not lock.limit or (claims[lock.counter] or 0) + lock.items <= free_places(lock)
end

local function claim(me)
  for _, lock in ipairs(me.locks) do
    if not is_free_beside(lock) then
      return false
    end
  end
  for _, lock in ipairs(me.locks) do
    claimed[lock.name] = lock
    claims[lock.counter] = (claims[lock.counter] or 0) + lock.items
  end
  return true
end

-- Whether a worker that reads this entry now would take the task. A task whose locks can never be granted counts,
-- too: a worker takes it to end it.
local function is_runnable(id, gen)
  local record = read_record(id)
  if record.gen ~= gen or record.state ~= 'queued' and record.state ~= 'dying' then
    return false
  elseif record.state == 'dying' then
    return true  -- it was handed on; the fetch moves it to the stream of dying tasks
  end
  local lines = record.locks or ''
  local is_paused = pause_of(record)
  local is_limited = is_paused or are_limits_set()
  if lines == '' and not is_limited then
    return true
  end
  local me = new_waiter(id, record, parse_locks(lines, lock_ttl, is_limited and record or nil))
  add_pause(me)
  local refusal = refusal_of(me)
  return refusal and refusal.impossible or not refusal and claim(me)
end

-- Estimate how many of `count` unread tasks are runnable: assume the same proportion among all as among those that were
-- read here. Count at least one, because they stay unknown until a worker parks the blocked tasks before them.
-- read(n) returns the pointers, {id, gen}, of the first n.
local function count_runnable(count, read)
  local wanted = math.min(count, looks)
  looks = looks - wanted
  local seen, able = 0, 0
  for _, pointer in ipairs(wanted > 0 and read(wanted) or {}) do
    seen = seen + 1
    able = able + (is_runnable(pointer[1], pointer[2]) and 1 or 0)
  end
  local behind = count - seen
  if behind <= 0 then
    return able
  end
  return able + math.max(1, math.floor(behind * (seen > 0 and able / seen or 1)))
end

-- The same estimate for the lists of tenants: the tenants whose turns come next are the sample.
local function count_listed(stream)
  local count = listed('tasks', stream)
  return count == 0 and 0 or count_runnable(count, function(number)
    local found, lists = {}, next_lists('tasks', stream)
    for i, list in ipairs(lists) do
      local share = math.ceil((number - #found) / (#lists - i + 1))
      for _, pointer in ipairs(share > 0 and redis.call('LRANGE', list, 0, share - 1) or {}) do
        found[#found + 1] = {string.match(pointer, '^(.*) (%d+)$')}
      end
    end
    return found
  end)
end

local function count_running(key)
  for worker, number in pairs(deliveries_in(key)) do
    running, busy[worker] = running + number, (busy[worker] or 0) + number
  end
end

local pauses, has_others = read_pauses(), false
for _, stream in ipairs(streams_of(size)) do
  if redis.call('EXISTS', stream.key) == 1 then
    local takes_slots = stream.kind == 'woken' or stream.kind == 'tasks'
    if takes_slots then
      count_running(stream.key)
    end
    local count, start = unread(stream.key)
    if stream.kind ~= 'burials' and pauses.all
      or (stream.kind == 'tasks' or stream.kind == 'suspects') and pauses['stream:' .. stream.priority .. ':' .. size] then
      count = 0
    end
    if stream.kind == 'woken' then
      runnable = runnable + count  -- a woken task keeps its reservation
    elseif not takes_slots then
      has_others = has_others or count > 0
    elseif count > 0 then
      runnable = runnable + count_runnable(count, function(number)
        local found = {}
        for i, entry in ipairs(redis.call('XRANGE', stream.key, start, '+', 'COUNT', number)) do
          found[i] = {entry[2][2], entry[2][4]}
        end
        return found
      end)
    end
  end
  local name = stream.priority .. ':' .. size
  if not pauses.all and stream.kind == 'woken' then
    runnable = runnable + listed('woken', name)
  elseif not pauses.all and stream.kind == 'tasks' and not pauses['stream:' .. name] then
    runnable = runnable + count_listed(name)
  end
end

-- Suspects and burials take no slot: one worker is enough for any number of them.
if has_others and runnable + running == 0 then
  runnable = 1
end

local answer = {runnable, running, redis.call('HGET', P .. 'slots', size) or ''}
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', P .. 'workers', digits(now), '+inf')) do
  if string.match(worker, '^%a+') == size then
    local report = redis.call('HMGET', P .. 'w:' .. worker, 'info', 'off')
    answer[#answer + 1] = {worker, busy[worker] or 0, report[1] or '', report[2] or ''}
  end
end
return answer
