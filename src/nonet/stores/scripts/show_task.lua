#!lua flags=no-writes
-- show_task: read all that is kept of one task at one instant, even after its end.
-- KEYS  prefix
-- ARGV  id, how many bytes of its envelope, how many of its failed attempts, the last ones
-- returns {n × (field, value) of its record, also `envelope`; score in the delayed set, error of a dying task, failed
--       attempts, end}; nil for each that is missing
-- @include base flat
local id, failures = ARGV[1], -tonumber(ARGV[3])
return {flat(id, tonumber(ARGV[2])), redis.call('ZSCORE', P .. 'tasks:delayed', id), redis.call('GET', P .. 'e:' .. id),
  redis.call('LRANGE', P .. 'h:' .. id, failures, -1), redis.call('GET', P .. 'r:' .. id)}
