#!lua flags=no-writes
-- show_task: read all that is kept of one task at one instant, even after its end.
-- KEYS  prefix
-- ARGV  id, 1: also its locks, its message and all failed attempts that are kept, else only the last of these
-- returns {record: n × (field, value), score in the delayed set, error of a dying task, failed attempts, end, locks, message};
--       nil for each that is missing
-- @include base
local id, is_whole = ARGV[1], ARGV[2] == '1'
return {redis.call('HGETALL', P .. 't:' .. id), redis.call('ZSCORE', P .. 'tasks:delayed', id),
  redis.call('GET', P .. 'e:' .. id), redis.call('LRANGE', P .. 'h:' .. id, is_whole and 0 or -1, -1),
  redis.call('GET', P .. 'r:' .. id), is_whole and redis.call('GET', P .. 'l:' .. id),
  is_whole and redis.call('GET', P .. 'b:' .. id)}
