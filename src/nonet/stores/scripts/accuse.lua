#!lua flags=allow-oom
-- accuse: record which suspects a worker is about to run. If the worker dies while it runs a single suspect, that
-- task is blamed for the crash: see lib/lost.
-- KEYS  prefix
-- ARGV  worker, ids …
-- returns nothing
-- @include base
local worker, FIRST, ONE_DAY = ARGV[1], 2, 86400000
local key = P .. 'accused:' .. worker
redis.call('SADD', key, unpack(ARGV, FIRST))
redis.call('PEXPIRE', key, ONE_DAY)
