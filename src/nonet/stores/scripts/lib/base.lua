-- lib/base: every script begins with this part: the key prefix, the logical time, and readers of hashes.
-- KEYS[1] is the prefix "{ns}:" of every key; it also routes the call in a cluster.
-- The parts of a script share the 200 local variables that Lua allows in a function. A part that needs many hides those
-- of its own in a do-block.
local P = KEYS[1]
local clock, marks = redis.call('TIME'), redis.call('MGET', P .. 'clock', P .. 'pausing', P .. 'capped',
  P .. 'fence', P .. 'watched')
local stepped = marks[1]
local is_pausing = marks[2]  -- something is paused, see lib/pauses
local is_capped = marks[3]  -- there are ceilings, see lib/ceilings
-- The logical time in µs: the server's clock and an offset that the leader maintains, so that logical time stays
-- steady when an administrator sets that clock.
local offset = tonumber(stepped or '') or 0
local now = clock[1] * 1000000 + clock[2] + offset

-- A stream is named KIND:PRIORITY:SIZE. A worker reads the streams of its size by priority, and those of one
-- priority in the order of their kinds.
local PRIORITIES = {'realtime', 'normal', 'background'}
local SIZES = {'small', 'medium', 'large'}
local STREAM_KINDS = {'woken', 'tasks', 'suspects', 'burials'}

local epoch = nil  -- HASH epoch; set by lib/epoch in the scripts that grant locks

-- tostring() writes large numbers as 1.8e+15 and loses digits.
local function digits(number)
  return string.format('%.0f', number)
end

-- Read some fields of a hash, by name; a missing or empty field is nil.
local function read_fields(key, names)
  local fields = {}
  for i, value in ipairs(redis.call('HMGET', key, unpack(names))) do
    fields[names[i]] = value and value ~= '' and value or nil
  end
  return fields
end

-- Read all fields of the record of a task; a missing or empty field is nil.
local function read_record(id)
  local all, fields = redis.call('HGETALL', P .. 't:' .. id), {}
  for i = 1, #all, 2 do
    if all[i + 1] ~= '' then
      fields[all[i]] = all[i + 1]
    end
  end
  return fields
end

-- The generation in which a task was created: its rank in every queue until it ends. A record stores it as
-- `ticket` once `gen` differs or the task waits. record has the fields ticket, gen and state.
local function ticket_of(record)
  local is_first = record.state == 'queued' or record.state == 'running' or record.state == 'dying'
  return record.ticket or is_first and record.gen or nil
end

local function is_alive(worker)
  local ends = worker and redis.call('ZSCORE', P .. 'workers', worker)
  return ends and tonumber(ends) > now
end
