-- lib/counting: needs base. Counts the tasks that have not ended, and those that were accepted.

-- While there are ceilings, ends are counted in intervals of so many µs, kept for so many ms: they show how fast
-- places become free. A replaced task is not counted: the newer task takes its place.
local ENDS_BY, ENDS_KEPT = 15000000, 330000
local is_replacing = false

-- Count the tasks that have not ended, in HASH active: PRIORITY:SIZE|NAME → number. Count before a record is
-- created and after it is deleted, so that a script that was cut never counts too few. is_correction: no task
-- has ended.
local function count_active(stream, name, by, is_correction)
  local field = stream .. '|' .. name
  if redis.call('HINCRBY', P .. 'active', field, by) <= 0 then
    redis.call('HDEL', P .. 'active', field)
  end
  if is_capped and not is_correction then
    local key = P .. 'ends:' .. digits(math.floor(now / ENDS_BY))
    -- Counting 0 ends records since when a task could end.
    redis.call('HINCRBY', key, field, by < 0 and not is_replacing and -by or 0)
    redis.call('PEXPIRE', key, ENDS_KEPT)
  end
end

-- Count accepted tasks while metrics are collected, see measure.
local function count_submitted(stream, by)
  if marks[5] then
    redis.call('HINCRBY', P .. 'counters', 'submitted:' .. stream, by)
  end
end
