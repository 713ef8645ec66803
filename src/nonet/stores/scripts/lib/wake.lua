-- lib/wake: needs base. Wakes idle workers, the most recent first, through a list of their own.

-- Wake up to `count` idle workers of a size; the dead ones met on the way are dropped.
local function wake(size, count)
  local tries = count + 8
  while count > 0 and tries > 0 do
    tries = tries - 1
    local worker = redis.call('ZPOPMAX', P .. 'idle:' .. size)[1]
    if not worker then
      return
    end
    local alive = redis.call('ZSCORE', P .. 'workers', worker)
    if alive and tonumber(alive) > now then
      redis.call('LPUSH', P .. 'wake:' .. worker, '1')  -- deleted when the worker is forgotten
      count = count - 1
    end
  end
end

-- Whoever promotes looks once a second by itself.
local PROMOTER_LOOKS = 1200000

-- Tell whoever promotes that something is due soon.
local function wake_promoter_for(due)
  if due - now < PROMOTER_LOOKS and redis.call('EXISTS', P .. 'wake:promoter') == 0 then
    redis.call('LPUSH', P .. 'wake:promoter', '1')
    redis.call('PEXPIRE', P .. 'wake:promoter', 10000)
  end
end
