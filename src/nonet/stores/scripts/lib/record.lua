-- lib/record: needs base, wake. Makes records and moves them between their places.
-- A record is in one place at a time: a stream (queued), the delayed set (delayed, waiting,
-- dying) or a worker (running, dying). Each requeue raises gen, which voids older pointers.

-- In these states no worker has a task.
local AT_REST = {queued = true, delayed = true, waiting = true}

-- How tasks are written, see nonet/formats.py. A record says so in its field v; without it is of format 1.
local FORMAT = 1

-- Why a record cannot be read, or nil: newer code has written it. It is then moved from place to place, and
-- neither executed nor ended. record has the field v.
local function newer_format(record)
  local format = record.v and tonumber(record.v) or 1
  return format > FORMAT and
    string.format('task format %d, read here up to %d: upgrade the workers', format, FORMAT) or nil
end

local function size_of(stream)
  return string.match(stream, '[^:]*$')
end

local is_stream
do
  local PRIORITIES = {realtime = true, normal = true, background = true}
  local SIZES = {small = true, medium = true, large = true}

  -- Whether workers read a stream of this name.
  function is_stream(name)
    local priority, size = string.match(name or '', '^(%l+):(%l+)$')
    return PRIORITIES[priority or ''] and SIZES[size or ''] or false
  end
end

-- Put a pointer to a record into a stream: kind is 'tasks', 'woken' (read before tasks), 'suspects' (read
-- after tasks, beside the slots) or 'burials' (of dying tasks, read last, beside the slots). Returns what
-- the record says of it, in its field pointer: the stream and
-- the entry.
local function enqueue(kind, id, stream, gen)
  if not is_stream(stream) then
    error('there is no such stream')
  end
  local name = kind .. ':' .. stream
  if kind == 'suspects' or kind == 'burials' then
    redis.call('SET', P .. 'suspected:' .. size_of(stream), 1)  -- until a fetch finds none unread
  end
  return name .. ' ' .. redis.call('XADD', P .. name, '*', 'id', id, 'gen', gen)
end

-- A task that is made now goes into its stream as this entry, if none of a later time is there: its
-- record then need not name it. See pointer_of.
local function first_entry(gen)
  local us = tonumber(string.sub(gen, -3))
  return us and string.sub(gen, 1, -4) .. '-' .. us
end

-- As enqueue does, for a task that is made now; '' if its record need not say where it is.
local function enqueue_first(id, stream, gen)
  local reply = redis.pcall('XADD', P .. 'tasks:' .. stream, first_entry(gen), 'id', id, 'gen', gen)
  return type(reply) == 'table' and reply.err and enqueue('tasks', id, stream, gen) or ''
end

-- The stream and the entry by which a task is queued or was handed over; nil if there is none. record
-- has the fields pointer, gen and stream.
local function pointer_of(record)
  if record.pointer then
    return string.match(record.pointer, '^(%S+) (%S+)$')
  elseif record.gen and record.stream then
    return 'tasks:' .. record.stream, first_entry(record.gen)
  end
end

