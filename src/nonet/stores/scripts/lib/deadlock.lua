-- lib/deadlock: needs base, limits, locks, queues. Whether a task can go on only after
-- somebody has ended who awaits it. An edge leads from a task to whoever must go on before it can.

local seen, nodes_left = {}, 200
local AWAIT_LEASE = 8000000  -- who awaits a task asks again every 5 seconds

local function id_of_owner(owner)
  return string.match(owner, '^(.*)/%d+/%d+$')
end

-- Who keeps a structural lock from a task: its holders, and the first of those who came before.
local function in_the_way(me, lock)
  local ids = {}
  local owner = holder(lock.key)
  ids[1] = owner and id_of_owner(owner)
  if lock.kind == 'W' and prune(lock.readers, lock.ttl) > 0 then
    for _, reader in ipairs(redis.call('ZRANGE', lock.readers, 0, 31)) do
      ids[#ids + 1] = id_of_owner(reader)
    end
  end
  local queue = P .. (lock.kind == 'R' and 'writers:' or 'queue:') .. lock.name
  for _, range in ipairs({{'-inf', '(' .. digits(me.rank - WOKEN)}, {0, '(' .. digits(me.rank)}}) do
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue, range[1], range[2], 'LIMIT', 0, 4)) do
      ids[#ids + 1] = id
    end
  end
  return ids
end

local depends_on

-- A limiter lets a task in when any of its slots comes back: all of them must depend on target.
local function is_full_of(lock, target)
  resolve_limit(lock)
  if lock.kind ~= 'C' or not lock.limit or prune(lock.key, lock.ttl) < lock.limit then
    return false
  end
  for _, owner in ipairs(redis.call('ZRANGE', lock.key, 0, -1)) do
    if not depends_on(id_of_owner(owner), target) then
      return false
    end
  end
  return true
end

-- Whoever awaits several tasks goes on only after the last of them.
local function depends_on_awaited(id, target)
  local recent = '(' .. digits(now - AWAIT_LEASE)
  for _, awaited in ipairs(redis.call('ZRANGEBYSCORE', P .. 'awaits:' .. id, recent, '+inf')) do
    local tie = depends_on(awaited, target)
    if tie then
      return tie
    end
  end
  return nil
end

-- The lock at which a parked or queued task waits, in the end, for target.
local function lock_that_depends_on(me, target)
  for _, lock in ipairs(me.locks) do
    if lock.limits and is_full_of(lock, target) then
      return lock.counter
    end
    for _, other in ipairs(lock.limits and {} or in_the_way(me, lock)) do
      if depends_on(other, target) then
        return lock.name
      end
    end
  end
  return nil
end

-- What ties a task to target: a lock, or that it is or awaits it; nil if it can go on without. A
-- task that is met again on its own way waits for itself, and will not go on either.
function depends_on(id, target)
  if id == target or seen[id] == 'open' then
    return 'itself'
  elseif seen[id] or nodes_left <= 0 then
    return nil
  end
  seen[id], nodes_left = 'open', nodes_left - 1
  local me = load_waiter(id)
  local tie = nil
  if me and (me.state == 'running' or me.state == 'held') then
    tie = depends_on_awaited(id, target)
  elseif me and (me.state == 'waiting' or me.state == 'queued') then
    tie = lock_that_depends_on(me, target)
  end
  seen[id] = 'free'
  return tie
end
