-- lib/locks: needs base, limits, mutexes. The kinds of locks, and how a lock is taken, renewed and released.
-- A task declares one lock a line: kind|name|ttl ms|limit|window ms|items. owner is id/gen/fence.
-- Expiries are compared with `leases.now`; the TTL of a key only collects garbage.

-- One row for each kind, by the letter that stands in lines and fields. A lock has the properties of its
-- row. A kind that is no limiter is structural: an attempt that loses it is void.
--   prefix     what its names begin with
--   exclusive  it has one holder, in a STRING
--   writer     and waits for the readers of its name, who respect waiting writers
--   shared     it has any number of holders: only writers exclude it
--   other      the kind of the other side of a reader/writer lock
--   limiter    it protects a service from load, under a limit that may be configured
--   counted    it has a limited number of holders
--   windowed   a limiter of the items granted within a window; grants are not held or renewed
--   word       what people call a limiter
--   pause      what a paused task waits for: never declared, never taken
local KINDS = {
  M = {prefix = 'lock:mutex', exclusive = true},
  W = {prefix = 'lock:rw', exclusive = true, writer = true, other = 'R'},
  R = {prefix = 'lock:rw', shared = true, other = 'W'},
  L = {prefix = 'limiter:rate', limiter = true, windowed = true, word = 'rate'},
  C = {prefix = 'limiter:conc', limiter = true, counted = true, word = 'concurrency'},
  P = {prefix = 'paused', limiter = true, pause = true},
}
for _, row in pairs(KINDS) do
  row.__index = row
end
local PAUSE = 'P'

local function new_lock(kind, name, ttl, vo)
  local lock = {kind = kind, name = name, ttl = ttl, vo = vo, items = 1, counter = name}
  setmetatable(lock, KINDS[kind] or {})
  lock.key = P .. name .. (lock.other and ':w' or '')
  if lock.limiter then
    lock.leases = lock.key
  elseif lock.writer or not lock.exclusive then
    lock.leases = P .. name .. ':r'
  end
  return lock
end

-- The kind of the lock with a name; the writer stands for both sides of a reader/writer lock.
local function kind_named(name)
  local prefix = string.match(name, '^%a+:%a+')
  for kind, row in pairs(KINDS) do
    if row.prefix == prefix and not row.shared then
      return kind
    end
  end
end

