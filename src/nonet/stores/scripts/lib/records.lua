-- lib/records: needs now. Names of streams, and readers of hashes.

-- A stream is named KIND:PRIORITY:SIZE. A worker reads the streams of its size by priority, and those of one
-- priority in the order of their kinds.
local PRIORITIES = {'realtime', 'normal', 'background'}  -- fault: priority-order
local SIZES = {'small', 'medium', 'large'}
local STREAM_KINDS = {'woken', 'tasks', 'suspects', 'burials'}

local epoch = nil  -- HASH epoch; set by lib/epoch in the scripts that grant locks

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
