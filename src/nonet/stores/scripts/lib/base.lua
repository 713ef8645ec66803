-- lib/base: what every script starts with. KEYS[1] is the prefix "{ns}:" (it routes on a
-- cluster, and every other key is made of it), now is the logical time in microseconds: the server's,
-- and what the leader has added since, so that it goes on evenly when that clock is set.
local P = KEYS[1]
local clock, marks = redis.call('TIME'), redis.call('MGET', P .. 'clock', P .. 'pausing', P .. 'capped',
  P .. 'fence', P .. 'watched')
local stepped, is_pausing = marks[1], marks[2]  -- whether anything is paused: see lib/pauses
local is_capped = marks[3]  -- whether there are ceilings: see lib/ceilings
local offset = tonumber(stepped or '') or 0
local now = clock[1] * 1000000 + clock[2] + offset

-- HASH epoch, in scripts that read it: those that grant locks (see lib/epoch).
local epoch = nil

-- Plain tostring() writes large numbers as 1.8e+15 and loses digits.
local function digits(number)
  return string.format('%.0f', number)
end

-- Some fields of a hash by their names; those that are missing or empty are nil.
local function read_fields(key, names)
  local fields = {}
  for i, value in ipairs(redis.call('HMGET', key, unpack(names))) do
    fields[names[i]] = value and value ~= '' and value or nil
  end
  return fields
end

-- All fields of a record; those that are missing or empty are nil.
local function read_record(id)
  local all, fields = redis.call('HGETALL', P .. 't:' .. id), {}
  for i = 1, #all, 2 do
    if all[i + 1] ~= '' then
      fields[all[i]] = all[i + 1]
    end
  end
  return fields
end

-- The generation in which a task was made, which is its place in line for ever: the record says so when
-- it has another one, or waits. record has the fields ticket, gen and state.
local function ticket_of(record)
  local is_first = record.state == 'queued' or record.state == 'running' or record.state == 'dying'
  return record.ticket or is_first and record.gen or nil
end
