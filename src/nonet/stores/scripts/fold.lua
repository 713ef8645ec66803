#!lua flags=allow-oom
-- fold: add a minute that has ended to the history of each name: figures:minutes:NAME and figures:hours:NAME for
-- classes, and such keys for tenants and streams. First note how much there is now. Each minute is added once, also by
-- another leader. While the clock is ahead, or another term leads, do nothing.
-- KEYS  prefix
-- ARGV  term, latest possible time µs or '', key of the minutes without its number, name of what there is no room for,
--       n × (name, vector of how much there is)
-- returns {1 if the term leads else 0, how many more minutes have ended, µs until the next one ends}
-- @include base leading vectors
local term, latest, key, others = ARGV[1], ARGV[2], P .. ARGV[3], ARGV[4]
local MINUTE, KEPT, HOURS, MOST = 60000000, 180, 360, 200  -- RESOLUTIONS in nonet/rules/figures.py
local minute, HOUR_MS = math.floor(now / MINUTE), 3600000
local left = MINUTE - now % MINUTE
if is_clock_ahead(latest) then
  return {1, 0, left}
end
if not leads(term) then
  return {0, 0, left}
end

local function minutes_of(number)
  return key .. '60:' .. digits(number)
end

for i = 5, #ARGV, 2 do
  local sum = {}
  vectors.add(sum, redis.call('HGET', minutes_of(minute), ARGV[i]) or '')
  vectors.add(sum, ARGV[i + 1])
  redis.call('HSET', minutes_of(minute), ARGV[i], vectors.pack(sum))
  redis.call('PEXPIRE', minutes_of(minute), (KEPT + 1) * 60000)
end

-- The first minute that has ended, has figures and was not added. If the clock was set back by more than minutes are
-- kept while no scheduler led, begin anew: minutes that have the old numbers have expired.
local added = tonumber(redis.call('HGET', P .. 'figures:added', ARGV[3]) or '') or 0
added = math.max(added <= minute + KEPT and added or 0, minute - KEPT - 1)
local ended = added
repeat
  ended = ended + 1
until ended >= minute or redis.call('EXISTS', minutes_of(ended)) == 1
-- Written first: if Redis stops the script below, figures are lost, but none are counted twice.
redis.call('HSET', P .. 'figures:added', ARGV[3], digits(math.max(added, math.min(ended, minute - 1))))
redis.call('PEXPIRE', P .. 'figures:added', HOURS * HOUR_MS)
if ended >= minute then
  return {1, 0, left}
end

-- If there is no room for a new name, it takes the place of the one that has been idle for longest, if for a day.
local hour, index = math.floor(ended / 60), key .. 'hours'
local found, busy = redis.call('HGETALL', minutes_of(ended)), {}
for i = 1, #found, 2 do
  busy[#busy + 1], busy[#busy + 2] = hour, found[i]
end
redis.call('ZADD', index, 'XX', unpack(busy))
local room = MOST - redis.call('ZCARD', index)
local function make_room()
  local oldest = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
  if room > 0 then
    room = room - 1
  elseif tonumber(oldest[2]) < hour - 24 then
    redis.call('ZREM', index, oldest[1])
    redis.call('DEL', index .. ':' .. oldest[1], key .. 'minutes:' .. oldest[1])
  else
    return false
  end
  return true
end

-- An item is the last minute that is in it, and a vector.
local function push(list, item, most, ttl)
  if redis.call('RPUSH', list, item) > most then
    redis.call('LTRIM', list, -most, -1)
  end
  redis.call('PEXPIRE', list, ttl)
end

local function add_to_hour(list, packed)
  local sum, last = {}, redis.call('LINDEX', list, -1) or ''
  local head = string.match(last, '^%d+ ') or '0 '
  local is_same = math.floor(head / 60) == hour
  if is_same then
    vectors.add(sum, string.sub(last, #head + 1))
    vectors.add(sum, packed)
    redis.call('LSET', list, -1, digits(ended) .. ' ' .. vectors.pack(sum))
  else
    push(list, digits(ended) .. ' ' .. packed, HOURS, HOURS * HOUR_MS)
  end
end

for i = 1, #found, 2 do
  local name, packed = found[i], found[i + 1]
  if not redis.call('ZSCORE', index, name) then
    name = (name == others or make_room()) and name or others
    redis.call('ZADD', index, hour, name)
  end
  add_to_hour(index .. ':' .. name, packed)
  push(key .. 'minutes:' .. name, digits(ended) .. ' ' .. packed, KEPT, (KEPT + 1) * 60000)
end
redis.call('PEXPIRE', index, HOURS * HOUR_MS)
return {1, minute - 1 - ended, left}
