-- lib/wake: needs base. Wakes idle workers, the most recent first, through a list of their own.

-- Wake up to `count` idle workers of a size; the dead ones met on the way are dropped. Returns
-- whether there was one.
local function wake(size, count)
  local tries, wanted = count + 8, count
  while count > 0 and tries > 0 do
    tries = tries - 1
    local popped = redis.pcall('ZPOPMAX', P .. 'idle:' .. size)
    if popped.err then  -- of another type: nobody of us wrote it
      redis.call('DEL', P .. 'idle:' .. size)
    end
    local worker = popped[1]
    if not worker then
      break
    end
    local alive = redis.call('ZSCORE', P .. 'workers', worker)
    if alive and tonumber(alive) > now then
      redis.call('LPUSH', P .. 'wake:' .. worker, '1')  -- deleted when the worker is forgotten
      count = count - 1
    end
  end
  return count < wanted
end

-- Whether a worker of a size is alive, busy or not. A page at a time: there may be a thousand.
local function finds_worker(size)
  local first, PAGE = 0, 20
  repeat
    local page = redis.call('ZRANGE', P .. 'workers', '+inf', digits(now), 'BYSCORE', 'REV',
      'LIMIT', first, PAGE)
    for _, worker in ipairs(page) do
      if string.match(worker, '^%a+') == size then
        return true
      end
    end
    first = first + PAGE
  until #page < PAGE
  return false
end

local served = {}
local function is_served(size)
  if served[size] == nil then
    served[size] = finds_worker(size)
  end
  return served[size]
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
