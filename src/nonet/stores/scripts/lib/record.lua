-- lib/record: needs base, wake. Makes records and moves them between their places.
-- A record is in one place at a time: a stream (queued), the delayed set (delayed, waiting,
-- dying) or a worker (running, dying). Each requeue raises gen, which voids older pointers.

local function size_of(stream)
  return string.match(stream, '[^:]*$')
end

-- Put a pointer to a record into a stream: kind is 'tasks' or 'woken' (read before tasks). Returns what
-- the record says of it, in its field pointer: the stream and the entry.
local function enqueue(kind, id, stream, gen)
  local name = kind .. ':' .. stream
  return name .. ' ' .. redis.call('XADD', P .. name, '*', 'id', id, 'gen', gen)
end

local function delay(id, due)
  redis.call('ZADD', P .. 'tasks:delayed', digits(due), id)
  wake_promoter_for(due)
end

local function reason_of(problem)
  return type(problem) == 'table' and problem.err or tostring(problem)
end

-- Let a record that could not be moved wait for a minute; what is dying stays so.
local function set_aside(id, problem)
  local key = P .. 't:' .. id
  local state = redis.call('HGET', key, 'state')
  if not state then
    error('there is no such record')
  end
  redis.call('HSET', key, 'state', state == 'dying' and state or 'waiting', 'owner', '',
    'places', '', 'blocker', string.sub(reason_of(problem), 1, 60))
  delay(id, now + 60000000)
end

-- When a task is due that a client wants at a time of its wall clock (µs), or now (0).
local function due_of(wall)
  wall = tonumber(wall)
  return wall > 0 and wall + offset or 0
end

local submitted = 0

-- Create a task unless its id is known: as a record, as a remembered result, or as an ended
-- child of its group. due is what due_of says, 0 for now. Returns 1 if made.
local function submit_one(id, name, stream, due, group, envelope, locks)
  if redis.call('EXISTS', P .. 't:' .. id, P .. 'r:' .. id) > 0 then
    return 0
  end
  if group ~= '' and redis.call('HEXISTS', P .. 'g:' .. group .. ':results', id) == 1 then
    return 0
  end
  local gen = digits(now)
  local ticket = digits(now + submitted)
  submitted = submitted + 1
  local later = due > now
  if locks == '' then
    redis.call('SET', P .. 'b:' .. id, envelope)
  else
    redis.call('MSET', P .. 'b:' .. id, envelope, P .. 'l:' .. id, locks)
  end
  if group ~= '' then
    redis.call('SADD', P .. 'g:' .. group .. ':pending', id)
  end
  local pointer = later and '' or enqueue('tasks', id, stream, gen)
  if later then
    delay(id, due)
  end
  redis.call('HSET', P .. 't:' .. id, 'state', later and 'delayed' or 'queued', 'gen', gen,
    'name', name, 'stream', stream, 'attempt', 0, 'ticket', ticket, 'group', group,
    later and 'due' or 'pointer', later and digits(due) or pointer)
  return 1
end

-- Put a record that a worker held back into a queue, now or at due, with a new generation. What
-- is dying takes its turn: while SQL is down it must not be read before all others.
local function requeue(id, state, stream, gen, due)
  gen = digits(gen + 1)
  if due > now then
    -- put: when, so that set_clock knows what was put there by a wrong clock.
    redis.call('HSET', P .. 't:' .. id, 'state', state, 'gen', gen, 'owner', '', 'put', digits(now),
      'due', digits(due))
    delay(id, due)
  else
    local pointer = enqueue(state == 'dying' and 'tasks' or 'woken', id, stream, gen)
    redis.call('HSET', P .. 't:' .. id, 'state', state == 'dying' and state or 'queued',
      'gen', gen, 'owner', '', 'pointer', pointer)
    wake(size_of(stream), 1)
  end
end
