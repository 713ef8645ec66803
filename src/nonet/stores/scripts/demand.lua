#!lua flags=allow-oom
-- demand: what could run now of one size, what runs, and which workers are there. Only what has expired is
-- removed.
-- KEYS  prefix
-- ARGV  size, lock ttl ms, how many queued tasks to look at
-- returns {runnable, in the hands of workers, slots of one worker as remembered or '', n × (worker, deliveries that it holds, what it says of itself,
--       why it takes nothing or '')}
-- @include base wake streams unread record limits locks pauses queues refusal
local size, lock_ttl, looks = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local busy, running, runnable = {}, 0, 0
epoch = read_fields(P .. 'epoch', {'calm', 'lost'})

-- Of tasks that want the same lock only so many can run as it allows: what those before take.
local claimed, claims = {}, {}

local function is_free_beside(lock)
  if lock.limits then
    return not lock.limit or (claims[lock.counter] or 0) + lock.items <= free_places(lock)
  end
  local by = claimed[lock.name]
  return not by or by == 'R' and lock.kind == 'R'
end

local function claim(me)
  for _, lock in ipairs(me.locks) do
    if not is_free_beside(lock) then
      return false
    end
  end
  for _, lock in ipairs(me.locks) do
    if lock.limits then
      claims[lock.counter] = (claims[lock.counter] or 0) + lock.items
    else
      claimed[lock.name] = lock.kind
    end
  end
  return true
end

local FIELDS = {'state', 'gen', 'ticket', 'refusals', 'stream', 'places', 'aged', 'since', 'name'}

-- Whether a worker that reads this entry now would run the task. One with limits that can never be
-- granted is run to its end, too.
local function is_runnable(entry)
  local id, gen = entry[2][2], entry[2][4]
  local record = read_fields(P .. 't:' .. id, FIELDS)
  if record.gen ~= gen or record.state ~= 'queued' and record.state ~= 'dying' then
    return false
  elseif record.state == 'dying' then
    return true  -- written by the version before, which has no streams for them
  end
  local lines = redis.call('GET', P .. 'l:' .. id) or ''
  local is_paused = pause_of(record.stream, record.name)
  local task = (is_paused or are_limits_set()) and record.name or ''
  if lines == '' and task == '' then
    return true
  end
  local me = new_waiter(id, record, parse_locks(lines, lock_ttl, task))
  add_pause(me)
  local refusal = refusal_of(me)
  return refusal and refusal.impossible or not refusal and claim(me)
end

-- What is queued behind those that were looked at is taken to be like them; not for nothing, as a
-- worker has to park the blocked ones before anybody sees what is behind.
local function count_runnable(key, count, start)
  local wanted = math.min(count, looks)
  looks = looks - wanted
  local seen, able = 0, 0
  for _, entry in ipairs(wanted > 0 and redis.call('XRANGE', key, start, '+', 'COUNT', wanted) or {}) do
    seen = seen + 1
    -- What is damaged is put aside by whoever reads it.
    local fine, answer = pcall(is_runnable, entry)
    able = able + ((not fine or answer) and 1 or 0)
  end
  local behind = count - seen
  if behind <= 0 then
    return able
  end
  return able + math.max(1, math.floor(behind * (seen > 0 and able / seen or 1)))
end

local function count_running(key)
  local pending = redis.pcall('XPENDING', key, 'workers')
  if pending.err or pending[1] == 0 then
    return
  end
  running = running + pending[1]
  for _, item in ipairs(pending[4] or {}) do
    busy[item[1]] = (busy[item[1]] or 0) + tonumber(item[2])
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
      runnable = runnable + count  -- they keep their places at their locks
    elseif not takes_slots then
      has_others = has_others or count > 0
    elseif count > 0 then
      runnable = runnable + count_runnable(stream.key, count, start)
    end
  end
end

-- However many suspects and burials there are, they take no slot: one worker is enough.
if has_others and runnable + running == 0 then
  runnable = 1
end

local known = redis.pcall('HGET', P .. 'slots', size)
local answer = {runnable, running, type(known) == 'string' and known or ''}
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', P .. 'workers', digits(now), '+inf')) do
  if string.match(worker, '^%a+') == size then
    local said = redis.call('HMGET', P .. 'w:' .. worker, 'info', 'off')
    answer[#answer + 1] = {worker, busy[worker] or 0, said[1] or '', said[2] or ''}
  end
end
return answer
