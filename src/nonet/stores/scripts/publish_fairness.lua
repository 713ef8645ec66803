#!lua flags=allow-oom
-- publish_fairness: let tenants share streams, or end that. Without streams, keys of fair shares stay until all lists and
-- lines are empty.
-- KEYS  prefix
-- ARGV  term, version, who, streams (PRIORITY:SIZE, between blanks), what is published in words, n × (tenant, weight)
-- returns 0 when it is in force; the number of streams and limiters that still have them: call again later; -1 if
--       another term leads
-- @include base leading events
local term, version, who, streams, text = unpack(ARGV, 1, 5)
if not leads(term) then
  return -1
end

local function with_lists()
  local number = 0
  for _, priority in ipairs(PRIORITIES) do
    for _, size in ipairs(SIZES) do
      number = number + redis.call('EXISTS', P .. 'shares:' .. priority .. ':' .. size)
    end
  end
  for _, lock in ipairs(redis.call('ZRANGE', P .. 'watch', 0, -1)) do  -- it has every lock that is waited for
    number = number + redis.call('EXISTS', P .. 'shares:' .. lock)
  end
  return number
end

local before = redis.call('HGET', P .. 'fairness', 'version') or ''
redis.call('DEL', P .. 'weights')
if #ARGV > 5 then
  redis.call('HSET', P .. 'weights', unpack(ARGV, 6))
end
redis.call('SET', P .. 'fair', ' ' .. streams .. ' ')
if before ~= version then
  log_event('fairness-published', who, text)
end
local left = streams == '' and with_lists() or 0
if streams == '' and left == 0 then
  redis.call('DEL', P .. 'fair', P .. 'fairness', P .. 'pace')
  for _, priority in ipairs(PRIORITIES) do
    for _, size in ipairs(SIZES) do
      redis.call('DEL', P .. 'rested:' .. priority .. ':' .. size)
    end
  end
else
  redis.call('HSET', P .. 'fairness', 'version', version == '' and 'ending' or version, 'streams', streams)
end
return left
