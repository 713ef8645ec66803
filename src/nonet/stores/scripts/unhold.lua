#!lua flags=allow-oom
-- unhold: release what hold took.
-- KEYS  prefix
-- ARGV  id, fence, lock ttl ms
-- returns OK
-- @include base locks
local lines = redis.call('GET', P .. 'l:' .. ARGV[1]) or ''
release_locks(parse_locks(lines, tonumber(ARGV[3])), ARGV[1] .. '/0/' .. ARGV[2], true)
redis.call('DEL', P .. 'l:' .. ARGV[1])
return 'OK'
