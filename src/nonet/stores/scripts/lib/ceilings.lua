-- lib/ceilings: needs base, record, counting, submitting, unique. Refuses submissions while there are too many tasks. HASH
-- ceilings: scope → most tasks at a time; a scope is namespace, stream:PRIORITY:SIZE, task:NAME, or tenant:NAME with
-- tenant:default for those that are not named. STRING capped exists while the hash does.

-- A refusal says when to try again, by the rate at which tasks ended: over the last MOST_LOOKS periods, or fewer if
-- ENOUGH_ENDS tasks ended in them. LONGEST is the longest answer in s, UNKNOWN the answer if no task ended.
local MOST_LOOKS, ENOUGH_ENDS = 20, 5
local LONGEST, UNKNOWN = 300, 10
-- Running tasks may exceed a ceiling by HEADROOM. Otherwise tasks that fill a ceiling, and must submit before they
-- end, would wait for each other forever. They may exceed it further if no task has ended for STUCK_AFTER periods.
local HEADROOM, STUCK_AFTER = 0.1, 2

local function pairs_of(key)
  local flat, found = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do
    found[flat[i]] = tonumber(flat[i + 1])
  end
  return found
end

local TENANT = 'tenant:'

local function scopes_of(stream, name, tenant)
  return {'namespace', 'stream:' .. stream, 'task:' .. name, tenant ~= '' and TENANT .. tenant or nil}
end

-- Add up a hash of PRIORITY:SIZE|NAME, or tenant:NAME → number, by scopes.
local function add_up(key, sums)
  for field, number in pairs(pairs_of(key)) do
    local stream, name = string.match(field, '^(%l+:%l+)|(.*)$')
    for _, scope in ipairs(stream and scopes_of(stream, name, '') or {field}) do
      sums[scope] = (sums[scope] or 0) + number
    end
  end
  return sums
end

-- How many tasks of a scope have not ended. sums: of all scopes but those of tenants.
local function active_in(scope, sums)
  if string.sub(scope, 1, #TENANT) == TENANT then
    return tonumber(redis.call('HGET', P .. 'active:tenants', string.sub(scope, #TENANT + 1)) or '0')
  end
  return sums[scope] or 0
end

-- The ceiling of a scope, or nil.
local function ceiling_of(scope, ceilings)
  local is_tenant = string.sub(scope, 1, #TENANT) == TENANT
  return ceilings[scope] or is_tenant and ceilings[TENANT .. 'default'] or nil
end

-- Estimate in how many seconds this many places of a scope will be free.
local function comes_back_in(scope, places)
  local ends, first, current = 0, nil, math.floor(now / ENDS_BY)
  for i = 0, MOST_LOOKS - 1 do
    local found = add_up(P .. 'ends:' .. digits(current - i), {})[scope]
    ends = ends + (found or 0)
    first = found and current - i or first
    if ends >= ENOUGH_ENDS then
      break
    end
  end
  if ends == 0 then
    return UNKNOWN
  end
  local span = math.max(now - first * ENDS_BY, 1000000)
  return math.max(1, math.min(LONGEST, math.ceil(places * span / ends / 1000000)))
end

local met = {}

-- How many places a task takes: none if its id is known, if its unique key makes it a duplicate or the replacement
-- of another task, or if it was admitted before.
local function places_of(id, group, terms)
  if met[id] or redis.call('EXISTS', P .. 't:' .. id, P .. 'r:' .. id) > 0
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
    and AT_REST[redis.call('HGET', P .. 't:' .. other, 'state')]
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
      local record = read_fields(P .. 't:' .. parent, {'state', 'gen', 'ticket'})
      if record.state ~= 'running' then
        return nil
      end
      latest = math.max(latest, tonumber(ticket_of(record) or '') or now)
    end
  end
  return latest
end

-- Whether no task of a scope has ended for a while, although the submitters were there all that time.
local function is_stuck(scope, since)
  local current = math.floor(now / ENDS_BY)
  if since >= (current - STUCK_AFTER) * ENDS_BY then
    return false
  end
  for i = 0, STUCK_AFTER do
    if (add_up(P .. 'ends:' .. digits(current - i), {})[scope] or 0) > 0 then
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

-- Why these tasks, n × (id, name, stream, due, group, envelope, locks, terms) from asked[first] on, cannot be
-- submitted together: {'FULL', scope, tasks that it has, its ceiling, seconds until a retry, places wanted}; or nil.
local function find_excess(asked, first)
  local wanted, ceilings = {}, pairs_of(P .. 'ceilings')
  for i = first, #asked, 8 do
    local places = places_of(asked[i], asked[i + 4], asked[i + 7])
    local scopes = places > 0 and scopes_of(asked[i + 2], asked[i + 1], tenant_in(asked[i + 7])) or {}
    for _, scope in ipairs(scopes) do
      wanted[scope] = ceiling_of(scope, ceilings) and (wanted[scope] or 0) + places
    end
  end
  if not next(wanted) then
    return nil
  end
  local active, longest, excess, since = add_up(P .. 'active', {}), 0, nil, nil
  for scope, places in pairs(wanted) do
    local has, ceiling = active_in(scope, active), ceiling_of(scope, ceilings)
    local lacking = has + places - ceiling
    if lacking > 0 then
      if since == nil then
        since = submitters_since(asked, first) or false
      end
      lacking = since and beyond_headroom(scope, lacking, ceiling, since) or lacking
    end
    local seconds = lacking > 0 and comes_back_in(scope, lacking) or 0
    if seconds > longest then
      longest, excess = seconds, {'FULL', scope, has, ceiling, seconds, places}
    end
  end
  return excess
end
