#!lua flags=no-writes
-- show_locks: read the holders and waiting tasks of some locks and limiters. It changes nothing.
-- KEYS  prefix
-- ARGV  how many holders and waiters of each to name, n × name
-- returns {now µs, last fence, n × row}; a row is (name, kind (R: held by readers), number of holders, used, limit
--       or '',
--       window ms or '', end of the first grant µs or '', number who wait, of these woken, since
--       when the longest of them waits µs or '', holders of lib/sight, waiters, limit and window ms that the tasks
--       declare or ''); a waiter is (id, class, since when it waits µs, 1 if woken)
-- @include base reading wake limits mutexes locks pauses queues sight
local most = tonumber(ARGV[1])

-- The limit and the window that the tasks at a limiter declare.
local function declared_limit(lock, ids)
  for _, id in ipairs(ids) do
    local me = load_waiter(id)
    for _, asked in ipairs(me and me.locks or {}) do
      if asked.name == lock.name and asked.limit then
        return asked.limit, asked.window
      end
    end
  end
end

local function waiter_row(member, score)
  local id = string.match(member, '^%S*')
  local record = read_record(id)
  return {id, record.name or '', record.since or '', tonumber(score) < 0 and 1 or 0}
end

-- When the longest wait began (µs): checks the first task of each priority, and the first woken one.
local function longest_wait(queue)
  local longest
  for _, range in ipairs({{'-inf', '(0'}, {'0', digits(now)},
    {'(' .. digits(now), digits(now + CLASS)}, {'(' .. digits(now + CLASS), '+inf'}}) do
    local first = redis.call('ZRANGEBYSCORE', queue, range[1], range[2], 'LIMIT', 0, 1)[1]
    local since = first and tonumber(waiter_row(first, 0)[3])
    if since and (not longest or since < longest) then
      longest = since
    end
  end
  return longest and digits(longest) or ''
end

-- How much of a limiter is used, and when some of it comes back. Without a window all grants count: which of
-- them are past is unknown.
local function usage(lock, count)
  if not lock.windowed then
    return count, ''
  elseif not lock.window then
    return tonumber(redis.call('GET', P .. 'sum:' .. lock.counter) or '')
      or items_of(redis.call('ZRANGE', lock.key, 0, -1)), ''
  end
  local used = used_items(lock)
  local back = first_free(lock)
  return used, back and digits(back) or ''
end

local function show(name)
  local lock = lock_named(name)
  local queue = P .. 'queue:' .. name
  local owners, count = owners_of(lock, most)
  local waiters, rows = {}, redis.call('ZRANGE', queue, 0, most - 1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    waiters[#waiters + 1] = waiter_row(rows[i], rows[i + 1])
  end
  local declared, declared_window
  if lock.limiter then
    local ids = {}
    for _, owner in ipairs(owners) do
      ids[#ids + 1] = id_of(owner[1])
    end
    for _, waiter in ipairs(waiters) do
      ids[#ids + 1] = waiter[1]
    end
    for _, grant in ipairs(lock.windowed and redis.call('ZRANGE', lock.key, -most, -1) or {}) do
      ids[#ids + 1] = id_of((string.match(grant, '^(.*)|%d+$')))
    end
    declared, declared_window = declared_limit(lock, ids)
    if not lock.is_configured then
      lock.limit, lock.window = declared, declared_window
    end
  end
  local used, back = usage(lock, count)
  local waiting = redis.call('ZCARD', queue)
  local kind = lock.other and not holder(lock.key) and lock.other or lock.kind
  return {name, kind, count, used, lock.limit or '', lock.window or '', back, waiting,
    redis.call('ZCOUNT', queue, '-inf', '(0'), waiting > 0 and longest_wait(queue) or '',
    holder_rows(owners, lock), waiters, declared or '', declared_window or ''}
end

local answer = {digits(now), redis.call('GET', P .. 'fence') or '0'}
for i = 2, #ARGV do
  answer[#answer + 1] = show(ARGV[i])
end
return answer
