-- lib/wake: needs now. Wakes idle workers, each through its own list: the most recently idle one first.

-- Wake up to `count` idle workers of a size, and drop dead ones from the stack. Returns whether a worker was
-- woken.
local function wake(size, count)
  local tries, wanted = count + 8, count
  while count > 0 and tries > 0 do
    tries = tries - 1
    local popped = redis.pcall('ZPOPMAX', P .. 'idle:' .. size)
    if popped.err then  -- a key of a wrong type
      redis.call('DEL', P .. 'idle:' .. size)
    end
    local worker = popped[1]
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
