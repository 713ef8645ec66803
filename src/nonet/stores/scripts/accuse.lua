#!lua flags=allow-oom
-- accuse: a worker begins to run suspects. If it dies with one of them alone, that one is to blame: see
-- lib/lost.
-- KEYS  prefix
-- ARGV  worker, ids …
-- returns nothing
-- @include base
local key, ONE_DAY = P .. 'accused:' .. ARGV[1], 86400000
redis.call('SADD', key, unpack(ARGV, 2))
redis.call('PEXPIRE', key, ONE_DAY)
