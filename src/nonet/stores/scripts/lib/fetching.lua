-- lib/fetching: needs base, epoch, wake, record, rescue, limits, mutexes, locks, fitting, pauses, queues, refusal,
-- waiting. Examines entries of all kinds, for fetch.

-- @defer counting submitting index group keeping finish cancel ending workflow expiry end_early
-- @defer unread unread
local HARD_LIMIT = 4 * 1048576
local waits = {first = tonumber(ARGV[7]), longest = tonumber(ARGV[8]), aging = tonumber(ARGV[9])}
local is_flagged = false  -- suspects or burials may be unread
math.randomseed(tonumber(clock[2]))

-- The checkpoint of an earlier attempt; empty if it is longer than a worker accepts.
local function saved_by(id)
  local saved = redis.call('GETRANGE', P .. 'c:' .. id, 0, longest)
  return #saved <= longest and saved or ''
end

-- How many suspects the worker can take after this one. After two deaths a suspect runs only beside its own
-- group, which halves with each death.
local STRONG, GROUP = 2, 100
local function room_after(record, before)
  if tonumber(record.deaths or '0') < STRONG then
    return before - 1
  end
  local group = size == 'small' and math.floor(GROUP / 2 ^ (tonumber(record.suspect) - 1)) or 1
  return math.min(before, math.max(1, group)) - 1
end

