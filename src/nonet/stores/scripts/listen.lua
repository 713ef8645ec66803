#!lua flags=allow-oom
-- listen: let a process receive the hints of tables, see hint, for some time from now.
-- KEYS  prefix
-- ARGV  client, ms, tables …
-- returns OK
-- @include base
local client, lasts, FIRST = ARGV[1], tonumber(ARGV[2]), 3
for i = FIRST, #ARGV do
  local key = P .. 'hints:' .. ARGV[i]
  redis.call('ZADD', key, digits(now + lasts * 1000), client)
  redis.call('PEXPIRE', key, lasts * 2)
end
return 'OK'
