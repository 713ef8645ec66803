#!lua flags=allow-oom
-- plan: remember since when new periodic entries are planned, and forget those planned no more.
-- KEYS  prefix
-- ARGV  term, now µs, number of new entries, new entries …, gone entries …
-- returns 1, or 0 if another term leads
-- @include base
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= ARGV[1] or tonumber(leader[2]) <= now then
  return 0
end
local last_new = 3 + tonumber(ARGV[3])
for i = 4, last_new do
  redis.call('HSETNX', P .. 'periodic', ARGV[i], ARGV[2] .. '|')
end
for i = last_new + 1, #ARGV do
  redis.call('HDEL', P .. 'periodic', ARGV[i])
  redis.call('HDEL', P .. 'periodic:next', ARGV[i])
end
return 1
