#!lua flags=allow-oom
-- mark: make a write, so that a following WAIT covers earlier writes. A repeated script writes nothing. WAIT on
-- Valkey 9.1, unlike Redis, then confirms at once, although replicas may lack what other clients wrote a moment
-- before.
-- KEYS  prefix
-- ARGV  none
-- returns OK
redis.call('SET', KEYS[1] .. 'mark', '', 'PX', 60000)
return 'OK'
