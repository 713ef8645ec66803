-- lib/damage: needs base, record. Detects damaged tasks: their keys hold what no script writes, because of an
-- external change or a bug. lib/condemning ends them.

local TYPES = {{'t', 'hash', 'record'}, {'b', 'string', 'envelope'}, {'l', 'string', 'list of locks'},
  {'e', 'string', 'error'}, {'h', 'list', 'history'}, {'c', 'string', 'checkpoint'}}
local PARTS = {}
for _, part in ipairs(TYPES) do
  PARTS[part[1]] = part[2]
end
local IN_PLACES = {queued = true, delayed = true, waiting = true, running = true, dying = true}
local NUMBERS = {'gen', 'ticket', 'fence', 'attempt', 'deaths', 'crashes', 'suspect', 'refusals', 'handed', 'since',
  'seen', 'reserved', 'due', 'put', 'started', 'kept', 'missed', 'v'}
local MOST_DIGITS = 18

-- The fields that damage_in() reads.
local JUDGED = {'b', 'state', 'stream', 'name', 'start_by', unpack(NUMBERS)}

-- A value as text for people.
local function shown(value)
  return "'" .. string.gsub(string.sub(value, 1, 30), '[^%w%p ]', '?') .. "'"
end

local function is_number(value)
  return #value <= MOST_DIGITS and string.find(value, '^%d+$') ~= nil
end

-- What is wrong with the fields of a record, or nil. Holds are not tasks, so they pass. Of tasks of a newer format
-- only the numbers are checked.
local function damage_in(record)
  if record.stream == 'hold' or record.state == 'held' then
    return nil
  end
  for _, name in ipairs(NUMBERS) do
    if record[name] and not is_number(record[name]) then
      return 'its ' .. name .. ' is ' .. shown(record[name]) .. ', which is no number'
    end
  end
  if newer_format(record) then
    return nil
  elseif not record.state then
    return 'it has no state'
  elseif not IN_PLACES[record.state] then
    return 'it has the state ' .. shown(record.state)
  elseif not record.stream then
    return 'it has no stream'
  elseif not is_stream(record.stream) then
    return 'it belongs to the stream ' .. shown(record.stream) .. ', which does not exist'
  elseif not record.gen then
    return 'it has no gen'
  elseif not ticket_of(record) then
    return 'it has no ticket'
  elseif not record.name or string.find(record.name, '%c')
    or record.b and not string.find(record.name, '^[^%s|]+:[^%s|]+$') then  -- needed to restore the envelope
    return 'its class is ' .. shown(record.name or '')
  elseif record.start_by and not string.find(record.start_by, '^%d+|1?$') then
    return 'its start_by is ' .. shown(record.start_by)
  end
  return nil
end

-- What is wrong with the keys of a task, or nil; nil also if there is no such task.
local function damage_of(id)
  local key = P .. 't:' .. id
  if redis.call('EXISTS', key) == 0 then
    return nil
  end
  for _, part in ipairs(TYPES) do
    local actual = redis.call('TYPE', P .. part[1] .. ':' .. id).ok
    if actual ~= part[2] and actual ~= 'none' then
      return 'its ' .. part[3] .. ' is a Redis ' .. actual .. ', not a ' .. part[2]
    end
  end
  local record = read_fields(key, JUDGED)
  local problem = damage_in(record)
  local is_judged = not problem and record.stream ~= 'hold' and record.state ~= 'held'
  if is_judged and not newer_format(record) and not record.b and redis.call('EXISTS', P .. 'b:' .. id) == 0 then
    return 'its envelope is gone'
  end
  return problem
end
