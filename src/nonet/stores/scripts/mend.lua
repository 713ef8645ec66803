#!lua flags=allow-oom
-- mend: requeue records that are in no place, because their stream was deleted or Redis stopped a script. Fire groups that
-- could not, and end steps of workflows whose records are gone. All workers share one walk through the keyspace, page
-- by page.
-- KEYS  prefix
-- ARGV  keeping, keys per page, crash limit, pause between two walks µs, lease µs, least pause between two
--       pages µs, latest possible time µs or ''
-- returns {records that were put back, 1 if the caller should continue the walk else 0}
-- @include base leading wake record counting submitting rescue streams listed index group keeping finish ending workflow lost followed remnants
local function replace() end
-- @include unique hashes recounting pausing
local keys_per_page, limit, rest, lease = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local pace, ONE_DAY = tonumber(ARGV[6]), 86400000
local walk = read_fields(P .. 'mend', {'cursor', 'done', 'due'})
local ago = now - tonumber(walk.done or '0')
-- Every worker seems dead while the clock is ahead. Else the walk takes the same share of Redis however many workers there are.
if is_clock_ahead(ARGV[7]) or ago >= 0 and ago < (walk.cursor and pace or rest) then
  return {0, 0}
end

-- Whether the entry that the record names is in its stream and points to it.
local function is_pointed_at(id, record)
  if record.pointer == IN_LIST then
    return is_in_list(id, record)  -- fault: lists-unmended
  end
  local key, entry = pointer_of(record)
  local found = key and redis.call('XRANGE', P .. key, entry, entry)[1]
  return found and found[2][2] == id
end

local function is_pending(record)
  local key, entry = pointer_of(record)
  return key and pending_in(P .. key, entry, entry, 1)[1]
end

-- Whether a worker has the task. If its entry is gone, the worker that runs it renews `kept` with each beat.
-- Otherwise it counts as lost one lease after the first check that missed it.
local function is_held(id, record)
  if is_pending(record) then
    return true
  elseif not is_alive(record.owner) then  -- fault: walk-takes-from-living
    return false
  end
  local missed = tonumber(record.missed or '0')
  if missed <= tonumber(record.started or '0') then
    change(id, {missed = now})
    return true
  end
  return now - math.max(missed, tonumber(record.kept or '0')) < lease
end

-- A dying task may be in any of the three places.
local function is_in_place(id, record)
  local state = record.state
  local is_due = redis.call('ZSCORE', P .. 'tasks:delayed', id)
  if state == 'delayed' or state == 'waiting' then
    return is_due
  elseif state == 'queued' then
    return is_pointed_at(id, record)  -- fault: walk-skips-queued
  end
  return state == 'dying' and (is_due or is_pointed_at(id, record)) or is_held(id, record)
end

local function put_back(id, record)
  if record.state == 'delayed' or record.state == 'waiting' then
    -- Check a task that is in queues for locks now; others keep their time.
    delay(id, record.blocked and BLOCKED_UNTIL or not record.places and tonumber(record.due or '') or now)
    return true
  end
  return take_back(id, record.gen, limit)
end

-- Restore a deadline from the record after a cut script.
local function keep_deadline(id, record)
  local deadline = string.match(record.start_by or '', '^%d+')
  if deadline and AT_REST[record.state] and not redis.call('ZSCORE', P .. 'deadlines', id) then
    redis.call('ZADD', P .. 'deadlines', deadline, id)
  end
end

local STATES = {queued = true, delayed = true, waiting = true, running = true, dying = true}

local met = {}  -- the tasks of this page, as add_to() adds them up

local function check_record(_, id)
  local record = read_record(id)
  keep_deadline(id, record)
  local is_task = STATES[record.state] and record.stream ~= 'hold'
  if is_task then
    add_to(met, record.stream, record, 1, counted_bytes(id, record))
  end
  local is_mended = is_task and not is_in_place(id, record) and put_back(id, record)
  if is_task and record.blocked then
    mend_step(id, record, 3 * lease)
  end
  return is_mended
end

-- Parts of a task whose record is gone are kept for a day, for diagnosis.
local function check_part(key, id)
  if not records.has(id) then
    redis.call('PEXPIRE', key, ONE_DAY, 'NX')
  end
end

-- Keys of a step belong to its workflow.
local function check_step(key, id)
  if redis.call('EXISTS', P .. 'f:' .. (string.match(id, '^(.*):') or '')) == 0 then
    redis.call('PEXPIRE', key, ONE_DAY, 'NX')
  end
end

-- A unique key without an owner was left behind by a cut script.
local function check_unique(key, name)
  if not owner_of(name) then
    redis.call('PEXPIRE', key, ONE_DAY, 'NX')
  end
end

-- A member of the delayed set without a record may be due in a year; its waiters must not wait until then.
local function end_orphan(id)
  if not records.has(id) then
    note_unknown(id)
    redis.call('ZREM', P .. 'tasks:delayed', id)
  end
end

local function check_group(key, id)
  mend_group(id, 3 * lease)
end

local function check_workflow(key, id)
  mend_workflow(id, 3 * lease)
end

-- Remove workflows that have left this state from its list, which is in the order of their last changes.
local function leave_list(state)
  local index, MOST = P .. 'workflows:' .. state, 100
  for _, workflow in ipairs(redis.call('ZRANGE', index, 0, MOST - 1)) do
    if redis.call('HGET', P .. 'f:' .. workflow, 'state') ~= state then
      redis.call('ZREM', index, workflow)
    end
  end
end

local CHECKS = {t = check_record, u = check_unique, g = check_group, f = check_workflow, n = check_step, m = check_step,
  j = check_step, k = check_step, s = check_step}
local RECORDS_AND_PARTS, mended = '[tbehcugfnmjks]:*', 0
local page = redis.call('SCAN', walk.cursor or '0', 'MATCH', P .. RECORDS_AND_PARTS,
  'COUNT', keys_per_page)
for _, key in ipairs(page[2]) do
  local kind, id = string.sub(key, #P + 1, #P + 1), string.sub(key, #P + 3)
  -- A key that cannot be checked must not stop the walk.
  local fine, is_mended = pcall(CHECKS[kind] or check_part, key, id)
  mended = mended + (fine and is_mended and 1 or 0)
end
local due = redis.call('ZSCAN', P .. 'tasks:delayed', walk.due or '0', 'COUNT', keys_per_page)
for i = 1, #due[2], 2 do
  end_orphan(due[2][i])
end
local is_at_end = page[1] == '0'
keep_met(met, not walk.cursor)
if is_at_end then
  mark_pausing(false)
  for _, state in ipairs({'building', 'running', 'resuming', 'done', 'failed', 'cancelled'}) do
    leave_list(state)
  end
  correct_counts(not walk.cursor and mended == 0)
  if string.find(ARGV[1], '|0$') then  -- the history was turned off
    for _, state in ipairs({'done', 'cancelled', 'dead', 'expired'}) do
      redis.call('DEL', P .. 'ended:' .. state)
    end
  end
end
redis.call('HSET', P .. 'mend', 'cursor', is_at_end and '' or page[1], 'done', digits(now), 'due', due[1])
return {mended, is_at_end and 0 or 1}
