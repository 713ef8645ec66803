-- lib/refusal: needs base, limits, locks, pauses, queues. What keeps a task from its locks now.

local refusal_of
do
  -- Whether a task of a lower rank stands in a queue, and whether any other task does.
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
    if first[4] and tonumber(first[4]) < 0 then  -- fault: first-only
      -- Woken tasks sort first, so one of a lower rank may wait behind them.
      local below = redis.call('ZRANGEBYSCORE', queue, 0, '(' .. digits(me.rank), 'LIMIT', 0, 1)
      return below[1] ~= nil, contended
    end
    return false, contended
  end

  -- How much of a limiter the tasks ahead need: tasks of a lower rank, or whose turns come first. Counts every item of
  -- the first MOST_SUMMED, and one item of each other: a miscount there may cost these tasks their turn, but never
  -- exceeds the limit.
  local MOST_SUMMED = 64
  local function reserved(lock, me)
    local queue, sum = P .. 'queue:' .. lock.counter, 0
    lock.contended = redis.call('EXISTS', queue) == 1
    if not lock.contended then
      return 0
    elseif lines and lines.takes_turns(lock, me) then
      return select(2, lines.before(lock, me))
    end
    for _, range in ipairs(ranges_before(me)) do
      local count = redis.call('ZCOUNT', queue, range[1], range[2])
      sum = sum + count
      if lock.windowed and count > 0 then
        local first = redis.call('ZRANGEBYSCORE', queue, range[1], range[2], 'LIMIT', 0, MOST_SUMMED)
        sum = sum + items_of(first) - #first
      end
    end
    return sum
  end

  local function refusal_by_structural(me, lock)
    local expiry, queue = held_until(lock), queue_before(lock)
    if expiry then
      local is_next = me.aged and not is_overtaking(queue, me)
      return {lock = lock, held = true, is_next = is_next, look = expiry}  -- fault: refusal-watched-late
    end
    local overtaking, contended = is_overtaking(queue, me)
    lock.contended = contended
    return overtaking and {lock = lock, look = now + SLOW_LOOK} or nil
  end

  local function refusal_by_limiter(me, lock)
    resolve_limit(lock)
    if is_impossible(lock) then
      return {lock = lock, impossible = true}
    elseif not lock.limit then
      return nil
    end
    local free = free_places(lock)
    local is_held = lock.items > free
    local before = is_held and not me.aged and 0 or reserved(lock, me)  -- only an aged task asks whether it is next
    if lock.items + before > free then  -- fault: limiter-queue-passed
      return {lock = lock, held = is_held, is_next = me.aged and before == 0,
        look = first_free(lock) or now + SLOW_LOOK}
    end
    return nil
  end

  -- What refuses a task now, or nil. Fields of a refusal: the lock; held, if its holders refuse the task, and
  -- not the tasks that wait before it; is_next, if an aged task gets it next; look, when to check again (µs);
  -- impossible, if it can never be granted.
  function refusal_of(me)
    local last = me.locks[#me.locks]
    if last and last.pause and me.pause then
      return {lock = last, held = true, look = now + SLOW_LOOK}
    end
    for _, lock in ipairs(me.locks) do
      local refusal = not lock.limiter and refusal_by_structural(me, lock)
      if refusal then
        return refusal
      end
    end
    for _, lock in ipairs(me.locks) do
      local refusal = lock.limiter and refusal_by_limiter(me, lock)
      if refusal then
        return refusal
      end
    end
    return nil
  end
end
