-- lib/now: every script begins with this part: the key prefix and the logical time.
-- KEYS[1] is the prefix "{ns}:" of every key; it also routes the call in a cluster.
local P = KEYS[1]
local clock, marks = redis.call('TIME'), redis.call('MGET', P .. 'clock', P .. 'pausing', P .. 'capped',
  P .. 'fence', P .. 'watched', P .. 'fair')
local stepped = marks[1]
local is_pausing = marks[2]  -- something is paused, see lib/pauses
local is_capped = marks[3]  -- there are ceilings, see lib/ceilings
local reads_only = false  -- whether this script has the flag no-writes, see lib/reading
-- The logical time in µs: the server's clock and an offset that the leader maintains, so that logical time stays
-- steady when an administrator sets that clock.
local offset = tonumber(stepped or '') or 0
local now = clock[1] * 1000000 + clock[2] + offset

-- tostring() writes large numbers as 1.8e+15 and loses digits.
local function digits(number)
  return string.format('%d', number)
end

local function is_alive(worker)
  local ends = worker and redis.call('ZSCORE', P .. 'workers', worker)
  return ends and tonumber(ends) > now
end
