#!lua flags=allow-oom
-- set_clock: let logical time go on evenly after the server's clock was set. What was written
-- between the step and now, by the wrong time, is put right as far as it would last too long.
-- KEYS  prefix
-- ARGV  leader's term, µs added to the server's clock until now, the same from now on, logical µs
--       before the step, who leads
-- returns 1; 0 if somebody else leads, or has done it already
-- @include base events
local before, by = tonumber(ARGV[4]), tonumber(ARGV[2]) - tonumber(ARGV[3])
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= ARGV[1] or tonumber(leader[2]) <= now or digits(offset) ~= ARGV[2] then
  return 0
end

-- Written since a step forward by the time after it; before the step nobody could.
local wrong, LOOKS = before + by, 10000
local function is_wrong(time)
  return time and tonumber(time) and tonumber(time) >= wrong
end

local function set_back(key, member, score)
  redis.call('ZADD', key, digits(tonumber(score) - by), member)
end

-- The nearest ones; of what is far away anyway one more step is no harm.
local function each_late(key, change)
  local late = redis.pcall('ZRANGEBYSCORE', key, digits(wrong), '+inf', 'WITHSCORES',
    'LIMIT', 0, LOOKS)
  for i = 1, late.err and 0 or #late, 2 do
    pcall(change, key, late[i], late[i + 1])  -- a broken record must not keep the others
  end
end

-- What waits may be looked at early; what is delayed must not run early.
local function set_task_back(key, id, score)
  local record = read_fields(P .. 't:' .. id, {'state', 'ticket', 'put', 'since', 'reserved'})
  if record.state ~= 'delayed' or is_wrong(record.put or record.ticket) then
    set_back(key, id, score)
  end
  for _, name in ipairs({'since', 'reserved'}) do
    if is_wrong(record[name]) then
      redis.call('HSET', P .. 't:' .. id, name, digits(tonumber(record[name]) - by))
    end
  end
end

-- What was submitted before the step may have less time: it is late by the step anyway.
local function set_deadline_back(key, id, score)
  local record = read_fields(P .. 't:' .. id, {'state', 'gen', 'ticket', 'start_by'})
  if record.start_by and is_wrong(ticket_of(record)) then
    set_back(key, id, score)
    redis.call('HSET', P .. 't:' .. id, 'start_by', (string.gsub(record.start_by, '^%d+',
      digits(tonumber(score) - by))))
  end
end

local function set_worker_back(key, worker, score)
  local beat = redis.call('HGET', P .. 'w:' .. worker, 'beat')
  if is_wrong(beat) then
    set_back(key, worker, score)
    redis.call('HSET', P .. 'w:' .. worker, 'beat', digits(tonumber(beat) - by))
  end
end

redis.call('SET', P .. 'clock', ARGV[3])
if by > 0 then
  each_late(P .. 'tasks:delayed', set_task_back)
  each_late(P .. 'workers', set_worker_back)
  each_late(P .. 'watch', set_back)
  each_late(P .. 'deadlines', set_deadline_back)
end
now, offset = now - by, tonumber(ARGV[3])
redis.call('HSET', P .. 'leader', 'expiry', digits(tonumber(leader[2]) - by))
redis.call('SET', P .. 'promoted', digits(now))
redis.call('DEL', P .. 'clock:stepped')
redis.call('HSET', P .. 'clock:stepped', 'at', digits(now), 'by', digits(by),
  'wrong', digits(wrong))
log_event('clock', ARGV[5], string.format('the clock of Redis was set %s by %.1f s',
  by > 0 and 'forward' or 'back', math.abs(by) / 1000000))
return 1
