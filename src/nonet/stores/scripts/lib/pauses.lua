-- lib/pauses: needs base. What operators have paused. HASH paused: what → 'at (µs)|who|reason'; what is all,
-- stream:PRIORITY:SIZE, or task:NAME with a full or a bare class name. STRING pausing exists while the hash does:
-- every script reads it with its other marks, and reads the hash only if there is one.

local paused = nil  -- read once a script

local function read_pauses()
  if not paused then
    paused = {}
    for _, what in ipairs(is_pausing and redis.call('HKEYS', P .. 'paused') or {}) do
      paused[what] = true
    end
  end
  return paused
end

-- The pause that keeps a task from starting, or nil. record has the fields stream and name.
local function pause_of(record)
  local all = read_pauses()
  if next(all) == nil then
    return nil
  end
  local name = record.name or ''
  for _, what in ipairs({'all', 'stream:' .. (record.stream or ''), 'task:' .. name,
    'task:' .. string.match(name, '[^:]*$')}) do
    if all[what] then
      return what
    end
  end
  return nil
end
