-- lib/pauses: needs base, limits. What operators have paused. HASH paused: what → 'at (µs)|who|reason'; what is all,
-- stream:PRIORITY:SIZE, task:NAME with a full or a bare class name, or arrival:TENANT: its tasks with a lock, a limit or a
-- unique key wait until another namespace has none of its tasks. STRING pausing exists while the hash does:
-- every script reads it with its other marks, and reads the hash only if there is one.

local paused = nil  -- read once a script

local function read_pauses()
  if not paused then
    paused = {}
    for _, what in ipairs(is_pausing and redis.pcall('HKEYS', P .. 'paused') or {}) do
      paused[what] = true
    end
  end
  return paused
end

-- The pause that keeps a task from starting, or nil. lines: its locks; record has the fields stream, name, tenant and
-- unique.
local function pause_of(record, lines)
  local all = read_pauses()
  if next(all) == nil then
    return nil
  end
  local name = record.name or ''
  local has_locks = string.find('\n' .. lines, '\n[^V\n]')  -- V names the VO, see parse_locks
  local is_bound = record.tenant and (has_locks or record.unique or are_limits_set())
  for _, what in ipairs({'all', 'stream:' .. (record.stream or ''), 'task:' .. name,
    'task:' .. string.match(name, '[^:]*$'), is_bound and 'arrival:' .. record.tenant or nil}) do
    if all[what] then
      return what
    end
  end
  return nil
end
