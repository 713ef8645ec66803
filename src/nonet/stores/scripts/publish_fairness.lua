#!lua flags=allow-oom
-- publish_fairness: let tenants share streams, or end that. New pointers go to lists only when all live workers read
-- them. Without streams, keys of fair shares stay until all lists are empty.
-- KEYS  prefix
-- ARGV  term, version, who, streams (PRIORITY:SIZE, between blanks), n × (tenant, weight)
-- returns 0 when it is in force; the number of live workers that are too old, or of streams that still have lists: call
--       again later; -1 if another term leads
-- @include base leading events
local term, version, who, streams = unpack(ARGV, 1, 4)
if not leads(term) then
  return -1
end

local function too_old()
  local number = 0
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', P .. 'workers', digits(now), '+inf')) do
    if redis.call('HGET', P .. 'w:' .. worker, 'takes') ~= 'shares' then
      number = number + 1
    end
  end
  return number
end

local function with_lists()
  local number = 0
  for _, priority in ipairs(PRIORITIES) do
    for _, size in ipairs(SIZES) do
      number = number + redis.call('EXISTS', P .. 'shares:' .. priority .. ':' .. size)
    end
  end
  return number
end

local before = redis.call('HGET', P .. 'fairness', 'streams') or ''
local waits = streams ~= '' and too_old() or 0
if waits == 0 then
  redis.call('DEL', P .. 'weights')
  if #ARGV > 4 then
    redis.call('HSET', P .. 'weights', unpack(ARGV, 5))
  end
  redis.call('SET', P .. 'fair', ' ' .. streams .. ' ')
  if before ~= streams then
    log_event('fairness-published', who, streams == '' and 'no stream is shared' or 'shared: ' .. streams)
  end
  waits = streams == '' and with_lists() or 0
  if streams == '' and waits == 0 then
    redis.call('DEL', P .. 'fair', P .. 'fairness', P .. 'pace')
    for _, priority in ipairs(PRIORITIES) do
      for _, size in ipairs(SIZES) do
        redis.call('DEL', P .. 'rested:' .. priority .. ':' .. size)
      end
    end
  else
    redis.call('HSET', P .. 'fairness', 'version', version == '' and 'ending' or version, 'streams', streams)
  end
end
return waits
