#!lua flags=allow-oom
-- mend: requeue records that are in no place, because their stream was deleted or Redis stopped a script. End tasks
-- whose keys are damaged, and groups that could not fire. All workers share one walk through the keyspace, page by
-- page.
-- KEYS  prefix
-- ARGV  keeping, keys per page, crash limit, pause between two walks µs, lease µs, least pause between two
--       pages µs
-- returns {records that were put back, 1 if the caller should continue the walk else 0}
-- @include base wake record counting submitting rescue streams listed index group keeping finish ending workflow damage condemning lost remnants
local function replace() end
-- @include unique
local keys_per_page, limit, rest, lease = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local pace, ONE_DAY = tonumber(ARGV[6]), 86400000
local walk = read_fields(P .. 'mend', {'cursor', 'done', 'due'})
local ago = now - tonumber(walk.done or '0')
-- The walk takes the same share of Redis however many workers there are.
if ago >= 0 and ago < (walk.cursor and pace or rest) then
  return {0, 0}
end

-- Whether the entry that the record names is in its stream and points to it.
local function is_pointed_at(id, record)
  if record.pointer == IN_LIST then
    return is_in_list(id, record)
  end
  local key, entry = pointer_of(record)
  local found = key and redis.pcall('XRANGE', P .. key, entry, entry)
  return found and not found.err and found[1] and found[1][2][2] == id
end

local function is_pending(record)
  local key, entry = pointer_of(record)
  local found = key and redis.pcall('XPENDING', P .. key, 'workers', entry, entry, 1)
  return found and not found.err and found[1] ~= nil
end

-- Whether a worker has the task. If its entry is gone, the worker that runs it renews `kept` with each beat.
-- Otherwise it counts as lost one lease after the first check that missed it.
local function is_held(id, record)
  if is_pending(record) then
    return true
  elseif not is_alive(record.owner) then
    return false
  end
  local missed = tonumber(record.missed or '0')
  if missed <= tonumber(record.started or '0') then
    redis.call('HSET', P .. 't:' .. id, 'missed', digits(now))
    return true
  end
  return now - math.max(missed, tonumber(record.kept or '0')) < lease
end

-- A dying task may be in any of the three places.
local function is_in_place(id, record)
  local state = record.state
  local is_due = tonumber(redis.pcall('ZSCORE', P .. 'tasks:delayed', id) or '')
  is_due = is_due and is_due < math.huge
  if state == 'delayed' or state == 'waiting' then
    return is_due
  elseif state == 'queued' then
    return is_pointed_at(id, record)
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

local FIELDS_CHECKED = {'owner', 'pointer', 'tenant', 'places', 'workflow', 'blocked', 'ends_as', unpack(JUDGED)}
-- The counts that a walk checks; met: the number of tasks on this page, by field.
local ACTIVE = {key = P .. 'active', walk = P .. 'active:walk', missed = P .. 'active:missed', met = {}}
local OF_TENANTS = {key = P .. 'active:tenants', walk = P .. 'active:tenants:walk',
  missed = P .. 'active:tenants:missed', met = {}}

local function count_met(count, field)
  count.met[field] = (count.met[field] or 0) + 1
end

local function check_record(key, id)
  local record = read_fields(key, FIELDS_CHECKED)
  if damage_in(record) or not record.b and redis.call('EXISTS', P .. 'b:' .. id) == 0 then
    if end_if_damaged(id) then
      return false
    end
  end
  keep_deadline(id, record)
  local is_task = STATES[record.state] and record.stream ~= 'hold'
  if is_task then
    count_met(ACTIVE, record.stream .. '|' .. (record.name or ''))
    if record.tenant and record.tenant ~= '' then
      count_met(OF_TENANTS, record.tenant)
    end
  end
  local is_mended = is_task and not is_in_place(id, record) and put_back(id, record)
  if is_task and record.blocked then
    mend_step(id, record, 3 * lease)
  end
  return is_mended
end

