-- lib/locks: needs base. All locks of a task are checked, then all are written.
-- A lock line is kind|name|ttl ms|limit|window ms|items; kind M mutex, W writer, R reader,
-- C concurrency, L rate. owner is id/gen/fence. Expiries are compared with now; the TTL of a
-- key only collects garbage.

local function parse_locks(lines, default_ttl)
  local locks = {}
  for kind, name, ttl, limit, window, items in
    string.gmatch(lines, '(%u)|([^|\n]*)|(%d*)|(%d*)|(%d*)|(%d*)') do
    locks[#locks + 1] = {
      kind = kind,
      key = P .. name .. ((kind == 'W' or kind == 'R') and ':w' or ''),
      readers = (kind == 'W' or kind == 'R') and P .. name .. ':r' or nil,
      name = name,
      ttl = tonumber(ttl) or default_ttl,
      limit = tonumber(limit),
      window = tonumber(window),
      items = tonumber(items) or 1,
    }
  end
  return locks
end

-- The owner of an unexpired mutex or writer lock, or nil.
local function holder(key)
  local value = redis.call('GET', key)
  if value then
    local owner, expiry = string.match(value, '^(.*)|(%d+)$')
    if owner and tonumber(expiry) > now then
      return owner
    end
  end
  return nil
end

local function prune(key)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', digits(now))
  return redis.call('ZCARD', key)
end

local function items_of(members)
  local items = 0
  for _, member in ipairs(members) do
    items = items + tonumber(string.match(member, '|(%d+)$'))
  end
  return items
end

-- Items granted within the window that ends now: their sum is kept beside them, so that a check
-- reads only what has left the window.
local function used(lock)
  local past = digits(now - lock.window * 1000)
  local gone = redis.call('ZRANGEBYSCORE', lock.key, '-inf', past)
  redis.call('ZREMRANGEBYSCORE', lock.key, '-inf', past)
  local sum = tonumber(redis.call('GET', lock.key .. ':sum') or '')
  if redis.call('EXISTS', lock.key) == 0 then
    sum = 0
  elseif sum then
    sum = sum - items_of(gone)
  else
    sum = items_of(redis.call('ZRANGE', lock.key, 0, -1))
  end
  redis.call('SET', lock.key .. ':sum', sum, 'PX', lock.window + 1000)
  return sum
end

local function is_free(lock)
  if lock.kind == 'M' or lock.kind == 'R' then
    return not holder(lock.key)
  elseif lock.kind == 'W' then
    return not holder(lock.key) and prune(lock.readers) == 0
  elseif lock.kind == 'C' then
    return prune(lock.key) < lock.limit
  end
  return used(lock) + lock.items <= lock.limit
end

-- Let a set of leases live at least until its longest one has ended.
local function keep(key, ms)
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, ms)
  end
end

local function write_lock(lock, owner)
  local expiry = digits(now + lock.ttl * 1000)
  if lock.kind == 'M' or lock.kind == 'W' then
    redis.call('SET', lock.key, owner .. '|' .. expiry, 'PX', lock.ttl + 1000)
  elseif lock.kind == 'L' then
    redis.call('ZADD', lock.key, digits(now), owner .. '|' .. lock.items)
    redis.call('INCRBY', lock.key .. ':sum', lock.items)
    keep(lock.key, lock.window + 1000)
  else
    redis.call('ZADD', lock.readers or lock.key, expiry, owner)
    keep(lock.readers or lock.key, lock.ttl + 1000)
  end
end

-- Take all locks or none. Returns nil, or the name of the first lock that refused.
local function take_locks(locks, owner)
  for _, lock in ipairs(locks) do
    if not is_free(lock) then
      return lock.name
    end
  end
  for _, lock in ipairs(locks) do
    write_lock(lock, owner)
  end
  return nil
end

local function holds(lock, owner)
  if lock.kind == 'M' or lock.kind == 'W' then
    return holder(lock.key) == owner
  elseif lock.kind == 'L' then
    return true
  end
  local expiry = redis.call('ZSCORE', lock.readers or lock.key, owner)
  return expiry and tonumber(expiry) > now
end

-- The first structural or concurrency lock that owner no longer holds, or nil.
local function lost_lock(locks, owner)
  for _, lock in ipairs(locks) do
    if not holds(lock, owner) then
      return lock.name
    end
  end
  return nil
end

-- Extend every lease. Call it only after lost_lock() said nil.
local function renew_locks(locks, owner)
  for _, lock in ipairs(locks) do
    if lock.kind ~= 'L' then
      write_lock(lock, owner)
    end
  end
end

-- Give everything back that owner still holds; rate tokens only if the attempt never started.
local function release_locks(locks, owner, started)
  for _, lock in ipairs(locks) do
    if lock.kind == 'M' or lock.kind == 'W' then
      if holder(lock.key) == owner then
        redis.call('DEL', lock.key)
      end
    elseif lock.kind == 'L' then
      if not started and redis.call('ZREM', lock.key, owner .. '|' .. lock.items) == 1 then
        redis.call('DEL', lock.key .. ':sum')  -- counted anew by the next check
      end
    else
      redis.call('ZREM', lock.readers or lock.key, owner)
    end
  end
end
