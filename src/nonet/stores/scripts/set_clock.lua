#!lua flags=allow-oom
-- set_clock: keep logical time steady after the server's clock was set. Times written between that step and now are
-- wrong; correct those that would last too long.
-- KEYS  prefix
-- ARGV  leader's term, µs added to the server's clock until now, the same from now on, logical µs
--       before the step, who leads
-- returns 1; 0 if another scheduler leads, or has made this correction already
-- @include base leading events
local term, old_offset, new_offset, before, who = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local by = tonumber(old_offset) - tonumber(new_offset)
if not leads(term) or digits(offset) ~= old_offset then
  return 0
end

-- After a step forward, times from `wrong` on can only have been written after it.
local wrong, LOOKS = before + by, 10000
local function is_wrong(time)
  return time and tonumber(time) and tonumber(time) >= wrong
end

local function set_back(key, member, score)
  redis.call('ZADD', key, digits(tonumber(score) - by), member)
end

-- Correct the nearest ones, at most LOOKS. The others are so far away that the step hardly matters.
local function each_late(key, change)
  local late = redis.call('ZRANGEBYSCORE', key, digits(wrong), '+inf', 'WITHSCORES', 'LIMIT', 0, LOOKS)
  for i = 1, #late, 2 do
    change(key, late[i], late[i + 1])
  end
end

-- A parked task may be checked early; a delayed one must not run early.
local function set_task_back(key, id, score)
  local record = read_record(id)
  if record.state ~= 'delayed' or is_wrong(record.put or record.ticket) then
    set_back(key, id, score)
  end
  for _, name in ipairs({'since', 'reserved'}) do
    if is_wrong(record[name]) then
      change(id, {[name] = tonumber(record[name]) - by})
    end
  end
end

-- Correct only the deadlines of tasks that were submitted after the step.
local function set_deadline_back(key, id, score)
  local record = read_record(id)
  if record.start_by and is_wrong(ticket_of(record)) then
    set_back(key, id, score)
    change(id, {start_by = (string.gsub(record.start_by, '^%d+', digits(tonumber(score) - by)))})
  end
end

local function set_worker_back(key, worker, score)
  local beat = redis.call('HGET', P .. 'w:' .. worker, 'beat')
  if is_wrong(beat) then
    set_back(key, worker, score)
    redis.call('HSET', P .. 'w:' .. worker, 'beat', digits(tonumber(beat) - by))
  end
end

redis.call('SET', P .. 'clock', new_offset)
if by > 0 then
  each_late(P .. 'tasks:delayed', set_task_back)
  each_late(P .. 'workers', set_worker_back)
  each_late(P .. 'watch', set_back)
  each_late(P .. 'deadlines', set_deadline_back)
end
now, offset = now - by, tonumber(new_offset)
local expiry = tonumber(redis.call('HGET', P .. 'leader', 'expiry'))
redis.call('HSET', P .. 'leader', 'expiry', digits(expiry - by))
redis.call('SET', P .. 'promoted', digits(now))
redis.call('DEL', P .. 'clock:stepped')
redis.call('HSET', P .. 'clock:stepped', 'at', digits(now), 'by', digits(by),
  'wrong', digits(wrong))
log_event('clock', who, string.format('the clock of Redis was set %s by %.1f s',
  by > 0 and 'forward' or 'back', math.abs(by) / 1000000))
return 1
