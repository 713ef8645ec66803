-- lib/wake: needs now. Wakes idle workers, each through its own list: the most recently idle one first. Also wakes the
-- promoter, and the clients that wait for a task.

-- Wake up to `count` idle workers of a size, and drop dead ones from the stack. Returns whether a worker was
-- woken.
local function wake(size, count)
  local tries, wanted = count + 8, count
  while count > 0 and tries > 0 do
    tries = tries - 1
    local worker = redis.call('ZPOPMAX', P .. 'idle:' .. size)[1]
    if not worker then
      break
    end
    if is_alive(worker) then
      redis.call('LPUSH', P .. 'wake:' .. worker, '1')  -- deleted when the worker is forgotten
      count = count - 1
    end
  end
  return count < wanted
end

-- The promoter checks once a second without being woken.
local PROMOTER_LOOKS = 1200000

-- Wake the promoter if something is due before its next check.
local function wake_promoter_for(due)
  if due - now < PROMOTER_LOOKS and redis.call('EXISTS', P .. 'wake:promoter') == 0 then
    redis.call('LPUSH', P .. 'wake:promoter', '1')
    redis.call('PEXPIRE', P .. 'wake:promoter', 10000)
  end
end

local function tell_waiters(id)
  for _, client in ipairs(redis.call('ZRANGE', P .. 'waiters:' .. id, 0, -1)) do
    redis.call('RPUSH', P .. 'wake:' .. client, id)
    redis.call('PEXPIRE', P .. 'wake:' .. client, 10000)
  end
  redis.call('DEL', P .. 'waiters:' .. id)
end

-- Handle a pointer to a task without a record. If Redis does not know its end either, its record was lost or the pointer
-- was forged: count that, and let its waiters ask again. The relay submits a durable task again.
local function note_unknown(id)
  if not records.is_known(id) then
    redis.call('HINCRBY', P .. 'counters', 'tasks:unknown', 1)
    tell_waiters(id)
  end
end
