-- lib/ceilings: needs base, record, counting, submitting, unique, submits, hashes. Refuses submissions while there are too many
-- tasks. HASH ceilings: scope → most tasks at a time. A scope is namespace, stream:PRIORITY:SIZE, task:NAME, or of a
-- tenant: tenant:NAME, tenant-bytes:NAME (most bytes of envelopes) or tenant-rate:NAME (most new tasks a second), with
-- NAME 'default' for those that are not named. STRING capped exists while the hash does.

-- A refusal estimates when to try again, from the rate at which tasks ended over the last MOST_LOOKS periods, or over
-- fewer if ENOUGH_ENDS tasks ended in them. That is not before enough tasks are due, judged by the first MOST_DELAYED
-- tasks of the delayed set. LONGEST is the longest answer in s, UNKNOWN the answer if no task ended.
local MOST_LOOKS, ENOUGH_ENDS, MOST_DELAYED = 20, 5, 200
local LONGEST, UNKNOWN = 300, 10
-- Running tasks may exceed a ceiling by HEADROOM. Otherwise tasks that fill a ceiling, and must submit before they
-- end, would wait for each other forever. They may exceed it further if no task has ended for STUCK_AFTER periods.
local HEADROOM, STUCK_AFTER = 0.1, 2

-- The scopes of a tenant by kind, and where it is counted; for rates see lib/submits.
local RATE = 'tenant-rate'
local OF_A_TENANT = {tenant = 'active:tenants', ['tenant-bytes'] = 'active:bytes', [RATE] = ''}

-- The kind and the name of the tenant of such a scope; nil for others.
local function tenant_scope(scope)
  local kind, tenant = string.match(scope, '^([%l-]+):(.*)$')
  return OF_A_TENANT[kind] and kind, tenant
end

-- Sum up the ends of an interval, fields PRIORITY:SIZE|NAME or scopes of tenants, or the tasks that have not ended, by
-- scopes.
local function sum_up(key)
  local sums = {}
  for field, number in pairs(read_hash(key)) do
    local stream, name = string.match(field, '^(%l+:%l+)|(.*)$')
    for _, scope in ipairs(stream and {'namespace', 'stream:' .. stream, 'task:' .. name} or {field}) do
      sums[scope] = (sums[scope] or 0) + number
    end
  end
  return sums
end

-- How many tasks or bytes a scope has. sums: the tasks of all scopes except tenants.
local function active_in(scope, ceiling, sums)
  local kind, tenant = tenant_scope(scope)
  if kind == RATE then
    return unpaid(tenant, ceiling)
  end
  return kind and tonumber(redis.call('HGET', P .. OF_A_TENANT[kind], tenant) or '0') or sums[scope] or 0
end

-- The ceiling of a scope, or nil.
local function ceiling_of(scope, ceilings)
  local kind = tenant_scope(scope)
  return tonumber(ceilings[scope] or kind and ceilings[string.format('%s:default', kind)] or '')
end