-- A short envelope is in its record, in field b, where Redis keeps it compact: without the id and the
-- name, which are known there, and without the empty strings at its end. Before it stands how many of
-- them there were: a digit, or a capital letter if it began as all do that are written now. A '+' stands
-- before a short one that is none; all others are in a key of their own.
local kept_envelope, envelope_of
do
  local MOST_KEPT, USUAL, EMPTY = 64, string.char(153, 1), 160
  local EMPTIES = string.rep(string.char(EMPTY), 9)

  -- How the id and the name begin an envelope, after two bytes: as strings of MessagePack.
  local function packed(text)
    return (#text < 32 and string.char(160 + #text) or string.char(217, #text)) .. text
  end

  local function head_of(id, name)
    return #id < 256 and #name < 256 and packed(id) .. packed(name) or ''
  end

  function kept_envelope(id, name, envelope)
    local head, last = head_of(id, name), #envelope
    local first = 3 + #head
    if #envelope - #head > MOST_KEPT + 10 then
      return nil
    elseif string.sub(envelope, 3, first - 1) ~= head then
      return #envelope < MOST_KEPT and '+' .. envelope or nil
    end
    while last >= first and #envelope - last < 9 and string.byte(envelope, last) == EMPTY do
      last = last - 1
    end
    local before, body = string.sub(envelope, 1, 2), string.sub(envelope, first, last)
    local mark = string.char((before == USUAL and 65 or 48) + #envelope - last)
    local kept = mark .. (before == USUAL and '' or before) .. body
    return #kept <= MOST_KEPT and kept or nil
  end

  -- The envelope from a record with the fields b and name; nil if it is in a key of its own.
  function envelope_of(id, record)
    local kept = record.b
    if not kept then
      return nil
    end
    local mark = string.byte(kept)
    if mark == 43 then  -- '+'
      return string.sub(kept, 2)
    end
    local head = head_of(id, record.name or '')
    if mark >= 65 then
      return USUAL .. head .. string.sub(kept, 2) .. string.sub(EMPTIES, 1, mark - 65)
    end
    return string.sub(kept, 2, 3) .. head .. string.sub(kept, 4)
      .. string.sub(EMPTIES, 1, math.max(0, mark - 48))
  end
end

local function delay(id, due)
  redis.call('ZADD', P .. 'tasks:delayed', digits(due), id)
  wake_promoter_for(due)
end

-- A task that was handed on (see lib/handing) rests in the delayed set, and workers that know its class find
-- it by that: SET handed:SIZE has the groups 'KIND:PRIORITY:NAME|UNFIT', ZSET unfit:SIZE:GROUP is
-- id → ticket. record has the fields stream, name, state, suspect and unfit. Returns the size and the group.
local function handed_group(record)
  local priority, size = string.match(record.stream, '^(%a+):(.*)$')
  local kind = record.suspect and record.state ~= 'dying' and 'suspects' or 'woken'
  return size, kind .. ':' .. priority .. ':' .. (record.name or '') .. '|' .. record.unfit
end

-- It is found no more.
local function leave_handed(id, record)
  if record.unfit and record.stream ~= 'hold' then
    local size, group = handed_group(record)
    local members = P .. 'unfit:' .. size .. ':' .. group
    if redis.pcall('ZREM', members, id) == 1 and redis.call('EXISTS', members) == 0 then
      redis.pcall('SREM', P .. 'handed:' .. size, group)
    end
  end
end

local function reason_of(problem)
  return type(problem) == 'table' and problem.err or tostring(problem)
end

-- Let a record that could not be moved wait for a minute; what is dying stays so.
local function set_aside(id, problem)
  local key = P .. 't:' .. id
  local record = read_fields(key, {'state', 'gen', 'ticket'})
  local state, ticket = record.state, ticket_of(record)
  if not state then
    error('there is no such record')
  end
  redis.call('HSET', key, 'ticket', ticket or '', 'state', state == 'dying' and state or 'waiting', 'owner', '',
    'places', '', 'blocker', string.sub(reason_of(problem), 1, 60))
  delay(id, now + 60000000)
end

local submitted = 0
-- Let others have the unique key of a task.
local function give_key_up(id, unique)
  local key = P .. 'u:' .. string.sub(unique, 2)
  if redis.pcall('GET', key) == '|' .. id then
    redis.call('DEL', key)
  end
end

-- Put a record that a worker held back into a queue, now or at due, with a new generation. What
-- is dying has streams of its own: while SQL is down it must not be read before all others.
local function requeue(id, state, stream, gen, due)
  local is_suspect = redis.call('HEXISTS', P .. 't:' .. id, 'suspect') == 1
  redis.call('HSETNX', P .. 't:' .. id, 'ticket', digits(gen))
  gen = digits(gen + 1)
  if due > now then
    -- put: when, so that set_clock knows what was put there by a wrong clock.
    redis.call('HSET', P .. 't:' .. id, 'state', state, 'gen', gen, 'owner', '', 'put', digits(now),
      'due', digits(due))
    delay(id, due)
  else
    local kind = state == 'dying' and 'burials' or is_suspect and 'suspects' or 'woken'
    local pointer = enqueue(kind, id, stream, gen)
    redis.call('HSET', P .. 't:' .. id, 'state', state == 'dying' and state or 'queued',
      'gen', gen, 'owner', '', 'pointer', pointer)
    wake(size_of(stream), 1)
  end
end

-- What is agreed on for the time before the start of a task, after a delivery of it. record has the fields
-- start_by and unique. It was started: it expires no more, and others may have its key (until_start).
local function end_of_wait(id, record)
  if record.start_by then
    redis.call('HDEL', P .. 't:' .. id, 'start_by')
  end
  if string.sub(record.unique or '', 1, 1) == 's' then
    redis.call('HDEL', P .. 't:' .. id, 'unique')
  end
end

-- It was not, and is queued again: all is as before, unless another task has got its key meanwhile. Without
-- its fence the record says that it was never delivered.
local function wait_on(id, record)
  local deadline = string.match(record.start_by or '', '^%d+')
  if deadline then
    redis.call('ZADD', P .. 'deadlines', deadline, id)
    wake_promoter_for(tonumber(deadline))
  end
  if string.sub(record.unique or '', 1, 1) == 's' then
    redis.call('HDEL', P .. 't:' .. id, 'fence')
    redis.call('SET', P .. 'u:' .. string.sub(record.unique, 2), '|' .. id, 'NX')
  end
end
