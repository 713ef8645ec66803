-- lib/limits: needs base. Which limit applies to a limiter: the configured one, else the declared one. HASH limits:
-- KIND|vo|object type|key|action → 'limit', 'limit|window ms' or 'off'. vo and action may be empty, key may be
-- 'default'. The limit of one VO is counted apart, as limiter:KIND:@VO:….

local are_limits_set
do
  local exist = nil  -- read once a script, and only if it meets a limiter

  function are_limits_set()
    if exist == nil then
      exist = redis.call('EXISTS', P .. 'limits') == 1
    end
    return exist
  end
end

-- What may be configured for a limiter: a list of 'object type|key|action', the most specific first.
local function addresses_of(name)
  local of, key, action = string.match(name, '^limiter:%a+:([^:]*):([^:]*):?(.*)$')
  local addresses = {}
  for _, keyed in ipairs({key, 'default'}) do
    if action ~= '' then
      addresses[#addresses + 1] = table.concat({of, keyed, action}, '|')
    end
    addresses[#addresses + 1] = of .. '|' .. keyed .. '|'
  end
  return addresses
end

-- The most specific value that is configured, and whether it is set for the VO alone.
local function configured_limit(lock)
  local addresses, fields = addresses_of(lock.name), {}
  local function add(vo)
    for _, address in ipairs(addresses) do
      fields[#fields + 1] = lock.kind .. '|' .. vo .. '|' .. address
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

-- The limit and the window (ms) of a configured value; both nil if it is 'off'.
local function parse_limit(value)
  local limit, window = string.match(value, '^(%d+)|?(%d*)$')
  return tonumber(limit), tonumber(window)
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
  lock.leases = lock.key
end

local function is_impossible(lock)
  return lock.limit and lock.items > lock.limit
end

local function why_impossible(lock)
  return lock.counter .. ' allows ' .. lock.limit .. ', one execution counts ' .. lock.items
end

local resolve_limit
do
  local found = {}  -- a script meets the same limiter many times

  -- Find out which limit applies to a limiter now: set its limit (nil: off), its window, and where it is counted.
  function resolve_limit(lock)
    local mark = 'x'
    if not lock.pause and are_limits_set() then  -- fault: limits-unread
      local memo = lock.kind .. lock.vo .. '|' .. lock.name
      if not found[memo] then
        local value, of_vo = configured_limit(lock)
        found[memo] = {value, of_vo and 'v' or 'x'}
      end
      local value = found[memo][1]
      if value then
        lock.limit, lock.window = parse_limit(value)
        mark = found[memo][2]
      end
    end
    count_at(lock, mark)
  end
end