-- Read the delayed tasks of a scope. Returns {µs when it is due, places that it takes} of each, in order; the sum of
-- these places and of the places of blocked steps; and whether there are blocked steps.
local function delayed_in(scope)
  local kind, tenant = tenant_scope(scope)
  local dues, places, are_blocked = {}, 0, false
  local found = redis.call('ZRANGEBYSCORE', P .. 'tasks:delayed', '(' .. digits(now), '+inf', 'WITHSCORES',
    'LIMIT', 0, MOST_DELAYED)
  for i = 1, #found, 2 do
    local record = read_record(found[i])
    local is_of_scope = scope == 'namespace' or kind and record.tenant == tenant
      or scope == 'stream:' .. (record.stream or '') or scope == 'task:' .. (record.name or '')
    if is_of_scope and (record.blocked or record.state == 'delayed') then  -- others wait for a lock
      local taken = kind == 'tenant-bytes' and counted_bytes(found[i], record) or 1
      places, are_blocked = places + taken, are_blocked or record.blocked ~= nil
      dues[#dues + 1] = not record.blocked and {tonumber(found[i + 1]), taken} or nil
    end
  end
  return dues, places, are_blocked
end

-- In how many seconds enough tasks of a scope are due to free this many places.
local function due_in(scope, has, places)
  local dues, delayed, are_blocked = delayed_in(scope)
  local missing = places - (has - delayed)
  if missing <= 0 or are_blocked and has > delayed then
    return 0
  end
  for _, due in ipairs(dues) do
    missing = missing - due[2]
    if missing <= 0 or are_blocked then
      return (due[1] - now) / 1000000
    end
  end
  return LONGEST
end

-- Estimate in how many seconds this many places of a scope will be free.
local function comes_back_in(scope, has, places)
  local ends, first, current = 0, nil, math.floor(now / ENDS_BY)
  for i = 0, MOST_LOOKS - 1 do
    local found = sum_up(P .. 'ends:' .. digits(current - i))[scope]
    ends = ends + (found or 0)
    first = found and current - i or first
    if ends >= ENOUGH_ENDS then
      break
    end
  end
  local seconds = ends == 0 and UNKNOWN
    or places * math.max(now - first * ENDS_BY, 1000000) / ends / 1000000
  return math.max(1, math.min(LONGEST, math.ceil(math.max(seconds, due_in(scope, has, places)))))
end

local met = {}

-- How many places a task takes: none if its id is known, if its unique key makes it a duplicate or the replacement
-- of another task, or if it was admitted before.
local function places_of(id, group, terms)
  if met[id] or records.is_known(id)
    or string.find('\n' .. terms, '\nadmitted|', 1, true)
    or group ~= '' and redis.call('HEXISTS', P .. 'g:' .. group .. ':results', id) == 1 then
    return 0
  end
  met[id] = true
  local mode, key = string.match('\n' .. terms, '\nunique|(%l+)|%d+|(%x+)')
  if not mode then
    return 1
  end
  local other, is_met = owner_of(key), met['u:' .. key]
  met['u:' .. key] = true
  local is_replaced = mode ~= 'latest' or other
    and AT_REST[read_record(other).state]
  return (is_met or other and is_replaced) and 0 or 1
end

-- When the youngest of the submitting tasks was itself submitted (µs); nil if one of the submitters is not a
-- running task.
local function submitters_since(asked, first)
  local latest, known = 0, {}
  for i = first, #asked, 8 do
    local parent = string.match('\n' .. asked[i + 7], '\nby|([^\n]+)')
    if not parent then
      return nil
    elseif not known[parent] then
      known[parent] = true
      local record = read_record(parent)
      if record.state ~= 'running' then
        return nil
      end
      latest = math.max(latest, tonumber(ticket_of(record) or '') or now)
    end
  end
  return latest
end

-- Whether no task of a scope has ended for a while, although the submitters existed all that time.
local function is_stuck(scope, since)
  local current = math.floor(now / ENDS_BY)
  if since >= (current - STUCK_AFTER) * ENDS_BY then
    return false
  end
  for i = 0, STUCK_AFTER do
    if (sum_up(P .. 'ends:' .. digits(current - i))[scope] or 0) > 0 then
      return false
    end
  end
  return true
end

-- How many places a scope lacks for running tasks, which have headroom.
local function beyond_headroom(scope, lacking, ceiling, since)
  if lacking <= math.max(1, math.floor(ceiling * HEADROOM)) or is_stuck(scope, since) then
    return 0
  end
  return lacking
end

-- What a task adds to a scope: one task, or the bytes of its envelope.
local function amounts_of(name, stream, envelope, terms)
  local amounts, tenant = {namespace = 1, ['stream:' .. stream] = 1, ['task:' .. name] = 1}, tenant_in(terms)
  if tenant ~= '' then
    amounts['tenant:' .. tenant], amounts['tenant-bytes:' .. tenant], amounts[RATE .. ':' .. tenant] = 1, #envelope, 1
  end
  return amounts
end

-- Sum what these tasks would add to the scopes that have a ceiling: {tasks, amount, ceiling} by scope.
local function wanted_by(asked, first)
  local wanted, ceilings = {}, read_hash(P .. 'ceilings')
  for i = first, #asked, 8 do
    if places_of(asked[i], asked[i + 4], asked[i + 7]) > 0 then
      for scope, amount in pairs(amounts_of(asked[i + 1], asked[i + 2], asked[i + 5], asked[i + 7])) do
        local sums, ceiling = wanted[scope] or {0, 0}, ceiling_of(scope, ceilings)
        wanted[scope] = ceiling and {sums[1] + 1, sums[2] + amount, ceiling}
      end
    end
  end
  return wanted
end

-- How many tasks or bytes are too many, and after how many seconds a retry makes sense. since: see submitters_since().
local function lacking_in(scope, has, amount, ceiling, since)
  if tenant_scope(scope) == RATE then
    -- A tenant whose submissions are paid off within a second may submit any number of tasks.
    local beyond = has - ceiling + 1
    return beyond, math.max(1, math.min(LONGEST, math.ceil(beyond / ceiling)))
  end
  local lacking = has + amount - ceiling
  lacking = lacking > 0 and since and beyond_headroom(scope, lacking, ceiling, since) or lacking
  return lacking, lacking > 0 and comes_back_in(scope, has, lacking) or 0
end

-- Why these tasks, n × (id, name, stream, due, group, envelope, locks, terms) from asked[first] on, cannot be
-- submitted together: {'FULL', scope, tasks or bytes that it has, its ceiling, seconds until a retry, tasks of this
-- scope, 1 if these alone are above the ceiling}; or nil.
local function find_excess(asked, first)
  local active, longest, excess, since = sum_up(P .. 'active'), 0, nil, nil
  for scope, sums in pairs(wanted_by(asked, first)) do
    local tasks, amount, ceiling = unpack(sums)
    local has = active_in(scope, ceiling, active)
    if since == nil and has + amount > ceiling then
      since = submitters_since(asked, first) or false
    end
    local lacking, seconds = lacking_in(scope, has, amount, ceiling, since)
    if lacking > 0 and seconds > longest then
      local is_too_large = amount > ceiling and tenant_scope(scope) ~= RATE
      longest, excess = seconds, {'FULL', scope, has, ceiling, seconds, tasks, is_too_large and 1 or 0}
    end
  end
  return excess
end
