-- lib/mutexes: needs leases, plain. The short way for mutexes that no other task wants: most tasks with locks have only such.
-- All else, and all other kinds, is in lib/locks.

-- How many ms the keys of locks outlive them. Redis ends TTLs by the server's clock: a lock must still be there after that
-- was set forward. Only locks of dead holders stay so long.
local LOCKS_KEPT = 86400000

-- After a loss of data: until when (µs) the lock is withheld, because an earlier holder that does not know of the
-- loss yet may still use it; else nil. Scripts that only wake leave `epoch` unread: the fetch parks a task again
-- that was woken too early.
local function withheld_until(lock)
  local lost = epoch and tonumber(epoch.lost or '')
  local withheld = epoch and tonumber(epoch.withheld or '') or 0
  withheld = math.max(withheld, lost and lost + lock.ttl * 1000 or 0)
  return withheld > leases.now and withheld or nil
end

-- The mutexes that these lines declare, or nil if they declare another kind of lock.
local function mutexes_in(lines, default_ttl)
  local found = {}
  for kind, name, ttl in string.gmatch(lines, '(%u)|([^|\n]*)|(%d*)|[^\n]*') do
    if kind == 'M' then
      found[#found + 1] = {name = name, key = P .. name, ttl = tonumber(ttl) or default_ttl}
    elseif kind ~= 'V' then  -- which declares no lock, see parse_locks
      return nil
    end
  end
  return found
end

-- Take all these mutexes, or none if one of them is held, wanted by another task, or withheld.
local function take_mutexes(mutexes, owner)
  local keys = {}
  for _, mutex in ipairs(mutexes) do
    if withheld_until(mutex) then  -- fault: plain-grace-ignored
      return false
    end
    keys[#keys + 1], keys[#keys + 2] = mutex.key, P .. 'queue:' .. mutex.name  -- fault: plain-mutex-unchecked
  end
  if #keys > 0 and redis.call('EXISTS', unpack(keys)) > 0 then
    return false
  end
  for _, mutex in ipairs(mutexes) do
    redis.call('SET', mutex.key, owner .. '|' .. digits(now + mutex.ttl * 1000), 'PX', mutex.ttl + LOCKS_KEPT)
  end
  return true
end

-- Whether owner still holds all these mutexes. After a step of the clock lib/locks must judge their expiries.
local function has_mutexes(mutexes, owner)
  for _, mutex in ipairs(mutexes) do
    local same, expiry = string.match(redis.call('GET', mutex.key) or '', '^(.*)|(%d+)$')
    if stepped or same ~= owner or tonumber(expiry) <= now then  -- fault: plain-mutex-expired
      return false
    end
  end
  return true
end
