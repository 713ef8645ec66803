-- lib/listed: needs base, is_in_list() also record. The pointers in the lists of tenants, see lib/shares.

-- Call visit(key, tenant) for each list of a kind ('woken' or 'tasks') and a stream (PRIORITY:SIZE), by tenant; from a
-- tenant, or nil, until visit() returns true.
local function each_list(kind, stream, from, visit)
  local tenants = marks[6] and redis.call('ZRANGE', P .. 'shares:' .. stream, 0, -1) or {}
  table.sort(tenants)
  for _, tenant in ipairs(tenants) do
    if not (from and tenant < from) and visit(P .. 'share:' .. kind .. ':' .. stream .. ':' .. tenant, tenant) then
      return
    end
  end
end

-- How many pointers the lists have; with the pointers of tasks that have ended, which a fetch drops. A script that was
-- cut may have left a number without lists.
local function listed(kind, stream)
  local number = marks[6] and redis.call('EXISTS', P .. 'shares:' .. stream) == 1
    and redis.call('HGET', P .. 'pace', stream .. ' ' .. kind)
  return math.max(0, tonumber(number or '0'))
end

-- The keys of the lists of the tenants whose turns come next. There may be thousands of others.
local function next_lists(kind, stream)
  local NEXT, found = 64, {}
  local tenants = listed(kind, stream) > 0 and redis.call('ZRANGE', P .. 'shares:' .. stream, 0, NEXT - 1) or {}
  for i, tenant in ipairs(tenants) do
    found[i] = P .. 'share:' .. kind .. ':' .. stream .. ':' .. tenant
  end
  return found
end

-- Since when (µs) the first task of a list has been there, at least.
local function since_in(key)
  local id, gen = string.match(redis.call('LINDEX', key, 0) or '', '^(.*) (%d+)$')
  local due = id and read_record(id).due
  return math.max(tonumber(gen or now), tonumber(due or '0'))
end

-- Whether the tenant of a task takes part, and one of its lists has the current pointer to it. Lists longer than LONG
-- are not searched.
local function is_in_list(id, record)
  local LONG, pointer, tenant = 2000, id .. ' ' .. (record.gen or ''), record.tenant or ''
  for _, stream in ipairs({record.stream or '', PRIORITIES[1] .. ':' .. size_of(record.stream or '')}) do
    for _, kind in ipairs({'woken', 'tasks'}) do
      local list = P .. 'share:' .. kind .. ':' .. stream .. ':' .. tenant
      if redis.call('LLEN', list) > LONG or redis.call('LPOS', list, pointer) then
        return redis.call('ZSCORE', P .. 'shares:' .. stream, tenant)
      end
    end
  end
  return false
end