local parse_locks
do
  -- The limiters that every task has on its class, and on its tenant. Admissions store one mark for each, in this order.
  local LIMITERS = {'L', 'C'}
  local VO = 'V'  -- a line of this letter declares no lock: it names the VO of the task

  -- A key as it stands in names of locks, see escape() in base/keys.py.
  local function escaped(key)
    return (string.gsub(key, '[^%w_/.~@+=,-]', function(byte)
      return string.format('%%%02X', string.byte(byte))
    end))
  end

  -- All locks of a task: those that its lines declare, then the limiters of its class and of its tenant unless a line
  -- declares them. record has the fields name and tenant; nil leaves these limiters out: holds have none, and they do
  -- not matter while no limit is configured.
  function parse_locks(lines, default_ttl, record)
    local locks, vo, named = {}, '', {}
    for kind, name, ttl, limit, window, items in
      string.gmatch(lines, '(%u)|([^|\n]*)|(%d*)|(%d*)|(%d*)|(%d*)') do
      if kind == VO then
        vo = name
      else
        local lock = new_lock(kind, name, tonumber(ttl) or default_ttl, vo)
        lock.limit, lock.window = tonumber(limit), tonumber(window)
        lock.items = tonumber(items) or 1
        locks[#locks + 1] = lock
        named[name] = true
      end
    end
    local function add_limiters(of, key)
      for _, kind in ipairs(key and LIMITERS or {}) do
        local name = KINDS[kind].prefix .. ':' .. of .. ':' .. escaped(key)
        if not named[name] then
          locks[#locks + 1] = new_lock(kind, name, default_ttl, vo)
        end
      end
    end
    if record then
      add_limiters('task', string.match(record.name or '', '([^:]+)$'))
      add_limiters('tenant', record.tenant ~= '' and record.tenant or nil)
    end
    return locks
  end
end

-- Why a task that declares these locks can never run under the current limits; nil if it can.
local function impossible_lines(lines)
  for _, lock in ipairs(parse_locks(lines, 0)) do
    if lock.windowed then
      resolve_limit(lock)
      if is_impossible(lock) then
        return why_impossible(lock)
      end
    end
  end
  return nil
end

-- The locks that an admission took. record has the fields name, tenant and held: one mark for each lock, or none if no
-- limiter was among them.
local function held_locks(default_ttl, record)
  local held, lines = record.held or '', record.locks or ''
  if lines == '' and held == '' then
    return {}
  end
  local taken = {}
  for i, lock in ipairs(parse_locks(lines, default_ttl, held ~= '' and record or nil)) do
    local mark = string.sub(held, i, i)
    if lock.limiter and mark ~= '' and mark ~= '-' then
      count_at(lock, mark)
      taken[#taken + 1] = lock
    elseif not lock.limiter then
      taken[#taken + 1] = lock
    end
  end
  return taken
end

-- After the server's clock was set forward: when that happened by the wrong clock (µs), and by how much. An
-- expiry later than that may be too late by the size of the step. Returns nil once logical time has reached
-- that instant, because expiries are right from then on.
local wrong_since
do
  local step
  function wrong_since()
    if not stepped then
      return nil
    end
    step = step or redis.call('HMGET', P .. 'clock:stepped', 'wrong', 'by')
    local wrong, by = tonumber(step[1]), tonumber(step[2])
    return wrong and by and by > 0 and now < wrong and wrong or nil, by
  end
end

-- The owner of an unexpired exclusive lock and its expiry, or nil. The answer is cached: a script meets the same
-- lock many times, and no other client writes while it runs.
local holders = {}
local function holder(key)
  if not holders[key] then
    local owner, expiry = string.match(redis.call('GET', key) or '', '^(.*)|(%d+)$')
    local wrong = owner and wrong_since()
    if wrong and tonumber(expiry) >= wrong then  -- a step of the clock leaves the TTL of the key as it is
      expiry = now + (redis.call('PTTL', key) - LOCKS_KEPT) * 1000
    end
    holders[key] = owner and tonumber(expiry) > leases.now and {owner, tonumber(expiry)} or {}  -- fault: mutex-never-expires
  end
  return holders[key][1], holders[key][2]
end

-- Correct the expiries and grants that were written between a step of the server's clock forward and its
-- correction: they lie further ahead than any that was written since can. longest: ms from now to the
-- latest expiry that is possible.
local function set_right(key, longest)
  local wrong, by = wrong_since()
  if reads_only or not wrong or now + longest * 1000 >= wrong then
    return
  end
  local late = redis.call('ZRANGEBYSCORE', key, digits(wrong), '+inf', 'WITHSCORES')
  for i = 1, #late, 2 do
    redis.call('ZADD', key, digits(tonumber(late[i + 1]) - by), late[i])
  end
end

-- Remove the leases that have expired, and count the others.
local function prune(key, ttl)
  if ttl then
    set_right(key, ttl)
  end
  if reads_only or not leases.may_end then
    return redis.call('ZCOUNT', key, '(' .. digits(leases.now), '+inf')
  end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', digits(leases.now))  -- fault: expired-slots-count
  return redis.call('ZCARD', key)
end

-- The lowest score of a set that is still in the future after `after` µs are added; nil if there is none.
local function first_end(key, after)
  local first = redis.call('ZRANGEBYSCORE', key, '(' .. digits(leases.now - after), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return first[2] and tonumber(first[2]) + after
end

local function items_of(members)
  local items = 0
  for _, member in ipairs(members) do
    items = items + tonumber(string.match(member, '%d+$'))
  end
  return items
end

-- Extend the TTL of a key to `ms`, unless it is longer: a set must outlive its longest lease.
local function keep(key, ms)
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, ms)
  end
end

-- Sum the items granted within the window that ends now. The sum is stored beside the grants, so that a
-- check reads only the grants that have left the window.
local function used_items(lock)
  local past, sum_key = digits(leases.now - lock.window * 1000), P .. 'sum:' .. lock.counter
  set_right(lock.key, 0)
  local gone = redis.call('ZRANGEBYSCORE', lock.key, '-inf', past)
  local sum = tonumber(redis.call('GET', sum_key) or '')
  if reads_only or not leases.may_end then
    return (sum or items_of(redis.call('ZRANGE', lock.key, 0, -1))) - items_of(gone)
  end
  redis.call('ZREMRANGEBYSCORE', lock.key, '-inf', past)
  if redis.call('EXISTS', lock.key) == 0 then
    sum = 0
  else
    keep(lock.key, lock.window + 1000)  -- the window may have been shorter at the last grant
    sum = sum and sum - items_of(gone) or items_of(redis.call('ZRANGE', lock.key, 0, -1))  -- fault: old-items-count
  end
  redis.call('SET', sum_key, sum, 'PX', lock.window + 1000)
  return sum
end

-- Until when (µs) at least a structural lock cannot be granted; nil if it can be granted now.
local function held_until(lock)
  local _, expiry = holder(lock.key)
  expiry = expiry or withheld_until(lock)  -- fault: grace-ignored
  if not expiry and lock.writer and prune(lock.leases, lock.ttl) > 0 then  -- fault: writers-ignore-readers
    expiry = first_end(lock.leases, 0)
  end
  return expiry
end

-- How many slots or items of a limiter are free.
local function free_places(lock)
  return lock.limit - (lock.windowed and used_items(lock) or prune(lock.leases, lock.ttl))
end

-- When the first used slot or item of a limiter comes back (µs); nil if none is used.
local function first_free(lock)
  return first_end(lock.leases, lock.windowed and lock.window * 1000 or 0)
end

local function write_lock(lock, owner)
  local expiry = digits(now + lock.ttl * 1000)
  if lock.exclusive then
    -- Never shorten a lease: the server's clock may have been set back without a correction so far.
    local same, until_then = holder(lock.key)
    expiry = same == owner and until_then > tonumber(expiry) and digits(until_then) or expiry
    redis.call('SET', lock.key, owner .. '|' .. expiry, 'PX', lock.ttl + LOCKS_KEPT)
    holders[lock.key] = {owner, tonumber(expiry)}
  elseif lock.windowed then
    redis.call('ZADD', lock.key, digits(now), owner .. '|' .. lock.items)
    redis.call('INCRBY', P .. 'sum:' .. lock.counter, lock.items)
    keep(lock.key, lock.window + 1000)
  else
    redis.call('ZADD', lock.leases, 'GT', expiry, owner)
    keep(lock.leases, lock.ttl + LOCKS_KEPT)
  end
end

local function holds(lock, owner)
  if lock.exclusive then
    return holder(lock.key) == owner
  elseif lock.windowed then
    return true
  end
  local expiry = redis.call('ZSCORE', lock.leases, owner)
  return expiry and tonumber(expiry) > leases.now
end

-- The name of the first lock that owner no longer holds, or nil.
local function lost_lock(locks, owner)
  for _, lock in ipairs(locks) do
    if not holds(lock, owner) then
      return lock.name
    end
  end
  return nil
end

-- Extend every lease. Call it only after lost_lock() returned nil.
local function renew_locks(locks, owner)
  for _, lock in ipairs(locks) do
    if not lock.windowed then
      write_lock(lock, owner)
    end
  end
end

-- Release one lock. Items of a window are refunded only if the attempt never started. Returns whether
-- another task may be able to run now.
local function release_lock(lock, owner, started, is_held)
  if lock.exclusive then
    if not is_held and holder(lock.key) ~= owner then  -- fault: released-by-others
      return false
    end
    holders[lock.key] = {}
    return redis.call('DEL', lock.key) == 1
  elseif lock.windowed then
    if started or redis.call('ZREM', lock.key, owner .. '|' .. lock.items) == 0 then  -- fault: items-returned
      return false
    end
    redis.call('DEL', P .. 'sum:' .. lock.counter)  -- the next check sums up anew  -- fault: returned-items-count
    return true
  end
  local is_released = redis.call('ZREM', lock.leases, owner) == 1
  -- Only writers wait beside readers, and only the last reader keeps them out.
  return is_released and (not lock.shared or prune(lock.leases, lock.ttl) == 0)
end

-- Release everything that owner still holds. Returns the names of the locks that others may take now.
-- is_held: lost_lock() returned nil, so no other owner can have taken one of them.
local function release_locks(locks, owner, started, is_held)
  local names = {}
  for _, lock in ipairs(locks) do
    if release_lock(lock, owner, started, is_held) then
      names[#names + 1] = lock.counter
    end
  end
  return names
end
