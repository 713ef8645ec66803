-- lib/progress: needs base. Whether tasks have begun, and when the next one is due.

-- Whether an attempt at a task has begun. record has the fields attempt, deaths and suspect.
local function has_begun(record)
  return (tonumber(record.attempt or '') or 0) > 0 or record.deaths or record.suspect
end

-- µs until the promotion has something to do, 0 if it has now, -1 if nothing is planned.
local function next_due()
  local soonest = -1
  for _, key in ipairs({P .. 'tasks:delayed', P .. 'watch', P .. 'deadlines'}) do
    local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    local pause = head[2] and math.max(0, tonumber(head[2]) - now)
    if pause and (soonest < 0 or pause < soonest) then
      soonest = pause
    end
  end
  return soonest
end
