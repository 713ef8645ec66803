-- lib/listed: needs base, is_in_list() also record. The pointers in the lists of tenants, see lib/shares.

-- Call visit(key, its length) for each list of a kind ('woken' or 'tasks') and a stream (PRIORITY:SIZE), by tenant.
local function each_list(kind, stream, visit)
  local tenants = marks[6] and redis.pcall('ZRANGE', P .. 'shares:' .. stream, 0, -1) or {}
  table.sort(tenants.err and {} or tenants)
  for _, tenant in ipairs(tenants.err and {} or tenants) do
    local key = P .. 'share:' .. kind .. ':' .. stream .. ':' .. tenant
    local length = redis.pcall('LLEN', key)
    if type(length) == 'number' and length > 0 then
      visit(key, length, tenant)
    end
  end
end

-- How many pointers the lists have; with the pointers of tasks that have ended, which a fetch drops.
local function listed(kind, stream)
  local number = 0
  each_list(kind, stream, function(_, length) number = number + length end)
  return number
end

-- Since when (µs) the first task of a list has been there, at least.
local function since_in(key)
  local id, gen = string.match(redis.call('LINDEX', key, 0) or '', '^(.*) (%d+)$')
  local due = id and redis.pcall('HGET', P .. 't:' .. id, 'due')
  return math.max(tonumber(gen or '') or now, type(due) == 'string' and tonumber(due) or 0)
end

-- Whether the tenant of a task takes part, and one of its lists has the current pointer to it. It is not looked for in a
-- list of more than LONG.
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
