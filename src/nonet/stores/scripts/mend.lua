#!lua flags=allow-oom
-- mend: queue again each record that is in no place: its stream was deleted, a script was cut. All
-- workers carry one walk through the keyspace on, page by page.
-- KEYS  prefix
-- ARGV  keys to look at, worker-death limit, µs between the end of a walk and the next, lease µs
-- returns {records that were put back, 1 if the walk is not at its end else 0}
-- @include base wake record lost
local limit, rest, lease = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local walk = read_fields(P .. 'mend', {'cursor', 'done'})
local ago = now - tonumber(walk.done or '0')
if not walk.cursor and ago >= 0 and ago < rest then
  return {0, 0}
end

local function is_alive(worker)
  local ends = worker and redis.call('ZSCORE', P .. 'workers', worker)
  return ends and tonumber(ends) > now
end

-- Whether the entry that the record names is in its stream.
local function is_pointed_at(record)
  local key, entry = string.match(record.pointer or '', '^(%S+) (%S+)$')
  local found = key and redis.pcall('XRANGE', P .. key, entry, entry)
  return found and not found.err and found[1] ~= nil
end

local function is_pending(record)
  local key, entry = string.match(record.pointer or '', '^(%S+) (%S+)$')
  local found = key and redis.pcall('XPENDING', P .. key, 'workers', entry, entry, 1)
  return found and not found.err and found[1] ~= nil
end

-- Whether a worker has it. If its entry is gone, a worker that runs it says so with each beat (kept);
-- one that has never heard of it does not: then it is missed, from the first look on.
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

-- dying: in any of the three places.
local function is_in_place(id, record)
  local state = record.state
  local is_due = redis.call('ZSCORE', P .. 'tasks:delayed', id)
  if state == 'delayed' or state == 'waiting' then
    return is_due
  elseif state == 'queued' then
    return is_pointed_at(record)
  end
  return state == 'dying' and (is_due or is_pointed_at(record)) or is_held(id, record)
end

local function put_back(id, record)
  if record.state == 'delayed' or record.state == 'waiting' then
    -- Who stands in queues is looked at; the others have their time.
    delay(id, not record.places and tonumber(record.due or '') or now)
    return true
  end
  return take_back(id, record.gen, limit)
end

local STATES = {queued = true, delayed = true, waiting = true, running = true, dying = true}

local function look_at(id)
  local record = read_fields(P .. 't:' .. id, {'state', 'gen', 'stream', 'owner', 'pointer', 'due',
    'places', 'started', 'kept', 'missed'})
  local is_task = STATES[record.state] and record.gen and record.stream and record.stream ~= 'hold'
  return is_task and not is_in_place(id, record) and put_back(id, record)
end

-- What belongs to a record that is gone has a day, for whoever wants to know why.
local function look_at_part(key, id)
  if redis.call('EXISTS', P .. 't:' .. id) == 0 then
    redis.call('PEXPIRE', key, 86400000, 'NX')
  end
end

local RECORDS_AND_PARTS, mended = '[tblehc]:*', 0
local page = redis.call('SCAN', walk.cursor or '0', 'MATCH', P .. RECORDS_AND_PARTS,
  'COUNT', ARGV[1])
for _, key in ipairs(page[2]) do
  local kind, id = string.sub(key, #P + 1, #P + 1), string.sub(key, #P + 3)
  -- A key of the wrong type costs nobody else the look.
  local fine, is_mended = pcall(kind == 't' and look_at or look_at_part, kind == 't' and id or key, id)
  mended = mended + (fine and is_mended and 1 or 0)
end
local is_at_end = page[1] == '0'
redis.call('HSET', P .. 'mend', 'cursor', is_at_end and '' or page[1], 'done', digits(now))
return {mended, is_at_end and 0 or 1}
