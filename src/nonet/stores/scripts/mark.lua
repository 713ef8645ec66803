#!lua flags=allow-oom
-- mark: write something, so that a WAIT behind it waits. A script that finds its work done writes
-- nothing; Valkey (9.1, unlike Redis) then confirms at once what others wrote a moment before.
-- KEYS  prefix
-- ARGV  none
-- returns OK
redis.call('SET', KEYS[1] .. 'mark', '', 'PX', 60000)
return 'OK'