-- Parts of a task whose record is gone are kept for a day, for diagnosis.
local function check_part(key, id)
  if redis.call('EXISTS', P .. 't:' .. id) == 0 then
    redis.call('PEXPIRE', key, ONE_DAY, 'NX')
  elseif redis.call('TYPE', key).ok ~= PARTS[string.sub(key, #P + 1, #P + 1)] then
    end_if_damaged(id)
  end
end

local TYPES_OF_A_STEP = {n = 'list', m = 'set', j = 'set', k = 'hash', s = 'hash'}

-- Keys of a step belong to its workflow. What a key of a wrong type should have is found anew, see mend_step().
local function check_step(key, id)
  if redis.call('TYPE', key).ok ~= TYPES_OF_A_STEP[string.sub(key, #P + 1, #P + 1)] then
    redis.call('DEL', key)
  elseif redis.call('EXISTS', P .. 'f:' .. (string.match(id, '^(.*):') or '')) == 0 then
    redis.call('PEXPIRE', key, ONE_DAY, 'NX')
  end
end

-- A unique key without an owner was left behind by a cut script.
local function check_unique(key, name)
  if redis.call('TYPE', key).ok ~= 'string' or not owner_of(name) then
    redis.call('PEXPIRE', key, ONE_DAY, 'NX')
  end
end

-- A member of the delayed set without a record may be due in a year; its waiters must not wait until then.
local function end_orphan(id)
  if redis.call('EXISTS', P .. 't:' .. id) == 0 then
    end_if_damaged(id)
    redis.call('ZREM', P .. 'tasks:delayed', id)
  end
end

-- A value that changes when entries are added to or removed from the streams.
local function state_of(stream)
  local parts = {}
  for _, kind in ipairs(STREAM_KINDS) do
    local info = redis.pcall('XINFO', 'STREAM', P .. kind .. ':' .. stream)
    for i = 1, info.err and 0 or #info, 2 do
      if info[i] == 'length' or info[i] == 'last-generated-id' then
        parts[#parts + 1] = tostring(info[i + 1])
      end
    end
    parts[#parts + 1] = tostring(listed(kind, stream))
  end
  return table.concat(parts, ',')
end

local ALIKE = 6

-- Whether the difference between a count and what a walk has met is real, and what to remember about it. Tasks
-- come and go during a walk of several pages: it may have met one that has ended since, and missed one that
-- came behind it. So two walks must find the same difference while nothing happened in the stream, or ALIKE
-- walks in any case. The tasks of a tenant are in many streams.
local function is_missing(kind, field, miss, count)
  local now_seen = digits(miss) .. '|' .. digits(count)
  local state = kind == ACTIVE and state_of(string.match(field, '^[^|]*')) or ''
  local seen, was, times = string.match(redis.call('HGET', kind.missed, field) or '',
    '^([^|]*|[^|]*)|([^|]*)|(%d+)$')
  times = seen == now_seen and tonumber(times) + 1 or 1
  local is_sure = times > 1 and (state ~= '' and was == state or times >= ALIKE)
  return is_sure, now_seen .. '|' .. state .. '|' .. times
end

-- Correct counts by what the walk has met.
local function correct_counts(kind, is_exact)
  local counts, missed = {}, {}
  for which, key in ipairs({kind.key, kind.walk}) do
    local flat = redis.call('HGETALL', key)
    for i = 1, #flat, 2 do
      counts[flat[i]] = counts[flat[i]] or {0, 0}
      counts[flat[i]][which] = tonumber(flat[i + 1]) or 0
    end
  end
  for field, count in pairs(counts) do
    local miss, is_sure, note = count[2] - count[1], false, ''
    if miss ~= 0 then
      is_sure, note = is_missing(kind, field, miss, count[1])
    end
    if miss ~= 0 and (is_exact or is_sure) then
      if redis.call('HINCRBY', kind.key, field, digits(miss)) <= 0 then
        redis.call('HDEL', kind.key, field)
      end
    elseif miss == 0 and count[1] == 0 then
      redis.call('HDEL', kind.key, field)
    elseif miss ~= 0 then
      missed[#missed + 1], missed[#missed + 2] = field, note
    end
  end
  redis.call('DEL', kind.walk, kind.missed)
  if #missed > 0 then
    redis.call('HSET', kind.missed, unpack(missed, 1, math.min(#missed, 200)))
    redis.call('PEXPIRE', kind.missed, ONE_DAY)
  end
end

local function keep_met()
  for _, kind in ipairs({ACTIVE, OF_TENANTS}) do
    for field, number in pairs(kind.met) do
      redis.call('HINCRBY', kind.walk, field, number)
    end
    if next(kind.met) then
      redis.call('PEXPIRE', kind.walk, ONE_DAY)
    end
  end
end

local function check_group(key, id)
  mend_group(id, 3 * lease)
end

local function check_workflow(key, id)
  mend_workflow(id, 3 * lease)
end

local CHECKS = {t = check_record, u = check_unique, g = check_group, f = check_workflow, n = check_step, m = check_step,
  j = check_step, k = check_step, s = check_step}
local RECORDS_AND_PARTS, mended = '[tblehcugfnmjks]:*', 0
local page = redis.call('SCAN', walk.cursor or '0', 'MATCH', P .. RECORDS_AND_PARTS,
  'COUNT', keys_per_page)
for _, key in ipairs(page[2]) do
  local kind, id = string.sub(key, #P + 1, #P + 1), string.sub(key, #P + 3)
  -- A key of a wrong type must not stop the page.
  local fine, is_mended = pcall(CHECKS[kind] or check_part, key, id)
  if not fine and kind == 't' then
    end_if_damaged(id)
  end
  mended = mended + (fine and is_mended and 1 or 0)
end
local due = redis.pcall('ZSCAN', P .. 'tasks:delayed', walk.due or '0', 'COUNT', keys_per_page)
due = due.err and {'0', {}} or due
for i = 1, #due[2], 2 do
  end_orphan(due[2][i])
end
local is_at_end = page[1] == '0'
if not walk.cursor then
  redis.call('DEL', ACTIVE.walk, OF_TENANTS.walk)
end
keep_met()
if is_at_end then
  for _, kind in ipairs({ACTIVE, OF_TENANTS}) do
    correct_counts(kind, not walk.cursor and mended == 0)
  end
  if string.find(ARGV[1], '|0$') then  -- the history was turned off
    redis.call('DEL', P .. 'ended:done', P .. 'ended:failed')
  end
end
redis.call('HSET', P .. 'mend', 'cursor', is_at_end and '' or page[1], 'done', digits(now), 'due', due[1])
return {mended, is_at_end and 0 or 1}
