-- lib/refusal: needs base, limits, locks, pauses, queues. What keeps a task from its locks now.

-- Whether somebody of a lower rank stands in a queue, and whether anybody else does.
local function is_overtaking(queue, me)
  local first = redis.call('ZRANGE', queue, 0, 1, 'WITHSCORES')
  local contended = false
  for i = 1, #first, 2 do
    if first[i] ~= me.id then
      contended = true
      local score = tonumber(first[i + 1])
      if (score < 0 and score + WOKEN or score) < me.rank then
        return true, true
      end
    end
  end
  if first[4] and tonumber(first[4]) < 0 then
    -- The woken stand first; one of a lower rank may wait behind them.
    local below = redis.call('ZRANGEBYSCORE', queue, 0, '(' .. digits(me.rank), 'LIMIT', 0, 1)
    return below[1] ~= nil, contended
  end
  return false, contended
end

-- How much of a limiter those of a lower rank wait for: one item each, and more for the first of
-- them. What is beyond those only costs them their turn, never the limit.
local MOST_SUMMED = 64
local function reserved(lock, me)
  local queue, sum = P .. 'queue:' .. lock.counter, 0
  lock.contended = redis.call('EXISTS', queue) == 1
  if not lock.contended then
    return 0
  end
  for _, range in ipairs({{'-inf', '(' .. digits(me.rank - WOKEN)}, {0, '(' .. digits(me.rank)}}) do
    local count = redis.call('ZCOUNT', queue, range[1], range[2])
    sum = sum + count
    if lock.kind == 'L' and count > 0 then
      local first = redis.call('ZRANGEBYSCORE', queue, range[1], range[2], 'LIMIT', 0, MOST_SUMMED)
      sum = sum + items_of(first) - #first
    end
  end
  return sum
end

-- What refuses a task now: nil, or the lock, whether its holders do (held; else those who came
-- before), whether an aged task is the next to get it, when to look again, and whether it can never
-- be granted.
local function refusal_of(me)
  local last = me.locks[#me.locks]
  if last and last.kind == 'P' and pause_of(me.stream, me.name) then
    return {lock = last, held = true, look = now + SLOW_LOOK}
  end
  for _, lock in ipairs(me.locks) do
    if not lock.limits then
      local expiry = held_until(lock)
      local queue = P .. (lock.kind == 'R' and 'writers:' or 'queue:') .. lock.name
      if expiry then
        local is_next = me.aged and not is_overtaking(queue, me)
        return {lock = lock, held = true, is_next = is_next, look = expiry}
      end
      local overtaking, contended = is_overtaking(queue, me)
      if overtaking then
        return {lock = lock, look = now + SLOW_LOOK}
      end
      lock.contended = contended
    end
  end
  for _, lock in ipairs(me.locks) do
    if lock.limits then
      resolve_limit(lock)
      if is_impossible(lock) then
        return {lock = lock, impossible = true}
      elseif lock.limit then
        local free = free_places(lock)
        local before = reserved(lock, me)
        if lock.items + before > free then
          return {lock = lock, held = lock.items > free, is_next = before == 0,
            look = first_free(lock) or now + SLOW_LOOK}
        end
      end
    end
  end
  return nil
end
