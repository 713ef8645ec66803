-- lib/finish: needs base, wake, record, submitting, group. Moves a task to a terminal state. settle.lua
-- has its own short form for the plain success of many tasks.

local function tell_waiters(id)
  for _, client in ipairs(redis.call('ZRANGE', P .. 'waiters:' .. id, 0, -1)) do
    redis.call('RPUSH', P .. 'wake:' .. client, id)
    redis.call('PEXPIRE', P .. 'wake:' .. client, 10000)
  end
  redis.call('DEL', P .. 'waiters:' .. id)
end

local kept_ms = nil  -- as text, formatted once for all tasks of a call

-- Store the result of a task, or without a result ttl only that it ended. value is 'state|fence|', or
-- 'state|fence mark|' for a task that repeats a dead letter. ttl and dedup (ms) are the same for all tasks of
-- a call; document is opaque.
local function remember(id, value, document, ttl, dedup)
  kept_ms = kept_ms or digits(math.max(ttl, dedup))
  redis.call('SET', P .. 'r:' .. id, ttl > 0 and value .. document or value, 'PX', kept_ms)
end

-- End a task: store its result, and notify its group and its waiters. record is what read_record() returned; empty
-- for a task that Redis does not know. fence: of the delivery that this call ends, '0' without one.
local function finish(id, record, state, fence, document, ttl, dedup)
  local value = state .. '|' .. fence .. '|'
  local mark = record.letter and ' ' .. record.letter or ''
  remember(id, state .. '|' .. fence .. mark .. '|', document, ttl, dedup)
  -- A key of a wrong type must not prevent the end of the task.
  local fine = true
  if record.group then
    fine = pcall(end_child, record.group, id, state, value .. document)
  end
  if record.opens then
    fine = pcall(fail_unsealed, id) and fine
  end
  if record.waited then
    fine = pcall(tell_waiters, id) and fine
  end
  if not fine then
    redis.call('HINCRBY', P .. 'counters', 'finish:broken', 1)
    redis.call('DEL', P .. 'waiters:' .. id, P .. 'open:' .. id)
  end
  if record.unique then
    give_key_up(id, record.unique)
  end
  redis.call('DEL', P .. 't:' .. id, P .. 'b:' .. id, P .. 'l:' .. id, P .. 'e:' .. id,
    P .. 'h:' .. id, P .. 'c:' .. id)
  if record.stream then
    count_active(record.stream, record.name or '', -1)
  end
end

-- Remove the pointers to a task: its stream entry, and its members in the sets of times. Call it last: a reader
-- drops an entry whose task is gone.
local function drop_pointers(id, record)
  local key, entry = pointer_of(record)
  if key and (record.state == 'queued' or record.state == 'dying') then
    pcall(drop, P .. key, entry)  -- the key may have another type
  end
  redis.call('ZREM', P .. 'tasks:delayed', id)
  redis.call('ZREM', P .. 'deadlines', id)
end
