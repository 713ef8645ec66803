-- lib/deadlock: needs base, limits, locks, queues. Finds cycles of waiting: a task that can continue only after
-- a task that awaits it has ended. An edge leads from a task to one that must continue first.

local seen, nodes_left = {}, 200
local AWAIT_LEASE = 8000000  -- a task that awaits another asks again every 5 seconds

local function id_of_owner(owner)
  return string.match(owner, '^(.*)/%d+/%d+$')
end

-- The ids that keep a structural lock from a task: its holders, and the first tasks that wait before it.
local function in_the_way(me, lock)
  local ids = {}
  local owner = holder(lock.key)
  ids[1] = owner and id_of_owner(owner)
  if lock.writer and prune(lock.leases, lock.ttl) > 0 then
    for _, reader in ipairs(redis.call('ZRANGE', lock.leases, 0, 31)) do
      ids[#ids + 1] = id_of_owner(reader)
    end
  end
  for _, range in ipairs(ranges_before(me)) do
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue_before(lock), range[1], range[2], 'LIMIT', 0, 4)) do
      ids[#ids + 1] = id
    end
  end
  return ids
end

local depends_on

-- Whether all slots of a counted lock are taken by tasks that depend on target. A slot of any other task comes
-- back.
local function is_full_of(lock, target)
  if lock.limiter then
    resolve_limit(lock)
  end
  if not lock.counted or not lock.limit or free_places(lock) > 0 then
    return false
  end
  for _, owner in ipairs(redis.call('ZRANGE', lock.leases, 0, -1)) do
    if not depends_on(id_of_owner(owner), target) then
      return false
    end
  end
  return true
end

-- A task that awaits several others continues only after the last of them.
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

-- The lock at which a parked or queued task waits for target, directly or through others; nil if there is none.
local function lock_that_depends_on(me, target)
  for _, lock in ipairs(me.locks) do
    if is_full_of(lock, target) then
      return lock.counter
    end
    for _, other in ipairs(lock.limiter and {} or in_the_way(me, lock)) do
      if depends_on(other, target) then
        return lock.name
      end
    end
  end
  return nil
end

-- What makes a task depend on target: the name of a lock, or 'itself' if it is or awaits target; nil if it can
-- continue without target. A task that the search meets again on its own path waits for itself, and cannot
-- continue.
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
