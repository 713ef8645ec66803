#!lua flags=allow-oom
-- drain: ask registered workers to finish their tasks and end. Each reads the order (`presence`) within a second, or
-- when this wakes it; the order goes with its registration.
-- KEYS  prefix
-- ARGV  who, n × worker
-- returns n × (1 asked | 0 it was asked before | -1 it is not registered)
-- @include base events naming
local who, answer, names = ARGV[1], {}, {}
for i = 2, #ARGV do
  local worker = ARGV[i]
  local ends = redis.call('ZSCORE', P .. 'workers', worker)
  local key, found = P .. 'w:' .. worker, -1
  if ends and tonumber(ends) > now and redis.call('EXISTS', key) == 1 then
    found = redis.call('HSETNX', key, 'drain', who)
  end
  if found == 1 then
    redis.call('LPUSH', P .. 'wake:' .. worker, '1')
    names[#names + 1] = shown(worker)
  end
  answer[#answer + 1] = found
end
if #names > 0 then
  log_event('workers-drained', who, first_texts(names, ', '))
end
return answer
