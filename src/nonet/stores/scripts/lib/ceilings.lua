-- lib/ceilings: needs base, record, submitting, unique. How many tasks there may be at a time. HASH ceilings: namespace,
-- stream:PRIORITY:SIZE or task:NAME → how many; STRING capped is there while it is.

-- When places come back is told by the ends of the last periods: of so many, or of fewer with so many ends.
-- Then in seconds: the most that is told, and what is told if nothing has ended.
local MOST_LOOKS, ENOUGH_ENDS = 20, 5
local LONGEST, UNKNOWN = 300, 10
-- Running tasks may submit so many more: else those that fill a ceiling, and have to submit before they end,
-- would wait for each other for ever. Beyond that, where nothing has ended for so many periods.
local HEADROOM, STUCK_AFTER = 0.1, 2

local function pairs_of(key)
  local flat, found = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do
    found[flat[i]] = tonumber(flat[i + 1])
  end
  return found
end

local function scopes_of(stream, name)
  return {'namespace', 'stream:' .. stream, 'task:' .. name}
end

-- Add up a hash of PRIORITY:SIZE|NAME → number, by scopes.
local function add_up(key, sums)
  for field, number in pairs(pairs_of(key)) do
    local stream, name = string.match(field, '^([^|]*)|(.*)$')
    for _, scope in ipairs(stream and scopes_of(stream, name) or {}) do
      sums[scope] = (sums[scope] or 0) + number
    end
  end
  return sums
end

-- In how many seconds so many places of a scope are likely to have come back.
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

-- How many places a task takes: none if it is known, is the same as another by its unique key, takes the
-- place of one that waits, or was admitted before.
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

-- If each of these tasks is submitted by one that runs: when the latest of those was submitted itself (µs).
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

-- Whether nothing of a scope has ended for a while, and those who submit have been there all that time.
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

-- How many places a scope lacks, beyond what running tasks have there.
local function beyond_headroom(scope, lacking, ceiling, since)
  if lacking <= math.max(1, math.floor(ceiling * HEADROOM)) or is_stuck(scope, since) then
    return 0
  end
  return lacking
end

-- Why some tasks, n × (id, name, stream, due, group, envelope, locks, terms) from asked[first] on, may not be
-- submitted together: {'FULL', scope, tasks that it has, its ceiling, seconds, places wanted}; or nil.
local function find_excess(asked, first)
  local wanted, ceilings = {}, pairs_of(P .. 'ceilings')
  for i = first, #asked, 8 do
    local places = places_of(asked[i], asked[i + 4], asked[i + 7])
    for _, scope in ipairs(places > 0 and scopes_of(asked[i + 2], asked[i + 1]) or {}) do
      wanted[scope] = ceilings[scope] and (wanted[scope] or 0) + places
    end
  end
  if not next(wanted) then
    return nil
  end
  local active, longest, excess, since = add_up(P .. 'active', {}), 0, nil, nil
  for scope, places in pairs(wanted) do
    local has, ceiling = active[scope] or 0, ceilings[scope]
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
