-- lib/limits: needs base. The limit that holds for a limiter: from the configuration, else its own.
-- HASH limits: KIND|vo|object type|key|action → 'limit', 'limit|window ms' or 'off'; vo and action
-- may be empty, key may be 'default'. A VO's own limit is counted apart, as limiter:KIND:@VO:….

local limits_exist = nil  -- asked once a script, and only if a limiter is met
local found_limits = {}   -- one script meets the same limiter again and again

local function are_limits_set()
  if limits_exist == nil then
    limits_exist = redis.call('EXISTS', P .. 'limits') == 1
  end
  return limits_exist
end

-- What may be configured for a limiter, the best fit first: a list of 'object type|key|action'.
local function addresses_of(name)
  local kind, of, key, action = string.match(name, '^limiter:(%a+):([^:]*):([^:]*):?(.*)$')
  local addresses = {}
  for _, keyed in ipairs({key, 'default'}) do
    if action ~= '' then
      addresses[#addresses + 1] = table.concat({of, keyed, action}, '|')
    end
    addresses[#addresses + 1] = of .. '|' .. keyed .. '|'
  end
  return addresses, kind == 'conc' and 'C' or 'L'
end

-- The configured value that fits best, and whether it is the VO's own.
local function configured_limit(lock)
  local addresses, kind = addresses_of(lock.name)
  local fields = {}
  local function add(vo)
    for _, address in ipairs(addresses) do
      fields[#fields + 1] = kind .. '|' .. vo .. '|' .. address
    end
  end
  if lock.vo ~= '' then
    add(lock.vo)
  end
  local of_vo = #fields
  add('')
  for i, value in ipairs(redis.call('HMGET', P .. 'limits', unpack(fields))) do
    if value then
      return value, i <= of_vo
    end
  end
  return nil, false
end

-- Where a limiter is counted: mark is 'x' for the common counter, 'v' for the VO's own.
local function counter_of(lock, mark)
  if mark == 'v' then
    local head, rest = string.match(lock.name, '^(limiter:%a+:)(.*)$')
    return head .. '@' .. lock.vo .. ':' .. rest
  end
  return lock.name
end

local function count_at(lock, mark)
  lock.mark = mark
  lock.counter = counter_of(lock, mark)
  lock.key = P .. lock.counter
end

local function is_impossible(lock)
  return lock.limit and lock.items > lock.limit
end

local function why_impossible(lock)
  return lock.counter .. ' allows ' .. lock.limit .. ', one execution counts ' .. lock.items
end

-- Find out what holds for a limiter now: sets limit (nil: off), window and where it is counted.
local function resolve_limit(lock)
  local mark = 'x'
  if lock.kind ~= 'P' and are_limits_set() then
    local memo = lock.kind .. lock.vo .. '|' .. lock.name
    if not found_limits[memo] then
      local value, of_vo = configured_limit(lock)
      found_limits[memo] = {value, of_vo and 'v' or 'x'}
    end
    local value = found_limits[memo][1]
    if value then
      local limit, window = string.match(value, '^(%d+)|?(%d*)$')
      lock.limit, lock.window = tonumber(limit), tonumber(window)
      mark = found_limits[memo][2]
    end
  end
  count_at(lock, mark)
end