local function hand_over(pointer, record, state, held, lines, document)
  -- Read at most as much as a worker accepts, however long the key is.
  local envelope = records.envelope(pointer.id, record, (state == 'running' and longest or HARD_LIMIT) + 1)
  if state == 'running' and math.max(#envelope, #lines) > longest then
    record.detail = string.format('message of %d bytes exceeds %d',
      records.length(pointer.id, record) + #lines, longest)
    envelope, lines = '', ''
  end
  local text = digits(fence)
  local mark = whose(record.tenant, record.pointer == IN_LIST and pointer.kind == 'tasks', pointer.gen, record.due) or ''
  change(pointer.id, {state = state, owner = worker, fence = text, started = started, held = held,
    pointer = record.pointer == IN_LIST and pointer.stream .. ' ' .. pointer.entry or record.pointer},
    record.since and NOT_WAITING or nil)
  if record.unique and string.sub(record.unique, 1, 1) == 's' then  -- until_start
    give_key_up(pointer.id, record.unique)
  end
  if record.start_by then  -- it cannot expire while a worker has it; see end_of_wait and wait_on
    redis.call('ZREM', P .. 'deadlines', pointer.id)
  end
  local row = {pointer.id, pointer.gen, text, pointer.stream, pointer.entry, envelope, lines, mark, state,
    record.attempt or '0', record.deaths or '0', held}
  local is_long = state == 'dying' or record.detail or record.saved or record.crashes or record.suspect
  if is_long or record.since then
    row[#row + 1] = digits(math.max(0, now - (tonumber(record.since or '') or now)))
  end
  if is_long then
    for _, value in ipairs({document, record.reason or '', record.died or '', record.detail or '',
      record.saved and saved_by(pointer.id) or '', record.crashes or '0', record.suspect or '0',  -- fault: saved-not-sent
      record.judge or '0'}) do
      row[#row + 1] = value
    end
  end
  taken[#taken + 1] = row
  if state == 'dying' then
    room_for_burials = room_for_burials - 1
  elseif pointer.kind == 'suspects' then
    room_for_suspects = room_after(record, room_for_suspects)
  else
    free = free - 1
  end
end

local function hand_over_dying(pointer, record)
  fence = fence + 1
  local why = read_record(pointer.id)
  record.reason, record.died, record.detail = why.reason, why.died, why.detail
  hand_over(pointer, record, 'dying', '', '',
    redis.call('GETRANGE', P .. 'e:' .. pointer.id, 0, HARD_LIMIT))
end

-- Dying tasks have streams of their own and take no slot: this fetch reads them last. Move a task there that was handed
-- on while it was dying, or that dies now.
local function hand_over_burial(pointer, record)
  if pointer.kind == 'burials' then
    return hand_over_dying(pointer, record)
  end
  requeue(pointer.id, 'dying', record.stream, tonumber(pointer.gen), now)
  is_flagged = true
  drop(pointer.key, pointer.entry)
end

-- End a task that asks a limiter for more than its limit: it would wait forever.
local function end_impossible(pointer, record, me, lock)
  leave_as_admitted(me)
  each_place(me, function(_, _, name) give_back({name}) end)
  change(pointer.id, {reason = 'limit-impossible', died = pointer.gen, detail = why_impossible(lock)}, NOT_WAITING)
  hand_over_burial(pointer, record)
end

local function deliver(pointer, record)
  local id, lines = pointer.id, record.locks or ''
  local is_paused = pause_of(record)
  if lines == '' and not record.since and not are_limits_set() and not is_paused then
    fence = fence + 1
    return hand_over(pointer, record, 'running', '', '', '')
  end
  local is_limited = record.places or is_paused or are_limits_set()
  local me = new_waiter(id, record, parse_locks(lines, lock_ttl, is_limited and record or nil))
  add_pause(me)
  local refusal = refusal_of(me)  -- fault: lock-taken-early
  if refusal and refusal.impossible then
    return end_impossible(pointer, record, me, refusal.lock)
  elseif refusal then
    -- Thousands of tasks of a paused class may follow: count each as three looks, so that the call stays short.
    looks = looks - (is_paused and 2 or 0)
    park(me, refusal, waits)
    return drop(pointer.key, pointer.entry)
  end
  fence = fence + 1
  local held = take_locks(me, id .. '/' .. pointer.gen .. '/' .. digits(fence))
  if record.since or record.places then
    leave_as_admitted(me)
  end
  hand_over(pointer, record, 'running', held, lines, '')
end

local examine
do
-- @defer handing hand_on
  local FIRST_REST = 5000000

  -- Whether a task was cancelled while it ran, or is too late to start. After the clock was set forward nothing
  -- expires until the leader has corrected the time.
  local function is_over(record)
    local deadline = tonumber(string.match(record.start_by or '', '^%d+') or '')
    return record.cancel or deadline and deadline <= leases.now
  end

  -- A task that newer code has written waits for a worker that can read it.
  local function let_newer_wait(pointer, record, why)
    local rest = hand_on(pointer.id, record, worker, FIRST_REST)
    change(pointer.id, {blocker = why},
      record.state == 'queued' and {ticket = record.ticket, state = 'waiting'} or nil)
    delay(pointer.id, now + rest)
    drop(pointer.key, pointer.entry)
  end

  function examine(source, entry, fields)
    local key = source.key
    looks = looks - 1
    if #fields ~= 4 or fields[1] ~= 'id' or fields[3] ~= 'gen' then
      return quarantine(key, entry, fields, 'not a task pointer')  -- fault: garbage-dropped
    end
    local pointer = {id = fields[2], gen = fields[4], key = key, entry = entry, kind = source.kind,
      stream = source.stream}
    local record = read_record(fields[2])
    -- These fields describe an earlier end of a task that runs again. hand_over_dying reads them for dying
    -- tasks.
    record.reason, record.died, record.detail = nil, nil, nil
    local is_taken = record.state == 'dying' and record.owner  -- by another pointer, after a cut script
    if not record.gen then
      note_unknown(pointer.id)
    end
    if record.gen ~= pointer.gen or is_taken  -- fault: void-pointer
      or (record.state ~= 'queued' and record.state ~= 'dying') then  -- fault: running-handed-over
      drop(key, entry)
    elseif record.v and newer_format(record) then
      let_newer_wait(pointer, record, newer_format(record))
    elseif record.state == 'dying' then  -- fault: dying-executed
      hand_over_burial(pointer, record)
    elseif is_over(record) then
      end_early(pointer.id)
      is_flagged = true
      drop(key, entry)
    else
      deliver(pointer, record)
    end
  end
end

-- A delivery failed half way: release every lock and place that it took.
local function give_up(key, entry, fields, problem)
  local id, gen = fields[2], fields[4]
  pcall(function()
    local me, owner = load_waiter(id), id .. '/' .. gen .. '/' .. digits(fence)
    for _, lock in ipairs(me.locks) do
      if lock.limiter then
        resolve_limit(lock)
      end
    end
    give_back(release_locks(me.locks, owner, false))
  end)
  if put_aside(id, problem) then
    drop(key, entry)
  else
    quarantine(key, entry, fields, problem)
  end
end

-- Woken tasks are read although their stream is paused: aged tasks are in the realtime stream, and a woken task
-- must give up its reservations. They are parked again.
local function is_skipped(kind, priority)
  if kind == 'burials' then  -- burials execute nothing
    return false
  end
  local pauses = read_pauses()
  return pauses.all or kind ~= 'woken' and pauses['stream:' .. priority .. ':' .. size]
end

local function is_unread(kind, priority)
  return unread(P .. kind .. ':' .. priority .. ':' .. size) > 0
end

local has_suspects, are_left, take_handed = false, false, nil
do
-- @defer handing handed_for
  local suspected, handed = P .. 'suspected:' .. size, P .. 'handed:' .. size
  if redis.call('EXISTS', suspected, handed) > 0 then
    has_suspects, take_handed = redis.call('EXISTS', suspected) == 1, handed_for(worker, size)
  end
end
is_flagged = is_flagged or has_suspects

-- Read a stream, then the tasks that were handed on and that this worker may be able to run. They are queued
-- and read in one step, so that no worker that cannot run them reads them first.
local function read_with_handed(kind, priority)
  repeat
    read_stream(kind, priority)
    local most = is_skipped(kind, priority) and 0 or math.min(kind == 'suspects' and room_for_suspects or free, looks)
  until not take_handed or take_handed(kind .. ':' .. priority, most) == 0
end

-- Read the suspects of a priority, unless ordinary tasks of a worker without free slots go before them: its fetch has
-- not read them.
local function read_suspects(priority)
  if not has_suspects and not take_handed then
    return
  end
  local shares = P .. 'shares:' .. priority .. ':' .. size
  if free <= 0 and (is_unread('woken', priority) or marks[6] and redis.call('EXISTS', shares) == 1
    or not is_skipped('tasks', priority) and is_unread('tasks', priority)) then  -- fault: suspects-first
    room_for_suspects = 0
  end
  read_with_handed('suspects', priority)
  are_left = are_left or is_unread('suspects', priority)
end

local function read_burials()
  for _, priority in ipairs(is_flagged and PRIORITIES or {}) do
    read_stream('burials', priority)
    are_left = are_left or is_unread('burials', priority)
  end
  if is_flagged and not are_left then
    redis.call('DEL', P .. 'suspected:' .. size)
  end
end

-- Offer the locks that were given back. Returns whether this script has woken tasks of this size.
local function offer_rest()
  offer_all()
  return woken_sizes[size]
end

local function load_fetching()
  return {examine = examine, give_up = give_up, is_skipped = is_skipped, read_with_handed = read_with_handed,
    read_suspects = read_suspects, read_burials = read_burials, offer_rest = offer_rest}
end
