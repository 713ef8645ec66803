-- lib/locks: needs base, limits. What a lock is: who holds it, whether it is free, and how it is
-- taken, renewed and released. A lock line is kind|name|ttl ms|limit|window ms|items; kind M mutex,
-- W writer, R reader, C concurrency, L rate, and V for the VO of the task; in scripts also P, which a
-- paused task waits for (see lib/queues). owner is id/gen/fence.
-- Expiries are compared with now; the TTL of a key only collects garbage.

local function new_lock(kind, name, ttl, vo)
  local lock = {kind = kind, name = name, ttl = ttl, vo = vo, items = 1, counter = name}
  lock.limits = kind == 'C' or kind == 'L'
  lock.exclusive = kind == 'M' or kind == 'W'
  lock.key = P .. name .. ((kind == 'W' or kind == 'R') and ':w' or '')
  lock.readers = (kind == 'W' or kind == 'R') and P .. name .. ':r' or nil
  return lock
end

-- All locks of a task: those of its lines, then the limiters of its class (Task: <Class> in the
-- configuration), which every task has without naming them. task is the full name; '' where the
-- limiters of the class do not matter: of a hold, and while no limit is set at all.
local function parse_locks(lines, default_ttl, task)
  local locks, vo, named = {}, '', {}
  for kind, name, ttl, limit, window, items in
    string.gmatch(lines, '(%u)|([^|\n]*)|(%d*)|(%d*)|(%d*)|(%d*)') do
    if kind == 'V' then
      vo = name
    else
      local lock = new_lock(kind, name, tonumber(ttl) or default_ttl, vo)
      lock.limit, lock.window = tonumber(limit), tonumber(window)
      lock.items = tonumber(items) or 1
      locks[#locks + 1] = lock
      named[name] = true
    end
  end
  local class = task ~= '' and string.match(task, '([^:]+)$')
  if class then
    class = string.gsub(class, '[^%w_]', function(byte)
      return string.format('%%%02X', string.byte(byte))
    end)
    for _, kind in ipairs({'L', 'C'}) do
      local name = 'limiter:' .. (kind == 'C' and 'conc' or 'rate') .. ':task:' .. class
      if not named[name] then
        locks[#locks + 1] = new_lock(kind, name, default_ttl, vo)
      end
    end
  end
  return locks
end

-- Why a task that declares these locks could never run, under the limits that hold now; or nil.
local function impossible_lines(lines)
  for _, lock in ipairs(parse_locks(lines, 0, '')) do
    if lock.kind == 'L' then
      resolve_limit(lock)
      if is_impossible(lock) then
        return why_impossible(lock)
      end
    end
  end
  return nil
end

-- The locks that an admission took: held has one mark for each, '' if no limiter was among them.
local function held_locks(lines, default_ttl, task, held)
  if lines == '' and held == '' then
    return {}
  end
  local taken = {}
  for i, lock in ipairs(parse_locks(lines, default_ttl, held ~= '' and task or '')) do
    local mark = string.sub(held, i, i)
    if lock.limits and mark ~= '' and mark ~= '-' then
      count_at(lock, mark)
      taken[#taken + 1] = lock
    elseif not lock.limits then
      taken[#taken + 1] = lock
    end
  end
  return taken
end

-- After a step of the server's clock forward: the time (µs) of that step by the wrong clock, and the size of
-- the step. An end after that time may be too late by the step. nil once logical time has come there, as ends
-- are right then.
local step
local function wrong_since()
  if not stepped then
    return nil
  end
  step = step or redis.pcall('HMGET', P .. 'clock:stepped', 'wrong', 'by')
  local wrong, by = tonumber(step[1]), tonumber(step[2])
  return wrong and by and by > 0 and now < wrong and wrong or nil, by
end

-- How many ms the key of a lock is there after the lock has ended.
local KEPT = 1000

-- The owner of an unexpired mutex or writer lock and its expiry, or nil. Remembered: while a script
-- runs nobody else writes, and it meets the same lock again and again.
local holders = {}
local function holder(key)
  if not holders[key] then
    local owner, expiry = string.match(redis.call('GET', key) or '', '^(.*)|(%d+)$')
    local wrong = owner and wrong_since()
    if wrong and tonumber(expiry) >= wrong then  -- no step changes what is left of a TTL
      expiry = now + (redis.call('PTTL', key) - KEPT) * 1000
    end
    holders[key] = owner and tonumber(expiry) > now and {owner, tonumber(expiry)} or {}
  end
  return holders[key][1], holders[key][2]
end

-- Put right what was written between a step of the server's clock forward and its correction: an
-- end or a grant that nobody can have written since. longest: ms from now to the latest one.
local function set_right(key, longest)
  local wrong, by = wrong_since()
  if not wrong or now + longest * 1000 >= wrong then
    return
  end
  local late = redis.call('ZRANGEBYSCORE', key, digits(wrong), '+inf', 'WITHSCORES')
  for i = 1, #late, 2 do
    redis.call('ZADD', key, digits(tonumber(late[i + 1]) - by), late[i])
  end
end

local function prune(key, ttl)
  if ttl then
    set_right(key, ttl)
  end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', digits(now))
  return redis.call('ZCARD', key)
end

-- When the first lease or grant of a set ends, after so many µs more; nil if it is empty.
local function first_end(key, after)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) + after
end

local function items_of(members)
  local items = 0
  for _, member in ipairs(members) do
    items = items + tonumber(string.match(member, '%d+$'))
  end
  return items
end

-- Let a set of leases live at least until its longest one has ended.
local function keep(key, ms)
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, ms)
  end
end

-- Items granted within the window that ends now: their sum is kept beside them, so that a check
-- reads only what has left the window.
local function used_items(lock)
  local past, sum_key = digits(now - lock.window * 1000), P .. 'sum:' .. lock.counter
  set_right(lock.key, 0)
  local gone = redis.call('ZRANGEBYSCORE', lock.key, '-inf', past)
  redis.call('ZREMRANGEBYSCORE', lock.key, '-inf', past)
  local sum = tonumber(redis.call('GET', sum_key) or '')
  if redis.call('EXISTS', lock.key) == 0 then
    sum = 0
  else
    keep(lock.key, lock.window + 1000)  -- the window may have been shorter at the last grant
    sum = sum and sum - items_of(gone) or items_of(redis.call('ZRANGE', lock.key, 0, -1))
  end
  redis.call('SET', sum_key, sum, 'PX', lock.window + 1000)
  return sum
end

-- After a loss of data nobody may take a lock until those who held it then know that (µs); else nil.
-- Scripts that only wake do not ask: whoever is woken too early is parked again by the fetch.
local function calm_until(lock)
  local lost = epoch and tonumber(epoch.lost or '')
  local calm = epoch and tonumber(epoch.calm or '') or 0
  calm = math.max(calm, lost and lost + lock.ttl * 1000 or 0)
  return calm > now and calm or nil
end

-- Until when a structural lock is held against a request (at least; µs), or nil if it is not.
local function held_until(lock)
  local _, expiry = holder(lock.key)
  expiry = expiry or calm_until(lock)
  if not expiry and lock.kind == 'W' and prune(lock.readers, lock.ttl) > 0 then
    expiry = first_end(lock.readers, 0)
  end
  return expiry
end

-- How much of a limiter is free.
local function free_places(lock)
  return lock.limit - (lock.kind == 'C' and prune(lock.key, lock.ttl) or used_items(lock))
end

-- When some of what is used of a limiter comes back (µs), or nil if nothing is used.
local function first_free(lock)
  return first_end(lock.key, lock.kind == 'C' and 0 or lock.window * 1000)
end

local function write_lock(lock, owner)
  local expiry = digits(now + lock.ttl * 1000)
  if lock.exclusive then
    -- Never shorter: the clock may have been set back, and nobody noticed yet.
    local same, until_then = holder(lock.key)
    expiry = same == owner and until_then > tonumber(expiry) and digits(until_then) or expiry
    redis.call('SET', lock.key, owner .. '|' .. expiry, 'PX', lock.ttl + KEPT)
    holders[lock.key] = {owner, tonumber(expiry)}
  elseif lock.kind == 'L' then
    redis.call('ZADD', lock.key, digits(now), owner .. '|' .. lock.items)
    redis.call('INCRBY', P .. 'sum:' .. lock.counter, lock.items)
    keep(lock.key, lock.window + 1000)
  else
    redis.call('ZADD', lock.readers or lock.key, 'GT', expiry, owner)
    keep(lock.readers or lock.key, lock.ttl + 1000)
  end
end

local function holds(lock, owner)
  if lock.exclusive then
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

-- Give one lock back; a rate token only if the attempt never started. Returns whether another
-- task may be able to run now.
local function release_lock(lock, owner, started, is_held)
  if lock.exclusive then
    if not is_held and holder(lock.key) ~= owner then
      return false
    end
    holders[lock.key] = {}
    return redis.call('DEL', lock.key) == 1
  elseif lock.kind == 'L' then
    if started or redis.call('ZREM', lock.key, owner .. '|' .. lock.items) == 0 then
      return false
    end
    redis.call('DEL', P .. 'sum:' .. lock.counter)  -- counted anew by the next check
    return true
  elseif lock.kind == 'R' then
    -- Beside other readers only a writer waits, and for the last of them.
    return redis.call('ZREM', lock.readers, owner) == 1 and prune(lock.readers, lock.ttl) == 0
  end
  return redis.call('ZREM', lock.key, owner) == 1
end

-- Give everything back that owner still holds. Returns the names of what others may have now.
-- is_held: nobody can have taken it over, lost_lock() said so.
local function release_locks(locks, owner, started, is_held)
  local names = {}
  for _, lock in ipairs(locks) do
    if release_lock(lock, owner, started, is_held) then
      names[#names + 1] = lock.counter
    end
  end
  return names
end

-- Whether anybody stands in the queue of one of these locks.
local function is_wanted(names)
  local queues = {}
  for i, name in ipairs(names) do
    queues[i] = P .. 'queue:' .. name
  end
  for i = 1, #queues, 1000 do
    if redis.call('EXISTS', unpack(queues, i, math.min(i + 999, #queues))) > 0 then
      return true
    end
  end
  return false
end
