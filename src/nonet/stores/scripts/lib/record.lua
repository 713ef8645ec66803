-- lib/record: needs base, wake. Creates records and moves them between their places. A record is in one place
-- at a time: in a stream (queued), in the delayed set (delayed, waiting, dying) or with a worker (running,
-- dying). Each requeue raises gen, which invalidates older pointers.

-- The states of a task that no worker has.
local AT_REST = {queued = true, delayed = true, waiting = true}  -- fault: running-cancelled

-- The newest format of tasks that is read here, see nonet/base/messages/formats.py. A record stores its format in
-- field v; without it the format is 1.
local FORMAT = 1

-- Why a record cannot be read, or nil. Newer code has written such a record: scripts move it from place to
-- place, but neither execute nor end its task. record has the field v.
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
  local function contains(list, wanted)
    for _, value in ipairs(list) do
      if value == wanted then
        return true
      end
    end
    return false
  end

  -- Whether name is PRIORITY:SIZE of a stream that workers read.
  function is_stream(name)
    local priority, size = string.match(name or '', '^(%l+):(%l+)$')
    return contains(PRIORITIES, priority) and contains(SIZES, size)
  end
end

-- @defer shares share
-- Whether new pointers to the tasks of a stream go to the lists of tenants.
local function is_shared(stream)
  return marks[6] and string.find(marks[6], ' ' .. stream .. ' ', 1, true)
end

-- Append a pointer to a record to a stream. kind: 'tasks', 'woken' (read before tasks), 'suspects' (read after
-- tasks, beside the slots) or 'burials' (dying tasks: read last, beside the slots). Returns the value of the
-- record's field pointer: the stream and the entry, or IN_LIST.
local function enqueue(kind, id, stream, gen)
  if not is_stream(stream) then
    error('there is no such stream')
  end
  if (kind == 'tasks' or kind == 'woken') and is_shared(stream) then
    share(kind, stream, read_record(id).tenant or '', {id .. ' ' .. gen})
    return IN_LIST
  end
  local name = kind .. ':' .. stream
  if kind == 'suspects' or kind == 'burials' then
    redis.call('SET', P .. 'suspected:' .. size_of(stream), 1)  -- until a fetch finds all of them read
  end
  return name .. ' ' .. redis.call('XADD', P .. name, '*', 'id', id, 'gen', gen)
end

-- As enqueue(), for a task that is created now. Returns '' if its entry is first_entry(gen).
local function enqueue_first(id, stream, gen, tenant)
  if is_shared(stream) then
    share('tasks', stream, tenant, {id .. ' ' .. gen})
    return IN_LIST
  end
  local reply = redis.pcall('XADD', P .. 'tasks:' .. stream, first_entry(gen), 'id', id, 'gen', gen)
  return type(reply) == 'table' and reply.err and enqueue('tasks', id, stream, gen) or ''
end

-- The stream and the entry of the last pointer to a record; nil if it has none, or has it in a list. record has the
-- fields pointer, gen and stream.
local function pointer_of(record)
  if record.pointer == IN_LIST then
    return nil
  elseif record.pointer then
    return string.match(record.pointer, '^(%S+) (%S+)$')
  elseif record.gen and record.stream then
    return 'tasks:' .. record.stream, first_entry(record.gen)
  end
end

local function delay(id, due)
  redis.call('ZADD', P .. 'tasks:delayed', digits(due), id)
  wake_promoter_for(due)
end

-- A task that was handed on (see lib/handing) is in the delayed set. Workers that know its class find it by SET
-- handed:SIZE, which holds groups 'KIND:PRIORITY:NAME|UNFIT', and ZSET unfit:SIZE:GROUP, id → ticket. record
-- has the fields stream, name, state, suspect and unfit. Returns the size and the group.
local function handed_group(record)
  local priority, size = string.match(record.stream, '^(%a+):(.*)$')
  local kind = record.suspect and record.state ~= 'dying' and 'suspects' or 'woken'
  return size, kind .. ':' .. priority .. ':' .. (record.name or '') .. '|' .. record.unfit
end

-- Remove a task from these groups.
local function leave_handed(id, record)
  if record.unfit and record.stream ~= 'hold' then
    local size, group = handed_group(record)
    local members = P .. 'unfit:' .. size .. ':' .. group
    if redis.call('ZREM', members, id) == 1 and redis.call('EXISTS', members) == 0 then
      redis.call('SREM', P .. 'handed:' .. size, group)
    end
  end
end

-- Remove an entry from its stream: delete it first, then acknowledge it. If Redis stops the script in between, the
-- sweep forgets the delivery of the deleted entry. In the other order the entry could stay, and no worker would
-- ever read an acknowledged entry.
local function drop(key, entry)
  redis.call('XDEL', key, entry)
  redis.call('XACK', key, 'workers', entry)
end

local function reason_of(problem)
  return type(problem) == 'table' and problem.err or tostring(problem)
end

-- Park, for a minute, a record that could not be moved. A dying task stays dying.
local function set_aside(id, problem)
  local record = read_record(id)
  local state, ticket = record.state, ticket_of(record)
  if not state then
    error('there is no such record')
  end
  change(id, {ticket = ticket or '', state = state == 'dying' and state or 'waiting', owner = '', places = '',
    blocker = string.sub(reason_of(problem), 1, 60)})
  delay(id, now + 60000000)
end

local submitted = 0  -- tasks that this call has created

local function give_key_up(id, unique)
  local key = P .. 'u:' .. string.sub(unique, 2)
  if redis.call('GET', key) == '|' .. id then
    redis.call('DEL', key)
  end
end

-- Queue a task again that a worker had, now or at due, with a new generation. Dying tasks have streams of their
-- own: while SQL is down they must not be read before all others.
local function requeue(id, state, stream, gen, due)
  local record = read_record(id)
  local ticket = record.ticket or digits(gen)
  gen = digits(gen + 1)  -- fault: requeue-keeps-generation
  if due > now then
    -- put: when this was written. After the clock was wrong, set_clock corrects what was written then.
    change(id, {ticket = ticket, state = state, gen = gen, owner = '', put = now, due = due})
    delay(id, due)
  else
    local kind = state == 'dying' and 'burials' or record.suspect and 'suspects' or 'woken'
    change(id, {ticket = ticket, state = state == 'dying' and state or 'queued', gen = gen, owner = '',
      pointer = enqueue(kind, id, stream, gen)})
    wake(size_of(stream), 1)
  end
end

-- End what applies only before a task starts: its deadline, and its claim to a unique key of mode until_start.
-- record has the fields start_by and unique.
local function end_of_wait(id, record)
  if record.start_by then
    change(id, {start_by = ''})
  end
  if string.sub(record.unique or '', 1, 1) == 's' then
    change(id, {unique = ''})
  end
end

-- Undo end_of_wait() for a task that was delivered but not started. Its unique key may belong to another task by
-- now. A record without a fence was never delivered.
local function wait_on(id, record)
  local deadline = string.match(record.start_by or '', '^%d+')
  if deadline then
    redis.call('ZADD', P .. 'deadlines', deadline, id)
    wake_promoter_for(tonumber(deadline))
  end
  if string.sub(record.unique or '', 1, 1) == 's' then
    change(id, {fence = ''})
    redis.call('SET', P .. 'u:' .. string.sub(record.unique, 2), '|' .. id, 'NX')
  end
end
