#!lua flags=no-writes
-- contended: count the tasks that wait for each contended lock, in the order of the next checks of their queues. It
-- reads only.
-- KEYS  prefix
-- ARGV  how many locks to pass over, how many to count
-- returns n × (name of a lock or limiter, number of waiting tasks)
-- @include base
local start, count = tonumber(ARGV[1]), tonumber(ARGV[2])
local answer = {}
for _, name in ipairs(redis.call('ZRANGE', P .. 'watch', start, start + count - 1)) do
  answer[#answer + 1] = name
  answer[#answer + 1] = redis.call('ZCARD', P .. 'queue:' .. name)
end
return answer
