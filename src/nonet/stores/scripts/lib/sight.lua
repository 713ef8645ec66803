-- lib/sight: needs base, limits, locks. Who holds a lock, as rows for people: nothing is decided here.

-- A lock by the name that `locks` shows: both sides of a reader/writer lock, or a limiter where it
-- is counted (limiter:KIND:@VO:… for a VO's own), with the limit that is configured for it.
local function lock_named(name)
  local kind = ({['lock:mutex'] = 'M', ['lock:rw'] = 'W', ['limiter:conc'] = 'C',
    ['limiter:rate'] = 'L'})[string.match(name, '^%a+:%a+')]
  local head, vo, rest = string.match(name, '^(limiter:%a+:)@([^:]*):(.*)$')
  local lock = new_lock(kind, vo and head .. rest or name, 0, vo or '')
  lock.key = vo and P .. name or lock.key
  lock.counter = name
  lock.is_configured = vo ~= nil  -- what a task declares is counted at the common counter
  if lock.limits and are_limits_set() then
    local value, of_vo = configured_limit(lock)
    if value and of_vo == (vo ~= nil) then
      local limit, window = string.match(value, '^(%d+)|?(%d*)$')
      lock.limit, lock.window = tonumber(limit), tonumber(window)
      lock.is_configured = true
    end
  end
  return lock
end

local function id_of(owner)
  return string.match(owner, '^(.*)/%d+/%d+$') or owner
end

-- Those who hold a lock now, at most so many: rows of owner and expiry (µs); and how many they are.
-- A rate limiter has no holders: what it granted is past.
local function owners_of(lock, most)
  local found, count = {}, 0
  if lock.kind == 'L' then
    return found, count
  end
  if lock.kind ~= 'C' then
    local owner, expiry = holder(lock.key)
    if owner then
      found[1], count = {owner, expiry}, 1
    end
  end
  local set = lock.kind == 'C' and lock.key or lock.readers
  if set then
    count = count + prune(set)
    local rows = redis.call('ZRANGE', set, 0, most - 1, 'WITHSCORES')
    for i = 1, #rows, 2 do
      found[#found + 1] = {rows[i], tonumber(rows[i + 1])}
    end
  end
  return found, count
end

-- What is known of an owner: id, expiry, class or 'hold', worker (or the program that holds), what
-- the worker says of itself, since when, whether that attempt still owns its task (1|0), and whether it
-- has ended and its code goes on (1|0; since then).
local function holder_row(owner, expiry)
  local id, gen, fence = string.match(owner, '^(.*)/(%d+)/(%d+)$')
  id = id or owner
  local record = read_fields(P .. 't:' .. id, {'gen', 'fence', 'name', 'owner', 'started', 'left'})
  local is_live = record.gen == gen and record.fence == fence
  local worker = is_live and record.owner or ''
  return {record.left or id, digits(expiry), record.name or '', worker,
    worker ~= '' and redis.call('HGET', P .. 'w:' .. worker, 'info') or '',
    is_live and record.started or '', is_live and 1 or 0, record.left and 1 or 0}
end

local function holder_rows(owners)
  local rows = {}
  for i, item in ipairs(owners) do
    rows[i] = holder_row(item[1], item[2])
  end
  return rows
end
