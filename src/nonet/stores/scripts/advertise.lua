#!lua flags=allow-oom
-- advertise: store what a worker reports after its heartbeat: the classes it knows, and its counters. If the worker is
-- idle and handed-on tasks of these classes wait, wake it: its fetch takes them.
-- KEYS  prefix
-- ARGV  worker, worker ttl ms, what it knows (its key is names:…), why it takes nothing or '', number
--       of counters, n × (counter, number), n × (class, version of its distribution or '')
-- returns 1; 0 if Redis does not have its list of classes: call again with all classes
-- @include base wake record fitting handing
local worker, ttl, knows, off = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local counters, MOST = tonumber(ARGV[5]), 1000
local names, first = P .. 'names:' .. knows, 6 + 2 * counters

for i = 6, first - 1, 2 do
  -- Limit the number of counters: releases rename classes, and the counters of the old names stay.
  local name = ARGV[i]
  if redis.call('HLEN', P .. 'counters') >= MOST
    and redis.call('HEXISTS', P .. 'counters', name) == 0 then
    name = string.match(name, '^[^:]*:?') .. 'others'
  end
  redis.call('HINCRBY', P .. 'counters', name, ARGV[i + 1])
end
for i = first, #ARGV, 2 do
  redis.call('HSET', names, ARGV[i], ARGV[i + 1])
end
local is_kept = redis.call('PEXPIRE', names, ttl * 10)
local size = string.match(worker, '^%a+') or ''
if is_kept == 1 and off == '' and handed_for(worker, size)
  and redis.call('ZREM', P .. 'idle:' .. size, worker) == 1 then
  redis.call('LPUSH', P .. 'wake:' .. worker, '1')
end
return is_kept
